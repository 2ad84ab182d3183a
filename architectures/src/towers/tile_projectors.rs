//! Kinds of projectors in GGUF files whose models take pictures in tiles.

use super::gguf_vision::{LayerForm, POSITIONS, Vision};
use super::{FoundTower, idefics3, internvl, lfm2_vl};
use crate::Error;
use crate::blueprint::{
    Activation, BlockJoin, LargeTiles, NormKind, PatchPositions, PictureFilter, PictureResize, Projector,
    ProjectorLayer, SquareFit, Tensor, Tower,
};
use crate::dense::{layer_norm, projection};
use crate::gguf_keys::fail;

/// Constant of norms of projectors, which files do not have.
const EPSILON: f64 = 1e-5;
/// Largest number of tiles, and of tiles of a side, in the settings of published models.
const INTERNVL_TILES: u64 = 12;
const IDEFICS3_SIDE: u64 = 4;
/// Settings of LFM2-VL: smallest and largest number of tokens of a picture that is not cut, patches
/// of a tile's side, smallest and largest number of tiles, and how many times more pixels a picture
/// may have before it is cut.
const LFM2_TOKENS: [u64; 2] = [64, 256];
const LFM2_TILE: u64 = 32;
const LFM2_TILES: [u64; 2] = [2, 10];
const LFM2_TOLERANCE: u64 = 2;

pub(super) fn idefics3(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("projector.scale_factor")?.unwrap_or(2);
    let usual = vision.side.saturating_mul(IDEFICS3_SIDE);
    let longest = vision.keys.unsigned("preproc_image_size")?.unwrap_or(usual);
    let input = vision.input(PictureResize::Tiles { longest, tile: vision.side }, PictureFilter::Lanczos, block)?;
    let layer =
        ProjectorLayer { width: vision.decoder, projection: projection(vision.names, "mm.model.fc"), activation: None };
    let projector = Projector {
        norm: Some(vision.norm(NormKind::Layer, "v.post_ln")),
        ..Projector::new(BlockJoin::Rows, vec![layer])
    };
    let layers = vision.layers(&LayerForm::new(NormKind::Layer))?;
    let tower = Tower {
        positions: Some(vision.positions(SquareFit::Corners)),
        ..vision.tower(input, layers, projector, idefics3::text())
    };
    Ok(FoundTower::new(tower, None))
}

pub(super) fn internvl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("projector.scale_factor")?.unwrap_or(2);
    let (width, height) = (vision.side, vision.side);
    let least = vision.keys.unsigned("preproc_min_tiles")?.unwrap_or(1);
    let most = vision.keys.unsigned("preproc_max_tiles")?.unwrap_or(INTERNVL_TILES);
    let resize = PictureResize::Arranged { width, height, least, most };
    let input = vision.input(resize, PictureFilter::Bicubic, block)?;
    // The file has no key for the norm. InternViT-6B has RMS norms, without a bias.
    let has_bias = vision.names.has("v.blk.0.ln1.bias");
    let form = LayerForm {
        // `clip.use_gelu` means the exact GELU here.
        activation: (vision.activation == Activation::GeluTanh).then_some(Activation::Gelu),
        ..LayerForm::new(if has_bias { NormKind::Layer } else { NormKind::Rms })
    };
    let layers = vision.layers(&form)?;
    let [norm, first, second] = ["mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3"];
    let projector = Projector {
        joined_norm: Some(layer_norm(vision.names, norm, EPSILON)),
        ..Projector::new(BlockJoin::Rows, vision.perceptron([first, second], vision.decoder, Activation::Gelu))
    };
    let tower = Tower {
        positions: Some(vision.positions_behind_class()),
        class: Some(Vision::class()),
        ..vision.tower(input, layers, projector, internvl::text())
    };
    Ok(FoundTower::new(tower, None))
}

pub(super) fn lfm2(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("projector.scale_factor")?.unwrap_or(2);
    let multiple = vision.patch.saturating_mul(block);
    let [least, most] = LFM2_TOKENS.map(|tokens| tokens.saturating_mul(multiple.saturating_mul(multiple)));
    let most = vision.keys.unsigned("image_max_pixels")?.unwrap_or(most);
    let [least_tiles, most_tiles] = LFM2_TILES;
    let tiles = LargeTiles {
        above: most.saturating_mul(LFM2_TOLERANCE),
        side: vision.patch.saturating_mul(LFM2_TILE),
        least: least_tiles,
        most: most_tiles,
        has_copy: true,
    };
    let resize = PictureResize::Fitted {
        multiple,
        least: vision.keys.unsigned("image_min_pixels")?.unwrap_or(least),
        most,
        tiles: Some(tiles),
    };
    let input = vision.input(resize, PictureFilter::Bilinear, block)?;
    // `image_size` is not the size of the table.
    let (table, rows) = (Tensor::named(POSITIONS), vision.outputs(POSITIONS));
    let side = rows.isqrt();
    if side * side != rows {
        return Err(fail(format!("`{POSITIONS}` has {rows} rows, expected a square")));
    }
    let positions = PatchPositions::Square { table, side, fit: SquareFit::Area };
    let width = vision.outputs("mm.1.weight");
    let has_norm = vision.names.has("mm.input_norm.weight");
    let projector = Projector {
        norm: Some(vision.norm(NormKind::Layer, "v.post_ln")),
        joined_norm: has_norm.then(|| layer_norm(vision.names, "mm.input_norm", EPSILON)),
        ..Projector::new(BlockJoin::Rows, vision.perceptron(["mm.1", "mm.2"], width, Activation::Gelu))
    };
    let layers = vision.layers(&LayerForm::new(NormKind::Layer))?;
    let tower = Tower { positions: Some(positions), ..vision.tower(input, layers, projector, lfm2_vl::text(true)) };
    Ok(FoundTower::new(tower, None))
}
