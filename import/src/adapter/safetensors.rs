//! Adapters of safetensors files, as PEFT and mlx-lm write them.

use std::collections::HashMap;

use architectures::HeadLayout;
use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::pairs::{Factor, Pairs, factor, refused};
use super::{Adapter, CONFIG, has_extension, split};
use crate::inventory::{read_document, shard_facts};
use crate::{Error, NamedFile};

/// The largest config that is read, in bytes; those that name every module have tens of KB.
const MAX_CONFIG: u64 = 1 << 20;
/// The most patterns that a config may have: one for each module of a large model.
const MAX_PATTERNS: usize = 2048;
/// The most memory that a pattern may take when it is compiled, in bytes. One letter of any script has some 50,000.
const MAX_PATTERN: usize = 1 << 20;

/// What PEFT puts before the names of the model that it wraps.
const PEFT_PREFIX: &str = "base_model.model.";

/// Reads the adapter of one folder.
pub(super) fn read(files: &[&NamedFile]) -> Result<Adapter, Error> {
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
    let (weights, config) = match (weights, config) {
        (Some(weights), Some(config)) => (weights, config),
        (Some(weights), None) => {
            return Err(refused(weights, &format!("its `{CONFIG}`, which has the scale, is missing")));
        }
        (None, Some(config)) => return Err(refused(config, "the safetensors file that it is about is missing")),
        (None, None) => return Err(Error::Source("an adapter has no files".to_owned())),
    };
    let raw = read_document(config, MAX_CONFIG)?;
    let config = Config { file: config, raw: &raw };
    let (_, tensors) = shard_facts(weights, 0)?;
    let by_peft =
        tensors.iter().any(|tensor| tensor.name.contains(".lora_A") || tensor.name.contains(".lora_embedding_A"));
    let mut pairs = Pairs::new(weights, !by_peft);
    for tensor in &tensors {
        let (module, factor) = if by_peft { peft_name(&tensor.name) } else { mlx_name(&tensor.name) }
            .map_err(|reason| refused(weights, &format!("tensor `{}` {reason}", tensor.name)))?;
        pairs.take(module, factor, tensor)?;
    }
    let modules = if by_peft {
        let scales = Scales::of(&config, &pairs)?;
        pairs.modules(|module, rank| scales.of_module(module, rank, config.file))?
    } else {
        pairs.modules(|_, _| config.mlx_scale())?
    };
    // Trained with the weights of Hugging Face's files, whatever became of those since.
    Ok(Adapter { name: weights.name.clone(), architecture: None, layout: HeadLayout::Half, modules })
}

/// `base_model.model.MODULE.lora_A.weight`, or with the adapter's name before `weight`.
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

/// `MODULE.lora_a`.
fn mlx_name(name: &str) -> Result<(&str, Factor), &'static str> {
    if let Some(found) = factor(name) {
        Ok(found)
    } else if name.rsplit_once('.').is_some_and(|(_, last)| last == "m") {
        Err("belongs to a DoRA adapter, which is not supported; merge it into the weights")
    } else {
        Err("is no low-rank factor, and nothing else is supported; merge it into the weights")
    }
}

/// An `adapter_config.json`.
struct Config<'a> {
    file: &'a NamedFile,
    raw: &'a [u8],
}

impl Config<'_> {
    fn parse<'d, T: Deserialize<'d>>(&'d self) -> Result<T, Error> {
        serde_json::from_slice(formats::json::unmarked(self.raw))
            .map_err(|error| refused(self.file, &format!("it cannot be read: {error}")))
    }

    /// What PEFT says.
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
        // These take something out of the base's weights before the training.
        let begun = config.init_lora_weights.as_ref().and_then(Value::as_str).unwrap_or_default();
        if ["pissa", "olora", "corda", "loftq"].iter().any(|kind| begun.starts_with(kind)) {
            return refuse(&format!(
                "it was trained on weights that were changed first (`init_lora_weights` is `{begun}`); save it with \
                 `path_initial_model_for_weight_conversion`, or merge it into the weights"
            ));
        }
        Ok(config)
    }

    /// What mlx-lm says.
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
    lora_alpha: Option<f64>,
    /// Regular expressions for the ends of modules' names; the first that matches counts.
    alpha_pattern: Option<Map<String, Value>>,
    use_rslora: Option<bool>,
    use_dora: Option<bool>,
    alora_invocation_tokens: Option<Value>,
    layer_replication: Option<Value>,
    init_lora_weights: Option<Value>,
}

/// What PEFT multiplies with.
struct Scales {
    alpha: Option<f64>,
    /// Those of certain modules.
    own: HashMap<String, f64>,
    by_root: bool,
}

impl Scales {
    fn of(config: &Config<'_>, pairs: &Pairs<'_>) -> Result<Self, Error> {
        let peft = config.peft()?;
        let patterns = peft.alpha_pattern.unwrap_or_default();
        let count = patterns.len();
        if count > MAX_PATTERNS {
            let reason = format!("its `alpha_pattern` has {count} entries, at most {MAX_PATTERNS} are expected");
            return Err(refused(config.file, &reason));
        }
        let mut own = HashMap::new();
        // One compiled pattern at a time: together they may be large.
        for (pattern, alpha) in &patterns {
            let shown: String = pattern.chars().take(100).collect();
            let refuse = |reason: &str| refused(config.file, &format!("`{shown}` of its `alpha_pattern` {reason}"));
            let whole = RegexBuilder::new(&format!("^(.*\\.)?({pattern})$")).size_limit(MAX_PATTERN).build();
            let whole = whole.map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => refuse("is too large a pattern"),
                _ => refuse("is no pattern"),
            })?;
            let alpha = alpha.as_f64().ok_or_else(|| refuse("has no number"))?;
            for module in pairs.names().filter(|module| whole.is_match(module)) {
                own.entry(module.to_owned()).or_insert(alpha);
            }
        }
        Ok(Self { alpha: peft.lora_alpha, own, by_root: peft.use_rslora == Some(true) })
    }

    fn of_module(&self, module: &str, rank: u64, file: &NamedFile) -> Result<f64, Error> {
        let alpha = self.own.get(module).copied().or(self.alpha);
        let alpha = alpha.ok_or_else(|| refused(file, "`lora_alpha` is missing, expected a number"))?;
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }
}
