//! Checks of the numbers of towers.

use super::super::{Blueprint, Mixer, PatchPositions, PictureResize, Projector, Tower};
use super::{MAX_LAYERS, in_range, layer, norm};

/// Limit of the width of joined rows; more than any tower has.
const MAX_WIDTH: u64 = 1 << 20;

/// Limit of the number of frames with projections of their own.
const MAX_FRAMES: u64 = 16;

/// Largest number of rows that a picture becomes, which bounds the memory of a tower.
pub(crate) const MOST_ROWS: u64 = 4096;

/// Checks the tower of a decoder, if it sees pictures.
pub(super) fn pictures(blueprint: &Blueprint) -> Result<(), String> {
    let Some(tower) = blueprint.tower() else { return Ok(()) };
    check(tower, blueprint.hidden, blueprint.layers.len())?;
    let has_axes = blueprint.attentions().any(|own| own.rope.as_ref().is_some_and(|rope| rope.axes.is_some()));
    if tower.input.most_parts() > 1 && (has_axes || !tower.deep.is_empty()) {
        return Err(
            "pictures are cut into tiles, and their rows have positions by line and column or are added behind \
             layers, which cannot be run"
                .to_owned(),
        );
    }
    if tower.line_end.is_some() != matches!(tower.input.resize, PictureResize::Padded { .. }) {
        return Err("rows at the ends of lines belong to padded tiles".to_owned());
    }
    let rows = tower.most_rows();
    if rows > MOST_ROWS {
        return Err(format!("a picture becomes up to {rows} rows, at most {MOST_ROWS} are computed"));
    }
    let windows = blueprint.attentions().flat_map(|own| [own.window, own.chunk]).flatten();
    match windows.min() {
        // Such rows are computed as a text whose tokens see all others within the window.
        Some(window) if tower.is_bidirectional && window < rows => {
            Err(format!("a picture has {rows} rows that see each other, more than a window of {window} positions"))
        }
        _ if tower.is_bidirectional
            && !blueprint.layers.iter().all(|layer| matches!(layer.mixer, Mixer::Attention(_))) =>
        {
            Err("the rows of a picture see each other in layers without attention".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks the tower of a decoder with `layers` layers of width `hidden`.
fn check(tower: &Tower, hidden: u64, layers: usize) -> Result<(), String> {
    tower.input.clone().check()?;
    in_range("width of the tower", tower.hidden, MAX_WIDTH)?;
    in_range("number of projections of patches", tower.patches.len() as u64, MAX_FRAMES)?;
    in_range("number of layers of the tower", tower.layers.len() as u64, MAX_LAYERS)?;
    match &tower.positions {
        Some(PatchPositions::Square { side, .. }) => in_range("side of the square of positions", *side, 1 << 12)?,
        Some(PatchPositions::Axes { count, .. }) => in_range("number of positions", *count, 1 << 20)?,
        None => {}
    }
    tower.norm.iter().try_for_each(norm)?;
    for own in &tower.layers {
        layer(own)?;
        let is_plain = |mixer: &Mixer| matches!(mixer, Mixer::Attention(own) if own.reads_layer.is_none());
        if !own.mixers().all(is_plain) || !own.mixer.has_plain_scores() || own.token_row_width() > 0 {
            return Err("a layer of a tower has something else than attention and a network".to_owned());
        }
        if own.streams.is_some() || own.ngrams.is_some() || own.token_input.is_some() {
            return Err("a layer of a tower has several streams or reads numbers of tokens".to_owned());
        }
    }
    if let Some(windows) = &tower.windows {
        in_range("blocks of a window's side", windows.side, 1 << 12)?;
    }
    in_range("width of joined rows", tower.hidden.saturating_mul(tower.joined()), MAX_WIDTH)?;
    tower.projectors().try_for_each(|own| projector(own, hidden))?;
    if tower.deep.len() > layers {
        return Err(format!("rows of pictures are added behind {} of {layers} layers", tower.deep.len()));
    }
    let before = tower.deep.iter().zip(tower.deep.iter().skip(1));
    let is_sorted = before.into_iter().all(|(own, next)| own.layer < next.layer);
    if !is_sorted || tower.deep.last().is_some_and(|last| last.layer >= tower.layers.len() as u64) {
        return Err("projectors are behind layers that the tower does not have, or not in their order".to_owned());
    }
    let text = &tower.text;
    if text.mark.is_empty() || text.token.is_empty() || text.framed.matches(&text.mark).count() != 1 {
        return Err("the text that stands for pictures is empty, or does not contain its mark once".to_owned());
    }
    Ok(())
}

fn projector(projector: &Projector, hidden: u64) -> Result<(), String> {
    if let Some(scale) = projector.scale.filter(|scale| !scale.is_finite() || *scale <= 0.0) {
        return Err(format!("the factor of joined rows is {scale}, expected a positive number"));
    }
    projector.norm.iter().chain(&projector.joined_norm).try_for_each(norm)?;
    projector.layers.iter().try_for_each(|layer| in_range("width of a projector", layer.width, MAX_WIDTH))?;
    match projector.layers.last() {
        Some(last) if last.width == hidden => Ok(()),
        Some(last) => Err(format!("rows of pictures have {} elements, those of the decoder {hidden}", last.width)),
        None => Err("a projector has no projection".to_owned()),
    }
}
