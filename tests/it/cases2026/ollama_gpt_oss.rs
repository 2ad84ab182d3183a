//! gpt-oss in the layout of Ollama's first files, made from a file of llama.cpp's converter. Tensor
//! names differ; queries, keys and values are one tensor; gate and up rows alternate; and MXFP4
//! packs adjacent elements into a byte. The logits are the same.

use formats::gguf::{NewTensor, OLLAMA_MXFP4, OwnedValue, write_header};
use formats::{GgmlType, Gguf};

use super::exact_server;
use crate::support::{fixtures, json as read_json, numbers, read};

/// Parts of tensor names in layers that differ: llama.cpp's and Ollama's.
const NAMES: [(&str, &str); 3] =
    [("post_attention_norm.", "ffn_norm."), ("attn_output.", "attn_out."), ("attn_sinks.weight", "attn_sinks")];

#[tokio::test]
async fn fused_tensors_and_its_own_blocks_give_the_same_logits() {
    let test = "cases2026::ollama_gpt_oss::fused_tensors_and_its_own_blocks_give_the_same_logits";
    let (Some(models), Some(cases)) = (fixtures(test, "gguf/models"), fixtures(test, "cases2026")) else { return };
    let original = models.join("gpt_oss-mxfp4/model.gguf");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, of_ollama(&read(&original))).expect("written");
    let server = exact_server().await;
    server.create("original", &original).await;
    let lines = server.create("ollama", &file).await;
    let noted = lines.iter().any(|line| line["status"].as_str().is_some_and(|text| text.contains("Ollama's order")));
    assert!(noted, "the create tells that blocks are stored in another order: {lines:?}");
    let golden = read_json(&cases.join("ollama-gptoss/golden.json"));
    for (name, sequence) in golden["sequences"].as_object().expect("sequences") {
        let tokens = numbers(&sequence["input_ids"]);
        let found = server.runner("ollama").await.logits(&tokens, false).await.concat();
        let expected = server.runner("original").await.logits(&tokens, false).await.concat();
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && worst < 1e-5, "{name}: off by {worst}");
    }
}

/// A tensor with its bytes.
#[derive(Clone)]
struct Data {
    tensor: NewTensor,
    bytes: Vec<u8>,
}

impl Data {
    fn row_bytes(&self) -> usize {
        usize::try_from(self.tensor.kind.row_bytes(self.tensor.dims[0]).expect("whole blocks")).expect("small")
    }

    /// Concatenates the rows of several tensors.
    fn stacked(name: String, parts: &[Self]) -> Self {
        let mut dims = parts[0].tensor.dims.clone();
        *dims.last_mut().expect("a dimension") =
            parts.iter().map(|part| part.tensor.dims.last().expect("a dimension")).sum();
        let bytes = parts.iter().flat_map(|part| part.bytes.iter().copied()).collect();
        Self { tensor: NewTensor { name, kind: parts[0].tensor.kind, dims }, bytes }
    }

    /// Interleaves the rows of two tensors, or the elements of two bias lists.
    fn in_turns(name: String, [first, second]: [&Self; 2]) -> Self {
        // A stack of biases has two dimensions; a stack of weights has three.
        let is_bias = first.tensor.dims.len() == 2;
        let line = if is_bias { 4 } else { first.row_bytes() };
        let mut dims = first.tensor.dims.clone();
        dims[usize::from(!is_bias)] *= 2;
        let lines = first.bytes.chunks_exact(line).zip(second.bytes.chunks_exact(line));
        let bytes = lines.flat_map(|(a, b)| [a, b].concat()).collect();
        Self { tensor: NewTensor { name, kind: first.tensor.kind, dims }, bytes }
    }
}

fn of_ollama(original: &[u8]) -> Vec<u8> {
    let gguf = Gguf::parse(original).expect("it is read");
    let of = |name: String| {
        let tensor = gguf.tensors.iter().find(|tensor| tensor.name == name)?;
        let begin = usize::try_from(gguf.data_start + tensor.offset).expect("small");
        let bytes = original[begin..begin + usize::try_from(tensor.size).expect("small")].to_vec();
        Some(Data { tensor: NewTensor { name, kind: tensor.kind, dims: tensor.dims.clone() }, bytes })
    };
    let mut all = Vec::new();
    for tensor in &gguf.tensors {
        let name = tensor.name;
        let own = of(name.to_owned()).expect("it is there");
        let beside = |from: &str, to: &str| of(name.replace(from, to)).expect("all parts are there");
        if name.contains("attn_q.") {
            let parts = [own, beside("attn_q.", "attn_k."), beside("attn_q.", "attn_v.")];
            all.push(Data::stacked(name.replace("attn_q.", "attn_qkv."), &parts));
        } else if name.contains("ffn_gate_exps.") {
            let up = beside("ffn_gate_exps.", "ffn_up_exps.");
            all.push(Data::in_turns(name.replace("ffn_gate_exps.", "ffn_gate_up_exps."), [&own, &up]));
        } else if !["attn_k.", "attn_v.", "ffn_up_exps."].iter().any(|part| name.contains(part)) {
            let renamed = NAMES.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
            all.push(Data { tensor: NewTensor { name: renamed, ..own.tensor }, ..own });
        }
    }
    written(&keys(&gguf), &mut all)
}

/// Returns the metadata with Ollama's name of the architecture, and without the type of RoPE
/// scaling.
fn keys(gguf: &Gguf<'_>) -> Vec<(String, OwnedValue)> {
    let mut keys = Vec::new();
    for (key, value) in &gguf.metadata {
        match *key {
            "general.architecture" => keys.push(((*key).to_owned(), "gptoss".into())),
            "gpt-oss.rope.scaling.type" => {}
            _ => keys.push((key.replace("gpt-oss.", "gptoss."), OwnedValue::from(value))),
        }
    }
    keys
}

/// Writes a file with these tensors, with MXFP4 in Ollama's layout.
fn written(keys: &[(String, OwnedValue)], all: &mut [Data]) -> Vec<u8> {
    let tensors: Vec<NewTensor> = all.iter().map(|data| data.tensor.clone()).collect();
    let header = write_header(keys, &tensors).expect("a header");
    let mut bytes = header.bytes.clone();
    for (data, place) in all.iter_mut().zip(&header.places) {
        bytes.resize(header.bytes.len() + usize::try_from(place.offset).expect("small"), 0);
        if data.tensor.kind == GgmlType::MXFP4 {
            data.bytes.as_chunks_mut::<17>().0.iter_mut().for_each(pair);
        }
        bytes.extend_from_slice(&data.bytes);
    }
    bytes.resize(header.bytes.len() + usize::try_from(header.data_size).expect("small"), 0);
    let mut found = 0;
    for data in all.iter().filter(|data| data.tensor.kind == GgmlType::MXFP4) {
        let NewTensor { name, dims, .. } = &data.tensor;
        let dimensions: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let count = u32::try_from(dims.len()).expect("few").to_le_bytes();
        let entry = [name.as_bytes(), &count, &dimensions].concat();
        let at = bytes.windows(entry.len()).position(|window| window == entry).expect("its entry") + entry.len();
        bytes[at..at + 4].copy_from_slice(&OLLAMA_MXFP4.to_le_bytes());
        found += 1;
    }
    assert!(found > 0, "there are tensors in MXFP4");
    bytes
}

/// Puts elements `2i` and `2i + 1` of a block into byte `i`; ggml puts `i` and `i + 16` there.
fn pair(block: &mut [u8; 17]) {
    let codes: Vec<u8> =
        block[1..].iter().map(|byte| byte & 15).chain(block[1..].iter().map(|byte| byte >> 4)).collect();
    for (byte, codes) in block[1..].iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = codes[0] | codes[1] << 4;
    }
}
