//! Tests of invariants of all estimates, and of the boundaries that single precision decides. The
//! integration tests compare the recorded results of the whole estimator.

use std::collections::BTreeMap;

use super::*;

const MIB: u64 = 1 << 20;

fn device(free_memory: u64) -> Device {
    Device { id: "0".to_owned(), library: "CUDA".to_owned(), integrated: false, free_memory }
}

fn assigned(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.layers.len()).sum()
}

fn model(architecture: &str, numbers: &[(&str, u32)]) -> Model {
    let metadata: BTreeMap<String, MetadataValue> =
        numbers.iter().map(|(key, number)| (format!("{architecture}.{key}"), MetadataValue::U32(*number))).collect();
    Model { architecture: architecture.to_owned(), metadata, vocabulary: 32_000, tensors: Vec::new() }
}

fn request(context: u64) -> Request {
    Request { context, batch: 512, parallel: 1, kv_type: "f16".to_owned(), flash_attention: false }
}

#[test]
fn single_precision_decides_at_the_boundary() {
    let layers = [100 * MIB; 5];
    for (free, expected) in [(500 * MIB, 5), (500 * MIB - 1, 5), (500 * MIB - 1024, 4)] {
        assert_eq!(assigned(&assign_layers(&layers, &[device(free)], Ask::default())), expected, "{free} bytes");
    }
}

#[test]
fn a_search_over_a_wide_range_ends() {
    let ask = Ask { requested: Requested::Layers(999), ..Ask::default() };
    let shares = assign_layers(&[256 * MIB; 41], &[device(600 * MIB)], ask);
    assert_eq!(assigned(&shares), 41);
}

#[test]
fn absurd_numbers_neither_overflow_nor_panic() {
    let huge = |keys: &[&'static str]| keys.iter().map(|key| (*key, u32::MAX)).collect::<Vec<_>>();
    let numbers = huge(&[
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "feed_forward_length",
    ]);
    let request = Request { batch: u64::MAX, parallel: u64::MAX, ..request(u64::MAX) };
    for architecture in ["llama", "mllama", "gemma3", "gemma3n", "deepseek2", "gpt-oss", "mamba"] {
        let mut model = model(architecture, &numbers);
        model.metadata.insert(format!("{architecture}.block_count"), MetadataValue::U32(7));
        model.vocabulary = u64::MAX;
        let weights = Weights { blocks: vec![Some(u64::MAX); 7], output: Some(u64::MAX), ..Weights::default() };
        let machine = Machine {
            devices: vec![device(u64::MAX), device(1)],
            system: System { free_memory: u64::MAX, ..System::default() },
            ..Machine::default()
        };
        let ask =
            EstimateRequest { model: &model, weights: &weights, projector: 1, request: &request, machine: &machine };
        let estimate = ollama_estimate(ask).expect("everything fits into all the memory there can be");
        assert_eq!(estimate.kv.len(), 7);
    }
}

#[test]
fn more_blocks_than_any_model_has_are_refused() {
    let model = model("llama", &[("block_count", u32::MAX)]);
    let error = graph_size(&model, &request(4096)).expect_err("refused");
    assert_eq!(error, Unfit::TooManyBlocks { found: u64::from(u32::MAX), most: 1 << 16 });
}

#[test]
fn an_unknown_architecture_is_guessed_from_its_cache() {
    let numbers =
        [("block_count", 12), ("embedding_length", 768), ("attention.head_count", 12), ("attention.head_count_kv", 4)];
    assert!(!has_formula("novel"));
    let size = graph_size(&model("novel", &numbers), &request(1000)).expect("sizes");
    let kv: u64 = size.kv.iter().sum();
    assert_eq!(kv, 12 * 1000 * 2 * 64 * 4 * 2);
    assert_eq!((size.partial, size.full), (0, 0));
    assert_eq!((size.assumed_partial, size.assumed_full), (3 * kv / 6, 3 * kv / 6));
}

#[test]
fn growing_swap_never_fails_and_leaves_devices_that_are_too_small_alone() {
    let layers = [100 * MIB; 4];
    let system = System { total_memory: 300 * MIB, platform: Platform::GrowingSwap, ..System::default() };
    let devices = [Device { library: "Metal".to_owned(), integrated: true, ..device(2048 * MIB) }];
    let found = layout(&LayoutRequest {
        layers: &layers,
        devices: &devices,
        fixed: &[Fixed::Graph(0)],
        requested: Requested::Automatic,
        require_full: false,
        spread: false,
        overhead: 0,
        backoff: 0.0,
        system_bytes: 0,
        system,
    })
    .expect("swap grows");
    assert_eq!((found.assigned(), found.requested), (4, Requested::Layers(0)));
}
