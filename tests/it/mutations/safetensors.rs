//! Changes in the header of a safetensors file. The length before it is usually adjusted.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

use super::{damage, json};

pub(super) fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let Some((mut header, data)) = split(bytes) else { return damage(bytes, random) };
    match random.random_range(0..8) {
        0 => rename_pair(&mut header, random),
        1 => return damage(bytes, random),
        _ => {
            for _ in 0..random.random_range(1..4) {
                json::mutate(&mut header, random);
            }
        }
    }
    let mut text = header.to_string().into_bytes();
    while random.random_ratio(7, 8) && text.len() % 8 != 0 {
        text.push(b' ');
    }
    let lie = if random.random_ratio(1, 20) { random.random_range(0..64) } else { 0 };
    let mut file = (text.len() as u64 + lie).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    *bytes = file;
}

fn split(bytes: &[u8]) -> Option<(Value, Vec<u8>)> {
    let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk::<8>()?)).ok()?;
    let end = length.checked_add(8)?;
    Some((serde_json::from_slice(bytes.get(8..end)?).ok()?, bytes[end..].to_vec()))
}

/// Swaps the descriptions of two tensors, so that the header still covers the whole file.
fn rename_pair(header: &mut Value, random: &mut StdRng) {
    let Value::Object(map) = header else { return };
    let keys: Vec<String> = map.keys().filter(|key| *key != "__metadata__").cloned().collect();
    if keys.len() < 2 {
        return;
    }
    let (a, b) = (&keys[random.random_range(0..keys.len())], &keys[random.random_range(0..keys.len())]);
    let (first, second) = (map[a].clone(), map[b].clone());
    map.insert(a.clone(), second);
    map.insert(b.clone(), first);
}
