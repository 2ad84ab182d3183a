//! Adding experts to the layers of a model that has them.

use super::{ExpertSizes, Modules, experts, groups, groups_of_gguf, shared};
use crate::Error;
use crate::TensorNames;
use crate::blueprint::{Blueprint, Ffn, Groups, Router, RouterScores, Tensor};
use crate::config_json::Config;
use crate::gguf_keys::Keys;

/// Experts of all sparse layers.
pub(crate) struct ExpertLayers {
    pub(crate) sizes: ExpertSizes,
    /// For each layer, whether it has experts.
    pub(crate) sparse: Vec<bool>,
    /// Module of the experts and their router in a layer.
    pub(crate) module: &'static str,
    /// Modules of an expert: gate, up, down.
    pub(crate) modules: Modules,
    /// Module and width of the expert that all tokens use, if there is one.
    pub(crate) shared: Option<(&'static str, u64)>,
}

impl ExpertLayers {
    /// Replaces the networks of the sparse layers by experts. `route` sets the parameters of each
    /// router; it also gets the name of the router's parent module.
    pub(crate) fn add(&self, names: &TensorNames, blueprint: &mut Blueprint, route: impl Fn(&mut Router, &str)) {
        for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| self.sparse[*index]) {
            let module = format!("model.layers.{index}.{}", self.module);
            let mut own = experts(names, &module, self.modules, self.sizes);
            own.shared = self.shared.map(|(common, width)| {
                shared(names, &format!("{module}.{common}"), None, width, self.sizes.activation)
            });
            route(&mut own.router, &module);
            layer.ffn = Ffn::Experts(Box::new(own));
        }
    }
}

/// Parameters of a router with sigmoid scores and a bias for the selection, as in `DeepSeek` V3.
pub(crate) struct SigmoidRouter {
    groups: Option<Groups>,
    normalize: bool,
    scale: f64,
}

impl SigmoidRouter {
    /// Reads the parameters; `normalize` and `scale` are the class's defaults for keys that a
    /// config omits.
    pub(crate) fn from_config(config: Config<'_>, normalize: bool, scale: f64) -> Result<Self, Error> {
        Ok(Self {
            groups: groups(config)?,
            normalize: config.flag("norm_topk_prob")?.unwrap_or(normalize),
            scale: config.float("routed_scaling_factor")?.unwrap_or(scale),
        })
    }

    /// Reads the parameters of a GGUF file; `normalize` is the architecture's default.
    pub(crate) fn from_gguf(keys: Keys<'_>, normalize: bool) -> Result<Self, Error> {
        Ok(Self {
            groups: groups_of_gguf(keys)?,
            normalize: keys.flag("expert_weights_norm")?.unwrap_or(normalize),
            scale: keys.float("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
        })
    }

    /// Returns a router without groups, whose weights are divided by their sum.
    pub(crate) fn normalized(scale: f64) -> Self {
        Self { groups: None, normalize: true, scale }
    }

    /// Sets the parameters of a router. `bias` is the name of its bias, which is used if it exists.
    pub(crate) fn set(&self, router: &mut Router, names: &TensorNames, bias: String) {
        (router.groups, router.normalize, router.scale) = (self.groups, self.normalize, self.scale);
        router.scores = RouterScores::Sigmoid;
        router.bias = names.has(&bias).then(|| Tensor::named(bias));
    }
}
