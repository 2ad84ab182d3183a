//! Tests of the type of each tensor, against llama.cpp's known assignments and the documented
//! rules.

use std::collections::BTreeMap;

use formats::GgmlType;

use super::*;

/// Dimensions of a model of the Llama family.
struct Shape {
    layers: u64,
    hidden: u64,
    intermediate: u64,
    /// Number of rows of the key and value projections.
    keys: u64,
    vocabulary: u64,
    tied: bool,
}

const LLAMA_7B: Shape =
    Shape { layers: 32, hidden: 4096, intermediate: 11008, keys: 4096, vocabulary: 32000, tied: false };
const LLAMA_8B: Shape =
    Shape { layers: 32, hidden: 4096, intermediate: 14336, keys: 1024, vocabulary: 128_256, tied: false };
const LLAMA_70B: Shape =
    Shape { layers: 80, hidden: 8192, intermediate: 28672, keys: 1024, vocabulary: 128_256, tied: false };
const SMOLLM2_135M: Shape =
    Shape { layers: 30, hidden: 576, intermediate: 1536, keys: 192, vocabulary: 49152, tied: true };

fn tensors(shape: &Shape) -> Vec<(String, Vec<u64>)> {
    let Shape { layers, hidden, intermediate, keys, vocabulary, tied } = *shape;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !tied {
        tensors.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
    }
    for layer in 0..layers {
        for (name, shape) in [
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    tensors
}

fn named(decision: Decision) -> String {
    match decision {
        Decision::Encode(encoding) => type_names::type_name(encoding),
        Decision::Keep(Reason::Precision) => "keep".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Returns the layers that have each type, by module name without the layer and type.
fn assignments(scheme: &str, tensors: &[(String, Vec<u64>)]) -> BTreeMap<(String, String), Vec<u64>> {
    let policy = Policy { scheme: Scheme::parse(scheme).expect(scheme), user: UserPolicy::default() };
    let survey = Survey::new("llama", tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())));
    let mut found: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for (name, shape) in tensors {
        let (decision, _) = policy.decide(&survey, name, Encoding::Plain(Dtype::Bf16), shape).expect("no user's rule");
        let (layer, module) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'))
            .map_or((0, name.as_str()), |(layer, module)| (layer.parse().expect("a number"), module));
        found.entry((module.trim_end_matches(".weight").to_owned(), named(decision))).or_default().push(layer);
    }
    found
}

/// Returns the types of a module, with the layers that have each type.
fn layers(scheme: &str, shape: &Shape, module: &str) -> Vec<(String, Vec<u64>)> {
    let found = assignments(scheme, &tensors(shape)).into_iter();
    found.filter(|((name, _), _)| name == module).map(|((_, kind), layers)| (kind, layers)).collect()
}

/// Returns the type that all layers of a module have.
fn kind(scheme: &str, shape: &Shape, module: &str) -> String {
    match layers(scheme, shape, module).as_slice() {
        [(kind, _)] => kind.clone(),
        several => panic!("{scheme} {module}: {several:?}"),
    }
}

/// Returns the number of tensors of each type.
fn histogram(scheme: &str, shape: &Shape) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for ((_, kind), layers) in assignments(scheme, &tensors(shape)) {
        *counts.entry(kind).or_default() += layers.len();
    }
    counts
}

/// For Meta's models, these are the numbers that llama.cpp prints when it loads published files
/// (F32 there are the norms, which are kept here). The other numbers follow from its rules.
#[test]
fn mixes_have_the_histograms_of_llama_cpp() {
    for (scheme, shape, expect) in [
        ("q4_k_m", &LLAMA_7B, vec![("keep", 65), ("q4_k", 193), ("q6_k", 33)]),
        ("q4_k_m", &LLAMA_8B, vec![("keep", 65), ("q4_k", 193), ("q6_k", 33)]),
        ("q4_k_s", &LLAMA_7B, vec![("keep", 65), ("q4_k", 217), ("q5_k", 8), ("q6_k", 1)]),
        ("q5_k_m", &LLAMA_7B, vec![("keep", 65), ("q5_k", 193), ("q6_k", 33)]),
        ("q5_k_s", &LLAMA_7B, vec![("keep", 65), ("q5_k", 225), ("q6_k", 1)]),
        ("q3_k_s", &LLAMA_7B, vec![("keep", 65), ("q3_k", 225), ("q6_k", 1)]),
        ("q3_k_m", &LLAMA_7B, vec![("keep", 65), ("q3_k", 129), ("q4_k", 92), ("q5_k", 4), ("q6_k", 1)]),
        ("q3_k_l", &LLAMA_7B, vec![("keep", 65), ("q3_k", 129), ("q5_k", 96), ("q6_k", 1)]),
        ("q2_k_s", &LLAMA_7B, vec![("keep", 65), ("q2_k", 221), ("q4_k", 4), ("q6_k", 1)]),
        ("q2_k_s", &LLAMA_8B, vec![("keep", 65), ("q2_k", 189), ("q4_k", 36), ("q6_k", 1)]),
        ("q4_k_m", &LLAMA_70B, vec![("keep", 161), ("q4_k", 441), ("q5_k", 40), ("q6_k", 81)]),
        ("q4_k_m", &SMOLLM2_135M, vec![("keep", 61), ("q4_k", 16), ("q5_0", 166), ("q6_k", 14), ("q8_0", 15)]),
    ] {
        let expect: BTreeMap<String, usize> =
            expect.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
        assert_eq!(histogram(scheme, shape), expect, "{scheme}, {} layers", shape.layers);
    }
}

#[test]
fn the_assignments_of_q4_k_m() {
    let more = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
    for module in ["self_attn.v_proj", "mlp.down_proj"] {
        let found = layers("q4_k_m", &LLAMA_8B, module);
        assert_eq!(found[1], ("q6_k".to_owned(), more.to_vec()), "{module}");
    }
    assert_eq!(kind("q4_k_m", &LLAMA_8B, "lm_head"), "q6_k");
    assert_eq!(kind("q4_k_m", &LLAMA_8B, "model.embed_tokens"), "q4_k");
    // Rows of 576 are not whole blocks of 256; rows of 1536 are.
    let down = layers("q4_k_m", &SMOLLM2_135M, "mlp.down_proj");
    assert_eq!(down[1], ("q6_k".to_owned(), vec![0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]));
    assert_eq!(kind("q4_k_m", &SMOLLM2_135M, "model.embed_tokens"), "q8_0");
    assert_eq!(kind("q4_k_m", &SMOLLM2_135M, "self_attn.q_proj"), "q5_0");
    assert_eq!(layers("q4_k_m", &SMOLLM2_135M, "self_attn.v_proj")[1].0, "q8_0");
}

#[test]
fn eight_experts_have_better_attention() {
    let mut tensors = tensors(&LLAMA_8B);
    tensors.retain(|(name, _)| !name.contains(".mlp."));
    for (layer, expert) in (0..32).flat_map(|layer| (0..8).map(move |expert| (layer, expert))) {
        let name = format!("model.layers.{layer}.block_sparse_moe.experts.{expert}");
        tensors.push((format!("{name}.w2.weight"), vec![4096, 14336]));
        tensors.push((format!("{name}.w1.weight"), vec![14336, 4096]));
    }
    let found = assignments("q4_k_m", &tensors);
    let of = |module: &str| -> Vec<&str> {
        found.keys().filter(|(name, _)| name == module).map(|(_, kind)| kind.as_str()).collect()
    };
    assert_eq!(of("self_attn.v_proj"), ["q8_0"]);
    assert_eq!(of("self_attn.k_proj"), ["q8_0"]);
    assert_eq!(of("self_attn.o_proj"), ["q5_k"]);
    assert_eq!(of("self_attn.q_proj"), ["q4_k"]);
    let down = &found[&("block_sparse_moe.experts.5.w2".to_owned(), "q6_k".to_owned())];
    assert_eq!(down[..6], [0, 1, 2, 3, 6, 9]);
}

#[test]
fn types_of_mlx_keep_and_promote() {
    for (scheme, eight) in [("int4", "int8"), ("nvfp4", "mxfp8"), ("mxfp4", "mxfp8"), ("int3", "int8")] {
        assert_eq!(kind(scheme, &LLAMA_8B, "lm_head"), eight, "{scheme}");
        assert_eq!(kind(scheme, &LLAMA_8B, "model.embed_tokens"), "keep", "{scheme}");
        assert_eq!(kind(scheme, &SMOLLM2_135M, "model.embed_tokens"), eight, "{scheme}");
        assert_eq!(kind(scheme, &LLAMA_8B, "self_attn.q_proj"), scheme);
        let values = layers(scheme, &LLAMA_8B, "self_attn.v_proj");
        let promoted = values.iter().find(|(kind, _)| kind == eight).expect("some");
        assert_eq!(promoted.1.len(), 16, "{scheme}");
    }
    assert_eq!(histogram("int8", &LLAMA_8B), BTreeMap::from([("int8".to_owned(), 225), ("keep".to_owned(), 66)]));
}

#[test]
fn types_of_ggml_promote_the_output_only() {
    let expect = [("keep", 66), ("q4_k", 224), ("q8_0", 1)].map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(histogram("q4_k", &LLAMA_8B), BTreeMap::from(expect));
    let smollm2 = histogram("q2_k", &SMOLLM2_135M);
    let expect =
        [("iq4_nl", 180), ("keep", 61), ("q2_k", 30), ("q8_0", 1)].map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(smollm2, BTreeMap::from(expect));
}

fn decide(scheme: &str, user: &str, name: &str, from: Encoding, shape: &[u64]) -> Result<Decision, String> {
    let user = UserPolicy::parse(user).expect("a policy");
    let policy = Policy { scheme: Scheme::parse(scheme).expect(scheme), user };
    let survey = Survey::new("llama", [(name, shape), ("lm_head.weight", &[64, 64])].into_iter());
    policy.decide(&survey, name, from, shape).map(|(decision, _)| decision).map_err(|error| error.to_string())
}

#[test]
fn keeps_what_is_small_misaligned_or_no_float() {
    let bf16 = Encoding::Plain(Dtype::Bf16);
    let q = "model.layers.0.self_attn.q_proj.weight";
    for (scheme, name, from, shape, expect) in [
        ("int4", q, bf16, vec![64, 64], Decision::Encode(Encoding::Affine { bits: 4, group: 32 })),
        ("int4", q, bf16, vec![32, 64], Decision::Keep(Reason::Precision)),
        ("int4", q, bf16, vec![4096], Decision::Keep(Reason::Precision)),
        ("int4", q, bf16, vec![64, 80], Decision::Keep(Reason::Misaligned)),
        ("nvfp4", q, bf16, vec![64, 80], Decision::Encode(Encoding::Micro(formats::encoding::Micro::Nvfp4))),
        ("q4_k_m", q, bf16, vec![64, 80], Decision::Keep(Reason::Misaligned)),
        ("q4_k_m", q, bf16, vec![8, 32], Decision::Encode(Encoding::Blocks(GgmlType::Q5_0))),
        ("int4", q, Encoding::Plain(Dtype::I32), vec![64, 64], Decision::Keep(Reason::NotFloat)),
        ("int8", q, Encoding::Affine { bits: 8, group: 64 }, vec![64, 64], Decision::Keep(Reason::Already)),
        ("bf16", q, Encoding::Plain(Dtype::F32), vec![64, 64], Decision::Encode(bf16)),
        ("int4", "model.layers.0.mlp.gate.weight", bf16, vec![128, 64], Decision::Keep(Reason::Precision)),
        // An output matrix whose rows are not whole groups of 64 gets 8 bits in groups of 32.
        ("int4", "lm_head.weight", bf16, vec![64, 96], Decision::Encode(Encoding::Affine { bits: 8, group: 32 })),
        ("int8:32", "lm_head.weight", bf16, vec![64, 64], Decision::Encode(Encoding::Affine { bits: 8, group: 32 })),
    ] {
        assert_eq!(decide(scheme, "", name, from, &shape), Ok(expect), "{scheme} {name} {from} {shape:?}");
    }
}

#[test]
fn a_users_rules_come_first() {
    let user = "[[rule]]\nmatch = 'q_proj'\ntype = 'q6_k'\n[[rule]]\nmatch = 'k_proj'\ntype = 'drop'\n\
                [[rule]]\nmatch = '_proj'\ntype = 'keep'\n";
    let decide = |name: &str, from: Encoding, shape: &[u64]| {
        decide("int4", user, &format!("layers.0.self_attn.{name}.weight"), from, shape)
    };
    let bf16 = Encoding::Plain(Dtype::Bf16);
    let q6_k = Encoding::Blocks(GgmlType::Q6_K);
    assert_eq!(decide("q_proj", bf16, &[1, 256]), Ok(Decision::Encode(q6_k)));
    assert_eq!(decide("q_proj", q6_k, &[1, 256]), Ok(Decision::Keep(Reason::Already)));
    assert_eq!(decide("k_proj", bf16, &[64, 64]), Ok(Decision::Drop));
    assert_eq!(decide("v_proj", bf16, &[64, 64]), Ok(Decision::Keep(Reason::User)));
    assert_eq!(decide("other", bf16, &[64, 64]), Ok(Decision::Encode(Encoding::Affine { bits: 4, group: 32 })));
    for (shape, from, expect) in [
        (vec![4, 64], bf16, "not whole groups of 256"),
        (vec![256], bf16, "expected a matrix"),
        (vec![4, 256], Encoding::Plain(Dtype::I64), "its elements are I64"),
    ] {
        let error = decide("q_proj", from, &shape).expect_err("it cannot be");
        assert!(error.contains(expect) && error.contains("line 2: `q_proj`"), "{error} should say {expect}");
    }
}
