//! Annotation keys that Lode writes or reads.

/// On a layer: the file or tensor name. Tools for OCI artifacts show it.
pub const TITLE: &str = "org.opencontainers.image.title";
/// On a manifest: the architecture, e.g. `llama`.
pub const ARCHITECTURE: &str = "dev.lode.model.architecture";
/// On a manifest: the number of parameters, decimal.
pub const PARAMETERS: &str = "dev.lode.model.parameters";
/// On a manifest: the predominant tensor type, e.g. `Q4_1`.
pub const QUANTIZATION: &str = "dev.lode.model.quantization";
/// On a manifest: the digest of the manifest that the model was imported from, if another tool
/// wrote that manifest.
pub const ORIGIN_MANIFEST: &str = "dev.lode.origin.manifest";
/// On a manifest: the reference that the model was pulled by, if it was converted on the pull.
pub const ORIGIN_REFERENCE: &str = "dev.lode.origin.reference";
/// On a manifest: the digest of the manifest this one was derived from.
pub const BASE: &str = "org.opencontainers.image.base.digest";
/// In the index of an image layout: the name of the manifest. Lode writes the complete name.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// In the index of an image layout: the complete name of the manifest, as containerd writes it.
pub const CONTAINER_NAME: &str = "io.containerd.image.name";
/// On the index of an incremental archive: the digest of the manifest of the model that the archive
/// extends. The archive holds only blobs that this model lacks.
pub const SAVED_SINCE: &str = "dev.lode.save.since";
