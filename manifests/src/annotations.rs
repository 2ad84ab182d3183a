//! Annotation keys that Lode writes or reads.

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
/// In the index of an image layout: what the manifest is called. Lode writes the complete name.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The same, as containerd writes it: always the complete name.
pub const CONTAINER_NAME: &str = "io.containerd.image.name";
/// On the index of an archive that has only what another model lacks: the digest of that model's manifest.
pub const SAVED_SINCE: &str = "dev.lode.save.since";
