//! Tests of each construct against Go's own `text/template`, and of the limits that stop endless
//! templates.

use std::path::Path;

use protocol::RenderRequest;
use serde_json::{Map, Value, json};

use crate::template::ChatTemplate;

fn document(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/templates").join(name);
    serde_json::from_slice(&std::fs::read(path).expect("a document")).expect("JSON")
}

fn request(conversation: &Value, now: &Value) -> RenderRequest {
    let mut request: RenderRequest = serde_json::from_value(conversation.clone()).expect("a conversation");
    request.add_generation_prompt = true;
    request.now = now.as_str().map(str::to_owned);
    request
}

#[test]
fn templates_give_what_go_gives() {
    let (cases, golden) = (document("go_cases.json"), document("go_golden.json"));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, source) in cases["templates"].as_object().expect("templates") {
        for (said, conversation) in cases["conversations"].as_object().expect("conversations") {
            let source = source.as_str().expect("a text");
            let found = super::GoTemplate::read(source).and_then(|template| {
                template.render(&request(conversation, &cases["now"]), &super::Clock::at(cases["now"].as_str()))
            });
            let expected = &golden[name][said];
            let agrees = match &found {
                Ok(text) => expected["text"] == text.as_str(),
                Err(_) => expected["error"].is_string(),
            };
            if !agrees {
                wrong.push(format!("{name}, {said}: found {found:?}\n    expected {expected}"));
            }
            count += 1;
        }
    }
    assert!(count > 500, "{count}");
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong.join("\n"));
}

fn refused(source: &str) -> String {
    let messages = json!([{"role": "user", "content": "x".repeat(1000)}]);
    let messages = serde_json::from_value(messages).expect("messages");
    let template = ChatTemplate::new(source, Map::new());
    template.render(&RenderRequest { messages, ..RenderRequest::default() }).expect_err("refused").to_string()
}

#[test]
fn templates_that_grow_without_end_are_refused() {
    for (source, reason) in [
        ("{{ range 1000000000 }}{{ end }}", "too many steps"),
        ("{{ range 1000000 }}{{ $.Prompt }}{{ end }}", "exceeds 2097152 bytes"),
        ("{{ define \"r\" }}{{ template \"r\" . }}{{ end }}{{ template \"r\" . }}", "100 deep"),
        (&format!("{{{{ .Prompt }}}}{{{{ {}1{} }}}}", "(".repeat(1000), ")".repeat(1000)), "100 deep"),
        (&format!("{}{}", "{{ if 1 }}".repeat(1000), "{{ end }}".repeat(1000)), "100 deep"),
        ("{{ printf \"%999999999d\" 1 | len }}{{ range .Prompt }}{{ end }}", "can't iterate over string"),
    ] {
        let error = refused(source);
        assert!(error.contains(reason), "{source:.60}: {error}");
    }
}

#[test]
fn errors_name_the_line() {
    for (source, expect) in [
        ("{{ .Prompt }}\n{{ foo }}", "the function `foo` is not defined (line 2)"),
        (
            "a\n\n{{ range .Messages }}{{ .Foo }}{{ end }}",
            "can't evaluate field Foo in type *template.templateMessage (line 3)",
        ),
        ("{{ template \"x\" }}", "the template `x` is not defined (line 1)"),
    ] {
        let error = refused(source);
        assert!(error.ends_with(expect), "{source}: {error}");
    }
}
