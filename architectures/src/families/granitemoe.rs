//! Granite 3 with experts: Granite's factors, experts stored as stacks, gate and up in one tensor.

use super::granite;
use crate::blueprint::{
    Activation, Blueprint, Experts, Ffn, Gated, HeadLayout, Matrices, Network, Projection, RouterScores, Rows,
    SharedExpert, Tensor, View,
};
use crate::config_json::Config;
use crate::dense::projection;
use crate::experts::{self, ExpertSizes, routed, router, switched};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "granitemoe",
    model_types: &["granitemoe", "granitemoeshared"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("granitemoe")
    },
    hugging_face: HuggingFaceForm::of("GraniteMoeForCausalLM", "granitemoe"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = granite::read_config(config, names)?;
    add_experts(config, names, &mut blueprint)?;
    Ok(blueprint)
}

/// Replaces the networks of all layers by experts.
pub(super) fn add_experts(config: Config<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    let (count, top_k) =
        (config.unsigned("num_local_experts")?.unwrap_or(8), config.unsigned("num_experts_per_tok")?.unwrap_or(2));
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Gated(dense) = &layer.ffn else { continue };
        let (width, activation) = (dense.width, dense.activation);
        let module = format!("model.layers.{index}.block_sparse_moe");
        let mut router = router(names, &format!("{module}.router.layer"), top_k);
        router.scores = RouterScores::SoftmaxOfChosen;
        let stack = |name: &str, rows: Option<Rows>| {
            let module = format!("{module}.{name}");
            let weight = Tensor { name: format!("{module}.weight"), view: View { rows, ..View::default() } };
            Matrices::Items(Projection { module, weight, bias: None, clamps: None })
        };
        let part = |first: u64| stack("input_linear", Some(Rows::run(first, width)));
        let fused = || [part(0), part(width), stack("output_linear", None)];
        let matrices = switched(names, &module).unwrap_or_else(fused);
        let shared = shared_expert(config, names, index, activation)?;
        let sizes = ExpertSizes { count, width, top_k, activation };
        layer.ffn = Ffn::Experts(Box::new(Experts { shared, ..routed(sizes, router, matrices) }));
    }
    Ok(())
}

/// Returns the network beside the experts, if the model has one. The rows of the gate come first.
fn shared_expert(
    config: Config<'_>,
    names: &TensorNames,
    index: usize,
    activation: Activation,
) -> Result<Option<SharedExpert>, Error> {
    let Some(width) = config.unsigned("shared_intermediate_size")?.filter(|width| *width > 0) else { return Ok(None) };
    Ok(Some(SharedExpert { ffn: Network::Gated(Box::new(fused_network(names, index, width, activation))), gate: None }))
}

/// Returns the network `shared_mlp` of a layer. The rows of its gate come first.
pub(super) fn fused_network(names: &TensorNames, index: usize, width: u64, activation: Activation) -> Gated {
    let own = |module: &str| projection(names, &format!("model.layers.{index}.shared_mlp.{module}"));
    let both = own("input_linear");
    let part = |first: u64| both.rows(Rows::run(first, width));
    Gated::new(width, activation, [part(0), part(width), own("output_linear")])
}

/// Reads GGUF metadata. A softmax over the selected experts equals a softmax over all, divided by
/// the sum of the selected.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = granite::read_gguf(keys, names)?;
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
