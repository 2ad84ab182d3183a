//! The tower of LFM2-VL (arXiv 2511.23404): `SigLIP` 2 with pictures of any shape, and tiles for
//! large ones. The rows of squares of patches are joined and projected.

use super::siglip::{ViT, ViTClass};
use super::{FoundTower, Source};
use crate::Error;
use crate::blueprint::{BlockJoin, PictureResize, PictureText, Projector, TileText};
use crate::config_json::fail;
use crate::dense::layer_norm;

const ROOTS: [&str; 2] = ["model.vision_tower.", "model.vision_tower.vision_model."];
const ROOT: &str = "model.multi_modal_projector.";
/// Constant of the projector's norm, which configs do not have.
const EPSILON: f64 = 1e-5;

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, .. } = source;
    let root = source.prefix(&ROOTS, "embeddings.patch_embedding.weight")?;
    // A head that makes one vector of the picture is not used.
    tower.flag("vision_use_head")?;
    let own = ViT::read(source, root, &ViTClass::SIGLIP2)?;
    let mut input = source.input(own.patch)?;
    let PictureResize::Fitted { .. } = input.resize else {
        return Err(fail("the processor has no numbers of tokens, expected that of LFM2-VL"));
    };
    if input.patch != own.patch {
        return Err(fail(format!("the tower has patches of {} pixels, its processor {}", own.patch, input.patch)));
    }
    input.block = whole.unsigned("downsample_factor")?.unwrap_or(2);
    let width = whole.unsigned("projector_hidden_size")?.unwrap_or(2560);
    let layers = source.perceptron(ROOT, width)?;
    let has_norm = whole.flag("projector_use_layernorm")?.unwrap_or(true);
    let projector = Projector {
        norm: Some(own.norm.clone()),
        joined_norm: has_norm.then(|| layer_norm(names, &format!("{ROOT}layer_norm"), EPSILON)),
        ..Projector::new(BlockJoin::Rows, layers)
    };
    let has_special_tokens = whole.flag("use_image_special_tokens")?.unwrap_or(true);
    Ok(FoundTower::new(own.tower(input, projector, text(has_special_tokens)), None))
}

pub(super) fn text(has_special_tokens: bool) -> PictureText {
    const MARK: &str = "<image>";
    let plain = PictureText {
        mark: MARK.to_owned(),
        framed: MARK.to_owned(),
        token: MARK.to_owned(),
        ..PictureText::default()
    };
    if !has_special_tokens {
        return plain;
    }
    PictureText {
        before: "<|image_start|>".to_owned(),
        after: "<|image_end|>".to_owned(),
        tiles: TileText {
            before: "<|img_row_{row}_col_{column}|>".to_owned(),
            before_copy: "<|img_thumbnail|>".to_owned(),
            ..TileText::default()
        },
        ..plain
    }
}
