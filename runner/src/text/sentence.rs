//! The settings of sentence-transformers for a model that embeds: its modules, its prompts, and the
//! limit of a text's length.
//!
//! - `modules.json`: the steps that process a text.
//! - `1_Pooling/config.json`: see [`Pooling`].
//! - `sentence_bert_config.json`: `max_seq_length`, `do_lower_case`.
//! - `config_sentence_transformers.json`: `prompts`, named texts that are put before a text, and
//!   `default_prompt_name`.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail, ensure};
use architectures::{Blueprint, MODULES, SentenceModule, dense_modules, sentence_modules};
use serde::Deserialize;
use serde_json::Value;

use crate::documents::Documents;
use crate::text::pooling::Pooling;

/// Supported modules, in the order in which they may occur. Vectors are divided by their length in
/// any case, also without `Normalize`.
const KNOWN: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];
/// Position of the layers behind pooling in [`KNOWN`].
const DENSE: usize = 2;

/// How a model embeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sentence {
    pub(crate) pooling: Pooling,
    /// Largest number of tokens of a text, including the tokens around it; `None` means the
    /// context.
    pub(crate) most: Option<usize>,
    /// Whether texts are converted to lower case.
    pub(crate) lowers: bool,
    prompts: BTreeMap<String, String>,
    default: Option<String>,
    /// The reason why its vectors would be wrong, if any.
    obstacle: Option<String>,
}

/// Returns the modules that `modules.json` lists; none if there is no such file.
///
/// # Errors
/// Fails if the file is not a list of modules.
pub(crate) fn modules(documents: Documents<'_>) -> Result<Vec<SentenceModule>> {
    documents.find(MODULES).map_or_else(|| Ok(Vec::new()), |raw| Ok(sentence_modules(raw)?))
}

/// Refuses modules that are not supported, and those in another order than [`KNOWN`]: the layers
/// `Dense` get pooled hidden states, and only the last vector is divided by its length.
fn check_modules(modules: &[SentenceModule]) -> Result<()> {
    let has_pooling = modules.iter().any(|module| module.name() == "Pooling");
    let mut last = 0;
    for module in modules {
        let place = KNOWN.iter().position(|name| *name == module.name());
        let is_in_order = place.is_some_and(|place| place >= last && (place != DENSE || has_pooling));
        ensure!(
            is_in_order,
            "its module `{}` ({}) is not supported {}, and the vectors would be wrong without it; expected {}, in this order",
            module.path,
            module.kind,
            if place.is_some() { "at that place of `modules.json`" } else { "here" },
            KNOWN.join(", ")
        );
        last = place.unwrap_or(last);
    }
    Ok(())
}

/// Refuses layers behind pooling that are missing in the model, or do not match its pooling.
fn check_layers(modules: &[SentenceModule], pooling: &Pooling, blueprint: &Blueprint) -> Result<()> {
    let (listed, found) = (dense_modules(modules).count(), blueprint.embedder.len());
    ensure!(
        listed <= found,
        "`{MODULES}` lists {listed} modules `Dense`, and {found} layers behind pooling can be run here; the vectors would be wrong \
         without the others"
    );
    let Some(first) = blueprint.embedder.first() else { return Ok(()) };
    let pooled = pooling.modes() as u64 * blueprint.hidden;
    ensure!(
        pooled == first.inputs,
        "its modes of pooling give {pooled} numbers, and the layer behind pooling takes {}",
        first.inputs
    );
    // A layer that is not in the list projects before pooling; its place matters for the maximum.
    ensure!(
        listed == found || !pooling.has_maximum(),
        "it pools by the maximum of projected hidden states, which is not supported"
    );
    Ok(())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Prompts {
    prompts: BTreeMap<String, Value>,
    default_prompt_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Texts {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

impl Sentence {
    /// Reads the settings from the documents of a model. Unsupported ones are reported when an
    /// embedding is requested.
    pub(crate) fn of(documents: Documents<'_>, blueprint: &Blueprint) -> Self {
        let pooling = Pooling::of(documents);
        let check = || -> Result<()> {
            let modules = modules(documents)?;
            check_modules(&modules)?;
            check_layers(&modules, pooling.as_ref().map_err(|error| anyhow!("{error:#}"))?, blueprint)
        };
        let obstacle = check().err().map(|error| format!("{error:#}"));
        let pooling = pooling.unwrap_or_default();
        let texts: Texts = of_json(documents.find("sentence_bert_config.json"));
        let prompts: Prompts = of_json(documents.find("config_sentence_transformers.json"));
        let text = |(name, text): (String, Value)| Some((name, text.as_str()?.to_owned()));
        Self {
            pooling,
            most: texts.max_seq_length.filter(|most| *most > 0),
            lowers: texts.do_lower_case,
            prompts: prompts.prompts.into_iter().filter_map(text).collect(),
            default: prompts.default_prompt_name.filter(|name| !name.is_empty()),
            obstacle,
        }
    }

    /// Refuses to embed if the vectors would be wrong.
    ///
    /// # Errors
    /// Fails with the setting that is not supported.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.obstacle {
            Some(reason) => bail!("this model cannot embed here: {reason}"),
            None => Ok(()),
        }
    }

    /// Returns the prompt of this name, or the default prompt; an empty text if there is none.
    ///
    /// # Errors
    /// Fails if there is no such prompt.
    pub(crate) fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default.as_deref()) else { return Ok("") };
        if let Some(prompt) = self.prompts.get(name) {
            return Ok(prompt);
        }
        let known: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
        match known[..] {
            [] => bail!("this model has no prompts, `{name}` was asked for"),
            _ => bail!("this model has no prompt `{name}`, only {}", known.join(", ")),
        }
    }
}

fn of_json<T: Default + for<'d> Deserialize<'d>>(raw: Option<&[u8]>) -> T {
    raw.and_then(|raw| serde_json::from_slice(&formats::json::tolerant(raw)).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use architectures::{Document, EmbedderLayer, TensorNames, describe};
    use serde_json::json;

    use super::*;
    use crate::mapped::Blob;

    fn of(documents: &[(&str, Value)]) -> Sentence {
        let document =
            |(name, json): &(&str, Value)| ((*name).to_owned(), Arc::new(Blob::Read(json.to_string().into_bytes())));
        let documents: Vec<_> = documents.iter().map(document).collect();
        Sentence::of(Documents::new(&documents), &with_embedder(&[8, 8]))
    }

    /// Returns a model of 8 hidden elements whose layers behind pooling take these numbers.
    fn with_embedder(inputs: &[u64]) -> Blueprint {
        let config = br#"{"model_type":"bert","hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,
            "num_attention_heads":1,"vocab_size":8}"#;
        let described = describe(Document::Config(config), &TensorNames::default()).expect("it is described");
        let mut blueprint = described.blueprint;
        let output = blueprint.attentions().next().expect("a layer").output.clone();
        blueprint.embedder = inputs
            .iter()
            .map(|inputs| EmbedderLayer { inputs: *inputs, width: 8, projection: output.clone(), activation: None })
            .collect();
        blueprint
    }

    #[test]
    fn layers_behind_pooling_match_the_settings() {
        let kinds = |kinds: &[&str]| -> Vec<SentenceModule> {
            let module = |kind: &&str| SentenceModule { kind: (*kind).to_owned(), path: (*kind).to_owned() };
            kinds.iter().map(module).collect()
        };
        let (none, one) = (kinds(&["Pooling"]), kinds(&["Pooling", "Dense"]));
        let pooling = |mode: &str| {
            let config = json!({"pooling_mode": mode}).to_string().into_bytes();
            let documents = [("1_Pooling/config.json".to_owned(), Arc::new(Blob::Read(config)))];
            Pooling::of(Documents::new(&documents)).expect("a pooling")
        };
        for (modules, mode, inputs, says) in [
            (&one, "mean", &[8][..], None),
            (&one, "max", &[8], None),
            (&none, "mean", &[8], None),
            (&none, "max", &[8], Some("the maximum of projected hidden states")),
            (&one, "mean", &[], Some("lists 1 modules `Dense`, and 0 layers")),
            (&one, "mean", &[16], Some("give 8 numbers, and the layer behind pooling takes 16")),
        ] {
            let checked = check_layers(modules, &pooling(mode), &with_embedder(inputs));
            match says {
                None => checked.expect("it embeds"),
                Some(says) => {
                    let error = checked.expect_err("refused").to_string();
                    assert!(error.contains(says), "{error}");
                }
            }
        }
    }

    #[test]
    fn prompts_have_names() {
        let prompts = json!({"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": "document"});
        let sentence = of(&[("config_sentence_transformers.json", prompts)]);
        assert_eq!(sentence.prompt(Some("query")).expect("a prompt"), "Q: ");
        assert_eq!(sentence.prompt(None).expect("a prompt"), "");
        let error = sentence.prompt(Some("other")).expect_err("no prompt").to_string();
        assert_eq!(error, "this model has no prompt `other`, only document, query");
        assert!(of(&[]).prompt(Some("query")).is_err());
        assert_eq!(of(&[]).prompt(None).expect("none"), "");
    }

    #[test]
    fn unsupported_modules_are_named() {
        let modules = |kinds: &[&str]| {
            let module = |kind: &&str| json!({"path": format!("of_{kind}"), "type": format!("sentence_transformers.models.{kind}")});
            of(&[("modules.json", kinds.iter().map(module).collect())]).check()
        };
        for kinds in [&["Transformer", "Normalize"][..], &["Transformer", "Pooling", "Dense", "Dense", "Normalize"]] {
            assert!(modules(kinds).is_ok(), "{kinds:?}");
        }
        for (kinds, says) in [
            (&["Transformer", "LSTM"][..], "`of_LSTM` (sentence_transformers.models.LSTM) is not supported here"),
            (
                &["Transformer", "Dense"],
                "`of_Dense` (sentence_transformers.models.Dense) is not supported at that place",
            ),
            (&["Transformer", "Dense", "Pooling"], "`of_Pooling`"),
            (&["Transformer", "Pooling", "Normalize", "Dense"], "`of_Dense`"),
        ] {
            let error = modules(kinds).expect_err("refused").to_string();
            assert!(error.contains(says), "{error}");
        }
        let pooling = of(&[("1_Pooling/config.json", json!({"pooling_mode": "attention"}))]);
        assert!(pooling.check().is_err());
    }

    #[test]
    fn texts_have_a_length() {
        let texts = of(&[("sentence_bert_config.json", json!({"max_seq_length": 256, "do_lower_case": true}))]);
        assert_eq!((texts.most, texts.lowers), (Some(256), true));
        assert_eq!(of(&[("sentence_bert_config.json", json!({"max_seq_length": null}))]).most, None);
    }
}
