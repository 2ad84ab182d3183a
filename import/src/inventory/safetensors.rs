//! Inventory of a folder with safetensors files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use architectures::MODULES;
use formats::Encoding;
use formats::encoding::Role;
use formats::safetensors::Header;
use serde::Deserialize;
use serde_json::Value;

use super::sentence_modules::SentenceFolders;
use super::{Home, Inventory, SideFile, SourceFile, SourceFormat, SourceTensor, WHOLE, read_at, size, weights};
use crate::read_at::GeneratedDocument;
use crate::repack::{self, Repacked, RepackedFile};
use crate::{Error, NamedFile, QuantizationConfig};

const INDEX: &str = "model.safetensors.index.json";

/// Largest side file that is parsed, in bytes: tokenizers of large vocabularies have tens of MB.
const MAX_DOCUMENT: u64 = 256 << 20;

/// Number of bytes in the first read of a shard. Most headers are shorter, so a remote file needs
/// one request.
const FIRST_READ: u64 = 256 << 10;

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

pub(super) fn inventory(all: &[NamedFile], candidates: &[&NamedFile]) -> Result<Inventory, Error> {
    let index = all.iter().find(|file| file.name == INDEX).map(read_index).transpose()?;
    let list = find_document(all, MODULES)?;
    let modules = SentenceFolders::new(list.as_deref(), index.iter().flat_map(|index| index.weight_map.values()));
    let (of_modules, of_model) = modules.sorted(candidates);
    let (mut shards, index) = chosen(index.as_ref(), &of_model)?;
    shards.extend(of_modules);
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for (position, shard) in shards.iter().enumerate() {
        let prefix = modules.of(shard).map_or_else(String::new, |folder| format!("{folder}."));
        let (file, members) = shard_facts(shard, position, &prefix)?;
        files.push(file);
        tensors.extend(members);
    }
    modules.check_prefixes(&files, &tensors)?;
    let homes = homes(&tensors, &files).map_err(|error| {
        // The tensors of modules have no prefixes if the list of modules cannot be read.
        match list.as_deref().and_then(|raw| architectures::sentence_modules(raw).err()) {
            Some(reason) => Error::Source(format!("{error}; {reason}")),
            None => error,
        }
    })?;
    let config = find_document(all, "config.json")?;
    if let Some(index) = index {
        check_index(index, &homes, config.as_deref().is_some_and(is_tied))?;
    }
    let in_shards = |file: &&NamedFile| shards.iter().any(|shard| shard.name == file.name);
    // An index that names other files is omitted: an export would contain an index that does not
    // match its shards.
    let is_stale = |file: &&NamedFile| file.name == INDEX && index.is_none();
    let others: Vec<&NamedFile> = all.iter().filter(|file| !in_shards(file) && !is_stale(file)).collect();
    let architecture = config.as_deref().and_then(model_type).unwrap_or_default();
    let quantization = QuantizationConfig::from_config(config.as_deref().unwrap_or(b"{}"));
    if let Some(repacked) = repack::repacked(&files, &tensors, &quantization)? {
        return of_repacked(&repacked, &files, architecture, &others, config.as_deref());
    }
    let by_mlx = weights::find(&mut tensors, &quantization)?;
    Ok(Inventory {
        format: if by_mlx { SourceFormat::Mlx } else { SourceFormat::HuggingFace },
        architecture,
        side_files: side_files(&others)?,
        files,
        tensors,
        note: None,
    })
}

/// Returns the inventory of the repacked files, which replace the source's files, with a config
/// that describes the new quantization.
fn of_repacked(
    repacked: &Repacked,
    sources: &[SourceFile],
    architecture: String,
    others: &[&NamedFile],
    config: Option<&[u8]>,
) -> Result<Inventory, Error> {
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for (position, RepackedFile { named, header }) in repacked.files.iter().enumerate() {
        let (file, members) = match header {
            Some(header) => header_facts(named, position, header, size(named)?, &sources[position].prefix)?,
            None => shard_facts(named, position, &sources[position].prefix)?,
        };
        files.push(file);
        tensors.extend(members);
    }
    let index = new_index(&files, &tensors);
    let config = repack::config(config.unwrap_or(b"{}"), &repacked.quantization)?;
    weights::find(&mut tensors, &QuantizationConfig::from_config(&config))?;
    let mut side_files = side_files(others)?;
    // These files describe the previous packing of the arrays.
    side_files.retain(|file| !repack::CONFIGS_OF_METHODS.contains(&file.name.as_str()));
    for (name, bytes) in [("config.json", config), (INDEX, index)] {
        if let Some(file) = side_files.iter_mut().find(|file| file.name == name) {
            file.size = bytes.len() as u64;
            file.source = Arc::new(GeneratedDocument { name: file.source.name(), bytes });
        }
    }
    let format = SourceFormat::HuggingFace;
    Ok(Inventory { format, files, tensors, side_files, architecture, note: Some(repacked.summary.clone()) })
}

/// Returns the index of files whose tensors changed.
fn new_index(files: &[SourceFile], tensors: &[SourceTensor]) -> Vec<u8> {
    // Modules are not part of the index.
    let indexed = || tensors.iter().filter(|tensor| files[tensor.file].prefix.is_empty());
    let map: BTreeMap<&str, &str> =
        indexed().map(|tensor| (tensor.name.as_str(), files[tensor.file].name.as_str())).collect();
    let size: u64 = indexed().map(|tensor| tensor.size).sum();
    serde_json::json!({"metadata": {"total_size": size}, "weight_map": map}).to_string().into_bytes()
}

fn find_document(all: &[NamedFile], name: &str) -> Result<Option<Vec<u8>>, Error> {
    all.iter().find(|file| file.name == name).map(|file| read_document(file, MAX_DOCUMENT)).transpose()
}

/// Returns all bytes of a side file, or an error if it has more than `most`.
pub(crate) fn read_document(named: &NamedFile, most: u64) -> Result<Vec<u8>, Error> {
    let size = size(named)?;
    if size > most {
        let name = &named.name;
        return Err(Error::Source(format!("`{name}` has {size} bytes, expected at most {most}")));
    }
    read_at(named, 0, size)
}

fn read_index(named: &NamedFile) -> Result<ShardIndex, Error> {
    let raw = read_document(named, MAX_DOCUMENT)?;
    serde_json::from_slice(&formats::json::tolerant(&raw))
        .map_err(|e| Error::Source(format!("`{}` cannot be read: {e}", named.source.name())))
}

/// Returns the files that form the model, and their index. As in transformers, `model.safetensors`
/// is the model if the shards of an index are missing.
fn chosen<'a, 'i>(
    index: Option<&'i ShardIndex>,
    candidates: &[&'a NamedFile],
) -> Result<(Vec<&'a NamedFile>, Option<&'i ShardIndex>), Error> {
    let has = |name: &str| candidates.iter().any(|file| file.name == name);
    let is_whole = |index: &ShardIndex| index.weight_map.values().all(|shard| has(shard));
    match index {
        Some(index) if is_whole(index) || !has(WHOLE) => Ok((indexed(index, candidates)?, Some(index))),
        _ => {
            let (spare, model): (Vec<&NamedFile>, Vec<&NamedFile>) =
                candidates.iter().copied().partition(|file| is_spare(&file.name, has(WHOLE)));
            match (model.is_empty(), spare.first()) {
                (true, Some(spare)) => Err(no_model(&spare.name)),
                _ => Ok((model, None)),
            }
        }
    }
}

/// Returns the error for weight files that are not a model; `name` is one of them.
fn no_model(name: &str) -> Error {
    Error::Source(if name.starts_with("adapter_model") {
        format!(
            "`{name}` is an adapter, not a model: create from a Modelfile with FROM its base model and ADAPTER its folder"
        )
    } else {
        format!("there are only files of a training, as `{name}`, and no weights of a model beside them")
    })
}

/// True if a weight file is not part of the model: a training state, an adapter, a folder of an
/// earlier step, or the same model in another form next to `model.safetensors`.
pub fn is_spare(name: &str, beside_whole: bool) -> bool {
    let begins = |part: &str, beginnings: &[&str]| beginnings.iter().any(|beginning| part.starts_with(beginning));
    if let Some((folder, _)) = name.rsplit_once('/') {
        return begins(folder, &["checkpoint-", "global_step"]);
    }
    let is_variant = name.strip_prefix("model.").is_some_and(|rest| rest != "safetensors");
    begins(name, &["optimizer", "scheduler", "rng_state", "adapter_model"])
        || (beside_whole && (is_variant || begins(name, &["consolidated", "tf_model", "flax_model"])))
}

/// Returns the shards that the index names. Other files, such as a second copy in another format,
/// are not part of the model.
fn indexed<'a>(index: &ShardIndex, candidates: &[&'a NamedFile]) -> Result<Vec<&'a NamedFile>, Error> {
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    names
        .into_iter()
        .map(|name| {
            let found = candidates.iter().find(|file| file.name == *name).copied();
            found.ok_or_else(|| Error::Source(format!("shard `{name}` is missing; {INDEX} names it")))
        })
        .collect()
}

/// Reads a file's header and returns the file and its tensors, all as weights of a plain type, with
/// `prefix` before their names.
pub(crate) fn shard_facts(
    named: &NamedFile,
    position: usize,
    prefix: &str,
) -> Result<(SourceFile, Vec<SourceTensor>), Error> {
    let size = size(named)?;
    let mut beginning = read_at(named, 0, size.min(FIRST_READ))?;
    if let Some(first) = beginning.first_chunk::<8>() {
        let end = 8 + Header::length(*first, size).map_err(|e| Error::format(named.source.name(), e))?;
        let had = beginning.len() as u64;
        beginning.extend(read_at(named, had, end.saturating_sub(had))?);
    }
    header_facts(named, position, &beginning, size, prefix)
}

/// Parses the header of a file with `size` bytes.
fn header_facts(
    named: &NamedFile,
    position: usize,
    beginning: &[u8],
    size: u64,
    prefix: &str,
) -> Result<(SourceFile, Vec<SourceTensor>), Error> {
    let header = Header::parse(beginning, size).map_err(|e| Error::format(named.source.name(), e))?;
    let members = header
        .tensors
        .into_iter()
        .map(|tensor| {
            if tensor.name.is_empty() {
                return Err(Error::Source(format!("`{}` has a tensor without a name", named.source.name())));
            }
            let name = format!("{prefix}{}", tensor.name);
            Ok(SourceTensor {
                file: position,
                offset: header.data_start + tensor.begin,
                size: tensor.size(),
                dtype: tensor.dtype,
                dims: tensor.shape.clone(),
                weight: name.clone(),
                role: Role::Weight,
                home: Home::Own,
                encoding: Encoding::Plain(tensor.dtype),
                shape: tensor.shape,
                name,
            })
        })
        .collect::<Result<_, _>>()?;
    let source = SourceFile {
        name: named.name.clone(),
        source: Arc::clone(&named.source),
        size,
        header: header.data_start,
        prefix: prefix.to_owned(),
    };
    Ok((source, members))
}

/// Returns the shard of each tensor.
fn homes<'a>(tensors: &'a [SourceTensor], files: &'a [SourceFile]) -> Result<HashMap<&'a str, &'a str>, Error> {
    let mut homes = HashMap::new();
    for tensor in tensors {
        let name = files[tensor.file].name.as_str();
        if let Some(other) = homes.insert(tensor.name.as_str(), name) {
            return Err(Error::Source(format!("tensor `{}` is in `{other}` and in `{name}`", tensor.name)));
        }
    }
    Ok(homes)
}

/// True if the config ties the output matrix to the embedding.
fn is_tied(config: &[u8]) -> bool {
    let config: Value = serde_json::from_slice(&formats::json::tolerant(config)).unwrap_or_default();
    [&config, &config["text_config"]].iter().any(|part| part["tie_word_embeddings"] == true)
}

/// Checks that every tensor is in the shard that the index names. For models with tied embeddings,
/// some tools list the output matrix but omit it from the shards.
fn check_index(index: &ShardIndex, homes: &HashMap<&str, &str>, is_tied: bool) -> Result<(), Error> {
    for (tensor, shard) in &index.weight_map {
        match homes.get(tensor.as_str()) {
            Some(home) if home == shard => {}
            Some(home) => {
                return Err(Error::Source(format!("{INDEX} says `{tensor}` is in `{shard}`, it is in `{home}`")));
            }
            None if is_tied && tensor.ends_with("lm_head.weight") => {}
            None => {
                return Err(Error::Source(format!("tensor `{tensor}` is missing from `{shard}`; {INDEX} names it")));
            }
        }
    }
    Ok(())
}

fn side_files(others: &[&NamedFile]) -> Result<Vec<SideFile>, Error> {
    others
        .iter()
        .filter(|file| is_kept(&file.name))
        .map(|file| Ok(SideFile { name: file.name.clone(), source: Arc::clone(&file.source), size: size(file)? }))
        .collect()
}

/// True for documents, tokenizers, templates and licenses. Other weights, images and code are not
/// part of the model.
fn is_kept(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let upper = file.to_ascii_uppercase();
    let suffixes = [".json", ".jinja", ".txt", ".model", ".md", ".tiktoken"];
    suffixes.iter().any(|suffix| file.ends_with(suffix))
        || ["LICENSE", "LICENCE", "NOTICE", "COPYING"].iter().any(|prefix| upper.starts_with(prefix))
}

fn model_type(config: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(&formats::json::tolerant(config)).ok()?;
    Some(value.get("model_type")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use formats::safetensors::{Member, canonical_header};

    use super::*;
    use crate::read_at::InMemory;

    #[test]
    fn files_beside_a_model_are_told_from_it() {
        for spare in [
            "optimizer.safetensors",
            "adapter_model.safetensors",
            "checkpoint-500/model.safetensors",
            "model.fp16.safetensors",
            "consolidated.safetensors",
        ] {
            assert!(is_spare(spare, true), "{spare}");
        }
        for own in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "2_Dense/model.safetensors",
            "weights.00.safetensors",
        ] {
            assert!(!is_spare(own, true), "{own}");
        }
        assert!(!is_spare("model.fp16.safetensors", false), "it is all there is");
    }

    /// Returns the inventory of a folder with one tensor and an index that names the tensors in
    /// `indexed`.
    fn folder(config: &str, indexed: &[&str]) -> Result<Inventory, String> {
        let name = "model.embed_tokens.weight".to_owned();
        let member = Member { name, dtype: formats::Dtype::F32, shape: vec![1, 1], size: 4 };
        let weights = [canonical_header(&[member], &BTreeMap::new()), vec![0; 4]].concat();
        let map: BTreeMap<&str, &str> = indexed.iter().map(|name| (*name, "model-1.safetensors")).collect();
        let index = serde_json::json!({"weight_map": map}).to_string().into_bytes();
        let named = |name: &str, bytes| NamedFile { name: name.to_owned(), source: Arc::new(InMemory(bytes)) };
        let files = [named("config.json", config.into()), named("model-1.safetensors", weights), named(INDEX, index)];
        crate::inventory(&files).map_err(|e| e.to_string())
    }

    #[test]
    fn only_a_tied_output_matrix_may_be_missing() {
        let tied = r#"{"model_type": "llama", "tie_word_embeddings": true}"#;
        let below = r#"{"model_type": "llava", "text_config": {"tie_word_embeddings": true}}"#;
        let (embedding, head) = ("model.embed_tokens.weight", "lm_head.weight");
        for config in [tied, below] {
            assert!(folder(config, &[embedding, head]).is_ok(), "{config}");
        }
        for (config, other) in [(tied, "model.norm.weight"), ("{}", head)] {
            let error = folder(config, &[embedding, other]).map(|_| ()).expect_err("it is missing");
            assert!(error.contains(&format!("tensor `{other}` is missing")), "{error}");
        }
    }

    /// Returns the names of the tensors of a folder with `modules.json`, or the error. `files` are
    /// files of one tensor with its name in the file.
    fn names_of(
        modules: &[&str],
        files: &[(&str, &str)],
        index: Option<&[(&str, &str)]>,
    ) -> Result<Vec<String>, String> {
        let weights = |name: &str| {
            let member = Member { name: name.to_owned(), dtype: formats::Dtype::F32, shape: vec![1, 1], size: 4 };
            [canonical_header(&[member], &BTreeMap::new()), vec![0; 4]].concat()
        };
        let modules: Vec<Value> =
            modules.iter().map(|path| serde_json::json!({"type": "a.Dense", "path": path})).collect();
        let named = |name: &str, bytes| NamedFile { name: name.to_owned(), source: Arc::new(InMemory(bytes)) };
        let mut all: Vec<NamedFile> = files.iter().map(|(file, tensor)| named(file, weights(tensor))).collect();
        all.push(named("modules.json", Value::from(modules).to_string().into_bytes()));
        all.extend(index.map(|index| {
            let map: BTreeMap<&str, &str> = index.iter().copied().collect();
            named(INDEX, serde_json::json!({"weight_map": map}).to_string().into_bytes())
        }));
        let inventory = crate::inventory(&all).map_err(|e| e.to_string())?;
        Ok(inventory.tensors.into_iter().map(|tensor| tensor.name).collect())
    }

    #[test]
    fn tensors_of_modules_have_their_folder_as_prefix() {
        let own = ("model.safetensors", "embed.weight");
        let dense = |file| (file, "linear.weight");
        let two = [own, dense("2_Dense/model.safetensors"), dense("3_Dense/model.safetensors")];
        let all = ["embed.weight", "2_Dense.linear.weight", "3_Dense.linear.weight"];
        assert_eq!(names_of(&["2_Dense", "./3_Dense/"], &two, None).expect("names"), all);
        // Folders that are not listed are not part of the model.
        assert_eq!(names_of(&["2_Dense"], &two, None).expect("names"), all[..2]);
        let shard = [("model-1.safetensors", "embed.weight"), two[1], two[2]];
        let index = [("embed.weight", "model-1.safetensors")];
        assert_eq!(names_of(&["3_Dense"], &shard, Some(&index)).expect("names"), [all[0], all[2]]);
        // A file that the index names is part of the model itself.
        let index = [index[0], ("linear.weight", "2_Dense/model.safetensors")];
        let mut found = names_of(&["2_Dense", "3_Dense"], &shard, Some(&index)).expect("names");
        found.sort();
        assert_eq!(found, ["3_Dense.linear.weight", "embed.weight", "linear.weight"]);
    }

    /// sentence-transformers once saved the transformer in a folder too.
    #[test]
    fn a_model_may_lie_in_a_folder() {
        let files =
            [("0_Transformer/model.safetensors", "embed.weight"), ("1_Dense/model.safetensors", "linear.weight")];
        let mut names = names_of(&["1_Dense"], &files, None).expect("names");
        names.sort();
        assert_eq!(names, ["1_Dense.linear.weight", "embed.weight"]);
    }

    #[test]
    fn a_broken_list_of_modules_is_named() {
        let files = [("2_Dense/model.safetensors", "linear.weight"), ("3_Dense/model.safetensors", "linear.weight")];
        let error = names_of(&["d"; 65], &files, None).expect_err("refused");
        assert!(error.contains("in `3_Dense/model.safetensors`; modules.json: it lists 65 modules"), "{error}");
    }

    #[test]
    fn prefixes_are_those_of_one_module() {
        let files = [("model.safetensors", "model.norm.weight"), ("model/model.safetensors", "linear.weight")];
        let error = names_of(&["model"], &files, None).expect_err("refused");
        assert!(error.contains("`model.norm.weight` in `model.safetensors` begins like"), "{error}");
    }
}
