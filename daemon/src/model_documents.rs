//! Descriptions of models for the API.

use std::time::{SystemTime, UNIX_EPOCH};

use api::modelfile;
use api::ollama::{Details, ModelEntry, ShowRequest, ShowResponse, TensorEntry};
use content::operation::Result;
use jiff::Timestamp;
use manifests::media_types;
use protocol::Message;
use serde_json::{Map, Value};

use library::{Library, Listed, Model, Summary};

/// The last second that RFC 3339 can express. A `keep_alive` may end later.
const LAST: &str = "9999-12-31T23:59:59Z";

/// Formats a time as RFC 3339 with nanoseconds, in UTC. Times that jiff cannot express, from the
/// last days of the year 9999 on, become [`LAST`].
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).ok();
    // A duration has less than 10⁹ nanoseconds beside its seconds.
    let time = seconds.and_then(|seconds| Timestamp::new(seconds, since.subsec_nanos().cast_signed()).ok());
    time.map_or_else(|| LAST.to_owned(), |time| time.to_string())
}

pub(crate) fn details(summary: &Summary) -> Details {
    Details {
        parent_model: String::new(),
        format: summary.format.clone(),
        family: summary.family.clone(),
        families: summary.families.clone(),
        parameter_size: summary.parameters.clone(),
        quantization_level: summary.quantization.clone(),
        context_length: summary.context,
        embedding_length: summary.embedding,
    }
}

/// Returns the entry of a model in the list. Facts that cannot be read from damaged files are left
/// out.
pub(crate) fn entry(listed: &Listed) -> ModelEntry {
    let Listed { name, modified, summary } = listed;
    ModelEntry {
        capabilities: summary.capabilities.names(),
        only_completes: summary.capabilities.only_completes(),
        name: name.clone(),
        model: name.clone(),
        modified_at: timestamp(*modified),
        size: summary.size,
        digest: summary.digest.hex(),
        details: details(summary),
        pinned: false,
    }
}

/// Returns all facts about a model, including its tensors if requested.
pub(crate) fn show(library: &Library, model: &Model, request: &ShowRequest) -> Result<ShowResponse> {
    let text = |media_type| model.layer_text(library, media_type).map(Option::unwrap_or_default);
    let parameters = model.parameters(library)?;
    let licenses = model.manifest.layers_of(media_types::LICENSE).map(|layer| library.text(layer.digest()));
    let given = Given {
        template: text(media_types::TEMPLATE)?,
        system: if request.system.is_empty() { text(media_types::SYSTEM)? } else { request.system.clone() },
        license: licenses.collect::<Result<Vec<_>>>()?.join("\n"),
        messages: model.messages(library)?,
        parameters: parameters.clone().into_iter().chain(request.options.clone()).collect(),
    };
    let capabilities = library.capabilities(model)?;
    let general = library.general(&model.manifest)?;
    let metadata = if request.verbose { library.metadata(&model.manifest)? } else { general.metadata.clone() };
    Ok(ShowResponse {
        modelfile: given.modelfile(model),
        parameters: parameter_lines(&parameters, "").join("\n"),
        license: given.license,
        template: Some(given.template)
            .filter(|template| !template.is_empty())
            .map_or_else(|| library.chat_template(model).map(Option::unwrap_or_default), Ok)?,
        renderer: model.config.renderer.clone(),
        parser: model.config.parser.clone(),
        system: given.system,
        details: details(&Summary::of(model, capabilities.clone(), &general)),
        messages: given.messages,
        model_info: model_info(model, metadata),
        projector_info: projector_info(model),
        tensors: if request.verbose { tensors(library, model)? } else { Vec::new() },
        capabilities: capabilities.names(),
        only_completes: capabilities.only_completes(),
        cannot_run: library.obstacle(&model.manifest)?.text().unwrap_or_default(),
        modified_at: timestamp(model.modified),
        sampling: general.sampling,
        sampling_source: general.sampling_source,
    })
}

/// Returns the numbers of the tower, if the model sees pictures.
fn projector_info(model: &Model) -> Map<String, Value> {
    let facts = model.parsed_facts.tower_facts();
    if facts.is_empty() {
        return Map::new();
    }
    let general = [("general.architecture", Value::from("clip")), ("clip.has_vision_encoder", true.into())];
    let numbers = facts.into_iter().map(|(key, number)| (key, number.into()));
    general.into_iter().chain(numbers).map(|(key, value)| (key.to_owned(), value)).collect()
}

fn tensors(library: &Library, model: &Model) -> Result<Vec<TensorEntry>> {
    let entry = |tensor: import::StoredTensor| TensorEntry {
        kind: tensor.encoding.to_string(),
        size: tensor.size(),
        digest: tensor.parts.first().map(|codes| codes.blob.to_string()).unwrap_or_default(),
        name: tensor.name,
        shape: tensor.shape,
    };
    Ok(library.catalogue(&model.manifest)?.into_iter().map(entry).collect())
}

/// Returns a line for each parameter, with the name padded to 30 columns; lists have one line per
/// item.
fn parameter_lines(parameters: &Map<String, Value>, prefix: &str) -> Vec<String> {
    let line = |name: &str, value: &Value| format!("{prefix}{name:<30} {value}");
    parameters
        .iter()
        .flat_map(|(name, value)| match value {
            Value::Array(items) => items.iter().map(|item| line(name, item)).collect(),
            single => vec![line(name, single)],
        })
        .collect()
}

/// The parts of a model besides its weights.
struct Given {
    template: String,
    system: String,
    license: String,
    messages: Vec<Message>,
    parameters: Map<String, Value>,
}

impl Given {
    fn modelfile(&self, model: &Model) -> String {
        let mut lines = vec![
            "# Modelfile generated by \"lode show\"".to_owned(),
            format!("# To build a new Modelfile based on this, replace FROM with:\n# FROM {}\n", model.name),
            format!("FROM {}@{}", model.name, model.manifest.digest()),
        ];
        // Comments only, because the model that FROM names already contains the adapters.
        for layer in model.manifest.layers_of(media_types::ADAPTER) {
            // The name is untrusted; escaping keeps it from adding instruction lines.
            let name = layer.name().unwrap_or("adapter").escape_debug();
            lines.push(format!("# ADAPTER {name}@{}", layer.digest()));
        }
        let given = [
            ("TEMPLATE", &self.template),
            ("RENDERER", &model.config.renderer),
            ("PARSER", &model.config.parser),
            ("SYSTEM", &self.system),
            ("LICENSE", &self.license),
        ];
        for (word, text) in given {
            if !text.is_empty() {
                lines.push(modelfile::instruction(word, text));
            }
        }
        for (name, value) in &self.parameters {
            lines.extend(modelfile::parameter(name, value));
        }
        lines.extend(self.messages.iter().map(|message| modelfile::message(&message.role, &message.content)));
        lines.join("\n") + "\n"
    }
}

/// Returns facts under GGUF keys: the metadata of the source file, and the facts that we know.
fn model_info(model: &Model, metadata: Map<String, Value>) -> Map<String, Value> {
    let lode = model.config.lode.clone().unwrap_or_default();
    let mut info = metadata;
    let known = model.parsed_facts.gguf_name().unwrap_or(model.config.model_family.as_str());
    // The source file may use another name of the architecture, which then prefixes its keys.
    let name = info.get("general.architecture").and_then(Value::as_str).unwrap_or(known).to_owned();
    let mut set = |key: String, value: Value| info.insert(key, value);
    set("general.architecture".to_owned(), name.as_str().into());
    set("general.parameter_count".to_owned(), lode.parameter_count.into());
    set("general.tensor_count".to_owned(), lode.tensor_count.into());
    set("general.source_format".to_owned(), lode.source_format.clone().into());
    for (key, value) in model.parsed_facts.known().into_iter().flat_map(library::Described::gguf_facts) {
        set(format!("{name}.{key}"), value);
    }
    for (key, number) in model.parsed_facts.unknown().into_iter().flat_map(|unknown| &unknown.sizes) {
        set(format!("{name}.{key}"), (*number).into());
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_end_with_the_year_9999() {
        let after = |seconds| timestamp(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        for (seconds, expect) in [
            (0, "1970-01-01T00:00:00Z"),
            (253_402_207_200, "9999-12-30T22:00:00Z"),
            (253_402_207_200, "9999-12-30T22:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (253_402_300_800, "9999-12-31T23:59:59Z"),
            (1 << 60, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(after(seconds), expect, "{seconds}");
        }
    }
}
