//! Annotation keys that Lode writes.

/// On a layer: the file or tensor name, as tools for OCI artifacts show it.
pub const TITLE: &str = "org.opencontainers.image.title";
/// On a manifest: the architecture, e.g. `llama`.
pub const ARCHITECTURE: &str = "dev.lode.model.architecture";
/// On a manifest: the number of parameters, decimal.
pub const PARAMETERS: &str = "dev.lode.model.parameters";
/// On a manifest: the predominant tensor type, e.g. `Q4_1`.
pub const QUANTIZATION: &str = "dev.lode.model.quantization";
/// On a manifest: the digest of the manifest that the model came in, where that was another tool's.
pub const ORIGIN_MANIFEST: &str = "dev.lode.origin.manifest";
/// On a manifest: the reference that the model was pulled by, where it came in another form.
pub const ORIGIN_REFERENCE: &str = "dev.lode.origin.reference";
/// On a manifest: the digest of the manifest this one was derived from.
pub const BASE: &str = "org.opencontainers.image.base.digest";
