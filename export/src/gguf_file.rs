//! GGUF files from a Hugging Face folder, a split GGUF, or a model that was quantized to GGML
//! blocks.
//!
//! A model is one file, and its projector another one. The keys of a model that was imported from
//! GGUF are copied. For other models the keys are made from the folder's documents.

use std::collections::HashMap;

use architectures::{Blueprint, names};
use formats::gguf::OwnedValue;
use formats::{Dtype, Encoding, GgmlType};
use manifests::media_types;
use vocabulary::chat_templates::{NamedTemplate, OfFolder};

use super::array::Change;
use super::head_order::change;
use super::new_file::{NewFile, float_target, ggml_type};
use super::projector_file::{TowerDocuments, projector_file};
use super::{ExportPlan, HuggingFaceModel, StoredModel, documents, gguf_metadata, gguf_source};
use import::{Error, StoredTensor};

/// Largest document that is read, in bytes.
const MAX_DOCUMENT: u64 = 256 << 20;

/// Plans the GGUF files, which are named after the model.
///
/// # Errors
/// [`Error::Source`] if a tensor or the tokenizer cannot be expressed in GGUF, the architecture is
/// unknown, or `dtype` is given for a model that was imported from GGUF, whose tensors are copied.
pub fn gguf_plan(model: &StoredModel<'_>, dtype: Option<Dtype>) -> Result<ExportPlan, Error> {
    let (mut file, mut projector) = (NewFile::default(), None);
    match gguf_source::headers(model.layers, &**model.open)? {
        Some(_) if dtype.is_some() => {
            return Err(Error::Source(
                "the model came as a GGUF file, its tensors keep their types and `--dtype` would do nothing; leave it \
                 out, or use `--format safetensors`"
                    .to_owned(),
            ));
        }
        Some(headers) => {
            let of_projector = gguf_source::tensor_names(headers.projector.as_deref())?;
            file.copy(model, &headers.model, |name| !of_projector.contains(name))?;
            if let Some(header) = &headers.projector {
                let mut own = NewFile::default();
                own.copy(model, header, |name| of_projector.contains(name))?;
                projector = Some(own.finish(&format!("mmproj-{}.gguf", model.name))?);
            }
        }
        None => {
            let own = file.convert(model, dtype)?;
            projector = own.map(|own| own.finish(&format!("mmproj-{}.gguf", model.name))).transpose()?;
        }
    }
    file.losses.extend(file.rounding.losses());
    file.losses.extend(documents::losses(model.layers));
    let losses = std::mem::take(&mut file.losses);
    let file = file.finish(&format!("{}.gguf", model.name))?;
    ExportPlan::new(std::iter::once(file).chain(projector).collect(), losses)
}

impl NewFile {
    /// Copies the keys of the header, and the tensors with names of which `is_own` is true, of a
    /// model that was imported from GGUF files.
    fn copy(&mut self, model: &StoredModel<'_>, header: &[u8], is_own: impl Fn(&str) -> bool) -> Result<(), Error> {
        let gguf = gguf_source::parsed(header)?;
        let architecture = gguf.text("general.architecture").unwrap_or_default();
        let own = gguf.metadata.iter().filter(|(key, _)| !key.starts_with("split."));
        self.keys.extend(own.map(|(key, value)| ((*key).to_owned(), OwnedValue::from(value))));
        let own: Vec<StoredTensor> =
            model.tensors.iter().filter(|tensor| is_own(&tensor.stored_name)).cloned().collect();
        for tensor in &own {
            self.add(tensor, &Change::none(&architectures::source_name(architecture, &tensor.stored_name)), None)?;
        }
        let kinds = gguf_source::kinds(model.layers, &**model.open)?;
        if self.tensors.iter().any(|tensor| kinds.get(&tensor.name).is_some_and(|kind| *kind != tensor.kind)) {
            self.say_file_type(most_common(&own, None));
        }
        Ok(())
    }

    /// Converts a folder: makes the keys from its documents, renames the tensors, and changes them
    /// where GGUF files of the architecture differ. Returns the projector file, if the model has a
    /// tower.
    fn convert(&mut self, model: &StoredModel<'_>, dtype: Option<Dtype>) -> Result<Option<Self>, Error> {
        let architecture = model.architecture.ok_or_else(|| {
            Error::Source("the model's architecture is not known, so there are no keys for its GGUF file".to_owned())
        })?;
        check_vocabulary(&architecture.blueprint, model.tensors)?;
        let documents = Documents::read(model)?;
        let metadata = gguf_metadata(&HuggingFaceModel {
            architecture,
            name: model.name,
            kind: most_common(model.tensors, dtype),
            config: documents.required("config.json")?,
            tokenizer: documents.required("tokenizer.json")?,
            tokenizer_config: documents.get("tokenizer_config.json"),
            generation_config: documents.get("generation_config.json"),
            chat_templates: &documents.chat_templates()?,
        })?;
        self.keys = metadata.keys;
        self.losses = metadata.losses;
        metadata.extra_tensors.into_iter().for_each(|tensor| self.add_extra(tensor));
        for tensor in model.tensors.iter().filter(|tensor| !names::is_of_tower(&tensor.name)) {
            let found = architecture.tensor_to_gguf(&tensor.name, tensor.shape.len());
            let Some(table) = found.map_err(|e| Error::Source(e.to_string()))? else { continue };
            self.add(tensor, &change(tensor, &table)?, float_target(tensor, &table, dtype))?;
        }
        let of_tower = TowerDocuments {
            config: documents.required("config.json")?,
            tokenizer: documents.required("tokenizer.json")?,
        };
        Ok(projector_file(model, &of_tower, dtype, self))
    }
}

/// Checks that the embedding has as many rows as the config's vocabulary. The vocabulary of the
/// file is padded to that size; readers would access a smaller embedding beyond its end.
fn check_vocabulary(blueprint: &Blueprint, tensors: &[StoredTensor]) -> Result<(), Error> {
    let name = &blueprint.embedding.weight.name;
    let embedding = tensors.iter().find(|tensor| tensor.name == *name);
    let embedding =
        embedding.ok_or_else(|| Error::Source(format!("the model has no tensor `{name}`, which a GGUF file needs")))?;
    let (rows, vocabulary) = (embedding.shape.first().copied().unwrap_or(0), blueprint.vocabulary);
    if rows != vocabulary {
        return Err(Error::Source(format!(
            "`config.json` says that the vocabulary has {vocabulary} tokens, the tensor `{name}` has {rows} rows; \
             one of them is not of this model"
        )));
    }
    Ok(())
}

/// Returns the type that most matrices will have.
fn most_common(tensors: &[StoredTensor], wanted: Option<Dtype>) -> Option<GgmlType> {
    let mut counts: HashMap<GgmlType, u64> = HashMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
        let kind = match tensor.encoding {
            Encoding::Blocks(kind) => Some(kind),
            Encoding::Plain(own) => ggml_type(tensor, wanted.unwrap_or(own)).ok(),
            _ => None,
        };
        if let Some(kind) = kind {
            *counts.entry(kind).or_default() += 1;
        }
    }
    // The type id breaks ties, so that the same model always gives the same file.
    counts.into_iter().max_by_key(|(kind, count)| (*count, kind.id())).map(|(kind, _)| kind)
}

/// Documents of a folder by file name.
struct Documents(HashMap<String, Vec<u8>>);

impl Documents {
    fn read(model: &StoredModel<'_>) -> Result<Self, Error> {
        let wanted = |name: &str| {
            ["config.json", "tokenizer.json", "generation_config.json"].contains(&name) || OfFolder::reads(name)
        };
        let kinds = [media_types::JSON, media_types::FILE];
        let mut found = HashMap::new();
        for layer in model.layers.iter().filter(|layer| kinds.contains(layer.media_type())) {
            let Some(name) = layer.name().filter(|name| wanted(name) && layer.size() <= MAX_DOCUMENT) else {
                continue;
            };
            let mut raw = vec![0; layer.size() as usize];
            let read = (model.open)(layer.digest()).and_then(|blob| blob.read_exact_at(&mut raw, 0));
            read.map_err(|e| Error::io("read blob", layer.digest(), e))?;
            found.insert(name.to_owned(), raw);
        }
        Ok(Self(found))
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Returns the chat templates with their names.
    fn chat_templates(&self) -> Result<Vec<NamedTemplate>, Error> {
        let mut templates = OfFolder::default();
        for (name, raw) in self.0.iter().filter(|(name, _)| OfFolder::reads(name)) {
            let text = std::str::from_utf8(raw).map_err(|_| crate::refused(name, "it is not UTF-8"))?;
            templates.take(name, text);
        }
        Ok(templates.templates())
    }

    fn required(&self, name: &str) -> Result<&[u8], Error> {
        self.get(name).ok_or_else(|| Error::Source(format!("the model has no `{name}`, which a GGUF file is made of")))
    }
}

#[cfg(test)]
mod tests {
    use architectures::{Document, TensorNames, describe};

    use super::*;

    #[test]
    fn the_embedding_has_a_row_for_each_token() {
        let config = br#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256}"#;
        let blueprint = describe(Document::Config(config), &TensorNames::default()).expect("a config").blueprint;
        let tensor = |name: &str, rows: u64| StoredTensor {
            name: name.to_owned(),
            stored_name: name.to_owned(),
            encoding: Encoding::Plain(Dtype::Bf16),
            shape: vec![rows, 64],
            parts: Vec::new(),
        };
        assert!(check_vocabulary(&blueprint, &[tensor("model.embed_tokens.weight", 320)]).is_ok());
        let error = check_vocabulary(&blueprint, &[tensor("model.embed_tokens.weight", 100)]).expect_err("fewer rows");
        assert!(error.to_string().contains("320") && error.to_string().contains("100"), "{error}");
        assert!(check_vocabulary(&blueprint, &[tensor("lm_head.weight", 320)]).is_err());
    }

    #[test]
    fn the_file_type_follows_the_tensors() {
        let says = |kind: GgmlType| {
            let keys = vec![("general.file_type".to_owned(), OwnedValue::from(1u32))];
            let mut file = NewFile { keys, ..NewFile::default() };
            file.say_file_type(Some(kind));
            file.keys.pop().map(|(_, value)| value)
        };
        assert_eq!(says(GgmlType::Q4_K), Some(OwnedValue::from(15u32)));
        assert_eq!(says(GgmlType::TQ1_0), None, "the format has no number that we write");
    }
}
