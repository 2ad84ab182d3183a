//! The memory estimate compared with recorded results: every size and every assignment, to the
//! byte.

use std::collections::BTreeMap;

use estimate::{
    Ask, Device, DeviceUse, Estimate, EstimateRequest, Fixed, Layout, LayoutRequest, Machine, MetadataValue, Model,
    Request, Requested, Share, System, Tensor, Unfit, Weights, assign_layers, graph_size, layout, ollama_estimate,
};
use serde_json::Value as Json;

use crate::support::{json, list, numbers, object, root, shared, skip};

#[test]
fn graph_sizes_are_the_recorded_ones() {
    each_case("graph_sizes_are_the_recorded_ones", "graphsize.json", [35, 243], |case| {
        let size = graph_size(&model(case), &request(case)).expect("sizes");
        let name = text(&case["name"]);
        assert_eq!(size.kv, numbers(&case["kv"]), "KV cache of `{name}`");
        let found = [size.partial, size.full, size.assumed_partial, size.assumed_full];
        let expected =
            ["partial_offload", "full_offload", "graph_partial", "graph_full"].map(|field| number(&case[field]));
        assert_eq!(found, expected, "partial and full graph of `{name}`, by formula and assumed");
    });
}

#[test]
fn assignments_are_the_recorded_ones() {
    each_case("assignments_are_the_recorded_ones", "assign.json", [21, 124], |case| {
        let (name, devices) = (text(&case["name"]), devices(case));
        match text(&case["kind"]) {
            "assign" => {
                let shares = assign_layers(&numbers(&case["layers"]), &devices, ask(case));
                check_shares(name, &shares, &devices, case);
            }
            "layout" => match layout_of(case, &devices) {
                Ok(found) => check_shares(name, &found.shares, &devices, case),
                Err(error) => check_error(name, &error, case),
            },
            other => panic!("`{name}` is of the unknown kind `{other}`"),
        }
    });
}

#[test]
fn loads_are_the_recorded_ones() {
    each_case("loads_are_the_recorded_ones", "load.json", [8, 46], |case| {
        let machine = Machine {
            devices: devices(case),
            system: system(case),
            requested: requested(case),
            require_full: flag(&case["require_full"]),
            spread: flag(&case["sched_spread"]),
            overhead: number(&case["gpu_overhead"]),
        };
        let (model, weights, request) = (model(case), weights(case), request(case));
        let ask =
            EstimateRequest { model: &model, weights: &weights, projector: 0, request: &request, machine: &machine };
        let name = text(&case["name"]);
        match ollama_estimate(ask) {
            Ok(estimate) => check_estimate(name, &estimate, &machine.devices, case),
            Err(error) => check_error(name, &error, case),
        }
    });
}

/// Checks the selection of a file's cases in the repository, and all of them if the reference data
/// exist. `counts` are the numbers of cases in each, so that missing cases are noticed.
fn each_case(test: &str, file: &str, counts: [usize; 2], check: impl Fn(&Json)) {
    let own = root().join("tests/fixtures/memory");
    let all = shared().map(|folder| folder.join("vectors/memory"));
    if all.is_none() {
        skip(test, "all but a selection: there is no folder `shared` beside the checkout, and LODE_SHARED names none");
    }
    for (folder, count) in [Some(own), all].into_iter().zip(counts) {
        let Some(folder) = folder else { continue };
        let cases = json(&folder.join(file));
        assert_eq!(list(&cases).len(), count, "cases in `{}`", folder.join(file).display());
        list(&cases).iter().for_each(&check);
    }
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a text: {value}"))
}

fn number(value: &Json) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("expected a number: {value}"))
}

fn flag(value: &Json) -> bool {
    value.as_bool().unwrap_or_else(|| panic!("expected a flag: {value}"))
}

fn model(case: &Json) -> Model {
    let types = &case["hyperparameter_types"];
    let metadata: BTreeMap<String, MetadataValue> = object(&case["hyperparameters"])
        .iter()
        .map(|(key, value)| (key.clone(), metadata_value(value, types[key].as_str())))
        .collect();
    let tensor = |tensor: &Json| Tensor {
        name: text(&tensor["name"]).to_owned(),
        shape: numbers(&tensor["shape"]),
        bytes: number(&tensor["bytes"]),
    };
    Model {
        architecture: text(&case["architecture"]).to_owned(),
        metadata,
        vocabulary: number(&case["vocab_size"]),
        tensors: list(&case["tensors"]).iter().map(tensor).collect(),
    }
}

/// Without a dtype, a scalar is a `u32`, and a list has elements of type `i32`.
fn metadata_value(value: &Json, dtype: Option<&str>) -> MetadataValue {
    let signed = |value: &Json| value.as_i64().and_then(|n| i32::try_from(n).ok()).expect("a number of 32 bits");
    let unsigned = |value: &Json| u32::try_from(number(value)).expect("a number of 32 bits");
    match (dtype, value) {
        (Some("u64"), value) => MetadataValue::U64(number(value)),
        (Some("i32"), value) => MetadataValue::I32(signed(value)),
        (Some("u32[]"), value) => MetadataValue::U32s(list(value).iter().map(unsigned).collect()),
        (None, Json::Array(values)) => MetadataValue::I32s(values.iter().map(signed).collect()),
        (None, value) => MetadataValue::U32(unsigned(value)),
        (Some(other), _) => panic!("a value of the unknown type `{other}`"),
    }
}

fn request(case: &Json) -> Request {
    Request {
        context: number(&case["context"]),
        batch: number(&case["batch"]),
        parallel: number(&case["num_parallel"]),
        kv_type: text(&case["kv_cache_type"]).to_owned(),
        flash_attention: flag(&case["flash_attention"]),
    }
}

fn weights(case: &Json) -> Weights {
    let any = flag(&case["has_block_tensors"]);
    Weights {
        blocks: numbers(&case["block_weights"]).into_iter().map(|bytes| any.then_some(bytes)).collect(),
        output_norm: case["output_norm_weight"].as_u64(),
        output: case["output_weight"].as_u64(),
        token_embedding: case["token_embd_weight"].as_u64(),
    }
}

fn devices(case: &Json) -> Vec<Device> {
    let device = |device: &Json| Device {
        id: text(&device["id"]).to_owned(),
        library: text(&device["library"]).to_owned(),
        integrated: flag(&device["integrated"]),
        free_memory: number(&device["free_memory"]),
    };
    list(&case["gpus"]).iter().map(device).collect()
}

fn system(case: &Json) -> System {
    let system = &case["system"];
    System {
        total_memory: number(&system["total_memory"]),
        free_memory: number(&system["free_memory"]),
        free_swap: number(&system["free_swap"]),
        ..System::default()
    }
}

fn requested(case: &Json) -> Requested {
    match case["num_gpu"].as_i64().expect("a number of layers") {
        -1 => Requested::Automatic,
        layers => Requested::Layers(usize::try_from(layers).expect("not negative")),
    }
}

fn ask(case: &Json) -> Ask {
    Ask {
        requested: requested(case),
        require_full: flag(&case["require_full"]),
        spread: flag(&case["sched_spread"]),
        last_used: usize::try_from(number(&case["last_used_gpu"])).expect("an index"),
    }
}

fn layout_of(case: &Json, devices: &[Device]) -> Result<Layout, Unfit> {
    let (weights, cache) = (numbers(&case["weights"]), numbers(&case["cache"]));
    let layers: Vec<u64> = weights.iter().zip(&cache).map(|(weights, cache)| weights + cache).collect();
    let fixed = |device: &Json| match device.get("not_reported") {
        Some(Json::Bool(true)) => Fixed::Unknown,
        _ => Fixed::Graph(number(&device["graph"])),
    };
    let fixed: Vec<Fixed> = list(&case["gpus"]).iter().map(fixed).collect();
    #[expect(clippy::cast_possible_truncation, reason = "the original has it in single precision")]
    let backoff = case["backoff"].as_f64().expect("a fraction") as f32;
    layout(&LayoutRequest {
        layers: &layers,
        devices,
        fixed: &fixed,
        requested: requested(case),
        require_full: flag(&case["require_full"]),
        spread: flag(&case["sched_spread"]),
        overhead: number(&case["gpu_overhead"]),
        backoff,
        system_bytes: number(&case["input_weights"]) + number(&case["cpu_graph"]),
        system: system(case),
    })
}

/// Returns the devices and layers of an assignment in the format of the reference data.
fn written(shares: &[Share], devices: &[Device]) -> Vec<(String, String, Vec<u64>)> {
    let write = |share: &Share| {
        let device = &devices[share.device];
        (device.id.clone(), device.library.clone(), share.layers.clone().map(|layer| layer as u64).collect())
    };
    shares.iter().map(write).collect()
}

fn check_shares(name: &str, shares: &[Share], devices: &[Device], case: &Json) {
    assert!(case.get("error").is_none(), "`{name}` fits, expected {}", case["error"]);
    let expected = list(&case["assignment"])
        .iter()
        .map(|share| (text(&share["id"]).to_owned(), text(&share["library"]).to_owned(), numbers(&share["layers"])))
        .collect::<Vec<_>>();
    assert_eq!(written(shares, devices), expected, "assignment of `{name}`");
    let assigned: usize = shares.iter().map(|share| share.layers.len()).sum();
    assert_eq!(assigned as u64, number(&case["assigned_layers"]), "assigned layers of `{name}`");
}

fn check_error(name: &str, error: &Unfit, case: &Json) {
    let found = match error {
        Unfit::RequiresFull { .. } => "requires_full",
        Unfit::RequiresFullSystemMemory { .. } => "requires_full_system_memory",
        Unfit::SystemMemory { .. } => "system_memory",
        Unfit::TooManyBlocks { .. } => "too_many_blocks",
    };
    assert_eq!(Some(found), case["error"].as_str(), "error of `{name}`: {error}");
}

fn check_estimate(name: &str, estimate: &Estimate, devices: &[Device], case: &Json) {
    check_shares(name, &estimate.layout.shares, devices, case);
    assert_eq!(estimate.kv, numbers(&case["kv"]), "KV cache of `{name}`");
    let totals = [
        ("reserve", estimate.reserve),
        ("graph_partial", estimate.graph_partial),
        ("graph_full", estimate.graph_full),
        ("total_layers", estimate.total_layers as u64),
        ("vram_size", estimate.device_size()),
        ("total_size", estimate.total_size()),
    ];
    for (field, found) in totals {
        assert_eq!(found, number(&case[field]), "{field} of `{name}`");
    }
    let per_device = list(&case["gpu_memory"]);
    assert_eq!(estimate.devices.len(), per_device.len(), "devices of `{name}`");
    for ((device, used), expected) in devices.iter().zip(&estimate.devices).zip(per_device) {
        let DeviceUse { layers, weights, cache, graph } = *used;
        let found = [layers as u64, weights, cache, graph, used.size()];
        let fields = ["layers", "weights", "cache", "graph", "size"].map(|field| number(&expected[field]));
        assert_eq!(found, fields, "device `{}` of `{name}`", device.id);
        assert_eq!(device.id, text(&expected["id"]), "order of devices of `{name}`");
    }
    let found = [estimate.system.weights, estimate.system.cache];
    assert_eq!(
        found,
        ["weights", "cache"].map(|field| number(&case["cpu_memory"][field])),
        "system memory of `{name}`"
    );
    let ids: Vec<&str> = estimate.layout.shares.iter().map(|share| devices[share.device].id.as_str()).collect();
    assert_eq!(ids, list(&case["devices"]).iter().map(text).collect::<Vec<_>>(), "devices used by `{name}`");
}
