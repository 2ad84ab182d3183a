//! Fuzzes the readers of safetensors files, configs and blueprints with arbitrary bytes: no panic,
//! and the tensors of an accepted file cover it exactly.
#![no_main]

use architectures::{Blueprint, Document, TensorNames, describe};
use content::Digest;
use formats::safetensors::Header;
use import::QuantizationConfig;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let quantization = QuantizationConfig::from_config(bytes);
    let _ = (quantization.mlx("a"), quantization.block_size());
    if let Ok(header) = Header::parse(bytes, bytes.len() as u64) {
        let data: u64 = header.tensors.iter().map(formats::safetensors::TensorInfo::size).sum();
        assert_eq!(header.data_start + data, bytes.len() as u64);
        let _ = import::join(&[(Digest::of(bytes), header)], &quantization);
    }
    if let Ok(architecture) = describe(Document::Config(bytes), &TensorNames::default()) {
        let text = serde_json::to_string(&architecture.blueprint).expect("it is written");
        assert_eq!(serde_json::from_str::<Blueprint>(&text).expect("it is read"), architecture.blueprint);
    }
    let _ = serde_json::from_slice::<Blueprint>(bytes);
});
