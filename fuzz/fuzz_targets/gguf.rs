//! Fuzzes the reader of GGUF headers with arbitrary bytes: no panic, and every accepted header can
//! be read completely. Projectors are read with models that they may belong to.
#![no_main]

use architectures::{Blueprint, Document, TensorNames, describe};
use formats::Gguf;
use formats::gguf::{OwnedValue, write_header};
use vocabulary::Vocabulary;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = Gguf::parse(bytes);
    let Ok(gguf) = Gguf::parse_header(bytes) else {
        assert!(whole.is_err(), "a whole file has a header");
        return;
    };
    for (_, value) in &gguf.metadata {
        if let formats::gguf::Value::Array(array) = value {
            assert_eq!(array.iter().count() as u64, array.len());
        }
    }
    if let Ok(whole) = whole {
        for tensor in &whole.tensors {
            assert!(whole.data_start + tensor.offset + tensor.size <= bytes.len() as u64);
        }
    }
    let _ = describe(Document::Gguf(&gguf), &TensorNames::default());
    let _ = Vocabulary::read(&gguf);
    if gguf.text("general.architecture") == Some("clip") {
        read_projector(&gguf);
    }
});

/// A small model whose decoder the projectors belong to.
const CONFIG: &[u8] = br#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,
    "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256}"#;

/// Reads a projector for models of several architectures. Each tower survives a round trip through
/// JSON.
fn read_projector(projector: &Gguf<'_>) {
    let names: TensorNames = projector.tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
    let decoder = describe(Document::Config(CONFIG), &TensorNames::default()).expect("a config");
    for architecture in ["gemma3", "gemma4", "mistral3", "qwen2vl", "qwen3vl"] {
        let keys = [("general.architecture".to_owned(), OwnedValue::from(architecture))];
        let header = write_header(&keys, &[]).expect("a header");
        let model = Gguf::parse_header(&header.bytes).expect("it is read");
        let blueprint = decoder.clone().with_projector(&model, Some(projector), &names).blueprint;
        let text = serde_json::to_string(&blueprint).expect("it is written");
        assert_eq!(serde_json::from_str::<Blueprint>(&text).expect("what was checked passes the check"), blueprint);
    }
}
