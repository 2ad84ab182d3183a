//! Renders a template for a conversation, and checks properties that hold for every template
//! language.

use prompt::{ChatTemplate, MAX_TEXT};
use protocol::RenderRequest;
use serde_json::{Map, Value};

use crate::assert_told;

/// The conversation of inputs that contain none. It has a system prompt, thinking, a tool and a
/// tool call.
const USUAL: &str = r#"{
    "messages": [
        {"role": "system", "content": "Be <brief> & \"kind\"."},
        {"role": "user", "content": "Wetter in Zürich?"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
            {"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        {"role": "user", "content": "Thanks\n"}
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
        "type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}],
    "add_generation_prompt": true,
    "variables": {"enable_thinking": true}
}"#;

/// The longest text that is rendered a second time. Most nondeterminism of templates shows in short
/// texts.
const SHORT: usize = 1 << 14;

/// Renders a template for a conversation, or for [`USUAL`] if `conversation` is not a JSON request.
///
/// Asserts that a template with a syntax error is not rendered, that the text keeps its size limit,
/// and that rendering is deterministic at a fixed time.
pub fn render(source: &str, conversation: &[u8]) {
    let (request, is_fixed) = request(conversation);
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let variables: Map<String, Value> =
        special.into_iter().map(|(name, token)| (name.to_owned(), token.into())).collect();
    let template = ChatTemplate::new(source, variables);
    assert_eq!(template.text(), source);
    let checked = template.check();
    match template.render(&request) {
        Ok(text) => {
            assert!(checked.is_ok(), "it was rendered, and cannot be read: {checked:?}");
            assert!(text.len() <= MAX_TEXT, "{} bytes", text.len());
            if is_fixed && text.len() <= SHORT {
                assert_eq!(template.render(&request).as_ref(), Ok(&text), "it is another text the second time");
            }
        }
        Err(error) => assert_told(&error),
    }
}

/// Returns the request, and whether its time is fixed. A time from the input may be invalid; the
/// renderer then uses the system clock.
fn request(conversation: &[u8]) -> (RenderRequest, bool) {
    let usual = || serde_json::from_str(USUAL).expect("a conversation");
    let mut request: RenderRequest = serde_json::from_slice(conversation).unwrap_or_else(|_| usual());
    request.template = None;
    let is_fixed = request.now.is_none();
    request.now.get_or_insert_with(|| "2025-07-09T12:34:56+02:00".to_owned());
    (request, is_fixed)
}
