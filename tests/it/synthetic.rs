//! Synthetic models: fine-tunes of the tiny model, and larger ones with random weights.

use std::path::Path;

use formats::safetensors::Header;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{entries, json as read_json, name, read, tiny_model};

/// Returns the tiny model with changed bits in the named tensors.
pub(crate) fn fine_tune(tensors: &[&str]) -> TempDir {
    let folder = without_weights();
    let mut bytes = read(&tiny_model().join("model.safetensors"));
    let header = Header::parse(&bytes, bytes.len() as u64).expect("the tiny model's header");
    for tensor in tensors {
        let place = header.tensor(tensor).unwrap_or_else(|| panic!("the tiny model has no tensor {tensor}"));
        let at = usize::try_from(header.data_start + place.begin).expect("small");
        let size = usize::try_from(place.size()).expect("small");
        // Changes only the lowest bits of BF16 elements, so that the model stays usable.
        bytes[at..at + size].iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
    }
    write(&folder.path().join("model.safetensors"), &bytes);
    folder
}

/// Returns a model of the llama family with the tiny model's tokenizer. A layer has about
/// `22 · hidden²` bytes.
pub(crate) fn llama(layers: usize, hidden: usize) -> TempDir {
    let folder = without_weights();
    let path = folder.path().join("config.json");
    let mut config = read_json(&path);
    config["num_hidden_layers"] = json!(layers);
    config["hidden_size"] = json!(hidden);
    config["intermediate_size"] = json!(2 * hidden);
    let heads = config["num_attention_heads"].as_u64().and_then(|heads| usize::try_from(heads).ok()).expect("heads");
    let groups = config["num_key_value_heads"].as_u64().and_then(|heads| usize::try_from(heads).ok()).expect("heads");
    if config.get("head_dim").is_some() {
        config["head_dim"] = json!(hidden / heads);
    }
    write(&path, config.to_string().as_bytes());
    let vocabulary = config["vocab_size"].as_u64().and_then(|size| usize::try_from(size).ok()).expect("a size");
    let shapes = shapes(layers, hidden, hidden / heads * groups, vocabulary);
    write(&folder.path().join("model.safetensors"), &weights(&shapes));
    folder
}

fn without_weights() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in entries(&tiny_model()) {
        if !name(&path).ends_with("safetensors") {
            write(&folder.path().join(name(&path)), &read(&path));
        }
    }
    folder
}

fn shapes(layers: usize, hidden: usize, shared: usize, vocabulary: usize) -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden])];
    for layer in 0..layers {
        let mut tensor =
            |part: &str, shape: &[usize]| shapes.push((format!("model.layers.{layer}.{part}.weight"), shape.to_vec()));
        tensor("input_layernorm", &[hidden]);
        tensor("post_attention_layernorm", &[hidden]);
        tensor("self_attn.q_proj", &[hidden, hidden]);
        tensor("self_attn.k_proj", &[shared, hidden]);
        tensor("self_attn.v_proj", &[shared, hidden]);
        tensor("self_attn.o_proj", &[hidden, hidden]);
        tensor("mlp.gate_proj", &[2 * hidden, hidden]);
        tensor("mlp.up_proj", &[2 * hidden, hidden]);
        tensor("mlp.down_proj", &[hidden, 2 * hidden]);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![hidden]));
    shapes
}

/// Returns a safetensors file of these tensors in BF16; the bytes are the same in each run.
fn weights(shapes: &[(String, Vec<usize>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in shapes {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    bytes.extend((0..end / 2).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Elements between 1/64 and 1/16 with either sign.
        let random = u16::try_from(state >> 48).expect("16 bits");
        (0x3c80 | (random & 0x80ff)).to_le_bytes()
    }));
    bytes
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("cannot write `{}`: {e}", path.display()));
}
