//! Answers that the client has begun: the last message is the assistant's, and the model goes on where it ends.
//!
//! Jinja templates close every message. So the conversation before is rendered up to where an answer begins, and the text of
//! the last message follows; transformers' `continue_final_message` and llama.cpp's server give the same prompt.

use protocol::{Message, RenderRequest};

use super::ChatTemplate;

/// What opens and closes thinking, in templates that begin an answer with it.
const THINKING: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// The begun answer and the messages before it, where an answer is to begin and the last message is one. A call of a tool is
/// whole: nothing can go on with it.
pub(super) fn of<'r>(request: &'r RenderRequest, template: &ChatTemplate) -> Option<(&'r Message, &'r [Message])> {
    let (last, before) = request.messages.split_last()?;
    let is_begun = last.role == "assistant" && !last.rest.contains_key("tool_calls");
    let wanted = request.add_generation_prompt && request.continue_final_message;
    (wanted && is_begun && !before.is_empty() && !template.continues(request)).then_some((last, before))
}

/// The prompt up to the answer, and the begun answer: its thinking first, where the template has opened it.
pub(super) fn appended(mut rendered: String, begun: &Message) -> String {
    let thought = ["reasoning_content", "thinking"].into_iter().find_map(|key| begun.rest.get(key)?.as_str());
    let end = rendered.trim_end();
    if let Some((_, close)) = THINKING.into_iter().find(|(open, _)| end.ends_with(open)) {
        rendered.push_str(thought.unwrap_or_default());
        // An answer without text goes on with its thinking.
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
        // Where the answer is whole, nothing goes on.
        assert_eq!(rendered(PLAIN, json!([begun])), "<assistant>It is </assistant><assistant>");
        let called = json!({"role": "assistant", "content": "", "tool_calls": []});
        assert!(rendered(PLAIN, json!([user, called])).ends_with("</assistant><assistant>"));
        let thinking = format!("{PLAIN}<think>\n");
        assert_eq!(
            rendered(&thinking, json!([user, begun])),
            "<user>2+2</user><assistant><think>\n\n</think>\n\nIt is "
        );
        let thought = json!({"role": "assistant", "content": "", "reasoning_content": "Four"});
        assert_eq!(rendered(&thinking, json!([user, thought])), "<user>2+2</user><assistant><think>\nFour");
    }
}
