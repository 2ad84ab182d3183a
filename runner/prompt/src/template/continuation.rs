//! Continued answers: the last message is the assistant's, and the model continues it.
//!
//! Jinja templates close every message. Therefore the conversation before it is rendered up to the
//! beginning of an answer, and the text of the last message is appended. The prompt equals that of
//! transformers' `continue_final_message` and of llama.cpp's server.

use protocol::{Message, RenderRequest};

use super::ChatTemplate;

/// Opening and closing tags of thinking, in templates whose answers begin with it.
const THINKING: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// Beginning of an answer in Harmony, the format of gpt-oss; the channel and the text follow.
const HARMONY: &str = "<|start|>assistant";

/// Returns the answer to continue and the messages before it, if the request asks for an answer and
/// the last message is the assistant's. A tool call is complete and cannot be continued.
pub(super) fn of<'r>(request: &'r RenderRequest, template: &ChatTemplate) -> Option<(&'r Message, &'r [Message])> {
    let (last, before) = request.messages.split_last()?;
    let is_begun = last.role == "assistant" && !last.rest.contains_key("tool_calls");
    let wanted = request.add_generation_prompt && request.continue_final_message;
    (wanted && is_begun && !before.is_empty() && !template.continues(request)).then_some((last, before))
}

/// Appends the answer to continue to the prompt: its thinking first, in the marks of the template
/// with this source. A template without marks for thinking omits it, as in complete messages.
pub(super) fn appended(rendered: String, begun: &Message, source: &str) -> String {
    let thought = ["reasoning_content", "thinking"].into_iter().find_map(|key| begun.rest.get(key)?.as_str());
    let thought = thought.filter(|thought| !thought.is_empty());
    let is_harmony = rendered.ends_with(HARMONY) && source.contains("<|channel|>");
    if is_harmony { in_channels(rendered, begun, thought) } else { between_marks(rendered, begun, thought, source) }
}

/// Harmony: each part of an answer is a separate message whose header names its channel.
fn in_channels(mut rendered: String, begun: &Message, thought: Option<&str>) -> String {
    if let Some(thought) = thought {
        rendered.extend(["<|channel|>analysis<|message|>", thought]);
        // An answer without text continues its thinking.
        if begun.content.is_empty() {
            return rendered;
        }
        rendered.extend(["<|end|>", HARMONY]);
    }
    rendered.extend(["<|channel|>final<|message|>", &begun.content]);
    rendered
}

fn between_marks(mut rendered: String, begun: &Message, thought: Option<&str>, source: &str) -> String {
    let end = rendered.trim_end();
    let opened = THINKING.into_iter().find(|(open, _)| end.ends_with(open));
    let marks = || THINKING.into_iter().find(|(open, _)| source.contains(open));
    let marks = match (opened, thought) {
        (Some((_, close)), _) => Some(close),
        (None, Some(_)) => marks().map(|(open, close)| {
            rendered.extend([open, "\n"]);
            close
        }),
        (None, None) => None,
    };
    if let Some(close) = marks {
        rendered.push_str(thought.unwrap_or_default());
        if begun.content.is_empty() && thought.is_some() {
            return rendered;
        }
        rendered.extend(["\n", close, "\n\n"]);
    }
    rendered.push_str(&begun.content);
    rendered
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    fn rendered(template: &str, messages: serde_json::Value) -> String {
        let messages = serde_json::from_value(messages).expect("messages");
        let request = RenderRequest {
            messages,
            add_generation_prompt: true,
            continue_final_message: true,
            ..RenderRequest::default()
        };
        ChatTemplate::new(template, Map::new()).render(&request).expect("text")
    }

    #[test]
    fn a_begun_answer_goes_on() {
        let user = json!({"role": "user", "content": "2+2"});
        let begun = json!({"role": "assistant", "content": "It is "});
        assert_eq!(rendered(PLAIN, json!([user, begun])), "<user>2+2</user><assistant>It is ");
        // With a complete answer, nothing is continued.
        assert_eq!(rendered(PLAIN, json!([begun])), "<assistant>It is </assistant><assistant>");
        let called = json!({"role": "assistant", "content": "", "tool_calls": []});
        assert!(rendered(PLAIN, json!([user, called])).ends_with("</assistant><assistant>"));
        // Jinja drops a line break at the very end of a template, so published templates put it
        // into a string.
        let thinking = format!("{PLAIN}{{{{ '<think>\\n' }}}}");
        assert_eq!(
            rendered(&thinking, json!([user, begun])),
            "<user>2+2</user><assistant><think>\n\n</think>\n\nIt is "
        );
        let thought = json!({"role": "assistant", "content": "", "reasoning_content": "Four"});
        assert_eq!(rendered(&thinking, json!([user, thought])), "<user>2+2</user><assistant><think>\nFour");
        // Qwen 3's template mentions the marks but does not open them.
        let unopened = format!("{PLAIN}{{% if false %}}<think>{{% endif %}}");
        assert_eq!(rendered(&unopened, json!([user, thought])), "<user>2+2</user><assistant><think>\nFour");
        assert_eq!(rendered(PLAIN, json!([user, thought])), "<user>2+2</user><assistant>");
    }

    #[test]
    fn an_answer_of_channels_goes_on_in_its_channel() {
        let template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
            {% if add_generation_prompt %}<|start|>assistant{% endif %}{% if false %}<|channel|>{% endif %}";
        let user = json!({"role": "user", "content": "2+2"});
        let end = |message: serde_json::Value| {
            let text = rendered(template, json!([user, message]));
            text.strip_prefix("<|start|>user<|message|>2+2<|end|><|start|>assistant").expect("the question").to_owned()
        };
        let begun = json!({"role": "assistant", "content": "It is "});
        assert_eq!(end(begun), "<|channel|>final<|message|>It is ");
        let thought = json!({"role": "assistant", "content": "", "reasoning_content": "Four"});
        assert_eq!(end(thought), "<|channel|>analysis<|message|>Four");
        let both = json!({"role": "assistant", "content": "It is ", "reasoning_content": "Four"});
        let expected = "<|channel|>analysis<|message|>Four<|end|><|start|>assistant<|channel|>final<|message|>It is ";
        assert_eq!(end(both), expected);
    }
}
