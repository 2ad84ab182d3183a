//! Folders whose weights were quantized by other programs. Codes and scales are stored as affine
//! groups, and the logits equal those of the reference.

use std::collections::BTreeMap;
use std::path::Path;

use formats::Dtype;
use formats::safetensors::{Header, Member, canonical_header};
use serde_json::{Value, json};

use super::{continuations, exact_server};
use crate::server::Server;
use crate::support::{fixtures, json as read_json, numbers, read};

#[tokio::test]
async fn quantized_weights_run_as_their_reference() {
    let Some(cases) = fixtures("cases2026::repacked::quantized_weights_run_as_their_reference", "cases2026") else {
        return;
    };
    let server = exact_server().await;
    for case in ["bnb_int8", "int4_ct"] {
        let folder = cases.join(case);
        server.create(case, &folder.join("model")).await;
        continuations(&server.runner(case).await, case, &read_json(&folder.join("golden.json"))).await;
    }
}

/// The references of these two cases come from the unquantized weights. The comparison is therefore
/// with the dequantized weights in F32.
#[tokio::test]
async fn weights_in_words_run_as_the_same_weights_written_out() {
    let test = "cases2026::repacked::weights_in_words_run_as_the_same_weights_written_out";
    let Some(cases) = fixtures(test, "cases2026") else { return };
    let server = exact_server().await;
    for case in ["gptq", "awq"] {
        let model = cases.join(case).join("model");
        let lines = server.create(case, &model).await;
        let noted =
            lines.iter().any(|line| line["status"].as_str().is_some_and(|text| text.contains("int4 in groups of 32")));
        assert!(noted, "the create tells that the weights are stored in another form: {lines:?}");
        let written_out = written_out(&model);
        server.create("written-out", written_out.path()).await;
        let golden = read_json(&cases.join(case).join("golden.json"));
        for (name, sequence) in golden["sequences"].as_object().expect("sequences") {
            let tokens = numbers(&sequence["input_ids"]);
            let found = server.runner(case).await.logits(&tokens, false).await.concat();
            let expected = server.runner("written-out").await.logits(&tokens, false).await.concat();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(found.len() == expected.len() && worst < 2e-3, "{case} {name}: off by {worst}");
        }
    }
}

/// Copies the folder with its weights dequantized to F32, as `AutoGPTQ` and `AutoAWQ` compute them.
fn written_out(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).expect("a copy");
    }
    let mut config = read_json(&model.join("config.json"));
    let is_awq = config["quantization_config"]["quant_method"] == "awq";
    config.as_object_mut().expect("an object").remove("quantization_config");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let bytes = read(&model.join("model.safetensors"));
    let header = Header::parse(&bytes, bytes.len() as u64).expect("a header");
    let data = |name: &str| {
        let tensor = header.tensor(name).unwrap_or_else(|| panic!("{name}"));
        let at = |offset: u64| usize::try_from(header.data_start + offset).expect("small");
        &bytes[at(tensor.begin)..at(tensor.end)]
    };
    let word = |name: &str, at: u64| {
        let at = usize::try_from(at).expect("small") * 4;
        u32::from_le_bytes(data(name)[at..at + 4].try_into().expect("four bytes"))
    };
    let mut members = Vec::new();
    let mut written = Vec::new();
    for tensor in &header.tensors {
        let Some(base) = tensor.name.strip_suffix(".qweight") else {
            if ![".qzeros", ".scales", ".g_idx"].iter().any(|ending| tensor.name.ends_with(ending)) {
                let (name, dtype, shape, size) =
                    (tensor.name.clone(), tensor.dtype, tensor.shape.clone(), tensor.size());
                members.push(Member { name, dtype, shape, size });
                written.extend_from_slice(data(&tensor.name));
            }
            continue;
        };
        let [zeros, scales] = ["qzeros", "scales"].map(|array| format!("{base}.{array}"));
        let [groups, outputs] = header.tensor(&scales).expect("scales").shape[..] else { panic!("{scales}") };
        let inputs = if is_awq { tensor.shape[0] } else { tensor.shape[0] * 8 };
        let place = |output: u64| if is_awq { [0, 4, 1, 5, 2, 6, 3, 7][output as usize % 8] } else { output % 8 };
        for (output, input) in (0..outputs).flat_map(|output| (0..inputs).map(move |input| (output, input))) {
            let group = input / (inputs / groups);
            let code = if is_awq {
                word(&tensor.name, input * (outputs / 8) + output / 8) >> (4 * place(output))
            } else {
                word(&tensor.name, input / 8 * outputs + output) >> (4 * (input % 8))
            };
            let zero = word(&zeros, group * (outputs / 8) + output / 8) >> (4 * place(output));
            let zero = if is_awq { zero & 15 } else { (zero & 15) + 1 };
            let at = usize::try_from(group * outputs + output).expect("small") * 2;
            let scale = half(data(&scales)[at..at + 2].try_into().expect("two bytes"));
            written.extend((scale * (f64::from(code & 15) - f64::from(zero)) as f32).to_le_bytes());
        }
        let name = format!("{base}.weight");
        members.push(Member { name, dtype: Dtype::F32, shape: vec![outputs, inputs], size: outputs * inputs * 4 });
    }
    let file = [canonical_header(&members, &BTreeMap::new()), written].concat();
    std::fs::write(folder.path().join("model.safetensors"), file).expect("written");
    folder
}

/// Converts a normal, finite F16 to F32.
fn half(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    assert!((1..31).contains(&(bits >> 10 & 31)), "{bits:x}");
    f32::from_bits((bits & 0x8000) << 16 | ((bits >> 10 & 31) + 127 - 15) << 23 | (bits & 0x3ff) << 13)
}

/// Create refuses weights that groups with scales and biases cannot express. Weights of an
/// unsupported method are stored, and create, show and requests tell the reason.
#[tokio::test]
async fn what_cannot_be_computed_with_is_named() {
    let test = "cases2026::repacked::what_cannot_be_computed_with_is_named";
    let Some(cases) = fixtures(test, "cases2026") else { return };
    let server = Server::start(&[]).await;
    let sorted =
        changed_copy(&cases.join("gptq/model"), &|config| config["quantization_config"]["desc_act"] = json!(true), &[]);
    let hqq = changed_copy(&cases.join("bnb_int8/model"), &|_| {}, &[("mlp.down_proj.SCB", "mlp.down_proj.W_q")]);
    let error = refused(&server, "sorted", sorted.path()).await;
    assert!(error.contains("act-order"), "{error}");
    let said = server.create("hqq", hqq.path()).await;
    let note = "note: the model is stored but cannot be run: its weights are quantized by HQQ";
    let has_note = said.iter().any(|line| line["status"].as_str().is_some_and(|status| status.starts_with(note)));
    assert!(has_note, "{said:?}");
    let shown = server.ask("/api/show", &json!({"model": "hqq"})).await;
    assert!(shown["cannot_run"].as_str().is_some_and(|reason| reason.contains("HQQ")), "{shown}");
    let (status, answer) = server.call("/api/generate", &json!({"model": "hqq", "prompt": "w5"})).await;
    assert!(status == 400 && answer.to_string().contains("HQQ"), "{status} {answer}");
}

/// Copies a folder with a changed config, and with some names in the weights' header replaced by
/// names of the same length.
fn changed_copy(model: &Path, change: &dyn Fn(&mut Value), names: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).expect("a copy");
    }
    let mut config = read_json(&model.join("config.json"));
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let mut bytes = read(&model.join("model.safetensors"));
    for (from, to) in names {
        assert_eq!(from.len(), to.len(), "the header keeps its length");
        while let Some(at) = bytes.windows(from.len()).position(|window| window == from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).expect("written");
    folder
}

/// Returns the error of a refused create.
async fn refused(server: &Server, name: &str, path: &Path) -> String {
    let (_, answer) = server.call("/api/create", &json!({"model": name, "path": path, "stream": false})).await;
    answer["error"].as_str().unwrap_or_else(|| panic!("{name} is not refused: {answer}")).to_owned()
}
