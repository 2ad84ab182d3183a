//! Random changes in a JSON document.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Map, Value, json};

/// Words with a meaning for readers of tensors.
const WORDS: [&str; 24] = [
    "",
    "__metadata__",
    "weight",
    "F32",
    "BF16",
    "U32",
    "U8",
    "F8_E4M3",
    "F4",
    "affine",
    "nvfp4",
    "mxfp4",
    "mxfp8",
    "fp8",
    "modelopt",
    "compressed-tensors",
    "llama",
    "gemma3_text",
    "../../x",
    "a\u{0}b",
    "int4",
    "q4_k",
    "model.layers.0.mlp.experts",
    "\u{202e}x",
];
const SUFFIXES: [&str; 12] = [
    ".weight",
    ".scales",
    ".biases",
    ".bias",
    ".scale",
    ".weight_scale_inv",
    "_scales",
    "_blocks",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_2",
    ".global_scale",
];
const NUMBERS: [f64; 14] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 16.0, 32.0, 64.0, 128.0, -1.0, 0.5, 1e30, 18_446_744_073_709_551_615.0];

/// Changes a document; leaves it unchanged if it is not JSON.
pub(super) fn mutate_document(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return };
    mutate(&mut value, random);
    *bytes = value.to_string().into_bytes();
}

/// Changes one place.
pub(super) fn mutate(value: &mut Value, random: &mut StdRng) {
    match value {
        Value::Object(map) if !map.is_empty() && random.random_ratio(9, 10) => member(map, random),
        Value::Array(items) if !items.is_empty() && random.random_ratio(9, 10) => {
            let at = random.random_range(0..items.len());
            match random.random_range(0..6) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => mutate(&mut items[at], random),
            }
        }
        Value::Number(number) if random.random_ratio(2, 3) => {
            let near =
                number.as_u64().map(|n| [n.wrapping_add(1), n.wrapping_sub(1), n / 2, n.wrapping_mul(2), n << 40]);
            *value = match near {
                Some(near) if random.random() => json!(near[random.random_range(0..near.len())]),
                _ => number_like(random),
            };
        }
        _ => *value = anything(random),
    }
}

fn member(map: &mut Map<String, Value>, random: &mut StdRng) {
    let at = random.random_range(0..map.len());
    let key = map.keys().nth(at).expect("as many keys as members").clone();
    match random.random_range(0..10) {
        0 => drop(map.remove(&key)),
        1 => {
            let value = map.remove(&key).expect("it is there");
            map.insert(renamed(&key, random), value);
        }
        2 => {
            let copy = map[&key].clone();
            map.insert(renamed(&key, random), copy);
        }
        3 => drop(map.insert(WORDS[random.random_range(0..WORDS.len())].to_owned(), anything(random))),
        _ => mutate(&mut map[&key], random),
    }
}

/// Returns a related name, such as that of a companion tensor.
fn renamed(key: &str, random: &mut StdRng) -> String {
    let suffix = SUFFIXES[random.random_range(0..SUFFIXES.len())];
    let stem = SUFFIXES.iter().find_map(|own| key.strip_suffix(own)).unwrap_or(key);
    match random.random_range(0..4) {
        0 => format!("{key}{suffix}"),
        1 => WORDS[random.random_range(0..WORDS.len())].to_owned(),
        _ => format!("{stem}{suffix}"),
    }
}

fn number_like(random: &mut StdRng) -> Value {
    let number = NUMBERS[random.random_range(0..NUMBERS.len())];
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

fn anything(random: &mut StdRng) -> Value {
    match random.random_range(0..7) {
        0 => Value::Null,
        1 => json!(random.random::<bool>()),
        2 => json!([]),
        3 => json!({}),
        4 => json!([number_like(random), number_like(random)]),
        5 => number_like(random),
        _ => json!(WORDS[random.random_range(0..WORDS.len())]),
    }
}
