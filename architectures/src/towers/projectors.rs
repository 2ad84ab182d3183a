//! Kinds of projectors in GGUF files.

use super::gguf_vision::{LayerForm, Vision};
use super::{FoundTower, gemma3, pixtral, qwen3_vl};
use crate::Error;
use crate::blueprint::{
    Activation, BlockJoin, DeepProjector, HeadLayout, NormKind, PatchPositions, PictureFilter, PictureResize,
    Projection, Projector, ProjectorLayer, Tensor, Tower, View,
};
use crate::dense::projection;
use crate::gguf_keys::fail;
use crate::rope::{Rope, RopeAxes};

/// Function that reads a tower with its projector.
pub(super) type ReadProjector = fn(&Vision<'_>) -> Result<FoundTower, Error>;

/// Kinds of projectors by their name in files.
pub(super) const KINDS: [(&str, ReadProjector); 3] =
    [("gemma3", gemma3), ("pixtral", pixtral), ("qwen3vl_merger", qwen3_vl)];

/// Bounds of the pixels of pictures in the settings of Qwen3-VL, which its files do not have.
const QWEN3_VL_PIXELS: [u64; 2] = [1 << 16, 1 << 24];
const POSITIONS: &str = "v.position_embd.weight";

fn gemma3(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let (side, block) = (vision.side, vision.keys.unsigned("projector.scale_factor")?.unwrap_or(4));
    let resize = PictureResize::Fixed { width: side, height: side };
    let form = LayerForm { norm: NormKind::Layer, rope: None, layout: HeadLayout::Half };
    let weight = "mm.input_projection.weight".to_owned();
    let projection = Projection {
        module: "mm.input_projection".to_owned(),
        weight: Tensor { name: weight, view: View { transposed: true, ..View::default() } },
        bias: None,
    };
    let tower = Tower {
        input: vision.input(resize, PictureFilter::Bilinear, block)?,
        hidden: vision.hidden,
        patches: vision.patches(),
        positions: Some(positions(vision)),
        norm: None,
        layers: vision.layers(&form)?,
        projector: Projector {
            norm: vision.norm(NormKind::Layer, "v.post_ln"),
            join: BlockJoin::Mean,
            joined_norm: vision.norm(NormKind::Rms, "mm.soft_emb_norm"),
            layers: vec![ProjectorLayer { width: vision.decoder, projection, activation: None }],
        },
        deep: Vec::new(),
        is_bidirectional: true,
        text: gemma3::text(),
    };
    Ok(FoundTower { tower, axes: None })
}

fn pixtral(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(1);
    let resize = PictureResize::Longest { longest: vision.side, multiple: vision.patch.saturating_mul(block) };
    let rope = Rope { axes: Some(RopeAxes::Alternating), ..Rope::plain(10_000.0) };
    let form = LayerForm { norm: NormKind::Rms, rope: Some(rope), layout: HeadLayout::Interleaved };
    let mut layers = vision.perceptron(["mm.1", "mm.2"], vision.decoder, Activation::Gelu);
    if vision.names.has("mm.patch_merger.weight") {
        let projection = projection(vision.names, "mm.patch_merger");
        layers.insert(0, ProjectorLayer { width: vision.hidden, projection, activation: None });
    } else if block != 1 {
        return Err(fail(format!("blocks of {block} patches are joined, but there is no `mm.patch_merger.weight`")));
    }
    let tower = Tower {
        input: vision.input(resize, PictureFilter::Bicubic, block)?,
        hidden: vision.hidden,
        patches: vision.patches(),
        positions: None,
        norm: vision.norm(NormKind::Rms, "v.pre_ln"),
        layers: vision.layers(&form)?,
        projector: Projector {
            norm: vision.norm(NormKind::Rms, "mm.input_norm"),
            join: BlockJoin::Elements,
            joined_norm: None,
            layers,
        },
        deep: Vec::new(),
        is_bidirectional: false,
        text: pixtral::text(),
    };
    Ok(FoundTower { tower, axes: None })
}

fn qwen3_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(2);
    let [least, most] = QWEN3_VL_PIXELS;
    let resize = PictureResize::Area {
        multiple: vision.patch.saturating_mul(block),
        least: vision.keys.unsigned("image_min_pixels")?.unwrap_or(least),
        most: vision.keys.unsigned("image_max_pixels")?.unwrap_or(most),
    };
    let rope = Rope { axes: Some(RopeAxes::Halves), ..Rope::plain(10_000.0) };
    let form = LayerForm { norm: NormKind::Layer, rope: Some(rope), layout: HeadLayout::Half };
    let layers = vision.layers(&form)?;
    let joined = vision.hidden.saturating_mul(block).saturating_mul(block);
    // The numbers of layers follow from the tensors.
    vision.keys.name("is_deepstack_layers");
    let deep = (0..layers.len()).filter(|layer| vision.names.has(&format!("v.deepstack.{layer}.fc1.weight")));
    let deep = deep.map(|layer| {
        let own = |module: &str| format!("v.deepstack.{layer}.{module}");
        let projector = Projector {
            norm: None,
            join: BlockJoin::Rows,
            joined_norm: vision.norm(NormKind::Layer, &own("norm")),
            layers: vision.perceptron([&own("fc1"), &own("fc2")], joined, Activation::Gelu),
        };
        DeepProjector { layer: layer as u64, projector }
    });
    let tower = Tower {
        input: vision.input(resize, PictureFilter::Bicubic, block)?,
        hidden: vision.hidden,
        patches: vision.patches(),
        positions: Some(positions(vision)),
        norm: None,
        layers,
        projector: Projector {
            norm: vision.norm(NormKind::Layer, "v.post_ln"),
            join: BlockJoin::Rows,
            joined_norm: None,
            layers: vision.perceptron(["mm.0", "mm.2"], joined, Activation::Gelu),
        },
        deep: deep.collect(),
        is_bidirectional: false,
        text: qwen3_vl::text(),
    };
    Ok(FoundTower { tower, axes: Some(RopeAxes::Interleaved(sections(vision)?)) })
}

fn positions(vision: &Vision<'_>) -> PatchPositions {
    let side = vision.side.checked_div(vision.patch).unwrap_or(0);
    PatchPositions { table: Tensor::named(POSITIONS), side }
}

/// Returns the sections of the decoder's rotary embedding.
fn sections(vision: &Vision<'_>) -> Result<[u64; 3], Error> {
    let architecture = vision.model.text("general.architecture").unwrap_or_default();
    let name = format!("{architecture}.rope.dimension_sections");
    let Some(list) = vision.model.array(&name) else {
        let is_part = architecture.starts_with("qwen35");
        return Ok(if is_part { qwen3_vl::SECTIONS_OF_PART } else { qwen3_vl::SECTIONS });
    };
    let numbers: Option<Vec<u64>> = list.iter().take(4).map(|item| item.as_u64()).collect();
    match numbers.as_deref() {
        Some(&[time, row, column] | &[time, row, column, 0]) => Ok([time, row, column]),
        _ => Err(fail(format!("`{name}` is not a list of three numbers and 0"))),
    }
}
