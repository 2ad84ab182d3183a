//! Alternative shapes of a conversation, for templates that refuse the original.
//!
//! Many templates raise an error for a system message that is not the first, or for two consecutive
//! user messages. Coding agents send both. All texts are kept; messages are joined, and system
//! messages move to the front.

use protocol::Message;

/// Separator between joined texts.
const GAP: &str = "\n\n";

/// Returns the shapes to try, in order. The list is empty if the conversation has neither a late
/// system message nor adjacent messages to join.
pub(super) fn alternatives(messages: &[Message]) -> Vec<Vec<Message>> {
    let late_system = messages.iter().skip(1).any(|message| message.role == "system");
    let neighbours = messages.windows(2).any(|pair| can_join(&pair[0], &pair[1]));
    if !late_system && !neighbours {
        return Vec::new();
    }
    let (system, others): (Vec<Message>, Vec<Message>) =
        messages.iter().cloned().partition(|message| message.role == "system");
    let others = joined(others);
    let Some(system) = joined(system).into_iter().next() else { return vec![others] };
    let first = [vec![system.clone()], others.clone()].concat();
    std::iter::once(first).chain(within_user(&system.content, others)).collect()
}

/// True if both messages are from the system, or both from the user.
fn can_join(one: &Message, next: &Message) -> bool {
    one.role == next.role && matches!(one.role.as_str(), "system" | "user")
}

/// Joins adjacent messages that [`can_join`].
fn joined(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match all.last_mut() {
            Some(last) if can_join(last, &message) => {
                last.content = [last.content.as_str(), &message.content].join(GAP);
            }
            _ => all.push(message),
        }
    }
    all
}

/// Puts the system prompt before the first text of the user, for templates without a system role.
/// Returns `None` if there is no user message, because the system prompt would be lost.
fn within_user(system: &str, mut messages: Vec<Message>) -> Option<Vec<Message>> {
    let user = messages.iter_mut().find(|message| message.role == "user")?;
    user.content = [system, &user.content].join(GAP);
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatTemplate;
    use protocol::RenderRequest;
    use serde_json::{Map, json};

    const TEXT: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}";

    fn render(rule: &str, messages: &serde_json::Value) -> Result<String, crate::Error> {
        let messages = serde_json::from_value(messages.clone()).expect("messages");
        let template = ChatTemplate::new(&format!("{rule}{TEXT}"), Map::new());
        template.render(&RenderRequest { messages, ..RenderRequest::default() })
    }

    #[test]
    fn a_shape_that_the_template_refuses_is_changed() {
        let agent = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "system", "content": "t"},
            {"role": "user", "content": "v"},
        ]);
        let raise = |condition: &str| {
            format!(
                "{{% for m in messages %}}{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{{% endfor %}}"
            )
        };
        for (rule, expect) in [
            (String::new(), "s:s|u:u|s:t|u:v|"),
            (raise("m.role == 'system' and not loop.first"), "s:s\n\nt|u:u\n\nv|"),
            (raise("m.role == 'system'"), "u:s\n\nt\n\nu\n\nv|"),
        ] {
            assert_eq!(render(&rule, &agent).expect("text"), expect, "{rule}");
        }
        let error = render(&raise("true"), &agent).expect_err("it refuses every shape").to_string();
        assert!(error.contains("no"), "{error}");
    }

    #[test]
    fn every_shape_keeps_every_text() {
        let messages = json!([
            {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}, {"role": "system", "content": "t"},
        ]);
        let messages: Vec<Message> = serde_json::from_value(messages).expect("messages");
        let shapes = alternatives(&messages);
        assert_eq!(shapes.len(), 1, "there is no user message that could take the system prompt");
        let texts: Vec<&str> = shapes[0].iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["s\n\nt", "a"]);
    }

    #[test]
    fn a_usual_conversation_has_no_other_shape() {
        let usual = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
        ]);
        let messages: Vec<Message> = serde_json::from_value(usual).expect("messages");
        assert!(alternatives(&messages).is_empty());
    }
}
