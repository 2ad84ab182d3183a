//! The towers of Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): rotary positions by
//! row and column, and blocks of patches that become one token. In most layers of the second one,
//! patches see only those of their window.

use super::qwen3_vl::text;
use super::{FoundTower, Source, qwen3_vl};
use crate::blueprint::{
    Activation, BlockJoin, Ffn, Gated, Layer, Mixer, Norm, NormKind, PatchWindows, Plain, Projector, ProjectorLayer,
    Residual, Tower,
};
use crate::config_json::fail;
use crate::dense::{attention, layer_count, layer_norm, projection};
use crate::plain::one_by_one;
use crate::rope::{Rope, RopeAxes};
use crate::{Error, TensorNames};

const EPSILON: f64 = 1e-6;

/// Sections of the decoder's rotary embedding, if a config omits them.
pub(super) const SECTIONS: [u64; 3] = [16, 24, 24];

/// Sizes of a tower.
struct TowerSizes {
    hidden: u64,
    heads: u64,
    width: u64,
    activation: Activation,
    norm: NormKind,
    rope: Rope,
    /// Patches of each side of a block.
    block: u64,
}

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, hidden: decoder, .. } = source;
    let root = source.prefix(&["visual.", "model.visual."], "patch_embed.proj.weight")?;
    let has_windows = whole.text("model_type") == Some("qwen2_5_vl");
    let sizes = if has_windows { TowerSizes::of_2_5(source)? } else { TowerSizes::of_2(source)? };
    let depth = layer_count(tower.unsigned("depth")?.unwrap_or(32))?;
    for (key, expected) in [("in_channels", 3), ("in_chans", 3)] {
        if let Some(found) = tower.unsigned(key)?.filter(|found| *found != expected) {
            return Err(fail(format!("`{key}` of the tower is {found}, expected {expected}")));
        }
    }
    // The frames of a second, for videos.
    tower.value("tokens_per_second");
    let joined = sizes.hidden.saturating_mul(sizes.block).saturating_mul(sizes.block);
    let layer = |module: &str, width: u64, activation: Option<Activation>| ProjectorLayer {
        width,
        projection: projection(names, &format!("{root}merger.mlp.{module}")),
        activation,
    };
    let input = qwen3_vl::input(source, [14, sizes.block, 2])?;
    let windows = if has_windows { Some(windows(source, input.patch.saturating_mul(sizes.block))?) } else { None };
    let own = Tower {
        input,
        hidden: sizes.hidden,
        patches: vec![projection(names, &format!("{root}patch_embed.proj"))],
        positions: None,
        class: None,
        norm: None,
        layers: (0..depth).map(|index| sizes.layer(names, &format!("{root}blocks.{index}"))).collect(),
        windows,
        projector: Projector {
            norm: Some(sizes.norm(names, &format!("{root}merger.ln_q"))),
            ..Projector::new(
                BlockJoin::Rows,
                vec![layer("0", joined, Some(Activation::Gelu)), layer("2", decoder, None)],
            )
        },
        deep: Vec::new(),
        line_end: None,
        is_bidirectional: false,
        text: text(),
    };
    let text = whole.object("text_config")?.unwrap_or(whole);
    Ok(FoundTower::new(own, Some(RopeAxes::Runs(text.rope_sections()?.unwrap_or(SECTIONS)))))
}

/// Reads the windows of a tower whose blocks have `block` pixels of each side.
fn windows(source: Source<'_>, block: u64) -> Result<PatchWindows, Error> {
    let tower = source.tower;
    let pixels = tower.unsigned("window_size")?.unwrap_or(112);
    let whole = tower.whole_numbers("fullatt_block_indexes")?.unwrap_or_else(|| vec![7, 15, 23, 31]);
    Ok(PatchWindows { side: pixels.checked_div(block).unwrap_or(0), whole })
}

impl TowerSizes {
    fn of_2(source: Source<'_>) -> Result<Self, Error> {
        let Source { tower, hidden: decoder, .. } = source;
        let hidden = tower.unsigned("embed_dim")?.unwrap_or(1280);
        // The width of the decoder.
        if let Some(found) = tower.unsigned("hidden_size")?.filter(|found| *found != decoder) {
            return Err(fail(format!("`hidden_size` of the tower is {found}, expected {decoder}")));
        }
        let width = hidden.saturating_mul(tower.unsigned("mlp_ratio")?.unwrap_or(4));
        let activation = tower.activation("hidden_act", Activation::GeluQuick)?;
        Self::new(source, hidden, width, activation, NormKind::Layer)
    }

    fn of_2_5(source: Source<'_>) -> Result<Self, Error> {
        let Source { tower, hidden: decoder, .. } = source;
        if let Some(found) = tower.unsigned("out_hidden_size")?.filter(|found| *found != decoder) {
            return Err(fail(format!("`out_hidden_size` of the tower is {found}, expected {decoder}")));
        }
        let hidden = tower.unsigned("hidden_size")?.unwrap_or(1280);
        let width = tower.unsigned("intermediate_size")?.unwrap_or(3420);
        let activation = tower.activation("hidden_act", Activation::Silu)?;
        Self::new(source, hidden, width, activation, NormKind::Rms)
    }

    fn new(source: Source<'_>, hidden: u64, width: u64, activation: Activation, norm: NormKind) -> Result<Self, Error> {
        let tower = source.tower;
        let heads = tower.unsigned("num_heads")?.unwrap_or(16);
        qwen3_vl::head_dim(hidden, heads)?;
        let block = tower.number_or_same("spatial_merge_size")?.unwrap_or(2);
        let rope = Rope { axes: Some(RopeAxes::Halves), ..Rope::plain(tower.theta_of_tower(10_000.0)?) };
        Ok(Self { hidden, heads, width, activation, norm, rope, block })
    }

    fn norm(&self, names: &TensorNames, module: &str) -> Norm {
        Norm { kind: self.norm, ..layer_norm(names, module, EPSILON) }
    }

    fn layer(&self, names: &TensorNames, prefix: &str) -> Layer {
        let own = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let before = |module: &str| Residual {
            before: Some(self.norm(names, &format!("{prefix}.{module}"))),
            ..Residual::default()
        };
        let head_dim = self.hidden / self.heads;
        let [query, key, value] = one_by_one(&own("attn.qkv"), [self.heads, self.heads, head_dim]);
        let mut mixer = attention(self.heads, head_dim, [query, key, value, own("attn.proj")]);
        mixer.rope = Some(self.rope.clone());
        let ffn = if self.norm == NormKind::Rms {
            let modules = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"].map(own);
            Ffn::Gated(Box::new(Gated::new(self.width, self.activation, modules)))
        } else {
            let (width, activation) = (self.width, self.activation);
            Ffn::Plain(Box::new(Plain { width, activation, curve: None, up: own("mlp.fc1"), down: own("mlp.fc2") }))
        };
        Layer::new((Mixer::Attention(Box::new(mixer)), before("norm1")), (ffn, before("norm2")))
    }
}
