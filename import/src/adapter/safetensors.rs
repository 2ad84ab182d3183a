//! Adapters in safetensors files, as PEFT and mlx-lm write them.

use std::collections::{HashMap, HashSet};

use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::pairs::{Factor, Pairs, factor, refused};
use super::{Adapter, CONFIG, FactorOwner, has_extension, parameters, split};
use crate::inventory::{read_document, shard_facts};
use crate::{Error, NamedFile};

/// Largest config that is read, in bytes. Configs that name every module have tens of KB.
const MAX_CONFIG: u64 = 1 << 20;
/// Largest number of patterns in a config: one for each module of a large model.
const MAX_PATTERNS: usize = 2048;
/// Largest memory of a compiled pattern, in bytes. A class of all letters takes about 50,000.
const MAX_PATTERN: usize = 1 << 20;

/// Prefix that PEFT adds to the names of the wrapped model.
const PEFT_PREFIX: &str = "base_model.model.";

/// Returns the file of the factors and the config of an adapter.
fn weights_and_config<'a>(files: &[&'a NamedFile]) -> Result<(&'a NamedFile, &'a NamedFile), Error> {
    let (mut weights, mut config) = (None, None);
    for file in files {
        let place = if split(&file.name).1 == CONFIG {
            &mut config
        } else if has_extension(&file.name, "safetensors") {
            &mut weights
        } else {
            let expected = format!("expected a GGUF file, or a safetensors file and its `{CONFIG}`");
            return Err(refused(file, &format!("it is no file of an adapter; {expected}")));
        };
        if let Some(other) = place.replace(*file) {
            return Err(refused(file, &format!("`{}` is in the same folder; give each adapter its own", other.name)));
        }
    }
    match (weights, config) {
        (Some(weights), Some(config)) => Ok((weights, config)),
        (Some(weights), None) => Err(refused(weights, &format!("its `{CONFIG}`, which has the scale, is missing"))),
        (None, Some(config)) => Err(refused(config, "the safetensors file that it is about is missing")),
        (None, None) => Err(Error::Source("an adapter has no files".to_owned())),
    }
}

/// Reads the adapter of one folder.
pub(super) fn read(files: &[&NamedFile]) -> Result<Adapter, Error> {
    let (weights, config) = weights_and_config(files)?;
    let raw = read_document(config, MAX_CONFIG)?;
    let config = Config { file: config, raw: &raw };
    let (_, tensors) = shard_facts(weights, 0, "")?;
    let by_peft =
        tensors.iter().any(|tensor| tensor.name.contains(".lora_A") || tensor.name.contains(".lora_embedding_A"));
    let peft = by_peft.then(|| config.peft()).transpose()?;
    let targets = peft.as_ref().and_then(|peft| peft.target_parameters.as_deref()).unwrap_or_default();
    let mut pairs = Pairs::new(weights, !by_peft);
    let mut parameters = HashSet::new();
    for tensor in &tensors {
        let refuse = |reason: &str| refused(weights, &format!("tensor `{}` {reason}", tensor.name));
        if by_peft && is_copy(&tensor.name) {
            continue;
        }
        let named = if by_peft { peft_name(&tensor.name) } else { mlx_name(&tensor.name) };
        let (module, factor) = named.map_err(refuse)?;
        match parameters::name(module, targets).map_err(|reason| refuse(&reason))? {
            Some(parameter) => {
                pairs.take(&parameter, factor, tensor)?;
                parameters.insert(parameter);
            }
            None => pairs.take(module, factor, tensor)?,
        }
    }
    let modules = match peft {
        Some(peft) => {
            let scales = Scales::of(peft, config.file, &pairs)?;
            pairs.modules(
                |module, rank| scales.of_module(module, rank, config.file),
                |module, rows| {
                    let is_joined = parameters.contains(module);
                    is_joined.then(|| scales.joined(module, rows, config.file)).transpose().map(Option::flatten)
                },
            )?
        }
        None => pairs.modules(|_, _| config.mlx_scale(), |_, _| Ok(None))?,
    };
    // It was trained on the weights of Hugging Face's files, however the model was converted since.
    Ok(Adapter { name: weights.name.clone(), architecture: None, layout: None, modules })
}

/// True if a tensor is the frozen weight of an adapted output projection, which PEFT saves together
/// with the factors. If tokens were added to it, the factors do not fit the model.
fn is_copy(name: &str) -> bool {
    name.ends_with("lm_head.base_layer.weight") || name.ends_with("lm_head.base_layer.bias")
}

/// Parses `base_model.model.MODULE.lora_A.weight`; the adapter's name may precede `weight`.
fn peft_name(name: &str) -> Result<(&str, Factor), &'static str> {
    let own = name.strip_prefix(PEFT_PREFIX).unwrap_or(name);
    if own.contains(".lora_magnitude_vector") {
        return Err("belongs to a DoRA adapter, which is not supported; merge it into the weights");
    }
    if own.contains(".lora_embedding_") {
        return Err("changes the token embedding, which is not supported; merge it into the weights");
    }
    let cut = |marker: &str| own.split_once(marker).filter(|(_, rest)| rest.ends_with(".weight"));
    match (cut(".lora_A"), cut(".lora_B")) {
        (Some((module, _)), None) => Ok((module, Factor::Down)),
        (None, Some((module, _))) => Ok((module, Factor::Up)),
        _ => Err("is no low-rank factor but replaces something, which is not supported; merge it into the weights"),
    }
}

/// Parses `MODULE.lora_a`.
fn mlx_name(name: &str) -> Result<(&str, Factor), &'static str> {
    if let Some(found) = factor(name) {
        Ok(found)
    } else if name.rsplit_once('.').is_some_and(|(_, last)| last == "m") {
        Err("belongs to a DoRA adapter, which is not supported; merge it into the weights")
    } else {
        Err("is no low-rank factor, and nothing else is supported; merge it into the weights")
    }
}

/// Contents of an `adapter_config.json`.
struct Config<'a> {
    file: &'a NamedFile,
    raw: &'a [u8],
}

impl Config<'_> {
    fn parse<'d, T: Deserialize<'d>>(&'d self) -> Result<T, Error> {
        serde_json::from_slice(formats::json::unmarked(self.raw))
            .map_err(|error| refused(self.file, &format!("it cannot be read: {error}")))
    }

    /// Parses a config of PEFT and refuses unsupported options.
    fn peft(&self) -> Result<Peft, Error> {
        let config: Peft = self.parse()?;
        let refuse = |reason: &str| Err(refused(self.file, reason));
        match config.kind.as_deref() {
            None | Some("LORA") => {}
            Some(other) => return refuse(&format!("its `peft_type` is `{other}`, expected `LORA`")),
        }
        if config.use_dora == Some(true) {
            return refuse("`use_dora` is set, which is not supported; merge it into the weights");
        }
        if config.alora_invocation_tokens.is_some() {
            return refuse("it is to be used after certain tokens only (aLoRA), which is not supported");
        }
        if config.layer_replication.is_some() {
            return refuse("`layer_replication` is set, which makes another model of its base");
        }
        // These methods subtract from the base weights before the training.
        let begun = config.init_lora_weights.as_ref().and_then(Value::as_str).unwrap_or_default();
        if ["pissa", "olora", "corda", "loftq"].iter().any(|kind| begun.starts_with(kind)) {
            return refuse(&format!(
                "it was trained on weights that were changed first (`init_lora_weights` is `{begun}`); save it with \
                 `path_initial_model_for_weight_conversion`, or merge it into the weights"
            ));
        }
        Ok(config)
    }

    /// Parses a config of mlx-lm and returns the scale.
    fn mlx_scale(&self) -> Result<f64, Error> {
        let config: Mlx = self.parse()?;
        if let Some(kind) = config.fine_tune_type.as_deref().filter(|kind| *kind != "lora") {
            return Err(refused(self.file, &format!("its `fine_tune_type` is `{kind}`, expected `lora`")));
        }
        let scale = config.lora_parameters.as_ref().and_then(|parameters| parameters.get("scale")?.as_f64());
        scale.ok_or_else(|| refused(self.file, "`lora_parameters.scale` is missing, expected a number"))
    }
}

#[derive(Deserialize)]
struct Mlx {
    fine_tune_type: Option<String>,
    lora_parameters: Option<Value>,
}

#[derive(Deserialize)]
struct Peft {
    #[serde(rename = "peft_type")]
    kind: Option<String>,
    #[serde(rename = "r")]
    rank: Option<u64>,
    lora_alpha: Option<f64>,
    /// Regular expressions that match the ends of module names; the first match counts.
    alpha_pattern: Option<Map<String, Value>>,
    /// Regular expressions as in `alpha_pattern`.
    rank_pattern: Option<Map<String, Value>>,
    /// Endings of the names of adapted parameters; each parameter may hold the matrices of several
    /// experts.
    target_parameters: Option<Vec<String>>,
    /// Version of PEFT; versions before 0.18 do not write it.
    #[serde(rename = "peft_version")]
    written_by: Option<String>,
    use_rslora: Option<bool>,
    use_dora: Option<bool>,
    alora_invocation_tokens: Option<Value>,
    layer_replication: Option<Value>,
    init_lora_weights: Option<Value>,
}

/// Scales by module, as PEFT computes them.
struct Scales {
    alpha: ModuleNumbers<f64>,
    rank: ModuleNumbers<u64>,
    by_root: bool,
    is_old: bool,
}

impl Scales {
    fn of(peft: Peft, file: &NamedFile, pairs: &Pairs<'_>) -> Result<Self, Error> {
        let alphas = peft.alpha_pattern.unwrap_or_default();
        let ranks = peft.rank_pattern.unwrap_or_default();
        let alphas = own_numbers(file, "alpha_pattern", &alphas, pairs, Value::as_f64)?;
        let ranks = own_numbers(file, "rank_pattern", &ranks, pairs, Value::as_u64)?;
        Ok(Self {
            alpha: ModuleNumbers { usual: peft.lora_alpha, own: alphas },
            rank: ModuleNumbers { usual: peft.rank, own: ranks },
            by_root: peft.use_rslora == Some(true),
            is_old: is_old(peft.written_by.as_deref()),
        })
    }

    fn of_module(&self, module: &str, rank: u64, file: &NamedFile) -> Result<f64, Error> {
        let alpha = self.alpha.of(module);
        let alpha = alpha.ok_or_else(|| refused(file, "`lora_alpha` is missing, expected a number"))?;
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }

    /// Returns the experts whose factors are joined in `down`; `None` if it holds the factors of
    /// one matrix.
    fn joined(&self, module: &str, rows: u64, file: &NamedFile) -> Result<Option<FactorOwner>, Error> {
        let rank = self.rank.of(module).filter(|rank| *rank > 0);
        let rank = rank.ok_or_else(|| refused(file, "`r`, the rank, is missing, expected a positive integer"))?;
        if !rows.is_multiple_of(rank) {
            let reason = format!("the factors of `{module}` have the rank {rows}, no multiple of `r`, which is {rank}");
            return Err(refused(file, &reason));
        }
        let (experts, is_old) = (rows / rank, self.is_old);
        Ok((experts > 1).then_some(FactorOwner::Joined { experts, is_old }))
    }
}

/// True if the version of PEFT is older than 0.19. Versions before 0.18 are not stated in the
/// config.
fn is_old(version: Option<&str>) -> bool {
    let Some(version) = version else { return true };
    let mut numbers = version.split('.').map(|part| part.parse::<u64>().unwrap_or(u64::MAX));
    (numbers.next(), numbers.next()) < (Some(0), Some(19))
}

/// Number for each module: a default and exceptions.
struct ModuleNumbers<T> {
    usual: Option<T>,
    /// Numbers of certain modules, which replace the default.
    own: HashMap<String, T>,
}

impl<T: Copy> ModuleNumbers<T> {
    fn of(&self, module: &str) -> Option<T> {
        self.own.get(module).copied().or(self.usual)
    }
}

/// Returns the numbers that patterns assign to modules.
fn own_numbers<T: Copy>(
    file: &NamedFile,
    key: &str,
    patterns: &Map<String, Value>,
    pairs: &Pairs<'_>,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<HashMap<String, T>, Error> {
    let count = patterns.len();
    if count > MAX_PATTERNS {
        return Err(refused(file, &format!("its `{key}` has {count} entries, at most {MAX_PATTERNS} are expected")));
    }
    let mut own = HashMap::new();
    // Compiles one pattern at a time, because together they may be large.
    for (pattern, number) in patterns {
        let shown: String = pattern.chars().take(100).collect();
        let refuse = |reason: &str| refused(file, &format!("`{shown}` of its `{key}` {reason}"));
        let whole = RegexBuilder::new(&format!("^(.*\\.)?({pattern})$")).size_limit(MAX_PATTERN).build();
        let whole = whole.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => refuse("is too large a pattern"),
            _ => refuse("is no pattern"),
        })?;
        let number = read(number).ok_or_else(|| refuse("has no number"))?;
        for module in pairs.names().filter(|module| whole.is_match(module)) {
            own.entry(module.to_owned()).or_insert(number);
        }
    }
    Ok(own)
}
