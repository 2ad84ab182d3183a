//! Tests with configs that lack keys: a missing key has the value that the model's class gives it.
//! `fixtures/class_defaults.json` has the configs that the classes of transformers 5.24 write when
//! they are made without arguments.

use formats::json::tolerant;
use serde_json::{Map, Value, json};

use crate::{Document, Error, TensorNames, describe};

const CLASSES: &[u8] = include_bytes!("../fixtures/class_defaults.json");

/// Values in place of those that no model can have.
const IN_PLACE: &[(&str, &str, u64)] =
    &[("deepseek_v2", "num_experts_per_tok", 6), ("electra", "embedding_size", 256), ("glm4_moe", "head_dim", 64)];

/// Removing a key changes nothing, or is refused.
#[test]
fn a_missing_key_has_the_default_of_its_class() {
    let configs: Map<String, Value> = serde_json::from_slice(&tolerant(CLASSES)).expect("JSON");
    let (mut tried, mut wrong, mut refused) = (0, Vec::new(), Vec::new());
    for (name, mut config) in configs {
        if let Some((_, key, value)) = IN_PLACE.iter().find(|(own, ..)| *own == name) {
            config[*key] = json!(value);
        }
        let whole = match described(&config) {
            Ok(whole) => whole,
            Err(Error::Unsupported { .. }) => continue,
            Err(error) => {
                refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        for at in paths(&config).into_iter().filter(|at| is_of_class(at)) {
            tried += 1;
            let mut shorter = config.clone();
            let (last, before) = at.split_last().expect("a key");
            let inner = before.iter().fold(&mut shorter, |value, key| &mut value[key]);
            let removed = inner.as_object_mut().expect("an object").remove(last).expect("a value");
            if described(&shorter).is_ok_and(|found| found != whole) {
                wrong.push(format!("{name}: {} = {removed}", at.join(".")));
            }
        }
    }
    assert!(refused.is_empty(), "{} configs of classes are refused:\n{}", refused.len(), refused.join("\n"));
    assert!(wrong.is_empty(), "{} of {tried} missing keys have other values:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 1000, "{tried} keys");
}

/// True if the class has a default for the value at a path. Objects with parameters of `RoPE` and
/// of layers are used as they are, except for the base.
fn is_of_class(at: &[String]) -> bool {
    let is_part = |key: &String| key == "rope_parameters" || key == "per_layer_config";
    !at.iter().rev().skip(1).any(is_part) || (at.last().is_some_and(|last| last == "rope_theta") && at.len() == 2)
}

fn described(config: &Value) -> Result<String, Error> {
    let raw = config.to_string();
    describe(Document::Config(raw.as_bytes()), &TensorNames::default()).map(|found| format!("{:?}", found.blueprint))
}

/// Returns the paths of the values in an object and in its objects.
fn paths(value: &Value) -> Vec<Vec<String>> {
    let Some(map) = value.as_object() else { return vec![] };
    let below = |(key, value): (&String, &Value)| {
        let inner = paths(value).into_iter().map(|rest| [vec![key.clone()], rest].concat());
        std::iter::once(vec![key.clone()]).chain(inner).collect::<Vec<_>>()
    };
    map.iter().flat_map(below).collect()
}
