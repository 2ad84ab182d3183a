//! The tower of `LLaVA` (arXiv 2304.08485, 2310.03744) and `LLaVA` 1.6: CLIP (arXiv 2103.00020), of
//! which an earlier layer is used, and a projector of two layers. `LLaVA` 1.6 takes tiles, whose
//! rows are joined to lines.

use super::siglip::{ViT, ViTClass};
use super::{FoundTower, Source};
use crate::Error;
use crate::blueprint::{BlockJoin, ClassRow, PictureResize, PictureText, Projector, Tensor, Tower};
use crate::config_json::fail;
use crate::dense::layer_norm;

const ROOTS: [&str; 4] =
    ["vision_tower.vision_model.", "model.vision_tower.vision_model.", "vision_tower.", "model.vision_tower."];

/// Names of the row at the end of each line, which `LLaVA` 1.6 has.
pub(super) const NEWLINES: [&str; 2] = ["image_newline", "model.image_newline"];

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, .. } = source;
    let root = source.prefix(&ROOTS, "embeddings.patch_embedding.weight")?;
    match tower.text("model_type") {
        Some("clip_vision_model") => {}
        other => return Err(fail(format!("the tower is {other:?}, expected `clip_vision_model`"))),
    }
    match whole.text("vision_feature_select_strategy") {
        None | Some("default") => {}
        Some(other) => return Err(fail(format!("`vision_feature_select_strategy` is `{other}`, expected `default`"))),
    }
    // The width of the vectors that text and pictures share in CLIP.
    for key in ["projection_dim", "vocab_size", "initializer_factor"] {
        tower.value(key);
    }
    let mut own = ViT::read(source, root, &ViTClass::CLIP)?;
    let used = used_layers(source, own.layers.len())?;
    own.layers.truncate(used);
    let class = ClassRow {
        row: Tensor::named(format!("{root}embeddings.class_embedding")),
        position: Tensor::rows(format!("{root}embeddings.position_embedding.weight"), 0, 1),
    };
    let rest = if root.starts_with("model.") { "model.multi_modal_projector." } else { "multi_modal_projector." };
    let projector = Projector::new(BlockJoin::Rows, source.perceptron(rest, source.hidden)?);
    let input = source.input_of_square([own.side, own.patch])?;
    let line_end = NEWLINES.into_iter().find(|name| names.has(name));
    match (input.resize, line_end) {
        (PictureResize::Padded { .. }, Some(_))
        | (PictureResize::Cropped { .. } | PictureResize::Fixed { .. }, None) => {}
        _ => return Err(fail("tiles need a tensor `image_newline`, and pictures in one part have none")),
    }
    let tower = Tower {
        class: Some(class),
        line_end: line_end.map(Tensor::named),
        norm: Some(layer_norm(names, &format!("{root}pre_layrnorm"), own.epsilon)),
        ..own.tower(input, projector, text())
    };
    Ok(FoundTower::new(tower, None))
}

/// Returns the number of layers up to the one whose rows are used: a negative index counts from the
/// output of the last layer, others from the input of the first one.
fn used_layers(source: Source<'_>, layers: usize) -> Result<usize, Error> {
    let chosen = source.whole.value("vision_feature_layer").map(serde_json::Value::as_i64);
    let Some(index) = chosen.unwrap_or(Some(-2)) else {
        return Err(fail("`vision_feature_layer` is a list, expected one layer"));
    };
    let distance = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
    let count = if index < 0 { (layers + 1).saturating_sub(distance) } else { distance };
    let count = Some(count).filter(|count| (1..=layers).contains(count));
    count.ok_or_else(|| fail(format!("`vision_feature_layer` is {index}, the tower has {layers} layers")))
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: "<image>".to_owned(),
        framed: "<image>\n".to_owned(),
        token: "<image>".to_owned(),
        ..PictureText::default()
    }
}
