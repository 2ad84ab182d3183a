//! The tower of Mistral Small 3.1 to 4, Ministral 3 and Devstral 2: Pixtral (arXiv 2410.07073). It
//! has rotary positions by row and column, a token at the end of each line, and a projector that
//! joins squares of patches.

use super::{FoundTower, Source};
use crate::blueprint::{
    Activation, BlockJoin, Ffn, Gated, Layer, Mixer, Norm, NormKind, PictureResize, PictureText, Projector,
    ProjectorLayer, Residual, Tower,
};
use crate::config_json::fail;
use crate::dense::{attention, layer_count, layer_norm, projection};
use crate::rope::{Rope, RopeAxes};
use crate::{Error, PictureInput, TensorNames};

const EPSILON: f64 = 1e-5;
const ROOTS: [&str; 2] = ["vision_tower.", "model.vision_tower."];

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, .. } = source;
    let root = source.prefix(&ROOTS, "patch_conv.weight")?;
    if tower.text("model_type").is_some_and(|kind| kind != "pixtral") {
        return Err(fail("the tower is not `pixtral`, expected that of Mistral 3"));
    }
    if whole.value("vision_feature_layer").is_some_and(|layer| layer.as_i64() != Some(-1)) {
        return Err(fail("`vision_feature_layer` is not -1, expected the rows of the last layer"));
    }
    let number = |key: &str, usual: u64| Ok::<_, Error>(tower.number_or_same(key)?.unwrap_or(usual));
    let (hidden, heads) = (number("hidden_size", 1024)?, number("num_attention_heads", 16)?);
    let head_dim = number("head_dim", hidden.checked_div(heads).unwrap_or(0))?;
    if head_dim == 0 || !head_dim.is_multiple_of(4) || head_dim.saturating_mul(heads) != hidden {
        return Err(fail(format!(
            "a tower of width {hidden} has {heads} heads of {head_dim}, expected heads whose size is a multiple of 4"
        )));
    }
    source.check_channels()?;
    // Pictures are resized as the processor says.
    tower.value("image_size");
    let rope = Rope { axes: Some(RopeAxes::Alternating), ..Rope::plain(tower.theta_of_tower(10_000.0)?) };
    let (width, activation) = (number("intermediate_size", 4096)?, tower.activation("hidden_act", Activation::Gelu)?);
    let layer = |index: usize| {
        let prefix = format!("{root}transformer.layers.{index}");
        let own = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let before = |module: &str| Residual {
            before: Some(rms_norm(names, &format!("{prefix}.{module}"), EPSILON)),
            ..Residual::default()
        };
        let modules = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|module| own(&format!("attention.{module}")));
        let mut mixer = attention(heads, head_dim, modules);
        mixer.rope = Some(rope.clone());
        let gated = ["gate_proj", "up_proj", "down_proj"].map(|module| own(&format!("feed_forward.{module}")));
        let ffn = Ffn::Gated(Box::new(Gated::new(width, activation, gated)));
        Layer::new((Mixer::Attention(Box::new(mixer)), before("attention_norm")), (ffn, before("ffn_norm")))
    };
    let depth = layer_count(number("num_hidden_layers", 24)?)?;
    let tower = Tower {
        input: input(source, number("patch_size", 16)?)?,
        hidden,
        patches: vec![projection(names, &format!("{root}patch_conv"))],
        positions: None,
        class: None,
        norm: Some(rms_norm(names, &format!("{root}ln_pre"), EPSILON)),
        layers: (0..depth).map(layer).collect(),
        projector: projector(source, hidden, if root == ROOTS[0] { "" } else { "model." })?,
        windows: None,
        deep: Vec::new(),
        line_end: None,
        is_bidirectional: false,
        text: text(),
    };
    Ok(FoundTower::new(tower, None))
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: "[IMG]".to_owned(),
        framed: "[IMG]".to_owned(),
        token: "[IMG]".to_owned(),
        between_lines: "[IMG_BREAK]".to_owned(),
        after: "[IMG_END]".to_owned(),
        ..PictureText::default()
    }
}

/// Returns the steps from a picture to patches: its sides are whole squares of joined patches.
fn input(source: Source<'_>, patch: u64) -> Result<PictureInput, Error> {
    let block = source.whole.unsigned("spatial_merge_size")?.unwrap_or(2);
    let input = source.input(patch)?;
    let PictureResize::Longest { longest, .. } = input.resize else {
        return Err(fail("the processor has no longest side of pictures, expected that of Pixtral"));
    };
    let multiple = patch.saturating_mul(block);
    Ok(PictureInput { patch, block, resize: PictureResize::Longest { longest, multiple }, ..input })
}

fn projector(source: Source<'_>, hidden: u64, before: &str) -> Result<Projector, Error> {
    let Source { whole, names, .. } = source;
    let root = format!("{before}multi_modal_projector.");
    let text = whole.object("text_config")?.unwrap_or(whole);
    let epsilon = text.float("rms_norm_eps")?.unwrap_or(1e-6);
    let merging = projection(names, &format!("{root}patch_merger.merging_layer"));
    let mut layers = source.perceptron(&root, source.hidden)?;
    layers.insert(0, ProjectorLayer { width: hidden, projection: merging, activation: None });
    Ok(Projector {
        norm: Some(rms_norm(names, &format!("{root}norm"), epsilon)),
        ..Projector::new(BlockJoin::Elements, layers)
    })
}

fn rms_norm(names: &TensorNames, module: &str, epsilon: f64) -> Norm {
    Norm { kind: NormKind::Rms, bias: None, ..layer_norm(names, module, epsilon) }
}
