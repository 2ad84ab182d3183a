//! Realistic conversations with a real model: templates of Modelfiles, structured output, endless
//! output, and reuse of the KV cache between turns.

use serde_json::{Value, json};

use crate::server::Server;
use crate::smollm2;
use crate::support::{list, number, say, tiny_model};

async fn real(test: &str, environment: &[(&str, &str)]) -> Option<Server> {
    let (_, model) = smollm2::inputs(test)?;
    let server = Server::start(environment).await;
    server.create("smollm2", &model).await;
    Some(server)
}

#[tokio::test]
async fn templates_of_modelfiles_are_rendered() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let go = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ range .Messages }}[{{ .Role }}]{{ .Content }}{{ range .ToolCalls }}{{ .Function.Name }}{{ .Function.Arguments }}{{ end }}\n{{ end }}{{ range .Tools }}{{ . }}{{ end }}>{{ end }}";
    let body = json!({"model": "go", "from": "tiny", "template": go, "stream": false});
    assert_eq!(server.ask("/api/create", &body).await["status"], "success");
    let shown = server.ask("/api/show", &json!({"model": "go"})).await;
    assert_eq!(shown["template"], go);
    for capability in ["tools", "insert"] {
        assert!(list(&shown["capabilities"]).contains(&capability.into()), "{shown}");
    }
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}});
    let messages = json!([
        {"role": "system", "content": "S"},
        {"role": "user", "content": "é <b>"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": "<"}}}]},
        {"role": "tool", "content": "1"},
    ]);
    let body =
        json!({"model": "go", "messages": messages, "tools": [tool], "stream": false, "_debug_render_only": true});
    let rendered = server.ask("/api/chat", &body).await["_debug_info"]["rendered_template"].clone();
    assert_eq!(
        rendered,
        "[system]S\n[user]é <b>\n[assistant]f{\"a\":\"\\u003c\",\"b\":1}\n[tool]1\n\
         {\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}>"
    );
    // The template of a request takes precedence, in either template language.
    for (template, expect) in
        [("{{ .System }}|{{ .Prompt }}|{{ .Response }}!", "|hi|"), ("{{ messages[0].content | upper }}", "HI")]
    {
        let body =
            json!({"model": "go", "prompt": "hi", "template": template, "stream": false, "_debug_render_only": true});
        let answer = server.ask("/api/generate", &body).await;
        assert_eq!(answer["_debug_info"]["rendered_template"], expect);
    }
    let body = json!({"model": "go", "prompt": "a", "suffix": "b", "stream": false, "options": {"num_predict": 2}});
    let gap = server.ask("/api/generate", &body).await;
    assert!(gap["prompt_eval_count"].as_u64() > Some(5), "the template's marks are in the prompt: {gap}");
    let body = json!({"model": "go", "prompt": "x", "template": "{{ if .Prompt }}", "stream": false});
    let (status, answer) = server.call("/api/generate", &body).await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("has no `end` (line 1)")), "{answer}");
}

#[tokio::test]
async fn renderers_of_modelfiles_make_the_prompts() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("Modelfile");
    std::fs::write(&file, "FROM tiny\nTEMPLATE {{ .Prompt }}\nRENDERER qwen3-vl-thinking\nPARSER qwen3-vl-thinking\n")
        .expect("written");
    let created = server.lode(&["create", "eyes", "-f", &file.to_string_lossy()]);
    assert!(created.status.success(), "{created:?}");
    let shown = server.ask("/api/show", &json!({"model": "eyes"})).await;
    assert_eq!((&shown["renderer"], &shown["parser"]), (&"qwen3-vl-thinking".into(), &"qwen3-vl-thinking".into()));
    assert!(shown["modelfile"].as_str().is_some_and(|text| text.contains("RENDERER \"\"\"qwen3-vl-thinking\"\"\"")));
    for capability in ["tools", "thinking"] {
        assert!(list(&shown["capabilities"]).contains(&capability.into()), "{shown}");
    }
    let prompt = async |model: &str| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"model": model, "messages": messages, "stream": false, "_debug_render_only": true});
        server.ask("/api/chat", &body).await["_debug_info"]["rendered_template"].clone()
    };
    let rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n";
    assert_eq!(prompt("eyes").await, rendered);
    // Models that are created from this one inherit the renderer, unless they set a template.
    for (body, expect) in [
        (json!({"model": "again", "from": "eyes", "system": "S", "stream": false}), None),
        (json!({"model": "again", "from": "eyes", "template": "<{{ .Prompt }}>", "stream": false}), Some("<hi>")),
    ] {
        assert_eq!(server.ask("/api/create", &body).await["status"], "success");
        let system = format!("<|im_start|>system\nS<|im_end|>\n{rendered}");
        assert_eq!(prompt("again").await, expect.unwrap_or(&system));
    }
    // The renderer of the thinking variant's sibling has no thinking, so the model does not offer
    // it.
    let body = json!({"model": "quick", "from": "tiny", "renderer": "qwen3-vl-instruct", "stream": false});
    assert_eq!(server.ask("/api/create", &body).await["status"], "success");
    assert_eq!(prompt("quick").await, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    let shown = server.ask("/api/show", &json!({"model": "quick"})).await;
    assert!(!list(&shown["capabilities"]).contains(&"thinking".into()), "{shown}");
    // A function without arguments has no parameters.
    for renderer in
        ["cogito", "deepseek3.1", "functiongemma", "glm-4.7", "lfm2", "olmo3", "qwen3-coder", "qwen3-vl-instruct"]
    {
        let body = json!({"model": "tools", "from": "tiny", "renderer": renderer, "stream": false});
        assert_eq!(server.ask("/api/create", &body).await["status"], "success");
        let tools = json!([{"type": "function", "function": {"name": "now"}}]);
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"model": "tools", "messages": messages, "tools": tools, "max_tokens": 1});
        let (status, answer) = server.call("/v1/chat/completions", &body).await;
        let too_long = answer["error"]["message"].as_str().is_some_and(|text| text.contains("context"));
        assert!(status == 200 || too_long, "{renderer}: {answer}");
    }
    let (status, answer) =
        server.call("/api/create", &json!({"model": "x", "from": "tiny", "renderer": "qwen9", "stream": false})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer["error"].as_str().is_some_and(
            |error| error.contains("renderer `qwen9` is not known; expected a TEMPLATE, or one of cogito,")
        ),
        "{answer}"
    );
}

/// Schemas with bounds, in the forms in which clients write them.
fn bounded_schemas() -> Vec<Value> {
    let text = |most: u64| json!({"type": "string", "maxLength": most});
    vec![
        json!({"title": "Person", "type": "object", "required": ["name", "age", "email"], "properties": {
            "name": text(30), "age": {"type": "integer", "minimum": 0, "maximum": 120}, "email": {"type": "string", "format": "email"}}}),
        json!({"$defs": {"Step": {"type": "object", "properties": {"explanation": text(60), "output": text(20)}, "required": ["explanation", "output"]}},
            "type": "object", "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 1, "maxItems": 3}, "final": text(20)},
            "required": ["steps", "final"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"kind": {"enum": ["cat", "dog", null]}, "when": {"type": "string", "format": "date"},
            "score": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}, "tags": {"type": "array", "items": text(8), "maxItems": 4}},
            "required": ["kind", "when", "score", "tags"]}),
        json!({"anyOf": [
            {"type": "object", "properties": {"ok": {"const": true}, "value": text(40)}, "required": ["ok", "value"]},
            {"type": "object", "properties": {"ok": {"const": false}, "error": {"type": "string", "pattern": "^E[0-9]{3}: [a-z ]{1,20}$"}}, "required": ["ok", "error"]},
        ]}),
        json!({"type": "array", "prefixItems": [text(5), {"type": "integer", "minimum": -9, "maximum": 9}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
    ]
}

#[tokio::test]
async fn schemas_are_kept_at_any_temperature() {
    let Some(server) = real("conversations::schemas_are_kept_at_any_temperature", &[]).await else { return };
    let runs = number("LODE_CAMPAIGN_RUNS").unwrap_or(5);
    let schemas = bounded_schemas();
    for run in 0..runs {
        let schema = &schemas[usize::try_from(run).expect("few") % schemas.len()];
        let body = json!({
            "model": "smollm2", "stream": false, "format": schema, "messages": [{"role": "user", "content": "Invent an entry. Answer in JSON."}],
            "options": {"temperature": 1.5, "top_k": 0, "top_p": 1, "seed": run, "num_predict": 1500, "num_ctx": 2048},
        });
        let answer = server.ask("/api/chat", &body).await;
        let text = answer["message"]["content"].as_str().expect("text");
        assert_eq!(answer["done_reason"], "stop", "run {run}: {text}");
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("run {run}: {text}: {e}"));
        let judge = jsonschema::options().should_validate_formats(true).build(schema).expect("a schema");
        assert!(judge.is_valid(&value), "run {run}: {text}");
    }
    say(&format!("{runs} answers of SmolLM2 at temperature 1.5 keep to their schemas"));
    // Grammars are obeyed too.
    let pattern = json!({"type": "grammar", "syntax": "regex", "definition": "(yes|no), [0-9]{1,2}%"});
    for (path, field) in [("/api/chat", "format"), ("/v1/chat/completions", "response_format")] {
        let mut body = json!({"model": "smollm2", "stream": false, "messages": [{"role": "user", "content": "Will it rain?"}], "temperature": 1.5});
        body[field] = pattern.clone();
        let answer = server.ask(path, &body).await;
        let text = answer["message"]["content"]
            .as_str()
            .or(answer["choices"][0]["message"]["content"].as_str())
            .expect("text");
        assert!(
            text.strip_suffix('%').is_some_and(|text| text.starts_with("yes, ") || text.starts_with("no, ")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_has_lost_itself_ends() {
    let Some(server) = real("conversations::an_answer_that_has_lost_itself_ends", &[]).await else { return };
    // A schema in pydantic's form: it does not mention additional properties.
    let schema = json!({"title": "Pet", "type": "object", "required": ["name", "legs"], "properties": {
        "name": {"title": "Name", "type": "string"}, "legs": {"title": "Legs", "type": "integer"}}});
    let body = json!({"model": "smollm2", "stream": false, "format": schema, "options": {"temperature": 0},
        "messages": [{"role": "user", "content": "Describe a dog named Rex."}]});
    let answer = server.ask("/api/chat", &body).await;
    assert_eq!(answer["done_reason"], "stop", "{answer}");
    let pet: Value = serde_json::from_str(answer["message"]["content"].as_str().expect("text")).expect("JSON");
    assert_eq!(pet.as_object().expect("an object").keys().collect::<Vec<_>>(), ["name", "legs"]);
    // Text that repeats itself.
    let round = |options: Value| json!({"model": "smollm2", "stream": false, "raw": true, "prompt": "la la la la la la la la la la la la la la", "options": options});
    let lost =
        server.ask("/api/generate", &round(json!({"temperature": 0, "repeat_limit": 60, "repeat_penalty": 1.0}))).await;
    assert_eq!(lost["done_reason"], "repetition", "{lost}");
    assert!(lost["eval_count"].as_u64().is_some_and(|count| (60..90).contains(&count)), "{lost}");
    let free =
        server.ask("/api/generate", &round(json!({"temperature": 0, "repeat_limit": 0, "num_predict": 100}))).await;
    assert_eq!((&free["done_reason"], &free["eval_count"]), (&"length".into(), &100.into()), "{free}");
    // The output exceeds the context, which is not shifted.
    let mut body = round(json!({"temperature": 0, "repeat_limit": 0, "num_predict": 10_000, "num_ctx": 128}));
    body["shift"] = false.into();
    let full = server.ask("/api/generate", &body).await;
    assert_eq!(full["done_reason"], "length");
    assert!(full["eval_count"].as_u64().expect("a count") < 128, "{full}");
}

#[tokio::test]
async fn a_conversation_computes_what_is_new() {
    // Attention rounds differently for different batch sizes. In float32, the difference is too
    // small to change the choice of a token.
    let float32 = [("LODE_REFERENCE", "1")];
    let Some(server) = real("conversations::a_conversation_computes_what_is_new", &float32).await else { return };
    let ask = async |messages: &[Value]| {
        let body = json!({"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 12});
        let answer = server.ask("/v1/chat/completions", &body).await;
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let count = |name: &str| usage[name].as_u64().expect("a count");
        (answer["choices"][0]["message"]["content"].clone(), count("prompt_tokens"), count("completion_tokens"), cached)
    };
    let questions = [
        "Hello!",
        "What is a prime number?",
        "Name three.",
        "And their sum?",
        "Thanks. What is the capital of Peru?",
        "How old is it?",
        "Write a line about the sea.",
        "Now in French.",
        "Is water wet?",
        "Goodbye!",
    ];
    let (mut messages, mut told, mut before) = (Vec::new(), Vec::new(), 0);
    for question in questions {
        messages.push(json!({"role": "user", "content": question}));
        let (answer, prompt, generated, cached) = ask(&messages).await;
        // The KV cache has all tokens of the previous turn but the last one, which never had to be
        // computed.
        assert!(cached + 1 >= before, "{question}: {cached} of {before} tokens are there");
        told.push((answer.clone(), prompt));
        messages.push(json!({"role": "assistant", "content": answer}));
        before = prompt + generated;
    }
    // The same conversation in a slot with other content.
    for (turn, (answer, prompt)) in told.iter().enumerate() {
        let other =
            json!({"model": "smollm2", "prompt": "0", "raw": true, "stream": false, "options": {"num_predict": 1}});
        assert_eq!(server.ask("/api/generate", &other).await["done"], true);
        let (fresh, whole, _, cached) = ask(&messages[..=2 * turn]).await;
        assert_eq!((&fresh, whole, cached), (answer, *prompt, 0), "turn {turn}");
    }
}
