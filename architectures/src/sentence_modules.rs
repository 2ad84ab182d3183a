//! Modules of sentence-transformers: the steps from a text to its embedding or score, which
//! `modules.json` lists. The files of each step lie in a folder of its own.
//!
//! `Dense` is a linear layer behind pooling. Its folder has `config.json` and the tensors
//! `linear.weight` and `linear.bias`; imported tensors have the folder's name before their own.
//!
//! Source: `base/modules/dense.py` of sentence-transformers 6.2.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::blueprint::{Blueprint, EmbedderLayer, PooledActivation};
use crate::config_json::Config;
use crate::dense::projection;
use crate::family::Architecture;
use crate::keys_read::KeysRead;
use crate::{Error, TensorNames};

/// Document that lists the modules of a model.
pub const MODULES: &str = "modules.json";

/// Limit of the number of modules; more than any model has.
const MAX_MODULES: usize = 64;

/// Entry of [`MODULES`].
#[derive(Clone, Debug, Deserialize)]
pub struct SentenceModule {
    /// Class in sentence-transformers, with the names of its packages.
    #[serde(rename = "type")]
    pub kind: String,
    /// Folder of its files, relative to the model's folder; empty for that folder itself.
    #[serde(default)]
    pub path: String,
}

impl SentenceModule {
    /// Returns the name of the class.
    pub fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the name of the document with the module's settings.
    pub fn config_name(&self) -> String {
        format!("{}/config.json", self.path)
    }
}

/// Returns the modules that the document lists, with folders in their shortest form.
///
/// # Errors
/// The document is not a list of modules, or it is longer than that of any model.
pub fn sentence_modules(raw: &[u8]) -> Result<Vec<SentenceModule>, Error> {
    let mut modules: Vec<SentenceModule> = serde_json::from_slice(&formats::json::tolerant(raw))
        .map_err(|error| Error::new(MODULES, format!("it is not a list of modules: {error}")))?;
    if modules.len() > MAX_MODULES {
        let found = modules.len();
        return Err(Error::new(MODULES, format!("it lists {found} modules, expected at most {MAX_MODULES}")));
    }
    for module in &mut modules {
        let path = module.path.trim_start_matches("./").trim_end_matches('/');
        module.path = if path == "." { String::new() } else { path.to_owned() };
    }
    Ok(modules)
}

/// Returns the folders of modules besides the transformer, whose files lie in the model's folder.
/// An invalid list has none: its model cannot embed, and says so when it is described.
pub fn module_folders(raw: &[u8]) -> Vec<String> {
    let modules = sentence_modules(raw).unwrap_or_default();
    let behind = modules.into_iter().filter(|module| module.name() != "Transformer" && !module.path.is_empty());
    behind.map(|module| module.path).collect()
}

/// Returns the linear layers behind pooling, in order.
pub fn dense_modules(modules: &[SentenceModule]) -> impl Iterator<Item = &SentenceModule> {
    let behind_pooling = modules.iter().skip_while(|module| module.name() != "Pooling");
    behind_pooling.filter(|module| module.name() == "Dense")
}

/// Linear layer behind pooling with its settings.
#[derive(Clone, Debug)]
pub struct DenseModule {
    /// Folder of its files.
    pub path: String,
    /// Contents of its `config.json`, if there is one.
    pub config: Option<Vec<u8>>,
}

impl Architecture {
    /// Adds the linear layers behind pooling. `names` are the names of the model's tensors.
    ///
    /// # Errors
    /// A layer has a setting that is not supported, has no tensors, or contradicts the layer before
    /// it.
    pub fn with_dense_modules(self, modules: &[DenseModule], names: &TensorNames) -> Result<Self, Error> {
        let mut blueprint = self.blueprint;
        for module in modules {
            let layer = layer(module, names).map_err(|error| error.in_folder(&module.path))?;
            blueprint.embedder.push(layer);
        }
        let blueprint = Blueprint::check(blueprint).map_err(|reason| Error::new(MODULES, reason))?;
        Ok(Self { blueprint, ..self })
    }
}

fn layer(module: &DenseModule, names: &TensorNames) -> Result<EmbedderLayer, Error> {
    let fail = |reason: String| Error::new(crate::config_json::SOURCE, reason);
    let raw = module.config.as_deref().ok_or_else(|| fail(format!("it is missing; `{MODULES}` lists its module")))?;
    let map: Map<String, Value> =
        serde_json::from_slice(&formats::json::tolerant(raw)).map_err(|error| fail(error.to_string()))?;
    let read = KeysRead::default();
    let config = Config::new(&map, &read);
    for key in ["module_input_name", "module_output_name"] {
        if let Some(other) = config.text(key).filter(|name| *name != "sentence_embedding") {
            return Err(fail(format!("`{key}` is `{other}`, only `sentence_embedding` can be run")));
        }
    }
    if config.flag("use_residual")? == Some(true) {
        return Err(fail("`use_residual` is true; layers with a residual cannot be run yet".to_owned()));
    }
    let own = format!("{}.linear", module.path);
    let projection = projection(names, &own);
    if !names.has(&projection.weight.name) {
        return Err(fail(format!(
            "the tensor `linear.weight` of this layer is missing; expected it in `{}/model.safetensors`; if that file has \
             it, create or pull the model again",
            module.path
        )));
    }
    let has_bias = config.flag("bias")?.unwrap_or(true);
    if has_bias != projection.bias.is_some() {
        let found = if has_bias { "there is no" } else { "there is a" };
        return Err(fail(format!("`bias` is {has_bias}, but {found} tensor `linear.bias`")));
    }
    Ok(EmbedderLayer {
        inputs: config.required("in_features")?,
        width: config.required("out_features")?,
        projection,
        activation: activation(config.text("activation_function"))?,
    })
}

/// Returns the activation with this class in `PyTorch`; `None` for the identity. Without a class,
/// it is the default of `Dense`.
fn activation(class: Option<&str>) -> Result<Option<PooledActivation>, Error> {
    let Some(class) = class else { return Ok(Some(PooledActivation::Tanh)) };
    match class.rsplit('.').next().unwrap_or_default() {
        "Identity" => Ok(None),
        "Tanh" => Ok(Some(PooledActivation::Tanh)),
        "GELU" => Ok(Some(PooledActivation::Gelu)),
        "ReLU" => Ok(Some(PooledActivation::Relu)),
        "SiLU" => Ok(Some(PooledActivation::Silu)),
        "Sigmoid" => Ok(Some(PooledActivation::Sigmoid)),
        _ => Err(Error::new(
            crate::config_json::SOURCE,
            format!("`activation_function` is `{class}`, expected Identity, Tanh, GELU, ReLU, SiLU or Sigmoid"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, describe};

    const CONFIG: &[u8] = br#"{"model_type":"bert","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,
        "num_attention_heads":2,"vocab_size":32}"#;

    fn described(modules: &[(&str, &str)], names: &[&str]) -> Result<Blueprint, String> {
        let names: TensorNames = names.iter().map(|name| (*name).to_owned()).collect();
        let module = |(path, config): &(&str, &str)| DenseModule {
            path: (*path).to_owned(),
            config: Some(config.as_bytes().to_vec()),
        };
        let modules: Vec<DenseModule> = modules.iter().map(module).collect();
        let architecture = describe(Document::Config(CONFIG), &names).expect("it is described");
        let described = architecture.with_dense_modules(&modules, &names);
        described.map(|architecture| architecture.blueprint).map_err(|error| error.to_string())
    }

    #[test]
    fn layers_behind_pooling_are_read() {
        let first = r#"{"in_features": 16, "out_features": 12, "bias": true}"#;
        let second = r#"{"in_features": 12, "out_features": 4, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"}"#;
        let names = ["2_Dense.linear.weight", "2_Dense.linear.bias", "3_Dense.linear.weight"];
        let blueprint = described(&[("2_Dense", first), ("3_Dense", second)], &names).expect("two layers");
        let layers: Vec<_> = blueprint.embedder.iter().map(|own| (own.inputs, own.width, own.activation)).collect();
        assert_eq!(layers, [(16, 12, Some(PooledActivation::Tanh)), (12, 4, None)]);
        assert_eq!(blueprint.embedding_width(), 4);
        assert_eq!(blueprint.embedder[1].projection.weight.name, names[2]);
    }

    #[test]
    fn contradictions_are_refused() {
        let one = |config: &str, names: &[&str]| described(&[("2_Dense", config)], names).expect_err("refused");
        let (weight, bias) = ("2_Dense.linear.weight", "2_Dense.linear.bias");
        for (config, names, says) in [
            (r#"{"in_features": 8, "out_features": 4}"#, &[][..], "`linear.weight` of this layer is missing"),
            (r#"{"in_features": 8, "out_features": 4}"#, &[weight], "there is no tensor `linear.bias`"),
            (r#"{"in_features": 8, "out_features": 4, "bias": false}"#, &[weight, bias], "there is a tensor"),
            (r#"{"in_features": 9, "out_features": 4}"#, &[weight, bias], "a multiple of the hidden size 8"),
            (r#"{"in_features": 8}"#, &[weight, bias], "out_features"),
            (r#"{"in_features": 8, "out_features": 4, "use_residual": true}"#, &[weight, bias], "use_residual"),
            (
                r#"{"in_features": 8, "out_features": 4, "module_input_name": "token_embeddings"}"#,
                &[weight, bias],
                "token_embeddings",
            ),
            (
                r#"{"in_features": 8, "out_features": 4, "activation_function": "torch.nn.Mish"}"#,
                &[weight, bias],
                "torch.nn.Mish",
            ),
            ("[]", &[weight, bias], "2_Dense/config.json"),
        ] {
            let error = one(config, names);
            assert!(error.contains(says), "{config}: {error}");
        }
        let config =
            r#"{"in_features": 8, "out_features": 4, "bias": false, "activation_function": "torch.nn.Identity"}"#;
        let both = described(&[("2_Dense", config), ("3_Dense", config)], &[weight, "3_Dense.linear.weight"]);
        assert!(both.expect_err("refused").contains("takes 8 numbers, the one before it computes 4"));
    }

    #[test]
    fn layers_before_pooling_are_not_among_them() {
        let raw = br#"[{"type": "a.Dense", "path": "0_Dense"}, {"type": "a.Pooling", "path": "1_Pooling"},
            {"type": "a.b.Dense", "path": "2_Dense"}, {"type": "a.Normalize"}]"#;
        let modules = sentence_modules(raw).expect("modules");
        let paths: Vec<&str> = dense_modules(&modules).map(|module| module.path.as_str()).collect();
        assert_eq!(paths, ["2_Dense"]);
        assert!(sentence_modules(b"{}").is_err());
        let raw = br#"[{"type": "a.Transformer", "path": "."}, {"type": "a.LSTM", "path": "./1_LSTM/"}]"#;
        assert_eq!(module_folders(raw), ["1_LSTM"]);
        let many = format!("[{}]", vec![r#"{"type": "Dense", "path": "d"}"#; 65].join(","));
        assert!(sentence_modules(many.as_bytes()).expect_err("too long").to_string().contains("65 modules"));
        assert!(module_folders(many.as_bytes()).is_empty());
    }
}
