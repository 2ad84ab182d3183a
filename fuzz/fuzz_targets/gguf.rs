//! Fuzzes the reader of GGUF headers with arbitrary bytes: no panic, and every accepted header can
//! be read completely.
#![no_main]

use architectures::{Document, TensorNames, describe};
use formats::Gguf;
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
});
