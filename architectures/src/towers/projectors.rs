//! Kinds of projectors in GGUF files.

use super::gguf_vision::{FileKind, LayerForm, POSITIONS, Vision};
use super::tile_projectors::{idefics3, internvl, lfm2};
use super::{FoundTower, gemma3, gemma4, llava, pixtral, qwen2_vl, qwen3_vl};
use crate::Error;
use crate::blueprint::{
    Activation, BlockJoin, DeepProjector, HeadLayout, NormKind, PatchWindows, PictureFilter, PictureInput,
    PictureResize, Projection, Projector, ProjectorLayer, SquareFit, Tensor, Tower, View,
};
use crate::dense::projection;
use crate::gguf_keys::fail;
use crate::picture_settings::grids;
use crate::rope::RopeAxes;

/// Function that reads a tower with its projector.
pub(super) type ReadProjector = fn(&Vision<'_>) -> Result<FoundTower, Error>;

/// Kinds of projectors by their name in files, with the architectures of their models; empty if
/// models of several architectures have such a projector.
pub(super) const KINDS: [(&str, &[&str], ReadProjector); 10] = [
    ("gemma3", &["gemma3"], gemma3),
    ("gemma4v", &["gemma4"], gemma4),
    ("idefics3", &["llama"], idefics3),
    ("internvl", &[], internvl),
    ("lfm2", &["lfm2", "lfm2moe"], lfm2),
    ("mlp", &[], mlp),
    ("pixtral", &[], pixtral),
    ("qwen2vl_merger", QWEN2_VL, qwen2_vl),
    ("qwen2.5vl_merger", QWEN2_VL, qwen2_5_vl),
    ("qwen3vl_merger", &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"], qwen3_vl),
];

/// Architectures of Qwen2-VL and Qwen2.5-VL: llama.cpp's name, and Ollama's.
const QWEN2_VL: &[&str] = &["qwen2vl", "qwen25vl"];

/// Bounds of the pixels of pictures in the settings of published models, which files do not have.
const QWEN2_VL_PIXELS: [u64; 2] = [56 * 56, 28 * 28 * 16_384];
const QWEN3_VL_PIXELS: [u64; 2] = [1 << 16, 1 << 24];
/// Largest number of tokens of a picture in the settings of Gemma 4.
const GEMMA4_TOKENS: u64 = 280;
/// Pixels of a window's side of Qwen2.5-VL.
const WINDOW: u64 = 112;

fn gemma3(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let (side, block) = (vision.side, vision.keys.unsigned("projector.scale_factor")?.unwrap_or(4));
    let resize = PictureResize::Fixed { width: side, height: side };
    let form = LayerForm::new(NormKind::Layer);
    let weight = "mm.input_projection.weight".to_owned();
    let projection = Projection {
        module: "mm.input_projection".to_owned(),
        weight: Tensor { name: weight, view: View { transposed: true, ..View::default() } },
        bias: None,
        clamps: None,
    };
    let layer = ProjectorLayer { width: vision.decoder, projection, activation: None };
    let projector = Projector {
        norm: Some(vision.norm(NormKind::Layer, "v.post_ln")),
        joined_norm: Some(vision.norm(NormKind::Rms, "mm.soft_emb_norm")),
        ..Projector::new(BlockJoin::Mean, vec![layer])
    };
    let input = vision.input(resize, PictureFilter::Bilinear, block)?;
    let tower = Tower {
        positions: Some(vision.positions(SquareFit::Corners)),
        is_bidirectional: true,
        ..vision.tower(input, vision.layers(&form)?, projector, gemma3::text())
    };
    Ok(FoundTower::new(tower, None))
}

fn gemma4(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("projector.scale_factor")?.unwrap_or(3);
    let multiple = vision.patch.saturating_mul(block);
    let usual = GEMMA4_TOKENS.saturating_mul(multiple.saturating_mul(multiple));
    let most = vision.keys.unsigned("image_max_pixels")?.unwrap_or(usual);
    let resize = PictureResize::Largest { multiple, most };
    let head_dim = vision.hidden.checked_div(vision.heads).unwrap_or(0);
    let [columns, lines] = gemma4::ropes(gemma4::THETA, head_dim);
    let form = LayerForm {
        second_rope: Some(lines),
        scale: Some(1.0),
        // Files do not have it.
        activation: Some(Activation::GeluTanh),
        norms_values: true,
        has_clamps: true,
        ..LayerForm::new(NormKind::Rms).rotated(columns)
    };
    // The file does not say whether the rows of a picture see each other. In small models, whose
    // layers have embeddings, they do not.
    let is_bidirectional = !vision.names.has("model.embed_tokens_per_layer.weight");
    let padding = vision.model.unsigned("tokenizer.ggml.padding_token_id").unwrap_or(0);
    if padding != 0 && !is_bidirectional {
        return Err(fail(format!(
            "the token of padding is {padding}, expected 0, whose embeddings stand for pictures"
        )));
    }
    // The size of the table is that of the tensor.
    let count = vision.outputs(POSITIONS);
    // The model takes `2 · (x − 0.5)`; the means of the file are not used.
    let input = vision.input(resize, PictureFilter::Bicubic, block)?;
    let input = PictureInput { mean: [0.5; 3], deviation: [0.5; 3], ..input };
    let projector = gemma4::projector(
        vision.names,
        [vision.hidden, vision.decoder],
        vision.epsilon,
        ["v.std_bias", "v.std_scale", "mm.input_projection"],
    );
    let tower = Tower {
        positions: Some(gemma4::axes(POSITIONS, count)),
        is_bidirectional,
        ..vision.tower(input, vision.layers(&form)?, projector, gemma4::text())
    };
    Ok(FoundTower { is_bidirectional_in_windows: true, ..FoundTower::new(tower, None) })
}

/// `LLaVA`. Its files have the layers up to the one whose rows are used.
fn mlp(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    // They repeat the sizes and the kind.
    for key in ["image_crop_resolution", "image_split_resolution", "mm_projector_type"] {
        vision.keys.name(key);
    }
    let (resize, line_end) = llava_sizes(vision)?;
    let mut layers = vision.layers(&LayerForm::new(NormKind::Layer))?;
    if let Some(used) = used_layer(vision)? {
        layers.truncate(usize::try_from(used).unwrap_or(usize::MAX));
    }
    let input = vision.input(resize, PictureFilter::Bicubic, 1)?;
    let perceptron = vision.perceptron(["mm.0", "mm.2"], vision.decoder, Activation::Gelu);
    let tower = Tower {
        positions: Some(vision.positions_behind_class()),
        class: Some(Vision::class()),
        line_end,
        norm: Some(vision.norm(NormKind::Layer, "v.pre_ln")),
        ..vision.tower(input, layers, Projector::new(BlockJoin::Rows, perceptron), llava::text())
    };
    Ok(FoundTower::new(tower, None))
}

/// Returns the sizes of pictures, and the row at the end of each line: `LLaVA` 1.6 has tiles, which
/// are joined to lines.
fn llava_sizes(vision: &Vision<'_>) -> Result<(PictureResize, Option<Tensor>), Error> {
    let (tile, sizes) = (vision.side, vision.numbers("image_grid_pinpoints")?);
    let (merge, ratio) = (vision.keys.text("mm_patch_merge_type")?, vision.keys.text("image_aspect_ratio")?);
    if let Some(other) = ratio.filter(|ratio| *ratio != "anyres" || sizes.is_none()) {
        return Err(fail(format!("`image_aspect_ratio` is `{other}`, expected `anyres` with a list of sizes")));
    }
    let Some(sizes) = sizes else {
        return Ok((PictureResize::Cropped { shorter: tile, width: tile, height: tile }, None));
    };
    if merge.is_some_and(|merge| merge != "spatial_unpad") {
        return Err(fail("the rows of tiles are not joined to lines, expected `spatial_unpad`"));
    }
    if sizes.len() % 2 != 0 {
        return Err(fail(format!("`image_grid_pinpoints` has {} numbers, expected pairs", sizes.len())));
    }
    let sizes: Vec<[u64; 2]> = sizes.chunks_exact(2).map(|sides| [sides[0], sides[1]]).collect();
    let line_end = llava::NEWLINES.into_iter().chain(["v.image_newline"]).find(|name| vision.names.has(name));
    let line_end = line_end.ok_or_else(|| fail("the file has tiles, but no tensor `model.image_newline`"))?;
    let grids = grids(&sizes, tile).map_err(fail)?;
    Ok((PictureResize::Padded { tile, grids }, Some(Tensor::named(line_end))))
}

/// Returns the number of layers that are used, if the file has it.
fn used_layer(vision: &Vision<'_>) -> Result<Option<u64>, Error> {
    let name = vision.keys.name("feature_layer");
    let Some(list) = vision.keys.gguf.array(&name) else { return Ok(None) };
    let numbers: Option<Vec<u64>> = list.iter().take(2).map(|item| item.as_u64()).collect();
    match numbers.as_deref() {
        Some(&[layer]) if layer > 0 => Ok(Some(layer)),
        _ => Err(fail(format!("`{name}` is not one layer; the rows of several cannot be joined yet"))),
    }
}

fn pixtral(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(1);
    let resize = PictureResize::Longest { longest: vision.side, multiple: vision.patch.saturating_mul(block) };
    // llama.cpp's converter changes the order of rows for the rotary embedding.
    let layout = match vision.file {
        FileKind::Projector => HeadLayout::Interleaved,
        FileKind::Model => HeadLayout::Half,
    };
    // The size of heads is that of the width.
    vision.keys.name("attention.key_length");
    let rope = vision.rope(RopeAxes::Alternating)?;
    let form = LayerForm { layout, ..LayerForm::new(NormKind::Rms).rotated(rope) };
    let mut layers = vision.perceptron(["mm.1", "mm.2"], vision.decoder, Activation::Gelu);
    if vision.names.has("mm.patch_merger.weight") {
        let projection = projection(vision.names, "mm.patch_merger");
        layers.insert(0, ProjectorLayer { width: vision.hidden, projection, activation: None });
    } else if block != 1 {
        return Err(fail(format!("blocks of {block} patches are joined, but there is no `mm.patch_merger.weight`")));
    }
    let projector = Projector {
        norm: vision.norm_if_any(NormKind::Rms, "mm.input_norm"),
        ..Projector::new(BlockJoin::Elements, layers)
    };
    let input = vision.input(resize, PictureFilter::Bicubic, block)?;
    let tower = Tower {
        norm: vision.norm_if_any(NormKind::Rms, "v.pre_ln"),
        ..vision.tower(input, vision.layers(&form)?, projector, pixtral::text())
    };
    Ok(FoundTower::new(tower, None))
}

fn qwen3_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(2);
    let resize = area(vision, block, QWEN3_VL_PIXELS)?;
    let rope = vision.rope(RopeAxes::Halves)?;
    let form = LayerForm::new(NormKind::Layer).rotated(rope);
    let layers = vision.layers(&form)?;
    let joined = vision.hidden.saturating_mul(block).saturating_mul(block);
    // The numbers of layers follow from the tensors.
    vision.keys.name("is_deepstack_layers");
    let deep = (0..layers.len()).filter(|layer| vision.names.has(&format!("v.deepstack.{layer}.fc1.weight")));
    let deep = deep.map(|layer| {
        let own = |module: &str| format!("v.deepstack.{layer}.{module}");
        let projector = Projector {
            joined_norm: Some(vision.norm(NormKind::Layer, &own("norm"))),
            ..Projector::new(BlockJoin::Rows, vision.perceptron([&own("fc1"), &own("fc2")], joined, Activation::Gelu))
        };
        DeepProjector { layer: layer as u64, projector }
    });
    let deep = deep.collect();
    let projector = merger(vision, NormKind::Layer, joined);
    let input = input_of_frames(vision, resize, block)?;
    let tower = Tower {
        positions: Some(vision.positions(SquareFit::Corners)),
        deep,
        ..vision.tower(input, layers, projector, qwen3_vl::text())
    };
    let usual = match vision.model.text("general.architecture") {
        Some(name) if name.starts_with("qwen35") => qwen3_vl::SECTIONS_OF_PART,
        _ => qwen3_vl::SECTIONS,
    };
    Ok(FoundTower::new(tower, Some(RopeAxes::Interleaved(sections(vision, usual)?))))
}

fn qwen2_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    qwen2_vl_with(vision, NormKind::Layer)
}

fn qwen2_5_vl(vision: &Vision<'_>) -> Result<FoundTower, Error> {
    let mut found = qwen2_vl_with(vision, NormKind::Rms)?;
    let depth = found.tower.layers.len() as u64;
    let whole = if let Some(layers) = vision.numbers("fullatt_block_indexes")? {
        layers
    } else {
        let every = vision.keys.required("n_wa_pattern")?.max(1);
        (1..=depth).filter(|layer| layer.is_multiple_of(every)).map(|layer| layer - 1).collect()
    };
    let block = vision.patch.saturating_mul(found.tower.input.block);
    let side = vision.keys.unsigned("window_size")?.unwrap_or(WINDOW).checked_div(block).unwrap_or(0);
    found.tower.windows = Some(PatchWindows { side, whole });
    Ok(found)
}

fn qwen2_vl_with(vision: &Vision<'_>, norm: NormKind) -> Result<FoundTower, Error> {
    let block = vision.keys.unsigned("spatial_merge_size")?.unwrap_or(2);
    let resize = area(vision, block, QWEN2_VL_PIXELS)?;
    let rope = vision.rope(RopeAxes::Halves)?;
    let joined = vision.hidden.saturating_mul(block).saturating_mul(block);
    let input = input_of_frames(vision, resize, block)?;
    let layers = vision.layers(&LayerForm::new(norm).rotated(rope))?;
    let tower = vision.tower(input, layers, merger(vision, norm, joined), qwen3_vl::text());
    Ok(FoundTower::new(tower, Some(RopeAxes::Runs(sections(vision, qwen2_vl::SECTIONS)?))))
}

/// Returns the steps from a picture to patches of Qwen's models. Projector files have a projection
/// for each frame.
fn input_of_frames(vision: &Vision<'_>, resize: PictureResize, block: u64) -> Result<PictureInput, Error> {
    let input = vision.input(resize, PictureFilter::Bicubic, block)?;
    let frames = vision.keys.unsigned("temporal_patch_size")?.unwrap_or(2);
    Ok(if vision.patches().len() > 1 || vision.file == FileKind::Projector {
        input
    } else {
        PictureInput { frames, ..input }
    })
}

/// Returns the projector of Qwen's models, whose hidden rows have `joined` elements.
fn merger(vision: &Vision<'_>, norm: NormKind, joined: u64) -> Projector {
    let layers = vision.perceptron(["mm.0", "mm.2"], joined, Activation::Gelu);
    Projector { norm: Some(vision.norm(norm, "v.post_ln")), ..Projector::new(BlockJoin::Rows, layers) }
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

/// Returns the sections of the decoder's rotary embedding; the `usual` ones if the file omits them.
fn sections(vision: &Vision<'_>, usual: [u64; 3]) -> Result<[u64; 3], Error> {
    let architecture = vision.model.text("general.architecture").unwrap_or_default();
    // Ollama's converter wrote the second one.
    let names = ["dimension_sections", "mrope_section"].map(|key| format!("{architecture}.rope.{key}"));
    let found = names.into_iter().find_map(|name| Some((vision.model.array(&name)?, name)));
    let Some((list, name)) = found else { return Ok(usual) };
    let numbers: Option<Vec<u64>> = list.iter().take(4).map(|item| item.as_u64()).collect();
    match numbers.as_deref() {
        Some(&[time, row, column] | &[time, row, column, 0]) => Ok([time, row, column]),
        _ => Err(fail(format!("`{name}` is not a list of three numbers and 0"))),
    }
}
