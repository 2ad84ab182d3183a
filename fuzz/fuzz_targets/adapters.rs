//! Fuzzes the reader of low-rank adapters. Accepted adapters have factors inside the file and
//! finite scales. Without factors of experts, they also fit a model of their own shapes, and none
//! that lacks a projection.
//!
//! An input is a GGUF file; or an `adapter_config.json`, a line `====` and a safetensors header,
//! with zeros as data; or else a safetensors file.
#![no_main]

use architectures::AdaptedName;
use import::{AdaptedModule, Adapter, FactorOwner, NamedFile, ProjectionIndex, adapters};
use lode_fuzz::{VirtualFile, assert_told};
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let parts = lode_fuzz::parts(bytes);
    let files = match parts[..] {
        _ if bytes.starts_with(b"GGUF") => vec![VirtualFile::of(bytes).named("adapter.gguf")],
        [config, header, ..] => vec![
            VirtualFile::of(config).named("a/adapter_config.json"),
            safetensors(header).named("a/adapter_model.safetensors"),
        ],
        _ => vec![VirtualFile::of(bytes).named("adapter.safetensors")],
    };
    match adapters(&files) {
        Ok(found) => {
            assert_eq!(found.len(), 1);
            check(&found[0], &files);
        }
        Err(error) => assert_told(&error),
    }
});

/// Returns a safetensors file with this header, as long as the header's offsets require.
fn safetensors(header: &[u8]) -> VirtualFile {
    let said: Value = serde_json::from_slice(header).unwrap_or_default();
    let end = |tensor: &Value| tensor.get("data_offsets")?.get(1)?.as_u64();
    let data = said.as_object().into_iter().flatten().filter_map(|(_, tensor)| end(tensor)).max().unwrap_or(0);
    let mut beginning = (header.len() as u64).to_le_bytes().to_vec();
    beginning.extend(header);
    let size = (beginning.len() as u64).saturating_add(data);
    VirtualFile { beginning, size }
}

fn check(adapter: &Adapter, files: &[NamedFile]) {
    let file = files.iter().find(|file| file.name == adapter.name).expect("it is named after its file");
    assert!(!adapter.modules.is_empty() && adapter.modules.is_sorted_by(|one, next| one.name < next.name));
    let mut matrices = Vec::new();
    let mut is_too_high = false;
    for module in &adapter.modules {
        assert!(module.scale.is_finite(), "{}", module.name);
        for part in module.down.parts.iter().chain(&module.up.parts) {
            let end = part.offset.checked_add(part.size).expect("inside of the file");
            assert!(end <= file.source.size(), "{}", part.name);
        }
        // Factors of experts only fit a model with experts.
        if module.owner != FactorOwner::Projection || AdaptedName::parse(&module.name).expert.is_some() {
            return;
        }
        let (input, rank, output) = sizes(module);
        assert!(input > 0 && rank > 0 && output > 0, "{}", module.name);
        is_too_high |= rank > input.max(output);
        matrices.push((AdaptedName::parse(&module.name).module, [output, input]));
    }
    matrices.sort();
    // Two modules may map to the same projection; their shapes may contradict each other.
    if !matrices.is_sorted_by(|one, next| one.0 < next.0) {
        return;
    }
    let architecture = adapter.architecture.as_deref();
    let fits = |matrices: &[(String, [u64; 2])]| {
        let mut places = ProjectionIndex::default();
        matrices.iter().for_each(|(module, shape)| places.add_matrix(module, *shape));
        adapter.fit(&places, architecture).is_ok()
    };
    assert_eq!(fits(&matrices), !is_too_high, "it fits the model that it was made for");
    matrices.pop();
    assert!(!fits(&matrices), "a projection is missing");
}

/// Returns the input width, the rank and the output width of a module.
fn sizes(module: &AdaptedModule) -> (u64, u64, u64) {
    let &[one, two] = &module.down.shape[..] else { panic!("a matrix") };
    let &[three, four] = &module.up.shape[..] else { panic!("a matrix") };
    let (input, rank, ranks, output) =
        if module.transposed { (one, two, three, four) } else { (two, one, four, three) };
    assert_eq!(rank, ranks, "{}", module.name);
    (input, rank, output)
}
