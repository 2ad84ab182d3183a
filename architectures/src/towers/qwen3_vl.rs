//! The tower of Qwen3-VL, Qwen 3.5 and Qwen 3.6: learned positions that are stretched over the
//! picture, rotary positions by row and column, and blocks of patches that become one token.

use super::{FoundTower, Source};
use crate::blueprint::{
    Activation, BlockJoin, DeepProjector, Ffn, Layer, Mixer, Norm, PatchPositions, PictureInput, PictureText, Plain,
    Projector, ProjectorLayer, Residual, SquareFit, Tensor, Tower,
};
use crate::config_json::{Config, fail};
use crate::dense::{attention, layer_count, layer_norm, projection};
use crate::plain::one_by_one;
use crate::rope::{Rope, RopeAxes};
use crate::{Error, TensorNames};

const EPSILON: f64 = 1e-6;
const TOKEN: &str = "<|image_pad|>";

/// Sections of the decoder's rotary embedding, if the config omits them: of Qwen3-VL, and of models
/// that rotate a part of each head.
pub(super) const SECTIONS: [u64; 3] = [24, 20, 20];
pub(super) const SECTIONS_OF_PART: [u64; 3] = [11, 11, 10];

/// Sizes of a tower.
struct Sizes {
    hidden: u64,
    width: u64,
    heads: u64,
    activation: Activation,
    rope: Rope,
    /// Patches that are joined to one token.
    joined: u64,
    /// Width of the decoder.
    decoder: u64,
}

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, .. } = source;
    let root = source.prefix(&["model.visual.", "visual."], "patch_embed.proj.weight")?;
    let sizes = Sizes::of(source)?;
    let depth = layer_count(tower.unsigned("depth")?.unwrap_or(27))?;
    let rows = tower.unsigned("num_position_embeddings")?.unwrap_or(2304);
    let deep = tower.whole_numbers("deepstack_visual_indexes")?;
    let has_deep = names.has(&format!("{root}deepstack_merger_list.0.norm.weight"));
    let deep = if has_deep { deep.unwrap_or_else(|| vec![8, 16, 24]) } else { deep.unwrap_or_default() };
    let deep = deep.into_iter().enumerate().map(|(index, layer)| DeepProjector {
        layer,
        projector: sizes.projector(names, &format!("{root}deepstack_merger_list.{index}"), true),
    });
    let tower = Tower {
        input: input(source, [16, 2, 2])?,
        hidden: sizes.hidden,
        patches: vec![projection(names, &format!("{root}patch_embed.proj"))],
        positions: Some(PatchPositions::Square {
            table: Tensor::named(format!("{root}pos_embed.weight")),
            side: rows.isqrt(),
            fit: SquareFit::Corners,
        }),
        class: None,
        norm: None,
        layers: (0..depth).map(|index| sizes.layer(names, &format!("{root}blocks.{index}"))).collect(),
        projector: sizes.projector(names, &format!("{root}merger"), false),
        windows: None,
        deep: deep.collect(),
        line_end: None,
        is_bidirectional: false,
        text: text(),
    };
    let text = whole.object("text_config")?.unwrap_or(whole);
    let sections = text.rope_sections()?.unwrap_or_else(|| usual_sections(text));
    Ok(FoundTower::new(tower, Some(RopeAxes::Interleaved(sections))))
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: TOKEN.to_owned(),
        framed: format!("<|vision_start|>{TOKEN}<|vision_end|>"),
        token: TOKEN.to_owned(),
        ..PictureText::default()
    }
}

/// Returns the steps from a picture to patches, after checking that the tower takes such patches.
/// `usual` are the pixels of a patch's side, the patches of a block's side and the frames, if the
/// config omits them.
pub(super) fn input(source: Source<'_>, usual: [u64; 3]) -> Result<PictureInput, Error> {
    let tower = source.tower;
    let number = |key: &str, usual: u64| Ok::<_, Error>(tower.number_or_same(key)?.unwrap_or(usual));
    let [patch, block, frames] = usual;
    let expected =
        [number("patch_size", patch)?, number("spatial_merge_size", block)?, number("temporal_patch_size", frames)?];
    let input = source.input(expected[0])?;
    let found = [input.patch, input.block, input.frames];
    if found != expected {
        return Err(fail(format!(
            "the processor makes patches of {} pixels in blocks of {} with {} frames, the tower takes {}, {} and {}",
            found[0], found[1], found[2], expected[0], expected[1], expected[2]
        )));
    }
    Ok(input)
}

/// Returns the elements of a head, which is rotated by rows and columns.
pub(super) fn head_dim(hidden: u64, heads: u64) -> Result<u64, Error> {
    let dim = hidden.checked_div(heads).unwrap_or(0);
    if dim == 0 || !dim.is_multiple_of(4) || dim.saturating_mul(heads) != hidden {
        return Err(fail(format!(
            "a tower of width {hidden} has {heads} heads, expected heads whose size is a multiple of 4"
        )));
    }
    Ok(dim)
}

fn usual_sections(text: Config<'_>) -> [u64; 3] {
    if text.text("model_type").is_some_and(|name| name.starts_with("qwen3_5")) { SECTIONS_OF_PART } else { SECTIONS }
}

impl Sizes {
    fn of(source: Source<'_>) -> Result<Self, Error> {
        let Source { tower, hidden: decoder, .. } = source;
        let hidden = tower.unsigned("hidden_size")?.unwrap_or(1152);
        let heads = tower.unsigned("num_heads")?.unwrap_or(16);
        head_dim(hidden, heads)?;
        for (key, expected) in [("in_channels", 3), ("out_hidden_size", decoder)] {
            if let Some(found) = tower.unsigned(key)?.filter(|found| *found != expected) {
                return Err(fail(format!("`{key}` of the tower is {found}, expected {expected}")));
            }
        }
        let block = tower.unsigned("spatial_merge_size")?.unwrap_or(2);
        Ok(Self {
            hidden,
            width: tower.unsigned("intermediate_size")?.unwrap_or(4304),
            heads,
            activation: tower.activation("hidden_act", Activation::GeluTanh)?,
            rope: Rope { axes: Some(RopeAxes::Halves), ..Rope::plain(tower.theta_of_tower(10_000.0)?) },
            joined: block.saturating_mul(block),
            decoder,
        })
    }

    fn layer(&self, names: &TensorNames, prefix: &str) -> Layer {
        let own = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let before = |module: &str| Residual {
            before: Some(layer_norm(names, &format!("{prefix}.{module}"), EPSILON)),
            ..Residual::default()
        };
        let head_dim = self.hidden / self.heads;
        let [query, key, value] = one_by_one(&own("attn.qkv"), [self.heads, self.heads, head_dim]);
        let mut mixer = attention(self.heads, head_dim, [query, key, value, own("attn.proj")]);
        mixer.rope = Some(self.rope.clone());
        let ffn = Plain {
            width: self.width,
            activation: self.activation,
            curve: None,
            up: own("mlp.linear_fc1"),
            down: own("mlp.linear_fc2"),
        };
        Layer::new((Mixer::Attention(Box::new(mixer)), before("norm1")), (Ffn::Plain(Box::new(ffn)), before("norm2")))
    }

    /// Returns a projector. `is_deep`: its norm comes after the rows are joined.
    fn projector(&self, names: &TensorNames, prefix: &str, is_deep: bool) -> Projector {
        let norm =
            |wanted: bool| -> Option<Norm> { wanted.then(|| layer_norm(names, &format!("{prefix}.norm"), EPSILON)) };
        let layer = |module: &str, width: u64, activation: Option<Activation>| ProjectorLayer {
            width,
            projection: projection(names, &format!("{prefix}.{module}")),
            activation,
        };
        let joined = self.hidden.saturating_mul(self.joined);
        let layers = vec![layer("linear_fc1", joined, Some(Activation::Gelu)), layer("linear_fc2", self.decoder, None)];
        Projector { norm: norm(!is_deep), joined_norm: norm(is_deep), ..Projector::new(BlockJoin::Rows, layers) }
    }
}
