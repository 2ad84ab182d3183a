//! The tower of Gemma 4: a position of its own for each column and line, rotary positions of two
//! halves of each head, norms before and behind the parts of a layer, and rows that are averaged
//! over squares of patches.

use super::{FoundTower, Source};
use crate::blueprint::{
    Activation, BlockJoin, Ffn, Gated, Layer, Mixer, Norm, NormKind, PatchPositions, PictureInput, PictureText,
    Projection, Projector, ProjectorLayer, Residual, Standardization, Tensor, Tower, View,
};
use crate::config_json::fail;
use crate::dense::{attention, clamps, layer_count, layer_norm, projection, unweighted_norm};
use crate::rope::{Rope, RopeAxes};
use crate::{Error, TensorNames};

const ROOTS: [&str; 2] = ["model.vision_tower.", "vision_tower."];
pub(super) const THETA: f64 = 100.0;

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, hidden: decoder, .. } = source;
    let root = source.prefix(&ROOTS, "patch_embedder.input_proj.weight")?;
    let number = |key: &str, usual: u64| Ok::<_, Error>(tower.unsigned(key)?.unwrap_or(usual));
    let (hidden, heads) = (number("hidden_size", 768)?, number("num_attention_heads", 12)?);
    let head_dim = number("head_dim", 64)?;
    if number("num_key_value_heads", heads)? != heads || !head_dim.is_multiple_of(4) {
        return Err(fail(format!(
            "the tower has {heads} heads of {head_dim}, expected as many key heads, and a multiple of 4"
        )));
    }
    let epsilon = tower.float("rms_norm_eps")?.unwrap_or(1e-6);
    let theta = tower.theta_of_tower(THETA)?;
    let (width, activation) =
        (number("intermediate_size", 3072)?, tower.activation("hidden_activation", Activation::GeluTanh)?);
    let block = number("pooling_kernel_size", 3)?;
    let count = number("position_embedding_size", 10_240)?;
    // Bounds and standardization follow from the tensors; positions are those of the table.
    for key in ["use_clipped_linears", "standardize", "max_position_embeddings"] {
        tower.value(key);
    }
    let form = LayerNames { names, prefix: format!("{root}encoder.layers"), epsilon };
    let sizes = [heads, head_dim, width];
    let layer = |index: usize| form.layer(index, sizes, activation, theta);
    let table = format!("{root}patch_embedder.position_embedding_table");
    let text = whole.object("text_config")?.unwrap_or(whole);
    let is_bidirectional = text.text("use_bidirectional_attention") == Some("vision");
    let rest = if root == ROOTS[0] { "model." } else { "" };
    let own = Tower {
        input: input(&source.input(number("patch_size", 16)?)?, block),
        hidden,
        patches: vec![projection(names, &format!("{root}patch_embedder.input_proj"))],
        positions: Some(axes(&table, count)),
        class: None,
        norm: None,
        layers: (0..layer_count(number("num_hidden_layers", 16)?)?).map(layer).collect(),
        windows: None,
        projector: projector(
            names,
            [hidden, decoder],
            epsilon,
            [
                &format!("{root}std_bias"),
                &format!("{root}std_scale"),
                &format!("{rest}embed_vision.embedding_projection"),
            ],
        ),
        deep: Vec::new(),
        line_end: None,
        is_bidirectional,
        text: self::text(),
    };
    Ok(FoundTower { is_bidirectional_in_windows: true, ..FoundTower::new(own, None) })
}

/// Returns the tables of positions, of which `name` is a stack.
pub(super) fn axes(name: &str, count: u64) -> PatchPositions {
    let item = |item: u64| Tensor { name: name.to_owned(), view: View { item: Some(item), ..View::default() } };
    PatchPositions::Axes { columns: item(0), lines: item(1), count }
}

/// Returns the projector. The modules are the shift and the factor of a standardization, which some
/// models do not have, and the projection.
pub(super) fn projector(
    names: &TensorNames,
    [hidden, decoder]: [u64; 2],
    epsilon: f64,
    [shift, factor, module]: [&str; 3],
) -> Projector {
    let standard = Standardization { shift: Tensor::named(shift), factor: Tensor::named(factor) };
    let layer = ProjectorLayer { width: decoder, projection: projection(names, module), activation: None };
    Projector {
        scale: Some((hidden as f64).sqrt()),
        standard: names.has(shift).then_some(standard),
        joined_norm: Some(unweighted_norm(epsilon)),
        ..Projector::new(BlockJoin::Mean, vec![layer])
    }
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: "<|image|>".to_owned(),
        framed: "<|image|>".to_owned(),
        before: "<|image>".to_owned(),
        token: "<|image|>".to_owned(),
        after: "<image|>".to_owned(),
        ..PictureText::default()
    }
}

/// Adds the step that the model does itself, `2 · (x − 0.5)`, to those of the processor.
fn input(input: &PictureInput, block: u64) -> PictureInput {
    let halved = input.deviation.map(|deviation| deviation / 2.0);
    let mean = std::array::from_fn(|channel| input.mean[channel] + halved[channel]);
    PictureInput { block, mean, deviation: halved, ..input.clone() }
}

/// Returns the rotary embeddings of columns and of lines for heads of `head_dim` elements.
pub(super) fn ropes(theta: f64, head_dim: u64) -> [Rope; 2] {
    [RopeAxes::Columns, RopeAxes::Rows].map(|axes| Rope {
        axes: Some(axes),
        dimension: Some(head_dim / 2),
        ..Rope::plain(theta)
    })
}

/// Names of the layers' tensors.
struct LayerNames<'a> {
    names: &'a TensorNames,
    prefix: String,
    epsilon: f64,
}

impl LayerNames<'_> {
    fn norm(&self, module: &str) -> Norm {
        Norm { kind: NormKind::Rms, ..layer_norm(self.names, module, self.epsilon) }
    }

    /// Returns a projection, whose weight is that of a module `linear` in it.
    fn projection(&self, module: &str) -> Projection {
        let inner = projection(self.names, &format!("{module}.linear"));
        Projection { module: module.to_owned(), clamps: clamps(self.names, module), ..inner }
    }

    fn layer(&self, index: usize, [heads, head_dim, width]: [u64; 3], activation: Activation, theta: f64) -> Layer {
        let name = |module: &str| format!("{}.{index}.{module}", self.prefix);
        let own = |module: &str| self.projection(&name(module));
        let residual = |before: &str, after: &str| Residual {
            before: Some(self.norm(&name(before))),
            after: Some(self.norm(&name(after))),
            ..Residual::default()
        };
        let modules = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|module| own(&format!("self_attn.{module}")));
        let mut mixer = attention(heads, head_dim, modules);
        let [columns, lines] = ropes(theta, head_dim);
        (mixer.rope, mixer.second_rope, mixer.scale) = (Some(columns), Some(lines), 1.0);
        mixer.query_norm = Some(self.norm(&name("self_attn.q_norm")));
        mixer.key_norm = Some(self.norm(&name("self_attn.k_norm")));
        mixer.value_norm = Some(unweighted_norm(self.epsilon));
        let gated =
            Gated::new(width, activation, ["gate_proj", "up_proj", "down_proj"].map(|m| own(&format!("mlp.{m}"))));
        Layer::new(
            (Mixer::Attention(Box::new(mixer)), residual("input_layernorm", "post_attention_layernorm")),
            (Ffn::Gated(Box::new(gated)), residual("pre_feedforward_layernorm", "post_feedforward_layernorm")),
        )
    }
}
