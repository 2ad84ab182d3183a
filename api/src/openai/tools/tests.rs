//! Tools in both forms, and every kind of tool choice.

use super::*;

fn two() -> Vec<Value> {
    let nested = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    let flat =
        json!({"type": "function", "name": "now", "description": "The time.", "parameters": null, "strict": true});
    tools(&[nested, flat]).expect("tools")
}

#[test]
fn both_forms_become_the_nested_one() {
    let flat = json!({"type": "function", "function": {"name": "now", "description": "The time.", "strict": true}});
    assert_eq!(two()[1], flat);
    for (bad, param) in [
        (json!({"type": "web_search"}), "tools[0].type"),
        (json!({"name": "x"}), "tools[0].type"),
        (json!({"type": "function", "function": {}}), "tools[0].function.name"),
        (json!({"type": "function", "function": 1}), "tools[0].function"),
        (json!({"type": "function", "name": "x", "parameters": 1}), "tools[0].function.parameters"),
    ] {
        assert_eq!(tools(std::slice::from_ref(&bad)).expect_err("no tool").param, param, "{bad}");
    }
}

#[test]
fn choices() {
    let named = ToolChoice::Named { name: "now".to_owned() };
    let allowed = json!([{"type": "function", "function": {"name": "now"}}]);
    for (choice, offered, expect) in [
        (Value::Null, 2, ToolChoice::Auto),
        (json!("auto"), 2, ToolChoice::Auto),
        (json!("none"), 0, ToolChoice::None),
        (json!("required"), 2, ToolChoice::Required),
        (json!({"type": "function", "function": {"name": "now"}}), 2, named.clone()),
        (json!({"type": "function", "name": "now"}), 2, named),
        (json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}), 1, ToolChoice::Auto),
        (json!({"type": "allowed_tools", "mode": "required", "tools": [{"name": "add"}]}), 1, ToolChoice::Required),
    ] {
        let (tools, choice_made) = choose(two(), Some(&choice)).expect("a choice");
        assert_eq!((tools.len(), choice_made), (offered, expect), "{choice}");
    }
    for bad in [
        json!("always"),
        json!(1),
        json!({"type": "custom"}),
        json!({"type": "function"}),
        json!({"type": "function", "name": "missing"}),
        json!({"type": "allowed_tools"}),
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"name": "missing"}]}),
    ] {
        assert_eq!(choose(two(), Some(&bad)).expect_err("no choice").param, "tool_choice", "{bad}");
    }
    assert!(choose(Vec::new(), Some(&json!("required"))).is_err(), "nothing can be called");
}

#[test]
fn efforts() {
    use crate::ollama::Think;
    let level = |level: &str| Ok(Some(Think::Level(level.to_owned())));
    for (effort, expect) in [
        (None, Ok(None)),
        (Some("none"), Ok(Some(Think::Flag(false)))),
        (Some("minimal"), level("low")),
        (Some("high"), level("high")),
        (Some("xhigh"), level("max")),
    ] {
        assert_eq!(think(effort, "reasoning_effort"), expect, "{effort:?}");
    }
    assert_eq!(think(Some("much"), "reasoning.effort").expect_err("no effort").param, "reasoning.effort");
}
