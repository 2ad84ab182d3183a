//! Kinds of projectors in GGUF files.

use super::gguf_vision::{LayerForm, Vision};
use super::{FoundTower, gemma3, pixtral, qwen2_vl, qwen3_vl};
use crate::Error;
use crate::blueprint::{
    Activation, BlockJoin, DeepProjector, HeadLayout, NormKind, PatchPositions, PatchWindows, PictureFilter,
    PictureResize, Projection, Projector, ProjectorLayer, Tensor, Tower, View,
};
use crate::dense::projection;
use crate::gguf_keys::fail;
use crate::rope::{Rope, RopeAxes};

/// Function that reads a tower with its projector.
pub(super) type ReadProjector = fn(&Vision<'_>) -> Result<FoundTower, Error>;

/// Kinds of projectors by their name in files.
pub(super) const KINDS: [(&str, ReadProjector); 5] = [
    ("gemma3", gemma3),
    ("pixtral", pixtral),
    ("qwen2vl_merger", qwen2_vl),
    ("qwen2.5vl_merger", qwen2_5_vl),
    ("qwen3vl_merger", qwen3_vl),
];

/// Bounds of the pixels of pictures in the settings of published models, which files do not have.
const QWEN2_VL_PIXELS: [u64; 2] = [56 * 56, 28 * 28 * 16_384];
const QWEN3_VL_PIXELS: [u64; 2] = [1 << 16, 1 << 24];
/// Pixels of a window's side of Qwen2.5-VL.
const WINDOW: u64 = 112;
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
        windows: None,
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
        windows: None,
        deep: Vec::new(),
        is_bidirectional: false,
        text: pixtral::text(),
    };
    Ok(FoundTower { tower, axes: None })
}

fn qwen3_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(2);
    let resize = area(vision, block, QWEN3_VL_PIXELS)?;
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
        windows: None,
        deep: deep.collect(),
        is_bidirectional: false,
        text: qwen3_vl::text(),
    };
    let usual = match vision.model.text("general.architecture") {
        Some(name) if name.starts_with("qwen35") => qwen3_vl::SECTIONS_OF_PART,
        _ => qwen3_vl::SECTIONS,
    };
    Ok(FoundTower { tower, axes: Some(RopeAxes::Interleaved(sections(vision, usual)?)) })
}

fn qwen2_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    qwen2_vl_with(vision, NormKind::Layer)
}

fn qwen2_5_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let mut found = qwen2_vl_with(vision, NormKind::Rms)?;
    let every = vision.keys.required("n_wa_pattern")?.max(1);
    let whole = (1..=found.tower.layers.len() as u64).filter(|layer| layer.is_multiple_of(every));
    let block = vision.patch.saturating_mul(found.tower.input.block);
    let side = WINDOW.checked_div(block).unwrap_or(0);
    found.tower.windows = Some(PatchWindows { side, whole: whole.map(|layer| layer - 1).collect() });
    Ok(found)
}

fn qwen2_vl_with(vision: &Vision<'_>, norm: NormKind) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(2);
    let resize = area(vision, block, QWEN2_VL_PIXELS)?;
    let rope = Rope { axes: Some(RopeAxes::Halves), ..Rope::plain(10_000.0) };
    let joined = vision.hidden.saturating_mul(block).saturating_mul(block);
    let tower = Tower {
        input: vision.input(resize, PictureFilter::Bicubic, block)?,
        hidden: vision.hidden,
        patches: vision.patches(),
        positions: None,
        norm: None,
        layers: vision.layers(&LayerForm { norm, rope: Some(rope), layout: HeadLayout::Half })?,
        windows: None,
        projector: Projector {
            norm: vision.norm(norm, "v.post_ln"),
            join: BlockJoin::Rows,
            joined_norm: None,
            layers: vision.perceptron(["mm.0", "mm.2"], joined, Activation::Gelu),
        },
        deep: Vec::new(),
        is_bidirectional: false,
        text: qwen3_vl::text(),
    };
    Ok(FoundTower { tower, axes: Some(RopeAxes::Runs(sections(vision, qwen2_vl::SECTIONS)?)) })
}

/// Returns sizes that are whole blocks of `block` patches, within the bounds of the file, or else
/// the `usual` ones.
fn area(vision: &Vision<'_>, block: u64, [least, most]: [u64; 2]) -> Result<PictureResize, Error> {
    Ok(PictureResize::Area {
        multiple: vision.patch.saturating_mul(block),
        least: vision.keys.unsigned("image_min_pixels")?.unwrap_or(least),
        most: vision.keys.unsigned("image_max_pixels")?.unwrap_or(most),
    })
}

fn positions(vision: &Vision<'_>) -> PatchPositions {
    let side = vision.side.checked_div(vision.patch).unwrap_or(0);
    PatchPositions { table: Tensor::named(POSITIONS), side }
}

/// Returns the sections of the decoder's rotary embedding; the `usual` ones if the file omits them.
fn sections(vision: &Vision<'_>, usual: [u64; 3]) -> Result<[u64; 3], Error> {
    let architecture = vision.model.text("general.architecture").unwrap_or_default();
    let name = format!("{architecture}.rope.dimension_sections");
    let Some(list) = vision.model.array(&name) else { return Ok(usual) };
    let numbers: Option<Vec<u64>> = list.iter().take(4).map(|item| item.as_u64()).collect();
    match numbers.as_deref() {
        Some(&[time, row, column] | &[time, row, column, 0]) => Ok([time, row, column]),
        _ => Err(fail(format!("`{name}` is not a list of three numbers and 0"))),
    }
}
