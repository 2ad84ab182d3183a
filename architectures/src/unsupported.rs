//! Architectures that cannot be run yet, and the error for them.

use crate::Error;

/// Feature that each of some architectures needs, and that no blueprint can express yet; by
/// `model_type` or by `general.architecture`.
pub(crate) const MISSING_FEATURES: &[(&[&str], &str)] = &[
    (&["albert"], "layers that share their weights"),
    (&["diffllama"], "differential attention"),
    (&["longcat_flash"], "experts that return their input, and two attentions per layer"),
    (&["paligemma"], "prompts in which every token attends to all others"),
    (&["recurrent_gemma", "recurrentgemma"], "gated linear recurrent units"),
    (&["zamba2"], "one attention layer that is used at several depths"),
];

/// Returns the feature that an architecture needs and that Lode lacks, if it is known.
pub(crate) fn missing_feature(architecture: &str) -> Option<&'static str> {
    MISSING_FEATURES.iter().find(|(names, _)| names.contains(&architecture)).map(|&(_, feature)| feature)
}

/// Returns the error for an architecture of which there is no family.
pub(crate) fn unsupported(architecture: &str) -> Error {
    let needs = missing_feature(architecture).map(|feature| format!(": it needs {feature}")).unwrap_or_default();
    Error::Unsupported { name: architecture.chars().take(60).collect(), needs }
}
