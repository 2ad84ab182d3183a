//! The projector file (`mmproj`) of a model that was imported from a folder: the tower for
//! pictures, as llama.cpp's converter would write it.

use std::collections::HashSet;

use architectures::{PatchChange, ProjectorFile, ProjectorTensor, Rows, names};
use formats::dtype::element_count;
use formats::gguf::{NewTensor, OwnedValue};
use formats::{Dtype, Encoding, GgmlType};
use serde_json::Value;

use super::array::Change;
use super::head_order::change;
use super::new_file::{NewFile, float_target};
use super::{FilePiece, NO_TOWER, StoredModel};
use import::{Error, RowOrder, StoredTensor, TensorSource};

/// Largest number of elements of a projection of patches, which is changed in memory; more than any
/// tower has.
const MOST_ELEMENTS: u64 = 1 << 24;

/// Documents that a projector file is made of.
pub(super) struct TowerDocuments<'a> {
    pub(super) config: &'a [u8],
    pub(super) tokenizer: &'a [u8],
}

/// Makes the projector file of a model with a tower, and changes the keys of the model's file that
/// depend on it. Returns `None` if there is no tower that a projector file can express, which is
/// among the losses then.
pub(super) fn projector_file(
    model: &StoredModel<'_>,
    documents: &TowerDocuments<'_>,
    dtype: Option<Dtype>,
    of_model: &mut NewFile,
) -> Option<NewFile> {
    let of_tower: Vec<&StoredTensor> = model.tensors.iter().filter(|tensor| names::is_of_tower(&tensor.name)).collect();
    if of_tower.is_empty() {
        return None;
    }
    let config: Value = serde_json::from_slice(&formats::json::tolerant(documents.config)).unwrap_or_default();
    let kind = config["model_type"].as_str().unwrap_or_default();
    let architecture = model.architecture.filter(|architecture| architecture.blueprint.tower().is_some());
    let made = match architecture.map(|architecture| architecture.projector_file(kind)) {
        Some(Ok(made)) => made,
        Some(Err(error)) => {
            of_model.losses.push(format!("{NO_TOWER}: {error}"));
            return None;
        }
        None => {
            of_model.losses.push(NO_TOWER.to_owned());
            return None;
        }
    };
    let mut file = match NewFile::of_tower(model, documents, dtype, &made) {
        Ok(file) => file,
        Err(error) => {
            of_model.losses.push(format!("{NO_TOWER}: {error}"));
            return None;
        }
    };
    of_model.losses.extend(left_out(&of_tower, &made));
    of_model.losses.extend(made.losses.iter().cloned());
    of_model.losses.append(&mut file.losses);
    of_model.losses.extend(file.rounding.losses());
    set_architecture(&made, &mut of_model.keys);
    Some(file)
}

/// Returns the loss of tensors that the projector file does not have, if there are any.
fn left_out(of_tower: &[&StoredTensor], made: &ProjectorFile) -> Option<String> {
    let written: HashSet<&str> = made.tensors.iter().map(|tensor| tensor.source.as_str()).collect();
    let mut left = of_tower.iter().filter(|tensor| !written.contains(tensor.name.as_str()));
    let first = left.next()?;
    Some(format!(
        "{} tensors for pictures or sounds that projector files do not have, such as `{}`, are not in these files; \
         `--format origin` has them",
        1 + left.count(),
        first.name
    ))
}

/// Changes the keys of a model whose file has another architecture with a projector than without
/// one.
fn set_architecture(made: &ProjectorFile, keys: &mut Vec<(String, OwnedValue)>) {
    let own = keys.iter().find(|(key, _)| key == "general.architecture").map(|(_, value)| value.value());
    let own = own.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
    let architecture = made.architecture.map_or(own.clone(), str::to_owned);
    for (key, value) in keys.iter_mut() {
        if key == "general.architecture" {
            *value = OwnedValue::from(architecture.as_str());
        } else if let Some(rest) = key.strip_prefix(&format!("{own}.")) {
            *key = format!("{architecture}.{rest}");
        }
    }
    let mut set = |key: &str, value: OwnedValue| {
        let key = format!("{architecture}.{key}");
        keys.retain(|(other, _)| *other != key);
        keys.push((key, value));
    };
    if made.deep > 0 {
        set("n_deepstack_layers", u32::try_from(made.deep).unwrap_or(u32::MAX).into());
    }
    if let Some([time, row, column]) = made.sections {
        let sections = [time, row, column, 0].map(|section| i32::try_from(section).unwrap_or(i32::MAX));
        set("rope.dimension_sections", OwnedValue::integers(sections));
    }
}

impl NewFile {
    fn of_tower(
        model: &StoredModel<'_>,
        documents: &TowerDocuments<'_>,
        dtype: Option<Dtype>,
        made: &ProjectorFile,
    ) -> Result<Self, Error> {
        let mut file = Self { keys: made.keys.clone(), ..Self::default() };
        for tensor in &made.tensors {
            file.add_of_tower(model, tensor, dtype)?;
        }
        if let Some(text) = &made.line_end {
            file.add_line_end(model, documents.tokenizer, text)?;
        }
        Ok(file)
    }

    fn add_of_tower(
        &mut self,
        model: &StoredModel<'_>,
        own: &ProjectorTensor,
        dtype: Option<Dtype>,
    ) -> Result<(), Error> {
        let tensor = stored(model, &own.source)?;
        if let Some(patches) = own.patches {
            let numbers = patch_numbers(model, tensor, patches)?;
            self.add_patches(tensor, &own.change.name, patches, &numbers);
            return Ok(());
        }
        let part = own.rows.map(|rows| rows_of(tensor, rows)).transpose()?;
        let tensor = part.as_ref().unwrap_or(tensor);
        self.add(tensor, &change(tensor, &own.change)?, float_target(tensor, &own.change, dtype))
    }

    fn add_patches(&mut self, tensor: &StoredTensor, name: &str, patches: PatchChange, numbers: &[f32]) {
        let hidden = tensor.shape.first().copied().unwrap_or(0);
        self.rounding.note(tensor, Dtype::F32);
        self.pieces.push(FilePiece::Bytes(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()));
        let dims = vec![patches.side, patches.side, 3, hidden];
        self.tensors.push(NewTensor { name: name.to_owned(), kind: GgmlType::F32, dims });
    }

    /// Adds the embedding of the token between the lines of a picture, which llama.cpp does not
    /// take from the model.
    fn add_line_end(&mut self, model: &StoredModel<'_>, tokenizer: &[u8], text: &str) -> Result<(), Error> {
        let whole: Value = serde_json::from_slice(&formats::json::tolerant(tokenizer)).unwrap_or_default();
        let added = whole["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let token = added.iter().find(|token| token["content"] == text).and_then(|token| token["id"].as_u64());
        let embedding = model.architecture.map(|own| own.blueprint.embedding.weight.name.as_str()).unwrap_or_default();
        let row = token.map(|id| rows_of(stored(model, embedding)?, Rows::run(id, 1))).transpose();
        let Ok(Some(mut row)) = row else {
            self.losses.push(format!(
                "the projector file has no embedding of `{text}`, which llama.cpp needs: the tokenizer does not have the \
                 token, or the model's embedding is quantized"
            ));
            return Ok(());
        };
        row.shape.remove(0);
        self.add(&row, &Change::none("v.token_embd.img_break"), Some(Dtype::F32))
    }
}

fn stored<'a>(model: &StoredModel<'a>, name: &str) -> Result<&'a StoredTensor, Error> {
    let found = model.tensors.iter().find(|tensor| tensor.name == name);
    found.ok_or_else(|| Error::Source(format!("the model has no tensor `{name}`")))
}

/// Returns some rows of a tensor of plain numbers.
fn rows_of(tensor: &StoredTensor, rows: Rows) -> Result<StoredTensor, Error> {
    let refused = |reason: String| Error::Source(format!("tensor `{}`: {reason}", tensor.name));
    let (Encoding::Plain(_), [part], Some(count)) =
        (tensor.encoding, tensor.parts.as_slice(), tensor.shape.first().copied())
    else {
        return Err(refused("a part of its rows cannot be exported".to_owned()));
    };
    let end = rows.end().filter(|end| *end <= count && rows.block == rows.count && count > 0);
    let end = end.ok_or_else(|| refused(format!("it has {count} rows, expected {rows:?} of them")))?;
    let row = part.size / count;
    let mut own = tensor.clone();
    own.shape[0] = end - rows.first;
    for part in &mut own.parts {
        part.offset += rows.first * row;
        part.size = (end - rows.first) * row;
        part.shape.clone_from(&own.shape);
    }
    Ok(own)
}

/// Returns the numbers of a projection of patches, `[hidden, channel, row, column]`.
fn patch_numbers(model: &StoredModel<'_>, tensor: &StoredTensor, patches: PatchChange) -> Result<Vec<f32>, Error> {
    let PatchChange { side, frames, frame } = patches;
    let count = element_count(&tensor.shape).filter(|count| *count <= MOST_ELEMENTS);
    let area = side.checked_mul(side).filter(|area| *area > 0 && frames > 0);
    let patch = area.and_then(|area| area.checked_mul(3)?.checked_mul(frames));
    let (Some(count), Some(area), Some(patch)) =
        (count, area, patch.filter(|patch| count.is_some_and(|count| count.is_multiple_of(*patch))))
    else {
        return Err(Error::Source(format!(
            "tensor `{}` has the shape {:?}, expected patches of {side} x {side} pixels and at most {MOST_ELEMENTS} numbers",
            tensor.name, tensor.shape
        )));
    };
    let mut all = Vec::with_capacity(count as usize);
    TensorSource::of(tensor, &**model.open)?.pieces(RowOrder::Stored, &mut |piece| {
        let begin = all.len();
        all.resize(begin + piece.rows() * piece.columns(), 0.0);
        piece.decode(&mut all[begin..]);
        Ok(())
    })?;
    let [area, patch, frames, frame] = [area, patch, frames, frame].map(|number| number as usize);
    let numbers = all.chunks_exact(patch).flat_map(|own| {
        (0..3).flat_map(move |channel| own[(channel * frames + frame) * area..][..area].iter().copied())
    });
    Ok(numbers.collect())
}
