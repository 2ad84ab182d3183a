//! Tests of plans: kept, derived and dropped blobs, their headers, and the inputs of their keys.

use content::Descriptor;
use formats::encoding::Role;
use formats::safetensors::Header;

use super::*;
use crate::{Scheme, StoredPart, UserPolicy};

fn blob(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn layer(name: &str) -> Layer {
    Layer::named(Descriptor { media_type: media_types::TENSOR, digest: blob(name), size: 1 }, name)
}

fn part(role: Role, name: &str, layer: &str, dtype: Dtype, shape: &[u64]) -> StoredPart {
    let size = dtype.byte_count(shape).expect("a size");
    let name = format!("{name}{}", role.suffix());
    StoredPart { role, name, blob: blob(layer), offset: 0, size, dtype, shape: shape.to_vec() }
}

/// Returns a plain tensor in the layer with this name.
fn plain(name: &str, layer: &str, dtype: Dtype, shape: &[u64]) -> StoredTensor {
    StoredTensor {
        name: name.to_owned(),
        stored_name: name.to_owned(),
        encoding: Encoding::Plain(dtype),
        shape: shape.to_vec(),
        parts: vec![part(Role::Weight, name, layer, dtype, shape)],
    }
}

fn policy(scheme: &str, user: &str) -> Policy {
    let user = UserPolicy::parse(user).expect("a policy");
    Policy { scheme: Scheme::parse(scheme).expect(scheme), user }
}

fn plan(policy: &Policy, tensors: &[StoredTensor], sources: Sources) -> Result<Quantization, Error> {
    let mut names: Vec<&str> = Vec::new();
    // Collects the layers that the tensors name; a digest identifies its layer.
    for tensor in tensors {
        for name in ["q", "norm", "lm_head.weight", "model.layers.0.mlp.experts", "codes", "scales"] {
            if tensor.parts.iter().any(|part| part.blob == blob(name)) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let layers: Vec<Layer> = names.into_iter().map(layer).collect();
    Quantization::plan("llama", &layers, tensors, policy, sources)
}

fn model() -> Vec<StoredTensor> {
    let expert = |number: u32, module: &str, shape: &[u64]| {
        let group = "model.layers.0.mlp.experts";
        plain(&format!("{group}.{number}.{module}.weight"), group, Dtype::Bf16, shape)
    };
    vec![
        plain("model.layers.0.self_attn.q_proj.weight", "q", Dtype::Bf16, &[64, 128]),
        plain("model.layers.0.input_layernorm.weight", "norm", Dtype::Bf16, &[128]),
        expert(1, "up_proj", &[64, 128]),
        expert(0, "down_proj", &[128, 64]),
        expert(0, "odd", &[3]),
        plain("lm_head.weight", "lm_head.weight", Dtype::F32, &[64, 128]),
    ]
}

fn derivations(plan: &Quantization) -> Vec<&Derivation> {
    let derived = plan.blobs.iter().filter_map(|blob| match blob {
        BlobPlan::Derive(derivation) => Some(derivation),
        BlobPlan::Keep(_) => None,
    });
    derived.collect()
}

fn header(derivation: &Derivation) -> Header {
    Header::parse(derivation.header(), derivation.size()).expect("a header")
}

#[test]
fn keeps_what_does_not_change_and_derives_the_rest() {
    let plan = plan(&policy("int4", ""), &model(), Sources::Floats).expect("a plan");
    assert_eq!(plan.blobs.len(), 4);
    assert_eq!(plan.blobs[1], BlobPlan::Keep(layer("norm")));
    let derived = derivations(&plan);
    let names: Vec<&str> = derived.iter().map(|derivation| derivation.name.as_str()).collect();
    assert_eq!(names, ["q", "model.layers.0.mlp.experts", "lm_head.weight"]);

    let single = header(derived[0]);
    let keys: Vec<&str> = single.metadata.values().map(String::as_str).collect();
    assert_eq!(keys, ["32", "int4"]);
    let arrays: Vec<_> = single.tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.clone())).collect();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let (scale, bias) = (format!("{name}.scale"), format!("{name}.bias"));
    assert_eq!(
        arrays,
        [
            (name, Dtype::U32, vec![64, 16]),
            (scale.as_str(), Dtype::Bf16, vec![64, 4]),
            (bias.as_str(), Dtype::Bf16, vec![64, 4])
        ]
    );

    let group = header(derived[1]);
    let names: Vec<&str> = group.tensors.iter().map(|t| t.name.rsplit("experts.").next().unwrap_or_default()).collect();
    let expect = [
        "0.down_proj.weight",
        "0.down_proj.weight.scale",
        "0.down_proj.weight.bias",
        "0.odd.weight",
        "1.up_proj.weight",
        "1.up_proj.weight.scale",
        "1.up_proj.weight.bias",
    ];
    assert_eq!(names, expect);
    let metadata: Vec<(&str, &str)> = group
        .metadata
        .iter()
        .map(|(key, value)| (key.rsplit("experts.").next().unwrap_or_default(), value.as_str()))
        .collect();
    assert_eq!(
        metadata,
        [
            // The only layer is one of the layers with more bits.
            ("0.down_proj.weight.group_size", "64"),
            ("0.down_proj.weight.quant_type", "int8"),
            ("1.up_proj.weight.group_size", "32"),
            ("1.up_proj.weight.quant_type", "int4"),
        ]
    );
    // Scales have the dtype of the source.
    assert_eq!(header(derived[2]).tensors[1].dtype, Dtype::F32);
    let totals = plan.totals();
    assert_eq!((totals.encoded, totals.kept, totals.dropped), (4, 2, 0));
    assert_eq!(totals.before, 16384 * 3 + 256 + 6 + 32768);
    assert_eq!(plan.counts(), (6, 8192 * 4 + 128 + 3));
    assert_eq!(plan.derived_bytes(), derived.iter().map(|derivation| derivation.size()).sum::<u64>());
}

#[test]
fn drops_and_reports_rules_without_tensors() {
    let rules = "[[rule]]\nmatch = 'lm_head'\ntype = 'drop'\n[[rule]]\nmatch = '0\\.odd'\ntype = 'drop'\n\
                 [[rule]]\nmatch = 'nothing'\ntype = 'keep'\n[[rule]]\nmatch = '.'\ntype = 'keep'\n";
    let plan = plan(&policy("int4", rules), &model(), Sources::Floats).expect("a plan");
    assert_eq!(plan.unused_rules, ["line 8: `nothing`"]);
    assert_eq!(plan.totals().dropped, 2);
    let derived = derivations(&plan);
    // One tensor of the group is dropped, so the group becomes a new blob, although no tensor is
    // encoded.
    assert_eq!((plan.blobs.len(), derived.len()), (3, 1));
    assert_eq!(header(derived[0]).tensors.len(), 2);
    assert!(header(derived[0]).metadata.is_empty());
    let all = policy("int4", "[[rule]]\nmatch = '.'\ntype = 'drop'\n");
    let error = super::tests::plan(&all, &model(), Sources::Floats).expect_err("nothing is left").to_string();
    assert!(error.contains("drops every tensor"), "{error}");
}

/// Returns a weight whose scales are in a separate blob, and a norm in the blob of the codes.
fn spread() -> Vec<StoredTensor> {
    spread_with(Dtype::Bf16)
}

/// Returns the same with scales of another type.
fn spread_with(scales: Dtype) -> Vec<StoredTensor> {
    let name = "model.layers.0.self_attn.q_proj.weight";
    let weight = StoredTensor {
        name: name.to_owned(),
        stored_name: name.to_owned(),
        encoding: Encoding::BlockFp8 { rows: 128, columns: 128 },
        shape: vec![64, 128],
        parts: vec![
            part(Role::Weight, name, "codes", Dtype::F8_E4M3, &[64, 128]),
            part(Role::Scale, name, "scales", scales, &[1, 1]),
        ],
    };
    vec![weight, plain("model.norm.weight", "codes", Dtype::Bf16, &[128])]
}

#[test]
fn what_is_quantized_already_is_refused_unless_it_is_meant() {
    let error = plan(&policy("int4", ""), &spread(), Sources::Floats).expect_err("it is quantized").to_string();
    assert!(error.contains("q_proj.weight` is quantized already (fp8_128x128)"), "{error}");
    assert!(error.contains("--requantize"), "{error}");
    let plan = plan(&policy("int4", ""), &spread(), Sources::Any).expect("a plan");
    // The blob of the scales is no longer needed.
    assert_eq!(plan.blobs.len(), 1);
    let derivation = derivations(&plan)[0];
    assert_eq!(derivation.sources(), {
        let mut both = [blob("codes"), blob("scales")];
        both.sort_unstable();
        both
    });
    let arrays = header(derivation).tensors;
    assert_eq!((arrays.len(), arrays[1].dtype), (4, Dtype::Bf16));
}

#[test]
fn powers_of_two_become_floats() {
    let plan = plan(&policy("int4", ""), &spread_with(Dtype::F8_E8M0), Sources::Any).expect("a plan");
    assert_eq!(header(derivations(&plan)[0]).tensors[1].dtype, Dtype::F32, "scales of int4 are floats");
}

#[test]
fn arrays_apart_stay_together() {
    // Dropping the norm changes the blob of the codes, so the weight moves into the new blob
    // together with its scales.
    let rules = "[[rule]]\nmatch = 'norm'\ntype = 'drop'\n[[rule]]\nmatch = '.'\ntype = 'keep'\n";
    let plan = plan(&policy("int4", rules), &spread(), Sources::Floats).expect("a plan");
    assert_eq!(plan.blobs.len(), 1);
    let header = header(derivations(&plan)[0]);
    let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let name = "model.layers.0.self_attn.q_proj.weight";
    assert_eq!(names, [name, &format!("{name}.scale")]);
    assert_eq!(header.metadata["quant_type"], "fp8_128x128");
}

#[test]
fn keys_depend_on_everything_that_decides() {
    let key = |scheme: &str, tensors: &[StoredTensor], source: &str| {
        let plan = plan(&policy(scheme, ""), tensors, Sources::Floats).expect("a plan");
        derivations(&plan)[0].key(&[blob(source)])
    };
    let one = |name: &str, shape: &[u64], dtype: Dtype| vec![plain(name, "q", dtype, shape)];
    let base = one("x.q_proj.weight", &[64, 128], Dtype::Bf16);
    let known = key("int4", &base, "q");
    assert_eq!(known, key("int4:32", &base, "q"), "the same thing by another name");
    let others = [
        key("int4:64", &base, "q"),
        key("int8", &base, "q"),
        key("q8_0", &base, "q"),
        key("int4", &base, "another source"),
        key("int4", &one("y.q_proj.weight", &[64, 128], Dtype::Bf16), "q"),
        key("int4", &one("x.q_proj.weight", &[128, 64], Dtype::Bf16), "q"),
        key("int4", &one("x.q_proj.weight", &[64, 128], Dtype::F16), "q"),
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(*other != known && !others[..at].contains(other), "{at}");
    }
}
