//! Experts as most families store them: networks in a folder of names below the layer, with a
//! router next to them.

mod layers;

use serde_json::Value;

use crate::blueprint::{
    Activation, Blueprint, Experts, Ffn, Gated, Groups, Matrices, Network, Projection, Router, RouterScores, Rows,
    SharedExpert, Tensor, View,
};
use crate::config_json::{Config, fail};
use crate::dense::projection;
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

pub(crate) use layers::{ExpertLayers, SigmoidRouter};

/// Names of the modules of a gated network: gate, up, down.
pub(crate) type Modules = [&'static str; 3];

/// Usual module names.
pub(crate) const MODULES: Modules = ["gate_proj", "up_proj", "down_proj"];

/// Sizes of a layer's experts.
#[derive(Clone, Copy)]
pub(crate) struct ExpertSizes {
    pub(crate) count: u64,
    /// Width of each expert.
    pub(crate) width: u64,
    pub(crate) top_k: u64,
    pub(crate) activation: Activation,
}

/// Values that a Qwen-like class with experts uses for keys that a config omits.
pub(crate) struct Defaults {
    pub(crate) count: u64,
    pub(crate) width: u64,
    pub(crate) top_k: u64,
    /// Whether the weights of the selected experts are divided by their sum.
    pub(crate) normalize: bool,
    /// Width of the expert that all tokens use, if the class has one.
    pub(crate) shared_width: Option<u64>,
}

/// Adds experts to the layers that a Qwen-like config defines as sparse.
pub(crate) fn from_config(
    config: Config<'_>,
    names: &TensorNames,
    blueprint: &mut Blueprint,
    defaults: &Defaults,
) -> Result<(), Error> {
    let sparse = sparse_layers(config, blueprint.layers.len() as u64)?;
    let sizes = ExpertSizes {
        count: count(config, defaults.count)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(defaults.width),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(defaults.top_k),
        activation: config.activation("hidden_act", Activation::Silu)?,
    };
    let shared_width = config.unsigned("shared_expert_intermediate_size")?;
    let shared_width = defaults.shared_width.map(|default| shared_width.unwrap_or(default));
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(defaults.normalize);
    for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| sparse[*index]) {
        let module = format!("model.layers.{index}.mlp");
        let mut own = experts(names, &module, MODULES, sizes);
        own.router.normalize = normalize;
        let gate = format!("{module}.shared_expert_gate");
        let shared = |width| shared(names, &format!("{module}.shared_expert"), Some(&gate), width, sizes.activation);
        own.shared = shared_width.map(shared);
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(())
}

/// Returns a gated network below a module.
pub(crate) fn gated(names: &TensorNames, module: &str, modules: Modules, width: u64, activation: Activation) -> Gated {
    Gated::new(width, activation, modules.map(|own| projection(names, &format!("{module}.{own}"))))
}

/// Returns experts that are stacks, as MLX stores them: `{module}.switch_mlp.{gate}.weight`,
/// `[experts, …]`. `None` if there are none.
pub(crate) fn switched(names: &TensorNames, module: &str) -> Option<[Matrices; 3]> {
    let all = format!("{module}.switch_mlp");
    // Stacks that share a blob have one name there.
    let here = names.has(&all) || names.has(&format!("{all}.gate_proj.weight"));
    here.then(|| MODULES.map(|own| Matrices::Items(projection(names, &format!("{all}.{own}")))))
}

/// Returns experts as transformers 5 saves them: `{module}.experts.gate_up_proj`,
/// `[experts, 2 · width, hidden]`, with the rows of the gate first, and
/// `{module}.experts.down_proj`. `None` if there are none.
fn fused(names: &TensorNames, module: &str, width: u64) -> Option<[Matrices; 3]> {
    let both = format!("{module}.experts.gate_up_proj");
    let stack = |own: &str, name: &str, rows: Option<Rows>| {
        let view = View { rows, ..View::default() };
        let weight = Tensor { name: name.to_owned(), view };
        Matrices::Items(Projection { module: format!("{module}.experts.{own}"), weight, bias: None, clamps: None })
    };
    let part = |own: &str, which: u64| stack(own, &both, Some(Rows::run(which.saturating_mul(width), width)));
    let down = format!("{module}.experts.down_proj");
    names.has(&both).then(|| [part("gate_proj", 0), part("up_proj", 1), stack("down_proj", &down, None)])
}

/// Returns experts that are separate tensors below a module, `{module}.experts.N.{gate}.weight`, or
/// their stacked form in MLX or transformers 5.
fn each(names: &TensorNames, module: &str, modules: Modules, width: u64) -> [Matrices; 3] {
    if let Some(stacks) = switched(names, module).or_else(|| fused(names, module, width)) {
        return stacks;
    }
    modules.map(|own| {
        let module = format!("{module}.experts.{{}}.{own}");
        let bias = format!("{module}.bias");
        let first = bias.replace("{}", "0");
        Matrices::Each(Projection {
            weight: Tensor::named(format!("{module}.weight")),
            bias: names.has(&first).then(|| Tensor::named(bias)),
            module,
            clamps: None,
        })
    })
}

/// Returns experts that are stacks, as GGUF files store them: `{module}.experts.{gate}.weight`,
/// `[experts, …]`, or one stack with the rows of the gate first, then of up.
fn stacked(names: &TensorNames, module: &str, width: u64) -> [Matrices; 3] {
    let both = format!("{module}.experts.gate_up_proj");
    if names.has(&format!("{both}.weight")) {
        let both = projection(names, &both);
        let part = |which: u64| Matrices::Items(both.rows(Rows::run(which.saturating_mul(width), width)));
        return [part(0), part(1), Matrices::Items(projection(names, &format!("{module}.experts.down_proj")))];
    }
    MODULES.map(|own| Matrices::Items(projection(names, &format!("{module}.experts.{own}"))))
}

/// Number of best experts that define the score of a group, if a family has no other number.
const BEST_OF_GROUP: u64 = 2;

/// Reads the groups of experts of a config; `None` if all experts are in one group.
pub(crate) fn groups(config: Config<'_>) -> Result<Option<Groups>, Error> {
    let (count, keep) = (config.unsigned("n_group")?.unwrap_or(1), config.unsigned("topk_group")?.unwrap_or(1));
    Ok((count > 1).then_some(Groups { count, keep, best: BEST_OF_GROUP }))
}

/// Reads the groups of experts of a GGUF file; `None` if all experts are in one group.
fn groups_of_gguf(keys: Keys<'_>) -> Result<Option<Groups>, Error> {
    let count = keys.unsigned("expert_group_count")?.filter(|count| *count > 1);
    let keep = keys.unsigned("expert_group_used_count")?.unwrap_or(1);
    Ok(count.map(|count| Groups { count, keep, best: BEST_OF_GROUP }))
}

/// Adds the experts of a GGUF file to the layers that have a router. `normalize` and `scores` are
/// the architecture's defaults for keys that a file omits.
pub(crate) fn from_gguf(
    keys: Keys<'_>,
    names: &TensorNames,
    blueprint: &mut Blueprint,
    normalize: bool,
    scores: RouterScores,
) -> Result<(), Error> {
    let count = keys.required("expert_count")?;
    let top_k = keys.required("expert_used_count")?;
    let normalize = keys.flag("expert_weights_norm")?.unwrap_or(normalize);
    let scores = match keys.unsigned("expert_gating_func")?.unwrap_or(0) {
        0 => scores,
        1 => RouterScores::Softmax,
        2 => RouterScores::Sigmoid,
        3 => RouterScores::SoftmaxOfChosen,
        4 => RouterScores::RootOfSoftplus,
        other => return Err(gguf_keys::fail(format!("`expert_gating_func` is {other}, expected 1 to 4"))),
    };
    // Some files state no widths, which their tensors have.
    let width_of = |stack: &str| {
        let tensors = || keys.gguf.tensors.iter().filter(|tensor| tensor.name.starts_with("blk."));
        let found = tensors().find(|tensor| tensor.name.ends_with(&format!(".{stack}.weight")));
        found.and_then(|tensor| tensor.dims.get(1).copied())
    };
    let own_width = keys.unsigned("expert_feed_forward_length")?.or_else(|| width_of("ffn_up_exps"));
    let shared_width = keys.unsigned("expert_shared_feed_forward_length")?;
    // Several shared experts are stored as one that is as wide as all of them.
    let shared_count = keys.unsigned("expert_shared_count")?;
    let shared_width = shared_width.or_else(|| if shared_count.is_none() { width_of("ffn_up_shexp") } else { None });
    let shared_count = shared_count.unwrap_or(1);
    let groups = groups_of_gguf(keys)?;
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("model.layers.{index}.mlp");
        let Ffn::Gated(dense) = &layer.ffn else { continue };
        if !names.has(&format!("{module}.gate.weight")) {
            continue;
        }
        let (width, activation) = (own_width.unwrap_or(dense.width), dense.activation);
        let mut router = router(names, &format!("{module}.gate"), top_k);
        (router.normalize, router.scores, router.groups) = (normalize, scores, groups);
        let bias = format!("{module}.gate.e_score_correction_bias");
        router.bias = names.has(&bias).then(|| Tensor::named(bias));
        if let Some(scale) = keys.float("expert_weights_scale")?.filter(|scale| *scale != 0.0) {
            router.scale = scale;
        }
        let common = format!("{module}.shared_expert");
        // For stacks that share a blob, only the common name may be known.
        let has_shared = names.has(&format!("{common}.gate_proj.weight")) || names.has(&common);
        let common_gate = format!("{module}.shared_expert_gate");
        let common = has_shared.then(|| {
            shared(
                names,
                &common,
                Some(&common_gate),
                shared_width.unwrap_or(width.saturating_mul(shared_count)),
                activation,
            )
        });
        let sizes = ExpertSizes { count, width, top_k, activation };
        layer.ffn =
            Ffn::Experts(Box::new(Experts { shared: common, ..routed(sizes, router, stacked(names, &module, width)) }));
    }
    Ok(())
}

/// Returns experts without a shared one, from their matrices: gate, up, down.
pub(crate) fn routed(sizes: ExpertSizes, router: Router, [gate, up, down]: [Matrices; 3]) -> Experts {
    let ExpertSizes { count, width, activation, .. } = sizes;
    let gate = Some(gate);
    Experts {
        count,
        width,
        activation,
        router,
        input_norm: None,
        weighs_inputs: false,
        gate,
        up,
        down,
        shared: None,
        latent: None,
    }
}

/// Returns a router with the usual parameters: softmax over all experts.
pub(crate) fn router(names: &TensorNames, module: &str, top_k: u64) -> Router {
    Router {
        projection: projection(names, module),
        norm: None,
        logit_scale: None,
        scores: RouterScores::Softmax,
        bias: None,
        of_tokens: None,
        groups: None,
        nearness: None,
        top_k,
        normalize: false,
        scale: 1.0,
        expert_scales: None,
    }
}

/// Returns experts below `{module}.experts` with the router `{module}.gate`.
pub(crate) fn experts(names: &TensorNames, module: &str, modules: Modules, sizes: ExpertSizes) -> Experts {
    let router = router(names, &format!("{module}.gate"), sizes.top_k);
    routed(sizes, router, each(names, module, modules, sizes.width))
}

/// Returns an expert that all tokens use, with its gate if it has one.
pub(crate) fn shared(
    names: &TensorNames,
    module: &str,
    gate: Option<&str>,
    width: u64,
    activation: Activation,
) -> SharedExpert {
    let gate = gate.filter(|gate| names.has(&format!("{gate}.weight"))).map(|gate| projection(names, gate));
    SharedExpert { ffn: Network::Gated(Box::new(gated(names, module, MODULES, width, activation))), gate }
}

/// Returns the number of experts of a layer. Newer tools use another key for it.
pub(crate) fn count(config: Config<'_>, default: u64) -> Result<u64, Error> {
    Ok(config.unsigned("num_experts")?.or(config.unsigned("num_local_experts")?).unwrap_or(default))
}

/// Returns the same for a class in which only every `moe_layer_freq`-th of these layers has
/// experts.
pub(crate) fn regular_layers(config: Config<'_>, layers: usize, dense: u64) -> Result<Vec<bool>, Error> {
    let step = config.step("moe_layer_freq", 1)?;
    let sparse = after_dense_layers(config, layers, dense)?;
    Ok((0..).zip(sparse).map(|(index, sparse): (u64, bool)| sparse && index.is_multiple_of(step)).collect())
}

/// Returns for each layer whether it has experts: by the list `mlp_layer_types`, or else all layers
/// after the first `first_k_dense_replace`, whose default is `dense`.
pub(crate) fn after_dense_layers(config: Config<'_>, layers: usize, dense: u64) -> Result<Vec<bool>, Error> {
    let dense = config.unsigned("first_k_dense_replace")?.unwrap_or(dense);
    let is_sparse = |kind: &Value| match kind.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(fail(format!("`mlp_layer_types` has {kind}, expected dense or sparse"))),
    };
    let listed = config.per_layer("mlp_layer_types", layers as u64, is_sparse)?;
    Ok(listed.unwrap_or_else(|| (0..layers as u64).map(|layer| layer >= dense).collect()))
}

/// Returns for each layer whether it has experts, as Qwen's configs define it: every
/// `decoder_sparse_step`-th layer, except for listed ones.
fn sparse_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    let step = config.step("decoder_sparse_step", 1)?;
    let dense = config.list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |layer: u64| dense.iter().any(|item| item.as_u64() == Some(layer));
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(step) && !is_dense(layer)).collect())
}
