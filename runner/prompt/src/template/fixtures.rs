//! Tests with the chat templates of the reference data: every rendered prompt, and random
//! conversations compared with transformers.

use std::io::Write;
use std::path::{Path, PathBuf};

use protocol::{Message, RenderRequest};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use vocabulary::chat_templates::NamedTemplate;
use vocabulary::{chat_templates, special_tokens};

use super::{ChatTemplate, conversation};
use crate::reference_data::{fixtures, skipped};

/// The time of all conversations.
const NOW: &str = "2026-02-03T04:05:06+00:00";

/// Returns the folder of the reference data; `None` if it is absent.
fn folder() -> Option<PathBuf> {
    fixtures("the chat templates' fixtures", "hf")
}

fn json_of(path: &Path) -> Option<Value> {
    Some(serde_json::from_slice(&std::fs::read(path).ok()?).expect("JSON"))
}

/// Returns the templates of a folder with their special tokens.
fn templates(model: &Path) -> Option<(Vec<NamedTemplate>, Map<String, Value>)> {
    let config = json_of(&model.join("tokenizer_config.json"))?;
    let mut variables =
        json_of(&model.join("special_tokens_map.json")).map(|map| special_tokens::variables(&map)).unwrap_or_default();
    variables.extend(special_tokens::variables(&config));
    let named = match std::fs::read_to_string(model.join("chat_template.jinja")) {
        Ok(text) => chat_templates::single(text),
        Err(_) => chat_templates::of_config(&config),
    };
    (!named.is_empty()).then_some((named, variables))
}

/// Returns every distinct template of the fixtures with the name of its tokenizer.
fn all_templates() -> Vec<(String, Vec<NamedTemplate>, Map<String, Value>)> {
    let Some(folder) = folder() else { return Vec::new() };
    let manifest = json_of(&folder.join("manifest.json")).expect("a manifest");
    let mut all: Vec<(String, Vec<NamedTemplate>, Map<String, Value>)> = Vec::new();
    for (fixture, facts) in manifest["fixtures"].as_object().expect("fixtures") {
        let Some((named, variables)) = templates(&folder.join(fixture).join("model")) else { continue };
        if !all.iter().any(|(_, known, _)| *known == named) {
            all.push((facts["tokenizer"].as_str().unwrap_or(fixture).to_owned(), named, variables));
        }
    }
    assert!(all.len() >= 10, "{} templates", all.len());
    all
}

#[test]
fn fixtures_are_rendered_as_they_say() {
    let Some(folder) = folder() else { return };
    let manifest = json_of(&folder.join("manifest.json")).expect("a manifest");
    let cases = json_of(&folder.join("chat_cases.json")).expect("cases");
    let (mut texts, mut errors) = (0, 0);
    for (fixture, facts) in manifest["fixtures"].as_object().expect("fixtures") {
        let name = facts["tokenizer"].as_str().expect("a tokenizer");
        let golden = json_of(&folder.join(format!("_tokenizers/{name}.json"))).expect("a golden file");
        let Some((named, variables)) = templates(&folder.join(fixture).join("model")) else { continue };
        let template = ChatTemplate::from_named(named, variables);
        for case in golden["chat"]["cases"].as_array().into_iter().flatten() {
            let asked = &cases[case["messages"].as_str().expect("a case")];
            let request = RenderRequest {
                messages: serde_json::from_value(asked["messages"].clone()).expect("messages"),
                tools: Some(asked["tools"].clone()).filter(|tools| !tools.is_null()),
                add_generation_prompt: case["add_generation_prompt"].as_bool().expect("a flag"),
                variables: case["variables"].as_object().cloned().unwrap_or_default(),
                ..RenderRequest::default()
            };
            let found = template.render(&request);
            if let Some(text) = case["rendered"].as_str() {
                assert_eq!(found.as_deref(), Ok(text), "{fixture} {case}");
                texts += 1;
            } else {
                let error = found.expect_err("its golden is an error").to_string();
                let said = case["error"].as_str().expect("an error");
                assert!(
                    error.contains(said.split(": ").last().unwrap_or_default()),
                    "{fixture}: {error}, expected {said}"
                );
                errors += 1;
            }
        }
    }
    assert!(texts > 100 && errors > 0, "{texts} texts, {errors} errors");
}

#[test]
fn renderers_of_ollama_give_what_they_give() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/templates/renderers.json");
    let all = json_of(&path).expect("expectations");
    let rendered = all["rendered"].as_object().expect("renderers");
    assert_eq!(rendered.len(), vocabulary::renderers::names().count());
    for (name, golden) in rendered {
        let source = vocabulary::renderers::template(name).expect("a renderer");
        for (said, conversation) in all["conversations"].as_object().expect("conversations") {
            let mut request: RenderRequest = serde_json::from_value(conversation.clone()).expect("a conversation");
            request.add_generation_prompt = true;
            let found = ChatTemplate::new(&source, Map::new()).render(&request);
            assert_eq!(found.as_deref().ok(), golden[said].as_str(), "{name}, {said}: {found:?}");
        }
    }
}

fn pick<'t>(random: &mut StdRng, texts: &[&'t str]) -> &'t str {
    texts[random.random_range(0..texts.len())]
}

/// Returns a random text that users or models could write.
fn content(random: &mut StdRng) -> String {
    let mut text = String::new();
    for _ in 0..random.random_range(0..4) {
        text.push_str(pick(
            random,
            &[
                "Hello",
                " world",
                "\n",
                "  ",
                "Grüße, 漢字 🙂",
                "<b>&amp;\"quoted\"</b>",
                "{{ x }} {% y %}",
                "it's",
                "\\n",
                "<think>hm</think>",
                "<|im_end|>",
                "[INST]",
                "</s>",
                "1.5",
                "\t",
                "{\"a\": 1}",
                "/no_think",
                "/think",
                "```json\n{}\n```",
                "<tool_call>\n</tool_call>",
                "\u{7f}",
                "\u{2028}",
            ],
        ));
    }
    text
}

/// Returns a JSON value of any kind.
fn value(random: &mut StdRng, depth: usize) -> Value {
    match random.random_range(0..if depth > 2 { 6 } else { 8 }) {
        0 => json!(null),
        1 => json!(random.random_bool(0.5)),
        2 => json!(random.random_range(-1000..1_000_000)),
        3 => json!([0.5, -2.25, 1e30, 1e-9, 100.0, 3.0][random.random_range(0..6)]),
        4 | 5 => json!(content(random)),
        6 => Value::Array((0..random.random_range(0..3)).map(|_| value(random, depth + 1)).collect()),
        _ => arguments(random, depth + 1),
    }
}

fn arguments(random: &mut StdRng, depth: usize) -> Value {
    let names = ["city", "Days", "a b", "ärger", "x", "nested"];
    (0..random.random_range(0..4))
        .map(|_| (pick(random, &names).to_owned(), value(random, depth)))
        .collect::<Map<_, _>>()
        .into()
}

fn tools(random: &mut StdRng) -> Vec<Value> {
    let mut tool = |name: &str| {
        let kinds = [
            json!("string"),
            json!("integer"),
            json!(["string", "null"]),
            json!("array"),
            json!("object"),
            json!("boolean"),
        ];
        let mut properties = Map::new();
        for property in ["city", "days", "unit"].iter().take(random.random_range(0..4)) {
            let mut schema = Map::from_iter([("type".to_owned(), kinds[random.random_range(0..kinds.len())].clone())]);
            if random.random_bool(0.6) {
                schema.insert("description".to_owned(), content(random).into());
            }
            if random.random_bool(0.3) {
                schema.insert("enum".to_owned(), json!(["°C", "F"]));
            }
            if random.random_bool(0.2) {
                schema.insert("items".to_owned(), json!({"type": "string"}));
            }
            properties.insert((*property).to_owned(), schema.into());
        }
        let required: Vec<&String> = properties.keys().take(1).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "description": content(random), "parameters": parameters}})
    };
    let all = [tool("get_weather"), tool("now"), tool("search-web")];
    all[..random.random_range(1..4)].to_vec()
}

/// Returns a random conversation, usually with alternating users and assistants.
fn messages(random: &mut StdRng) -> Vec<Value> {
    let mut all = Vec::new();
    if random.random_bool(0.4) {
        all.push(json!({"role": pick(random, &["system", "system", "developer"]), "content": content(random)}));
    }
    for _ in 0..random.random_range(1..4) {
        if random.random_bool(0.95) {
            all.push(json!({"role": "user", "content": content(random)}));
        }
        match random.random_range(0..8) {
            0 | 1 => {
                let count = random.random_range(1..3);
                let call = |random: &mut StdRng| json!({"function": {"name": pick(random, &["get_weather", "now"]), "arguments": arguments(random, 0)}});
                let calls: Vec<Value> = (0..count).map(|_| call(random)).collect();
                let mut message = json!({"role": "assistant", "content": if random.random_bool(0.5) { String::new() } else { content(random) }, "tool_calls": calls});
                if random.random_bool(0.3) {
                    message["thinking"] = content(random).into();
                }
                all.push(message);
                all.extend((0..count).map(|_| json!({"role": "tool", "content": content(random)})));
                if random.random_bool(0.7) {
                    all.push(json!({"role": "assistant", "content": content(random)}));
                }
            }
            2 => all.push(json!({"role": "assistant", "content": content(random), "thinking": content(random)})),
            3 if random.random_bool(0.3) => all.push(
                json!({"role": pick(random, &["system", "tool", "ipython", "someone"]), "content": content(random)}),
            ),
            _ => all.push(json!({"role": "assistant", "content": content(random)})),
        }
    }
    if random.random_bool(0.8) {
        all.push(json!({"role": "user", "content": content(random)}));
    }
    all
}

fn request(random: &mut StdRng) -> RenderRequest {
    let mut variables = Map::new();
    for (name, values) in [
        ("enable_thinking", vec![json!(true), json!(false)]),
        ("thinking", vec![json!(true), json!(false)]),
        ("reasoning_effort", vec![json!("low"), json!("high")]),
    ] {
        if random.random_bool(0.3) {
            variables.insert(name.to_owned(), values[random.random_range(0..values.len())].clone());
        }
    }
    let documents = json!([{"title": content(random), "text": content(random)}, {"title": "T", "text": "t"}]);
    RenderRequest {
        messages: serde_json::from_value(messages(random).into()).expect("messages"),
        tools: random.random_bool(0.4).then(|| tools(random).into()),
        add_generation_prompt: random.random_bool(0.8),
        documents: random.random_bool(0.2).then_some(documents),
        variables,
        now: Some(NOW.to_owned()),
        ..RenderRequest::default()
    }
}

/// Renders templates with transformers, for the variables of each conversation.
fn transformers(work: &[(&str, Vec<Value>)]) -> Option<Vec<Vec<Value>>> {
    let Some(python) = std::env::var_os("LODE_TEST_MLX") else {
        skipped(
            "random conversations: LODE_TEST_MLX names no Python with the package `transformers`; scripts/test makes one",
        );
        return None;
    };
    let input = serde_json::to_vec(work).expect("JSON");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/chat_templates.py");
    let mut child = std::process::Command::new(python)
        .arg(script)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("Python starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || pipe.write_all(&input));
    let output = child.wait_with_output().expect("an answer");
    writer.join().expect("no panic").expect("all is written");
    assert!(output.status.success(), "the script failed");
    Some(serde_json::from_slice(&output.stdout).expect("an answer"))
}

/// Compares random conversations, rendered with every template of the fixtures, with transformers.
/// `scripts/campaign conversations` runs more of them, and accepts a folder with further templates.
#[test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
fn random_conversations_are_rendered_as_transformers_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (count, seed) = (number("LODE_CAMPAIGN_TEXTS").unwrap_or(10), number("LODE_CAMPAIGN_SEED").unwrap_or(16));
    let mut all: Vec<(String, String, Map<String, Value>)> = Vec::new();
    for (name, named, variables) in all_templates() {
        all.extend(named.into_iter().map(|(own, source)| (format!("{name}/{own}"), source, variables.clone())));
    }
    if let Some(folder) = std::env::var_os("LODE_CAMPAIGN_TEMPLATES") {
        for entry in std::fs::read_dir(folder).expect("a folder of templates").flatten() {
            let special = json!({"bos_token": "<s>", "eos_token": "</s>"});
            let name = entry.file_name().to_string_lossy().into_owned();
            all.push((
                name,
                std::fs::read_to_string(entry.path()).expect("a template"),
                special.as_object().cloned().unwrap_or_default(),
            ));
        }
    }
    let mut random = StdRng::seed_from_u64(seed);
    let requests: Vec<Vec<RenderRequest>> =
        all.iter().map(|_| (0..count).map(|_| request(&mut random)).collect()).collect();
    let work: Vec<(&str, Vec<Value>)> = all
        .iter()
        .zip(&requests)
        .map(|((_, source, special), requests)| {
            let seen = requests.iter().map(|request| {
                let messages: Vec<Message> = conversation::complete(&request.messages, source);
                let mut variables = special.clone();
                variables.insert("messages".to_owned(), json!(messages));
                variables.insert("tools".to_owned(), json!(request.tools));
                variables.insert("documents".to_owned(), json!(request.documents));
                variables.insert("add_generation_prompt".to_owned(), json!(request.add_generation_prompt));
                variables.insert("now".to_owned(), NOW.into());
                variables.extend(request.variables.clone());
                variables.into()
            });
            (source.as_str(), seen.collect())
        })
        .collect();
    let Some(expected) = transformers(&work) else { return };
    let mut wrong: Vec<String> = Vec::new();
    for (((name, source, special), requests), expected) in all.iter().zip(&requests).zip(&expected) {
        let template = ChatTemplate::new(source, special.clone());
        let mut bad = 0;
        for (request, expected) in requests.iter().zip(expected) {
            let found = template.render(request);
            let agrees = match &found {
                Ok(text) => expected["text"] == text.as_str(),
                Err(_) => expected.get("error").is_some(),
            };
            if !agrees {
                bad += 1;
                if bad <= 2 {
                    wrong.push(format!("{name}:\n  found {found:?}\n  expected {expected}"));
                }
            }
        }
        if bad > 2 {
            wrong.push(format!("{name}: {bad} of {}", requests.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
