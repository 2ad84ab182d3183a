//! The tower of Gemma 3: `SigLIP`, whose rows are averaged over squares of patches. The tokens of a
//! picture see each other.

use super::siglip::{ViT, ViTClass};
use super::{FoundTower, Source};
use crate::Error;
use crate::blueprint::{
    BlockJoin, Norm, NormKind, PictureText, Projection, Projector, ProjectorLayer, Tensor, Tower, View,
};
use crate::config_json::fail;

const ROOTS: [&str; 4] =
    ["vision_tower.vision_model.", "model.vision_tower.vision_model.", "vision_tower.", "model.vision_tower."];
const MARK: &str = "<start_of_image>";

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let root = source.prefix(&ROOTS, "embeddings.patch_embedding.weight")?;
    let own = ViT::read(source, root, &ViTClass::SIGLIP)?;
    // A head that makes one vector of the picture is not used.
    source.tower.flag("vision_use_head")?;
    let tokens = source.whole.unsigned("mm_tokens_per_image")?.unwrap_or(256);
    let side = tokens.isqrt();
    let block = own.side.checked_div(side).unwrap_or(0);
    if block == 0 || block.saturating_mul(side) != own.side || side * side != tokens {
        return Err(fail(format!("{} patches of each side of a picture do not become {tokens} tokens", own.side)));
    }
    let mut input = source.input_of_square([own.side, own.patch])?;
    input.block = block;
    let rest = if root.starts_with("model.") { "model.multi_modal_projector." } else { "multi_modal_projector." };
    let weight = format!("{rest}mm_input_projection_weight");
    let projection = Projection {
        module: format!("{rest}mm_input_projection"),
        weight: Tensor { name: weight, view: View { transposed: true, ..View::default() } },
        bias: None,
        clamps: None,
    };
    let pooled_norm = Norm {
        kind: NormKind::Rms,
        weight: Some(Tensor::named(format!("{rest}mm_soft_emb_norm.weight"))),
        bias: None,
        epsilon: own.epsilon,
        offset: 1.0,
    };
    let layer = ProjectorLayer { width: source.hidden, projection, activation: None };
    let projector = Projector {
        norm: Some(own.norm.clone()),
        joined_norm: Some(pooled_norm),
        ..Projector::new(BlockJoin::Mean, vec![layer])
    };
    let tower = Tower { is_bidirectional: true, ..own.tower(input, projector, text()) };
    Ok(FoundTower::new(tower, None))
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: MARK.to_owned(),
        framed: MARK.to_owned(),
        before: format!("\n\n{MARK}"),
        token: "<image_soft_token>".to_owned(),
        after: "<end_of_image>\n\n".to_owned(),
        ..PictureText::default()
    }
}
