//! `/api/generate` and `/api/chat`: Ollama's words for a call of a model.

mod answer;

use api::ollama::{ChatRequest, GenerateRequest, KeepAliveSpec, Options};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use protocol::{Format, Message, Prompt, RenderRequest};
use scheduler::KeepAlive;
use serde_json::{Map, Value};

pub(crate) use self::answer::nanos;
use self::answer::{Answer, Dialect, stream};
use crate::call::{Call, Conversation, Think, message};
use crate::daemon::Daemon;
use crate::error::{Body, Failed};
use crate::headers::{attested, truncated};
use crate::stream::lines;
use library::Capability;

const NO_IMAGES: &str = "this model does not support images";
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

pub(crate) async fn generate(
    State(daemon): State<Daemon>,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Failed> {
    let wishes = Wishes {
        streams: request.stream.unwrap_or(true),
        format: format(request.format.as_ref())?,
        truncate: request.truncate.unwrap_or(true),
        shift: request.shift.unwrap_or(true),
        top_logprobs: top_logprobs(request.logprobs, request.top_logprobs)?,
        render_only: request.debug_render_only,
    };
    if !request.images.is_empty() {
        return Err(Failed::bad_request(NO_IMAGES));
    }
    let has_system = request.system.as_ref().is_some_and(|system| !system.is_empty());
    if request.raw && (!request.template.is_empty() || has_system || !request.context.is_empty()) {
        return Err(Failed::bad_request("raw mode does not support template, system, or context"));
    }
    if request.raw && !request.suffix.is_empty() {
        return Err(Failed::bad_request("raw mode does not support suffix"));
    }
    let before = tokens(&request.context)?;
    let call = begin(&daemon, &request.model, request.keep_alive, &request.options).await?;
    if request.prompt.is_empty() && call.wants_no_keeping() {
        return Ok(unload(&daemon, &call, Dialect::Generate));
    }
    call.require_text("generate")?;
    let think = call.thinking(request.think.map(Think::from))?;
    if !request.suffix.is_empty() {
        call.require(Capability::Insert)?;
    }
    if request.prompt.is_empty() {
        return load(&daemon, &call, Dialect::Generate).await;
    }
    let raw = request.raw;
    let prompt = if raw {
        Prompt::Text { text: request.prompt }
    } else if request.suffix.is_empty() {
        let mut messages = if before.is_empty() {
            call.opening(request.system)?
        } else {
            // The rest of the opening is in the tokens.
            request.system.into_iter().filter(|text| !text.is_empty()).map(|text| message("system", text)).collect()
        };
        messages.push(message("user", request.prompt));
        let template = Some(request.template).filter(|template| !template.is_empty());
        Conversation { messages, think, template, ..Conversation::default() }.prompt()
    } else {
        Prompt::Insert { prefix: request.prompt, suffix: request.suffix }
    };
    let asked = protocol::GenerateRequest { before, tell_tokens: !raw, ..wishes.request(&daemon, &call, prompt) };
    respond(&daemon, &call, asked, &wishes, Dialect::Generate).await
}

pub(crate) async fn chat(
    State(daemon): State<Daemon>,
    Body(mut request): Body<ChatRequest>,
) -> Result<Response, Failed> {
    let wishes = Wishes {
        streams: request.stream.unwrap_or(true),
        format: format(request.format.as_ref())?,
        truncate: request.truncate.unwrap_or(true),
        shift: request.shift.unwrap_or(true),
        top_logprobs: top_logprobs(request.logprobs, request.top_logprobs)?,
        render_only: request.debug_render_only,
    };
    request.messages.iter_mut().try_for_each(check)?;
    if let Some(tool) = request.tools.iter().find(|tool| !tool["function"]["name"].is_string()) {
        return Err(Failed::bad_request(format!("the tool {tool} has no function with a name")));
    }
    let call = begin(&daemon, &request.model, request.keep_alive, &request.options).await?;
    if request.messages.is_empty() && call.wants_no_keeping() {
        return Ok(unload(&daemon, &call, Dialect::Chat));
    }
    call.require_text("chat")?;
    if !request.tools.is_empty() {
        call.require(Capability::Tools)?;
    }
    let think = call.thinking(request.think.map(Think::from))?;
    if request.messages.is_empty() {
        return load(&daemon, &call, Dialect::Chat).await;
    }
    let messages = call.conversation(request.messages)?;
    let prompt = Conversation { messages, tools: request.tools, think, template: None }.prompt();
    let asked = wishes.request(&daemon, &call, prompt);
    respond(&daemon, &call, asked, &wishes, Dialect::Chat).await
}

/// What both endpoints are asked besides the prompt.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the request of its own")]
struct Wishes {
    streams: bool,
    format: Option<Format>,
    truncate: bool,
    shift: bool,
    top_logprobs: Option<u32>,
    /// Only what the prompt is rendered to.
    render_only: bool,
}

impl Wishes {
    fn request(&self, daemon: &Daemon, call: &Call, prompt: Prompt) -> protocol::GenerateRequest {
        protocol::GenerateRequest {
            format: self.format.clone(),
            truncate: self.truncate,
            shift: self.shift,
            top_logprobs: self.top_logprobs,
            ..call.request(daemon, prompt)
        }
    }
}

impl From<api::ollama::Think> for Think {
    fn from(asked: api::ollama::Think) -> Self {
        match asked {
            api::ollama::Think::Flag(false) => Self::Off,
            api::ollama::Think::Flag(true) => Self::On,
            api::ollama::Think::Level(level) => Self::Level(level),
        }
    }
}

fn top_logprobs(wanted: bool, top: i64) -> Result<Option<u32>, Failed> {
    let top = u32::try_from(top).ok().filter(|count| *count <= 20);
    let top = top.ok_or_else(|| Failed::bad_request("top_logprobs must be between 0 and 20"))?;
    Ok(wanted.then_some(top))
}

/// `"json"` or a schema; nothing where it is empty.
fn format(format: Option<&Value>) -> Result<Option<Format>, Failed> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Format::Json)),
        Some(schema @ Value::Object(_)) => Ok(Some(Format::Schema { schema: schema.clone() })),
        Some(other) => Err(Failed::bad_request(format!(
            "invalid format: {other}; expected \"json\" or a valid JSON Schema object"
        ))),
    }
}

fn tokens(context: &[i64]) -> Result<Vec<u32>, Failed> {
    let token = |id: &i64| u32::try_from(*id).map_err(|_| Failed::bad_request(format!("'context' has {id}, no token")));
    context.iter().map(token).collect()
}

/// Refuses a message that nobody could render; roles are written in any case.
fn check(message: &mut Message) -> Result<(), Failed> {
    message.role.make_ascii_lowercase();
    if !ROLES.contains(&message.role.as_str()) {
        let role = &message.role;
        return Err(Failed::bad_request(format!("invalid role: {role}, must be one of [{}]", ROLES.join(", "))));
    }
    if message.rest.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
        return Err(Failed::bad_request(NO_IMAGES));
    }
    Ok(())
}

/// A call in Ollama's words.
pub(crate) async fn begin(
    daemon: &Daemon,
    name: &str,
    keep_alive: Option<KeepAliveSpec>,
    options: &Map<String, Value>,
) -> Result<Call, Failed> {
    let (options, unknown) = Options::read(options).map_err(Failed::bad_request)?;
    if !unknown.is_empty() {
        tracing::warn!(?unknown, "options that nobody knows are ignored");
    }
    let keep_alive = keep_alive.map(|KeepAliveSpec(time)| time.map_or(KeepAlive::Forever, KeepAlive::For));
    Call::begin(daemon, name, options, keep_alive).await
}

/// Loads the model, and says so.
async fn load(daemon: &Daemon, call: &Call, dialect: Dialect) -> Result<Response, Failed> {
    drop(call.ready(daemon).await?);
    Ok(attested(Answer::new(call, dialect).event("load").into_response(), &call.digest()))
}

/// Unloads the model, and says so.
fn unload(daemon: &Daemon, call: &Call, dialect: Dialect) -> Response {
    call.unload(daemon);
    attested(Answer::new(call, dialect).event("unload").into_response(), &call.digest())
}

async fn respond(
    daemon: &Daemon,
    call: &Call,
    asked: protocol::GenerateRequest,
    wishes: &Wishes,
    dialect: Dialect,
) -> Result<Response, Failed> {
    let answer = Answer::new(call, dialect);
    let ready = call.ready(daemon).await?;
    if wishes.render_only {
        let rendered = match &asked.prompt {
            Prompt::Chat(chat) => rendered(&ready, chat).await?,
            Prompt::Text { text } => text.clone(),
            Prompt::Tokens { .. } | Prompt::Insert { .. } => {
                return Err(Failed::bad_request("'_debug_render_only' does not support suffix"));
            }
        };
        return Ok(attested(answer.rendered(rendered).into_response(), &call.digest()));
    }
    let generation = ready.generate(asked).await?;
    // The generation holds the lease from here on.
    drop(ready);
    if wishes.streams {
        let (lines, response) = lines();
        tokio::spawn(stream(generation, answer, lines));
        return Ok(attested(response, &call.digest()));
    }
    let whole = generation.whole().await?;
    let dropped = whole.end.usage.truncated_tokens;
    Ok(truncated(attested(answer.whole(whole).into_response(), &call.digest()), dropped))
}

async fn rendered(ready: &crate::call::Ready, chat: &RenderRequest) -> Result<String, Failed> {
    Ok(ready.runner().render(chat).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_are_json_or_a_schema() {
        let schema = json!({"type": "object"});
        for (given, expect) in [
            (json!(null), Some(None)),
            (json!(""), Some(None)),
            (json!("json"), Some(Some(Format::Json))),
            (schema.clone(), Some(Some(Format::Schema { schema }))),
            (json!("yaml"), None),
            (json!(["json"]), None),
        ] {
            assert_eq!(format(Some(&given)).ok(), expect, "{given}");
        }
    }

    #[test]
    fn numbers_have_their_bounds() {
        assert_eq!(top_logprobs(true, 20).ok(), Some(Some(20)));
        assert_eq!(top_logprobs(false, 3).ok(), Some(None));
        assert!(top_logprobs(true, 21).is_err() && top_logprobs(false, -1).is_err());
        assert!(tokens(&[0, 7]).is_ok_and(|tokens| tokens == [0, 7]));
        assert!(tokens(&[-1]).is_err() && tokens(&[1 << 32]).is_err());
    }
}
