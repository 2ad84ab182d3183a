//! The towers of Idefics 3 (arXiv 2408.12637) and `SmolVLM` (arXiv 2504.05299): `SigLIP`, which
//! takes a picture as tiles and a small copy. The rows of squares of patches are joined and
//! projected.

use super::siglip::{ViT, ViTClass};
use super::{FoundTower, Source};
use crate::Error;
use crate::blueprint::{BlockJoin, PictureText, Projector, ProjectorLayer, TileText};
use crate::dense::projection;

const ROOTS: [&str; 2] = ["model.vision_model.", "vision_model."];

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, hidden: decoder, .. } = source;
    let root = source.prefix(&ROOTS, "embeddings.patch_embedding.weight")?;
    // The processor has settings of its own for sizes.
    for key in ["size", "max_image_size", "tie_word_embeddings", "use_base_siglip"] {
        tower.value(key);
    }
    let own = ViT::read(source, root, &ViTClass::IDEFICS3)?;
    let mut input = source.input_of_square([own.side, own.patch])?;
    input.block = whole.unsigned("scale_factor")?.unwrap_or(2);
    let module = format!("{}connector.modality_projection.proj", root.trim_end_matches("vision_model."));
    let layer = ProjectorLayer { width: decoder, projection: projection(names, &module), activation: None };
    let projector = Projector { norm: Some(own.norm.clone()), ..Projector::new(BlockJoin::Rows, vec![layer]) };
    Ok(FoundTower::new(own.tower(input, projector, text()), None))
}

pub(super) fn text() -> PictureText {
    const AROUND: &str = "<fake_token_around_image>";
    PictureText {
        mark: "<image>".to_owned(),
        framed: "<image>".to_owned(),
        token: "<image>".to_owned(),
        after: AROUND.to_owned(),
        tiles: TileText {
            before_whole: format!("{AROUND}<global-img>"),
            before: format!("{AROUND}<row_{{row}}_col_{{column}}>"),
            after_row: "\n".to_owned(),
            before_copy: format!("\n{AROUND}<global-img>"),
        },
        ..PictureText::default()
    }
}
