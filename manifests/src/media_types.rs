//! The media types that Lode writes and reads.

use content::MediaType;

/// OCI image manifest. Lode writes this type.
pub const MANIFEST: MediaType = MediaType::known("application/vnd.oci.image.manifest.v1+json");
/// OCI image index.
pub const INDEX: MediaType = MediaType::known("application/vnd.oci.image.index.v1+json");
/// Docker image manifest, schema 2. Lode reads but does not write it.
pub const DOCKER_MANIFEST: MediaType = MediaType::known("application/vnd.docker.distribution.manifest.v2+json");
/// Docker manifest list. Lode reads it like an OCI index.
pub const DOCKER_INDEX: MediaType = MediaType::known("application/vnd.docker.distribution.manifest.list.v2+json");
/// Config of a model; the same type as Ollama's.
pub const CONFIG: MediaType = MediaType::known("application/vnd.docker.container.image.v1+json");
/// A safetensors blob with one tensor or one group.
pub const TENSOR: MediaType = MediaType::known("application/vnd.ollama.image.tensor");
/// A JSON file of the model's folder; the layer's name is the file name.
pub const JSON: MediaType = MediaType::known("application/vnd.ollama.image.json");
/// A chat template.
pub const TEMPLATE: MediaType = MediaType::known("application/vnd.ollama.image.template");
/// A system prompt.
pub const SYSTEM: MediaType = MediaType::known("application/vnd.ollama.image.system");
/// Default parameters, a JSON object.
pub const PARAMS: MediaType = MediaType::known("application/vnd.ollama.image.params");
/// A licence text.
pub const LICENSE: MediaType = MediaType::known("application/vnd.ollama.image.license");
/// Messages that precede every conversation, a JSON array.
pub const MESSAGES: MediaType = MediaType::known("application/vnd.ollama.image.messages");
/// A whole GGUF file.
pub const MODEL: MediaType = MediaType::known("application/vnd.ollama.image.model");
/// A GGUF file with a projector, which converts images to embeddings.
pub const PROJECTOR: MediaType = MediaType::known("application/vnd.ollama.image.projector");
/// A GGUF file with a low-rank adapter.
pub const ADAPTER: MediaType = MediaType::known("application/vnd.ollama.image.adapter");
/// The origin document: instructions for rebuilding the source files.
pub const ORIGIN: MediaType = MediaType::known("application/vnd.lode.origin.v1+json");
/// Bytes of a source file that are not tensors: its header, or a gap.
pub const HEADER: MediaType = MediaType::known("application/vnd.lode.header.v1");
/// A file of the source that the model does not need to run. It is kept unchanged.
pub const FILE: MediaType = MediaType::known("application/vnd.lode.file.v1");
