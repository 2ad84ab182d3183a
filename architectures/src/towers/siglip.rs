//! Parts of towers like `SigLIP` (arXiv 2303.15343), `SigLIP` 2 (arXiv 2502.14786) and CLIP (arXiv
//! 2103.00020): learned positions, layer norms, and networks without a gate.

use super::Source;
use crate::Error;
use crate::blueprint::{
    Activation, Ffn, Layer, Mixer, Norm, PatchPositions, PictureInput, PictureText, Plain, Projection, Projector,
    Residual, SquareFit, Tensor, Tower,
};
use crate::config_json::fail;
use crate::dense::{attention, layer_count, layer_norm, projection};

/// Values of a class of transformers for missing keys, and the names in which classes differ.
pub(super) struct ViTClass {
    hidden: u64,
    heads: u64,
    patch: u64,
    epsilon: f64,
    activation: Activation,
    /// Number of rows of positions before those of patches.
    rows_before: u64,
    fit: SquareFit,
}

impl ViTClass {
    pub(super) const SIGLIP: Self = Self {
        hidden: 768,
        heads: 12,
        patch: 16,
        epsilon: 1e-6,
        activation: Activation::GeluTanh,
        rows_before: 0,
        fit: SquareFit::Corners,
    };
    /// Its config has a number of patches, and no size of pictures.
    pub(super) const SIGLIP2: Self = Self { fit: SquareFit::Area, ..Self::SIGLIP };
    pub(super) const IDEFICS3: Self = Self { hidden: 1152, heads: 16, patch: 32, ..Self::SIGLIP };
    pub(super) const CLIP: Self =
        Self { patch: 32, epsilon: 1e-5, activation: Activation::GeluQuick, rows_before: 1, ..Self::SIGLIP };
}

/// A tower without its projector.
pub(super) struct ViT {
    pub(super) hidden: u64,
    /// Patches of each side of the square that the tower was made for.
    pub(super) side: u64,
    /// Pixels of a patch's side.
    pub(super) patch: u64,
    pub(super) epsilon: f64,
    pub(super) patches: Projection,
    pub(super) positions: PatchPositions,
    pub(super) layers: Vec<Layer>,
    /// Norm behind the last layer.
    pub(super) norm: Norm,
}

impl ViT {
    /// Reads a tower whose tensors have the prefix `root`.
    pub(super) fn read(source: Source<'_>, root: &str, class: &ViTClass) -> Result<Self, Error> {
        let Source { tower, names, .. } = source;
        let number = |key: &str, usual: u64| Ok::<_, Error>(tower.number_or_same(key)?.unwrap_or(usual));
        let (hidden, heads) = (number("hidden_size", class.hidden)?, number("num_attention_heads", class.heads)?);
        let head_dim = hidden.checked_div(heads).unwrap_or(0);
        if head_dim == 0 || head_dim.saturating_mul(heads) != hidden {
            return Err(fail(format!("a tower of width {hidden} has {heads} heads, expected a divisor of the width")));
        }
        source.check_channels()?;
        let patch = number("patch_size", class.patch)?;
        let side = match class.fit {
            SquareFit::Corners => number("image_size", 224)?.checked_div(patch).unwrap_or(0),
            SquareFit::Area => number("num_patches", 256)?.isqrt(),
        };
        if class.fit == SquareFit::Area && side * side != number("num_patches", 256)? {
            return Err(fail("`num_patches` of the tower is no square"));
        }
        let epsilon = tower.float("layer_norm_eps")?.unwrap_or(class.epsilon);
        let width = number("intermediate_size", 3072)?;
        let activation = tower.activation("hidden_act", class.activation)?;
        let table = format!("{root}embeddings.position_embedding.weight");
        let rows = |before: u64, count: u64| match before {
            0 => Tensor::named(&table),
            before => Tensor::rows(&table, before, count),
        };
        let layer = |index: usize| {
            let own = |module: &str| projection(names, &format!("{root}encoder.layers.{index}.{module}"));
            let before = |module: &str| Residual {
                before: Some(layer_norm(names, &format!("{root}encoder.layers.{index}.{module}"), epsilon)),
                ..Residual::default()
            };
            let modules = ["q_proj", "k_proj", "v_proj", "out_proj"].map(|module| own(&format!("self_attn.{module}")));
            let mixer = Mixer::Attention(Box::new(attention(heads, head_dim, modules)));
            let ffn = Plain { width, activation, curve: None, up: own("mlp.fc1"), down: own("mlp.fc2") };
            Layer::new((mixer, before("layer_norm1")), (Ffn::Plain(Box::new(ffn)), before("layer_norm2")))
        };
        Ok(Self {
            hidden,
            side,
            patch,
            epsilon,
            patches: projection(names, &format!("{root}embeddings.patch_embedding")),
            positions: PatchPositions::Square {
                table: rows(class.rows_before, side.saturating_mul(side)),
                side,
                fit: class.fit,
            },
            layers: (0..layer_count(number("num_hidden_layers", 12)?)?).map(layer).collect(),
            norm: layer_norm(names, &format!("{root}post_layernorm"), epsilon),
        })
    }

    /// Returns the tower with a projector: without a class, and without the norm behind the last
    /// layer.
    pub(super) fn tower(self, input: PictureInput, projector: Projector, text: PictureText) -> Tower {
        Tower {
            input,
            hidden: self.hidden,
            patches: vec![self.patches],
            positions: Some(self.positions),
            class: None,
            norm: None,
            layers: self.layers,
            projector,
            windows: None,
            deep: Vec::new(),
            line_end: None,
            is_bidirectional: false,
            text,
        }
    }
}
