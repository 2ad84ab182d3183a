//! Safetensors files of any bytes: no panic, and what is accepted covers the file exactly.
#![no_main]

use formats::HyperParameters;
use formats::safetensors::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::parse(bytes, bytes.len() as u64) {
        let data: u64 = header.tensors.iter().map(formats::safetensors::TensorInfo::size).sum();
        assert_eq!(header.data_start + data, bytes.len() as u64);
    }
    let _ = HyperParameters::from_config(bytes);
});
