//! The model's config, made from the inventory: facts of the source alone. It does not depend on
//! the architectures that this version of Lode supports, so every version writes the same config.

use std::collections::HashMap;

use formats::dtype::element_count;
use formats::encoding::Role;
use manifests::{LodeConfig, ModelConfig};

use crate::{Inventory, SourceTensor};

/// Returns the config of the model, without the list of layers.
pub fn describe(inventory: &Inventory) -> ModelConfig {
    let parameters = parameter_count(inventory);
    ModelConfig {
        model_format: "safetensors".to_owned(),
        model_family: inventory.architecture.clone(),
        model_families: vec![inventory.architecture.clone()],
        model_type: human_count(parameters),
        file_type: predominant_type(inventory),
        architecture: "amd64".to_owned(),
        os: "linux".to_owned(),
        lode: Some(LodeConfig {
            tensor_count: weights(inventory).count() as u64,
            parameter_count: parameters,
            source_format: inventory.format.name().to_owned(),
        }),
        ..ModelConfig::default()
    }
}

/// Returns the tensors; a weight of several arrays occurs once.
fn weights(inventory: &Inventory) -> impl Iterator<Item = &SourceTensor> {
    inventory.tensors.iter().filter(|tensor| tensor.role == Role::Weight)
}

fn parameter_count(inventory: &Inventory) -> u64 {
    let counts = weights(inventory).filter_map(|tensor| element_count(&tensor.shape));
    counts.fold(0, u64::saturating_add)
}

/// Returns the type that most parameters have.
fn predominant_type(inventory: &Inventory) -> String {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for tensor in weights(inventory) {
        let count = counts.entry(tensor.encoding.to_string()).or_default();
        *count = count.saturating_add(element_count(&tensor.shape).unwrap_or(0));
    }
    // The name breaks ties, so that the same model always gives the same config.
    let most = counts.into_iter().max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    most.map_or_else(|| "unknown".to_owned(), |(name, _)| name)
}

/// Formats a parameter count as Ollama does: `134.52M`.
pub(crate) fn human_count(count: u64) -> String {
    let scaled = |divisor: f64, unit: &str| format!("{:.2}{unit}", count as f64 / divisor);
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => scaled(1e3, "K"),
        1_000_000..1_000_000_000 => scaled(1e6, "M"),
        1_000_000_000..1_000_000_000_000 => format!("{:.1}B", count as f64 / 1e9),
        _ => format!("{:.1}T", count as f64 / 1e12),
    }
}
