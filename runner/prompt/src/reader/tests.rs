//! Tests of answers in each dialect, and the parts that are read from them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Dialect, MAX_CALL, OutputReader, Part, Reading, Tools};

/// A short excerpt of a template in each dialect.
const HERMES: &str = "<tools> {{ tools }} <tool_call></tool_call> <think></think>";
const FUNCTIONS: &str = "{{ tools }} <tool_call>\n<function=NAME>";
const KEYS: &str = "{{ tools }} <tool_call>NAME\n<arg_key>K</arg_key> </think>";
const LLAMA: &str = "{{ tools }} Environment: ipython";
const MISTRAL: &str = "{{ tools }} [TOOL_CALLS] [THINK]";
const DEEPSEEK: &str = "{{ tools }} <｜tool▁calls▁begin｜> </think>";
const KIMI: &str = "{{ tools }} <|tool_calls_section_begin|>";
const GRANITE: &str = "{{ tools }} <|tool_call|>";
const LIQUID: &str = "{{ tools }} <|tool_call_start|>";
const GEMMA: &str = "{{ tools }} ```tool_code";
const GEMMA_4: &str = "{{ tools }} <|tool_call>call:NAME{} <|channel>thought";
const FUNCTION_GEMMA: &str = "{{ tools }} <start_function_call>";
const MINIMAX: &str = "{{ tools }} <minimax:tool_call>";
const DSML: &str = "{{ tools }} <｜DSML｜function_calls>";
const GIGACHAT: &str = "{{ tools }} <|function_call|>";
const COMMAND: &str = "{{ tools }} <|START_ACTION|> <|START_THINKING|>";
const OLMO: &str = "{{ tools }} <function_calls>";
const PHI: &str = "{{ tools }} <|tool_call|><|/tool_call|>";
const NEMOTRON: &str = "{{ tools }} <TOOLCALL>";
const SOLAR: &str = "{{ tools }} <|tool_call:args|>";
const APERTUS: &str = "{{ tools }} <|tools_prefix|>";
const GENERIC: &str = "{{ tools }}";
const HARMONY: &str = "<|start|>assistant<|channel|>final<|message|> {{ tools }}";
const ALL: [&str; 23] = [
    HERMES,
    FUNCTIONS,
    KEYS,
    LLAMA,
    MISTRAL,
    DEEPSEEK,
    KIMI,
    GRANITE,
    LIQUID,
    GEMMA,
    GEMMA_4,
    FUNCTION_GEMMA,
    MINIMAX,
    DSML,
    GIGACHAT,
    COMMAND,
    OLMO,
    PHI,
    NEMOTRON,
    SOLAR,
    APERTUS,
    GENERIC,
    HARMONY,
];

fn tools() -> Tools {
    Tools::new(Some(&json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "far": {"type": ["boolean", "null"]},
            "more": {"type": "array"}, "any": {"anyOf": [{"type": "number"}, {"type": "string"}]}}}}},
        {"name": "now"},
    ])))
}

/// Reads pieces one after the other; adjacent parts of the same kind are joined.
fn read<'t>(template: &str, prompt: &str, thinking: bool, pieces: impl Iterator<Item = &'t str>) -> Vec<Part> {
    let dialect = Dialect::detect(template, &|_| false);
    let mut reader = OutputReader::new(&dialect, Reading { prompt, tools: tools(), thinking });
    let mut parts: Vec<Part> = pieces.flat_map(|piece| reader.push(piece)).collect();
    parts.extend(reader.finish());
    parts.into_iter().fold(Vec::new(), |mut joined: Vec<Part>, part| {
        match (joined.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(text)) | (Some(Part::Thinking(last)), Part::Thinking(text)) => {
                last.push_str(&text);
            }
            (_, part) => joined.push(part),
        }
        joined
    })
}

/// Checks that an answer is read in the same way as a whole, by characters, by pairs, and split in
/// two at every position.
fn check(template: &str, prompt: &str, answer: &str, expect: &[Part]) {
    let ends: Vec<usize> = answer.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
    for end in &ends {
        let (begin, rest) = answer.split_at(*end);
        assert_eq!(
            read(template, prompt, true, [begin, rest].into_iter()),
            expect,
            "{template}: {answer} cut at {end}"
        );
    }
    for size in [usize::MAX, 1, 2, 7] {
        let mut pieces = Vec::new();
        let mut start = 0;
        for chunk in ends.chunks(size.min(ends.len().max(1))) {
            let end = chunk.last().copied().unwrap_or(start);
            pieces.push(&answer[start..end]);
            start = end;
        }
        assert_eq!(read(template, prompt, true, pieces.into_iter()), expect, "{template}: {answer} by {size}");
    }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn thought(text: &str) -> Part {
    Part::Thinking(text.to_owned())
}

fn call(name: &str, arguments: Value) -> Part {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Part::ToolCall { name: name.to_owned(), arguments }
}

/// Returns a call of `weather` for Bern.
fn bern() -> Part {
    call("weather", json!({"city": "Bern"}))
}

#[test]
fn thinking_is_told_apart() {
    check(
        HERMES,
        "",
        "<think>\nhm\n\nso\n</think>\n\nHi <think> there",
        &[thought("hm\n\nso"), text("Hi <think> there")],
    );
    check(HERMES, "<|im_start|>assistant\n<think>\n", "hm</think>Hi\n", &[thought("hm"), text("Hi\n")]);
    check(HERMES, "<think>\n\n</think>\n\n", "Hi", &[text("Hi")]);
    check(HERMES, "", "<think></think>Hi", &[text("Hi")]);
    check(HERMES, "", " <think>cut o", &[thought("cut o")]);
    check(HERMES, "", "  a <thin> b </think>", &[text("  a <thin> b </think>")]);
    check(MISTRAL, "", "[THINK]hm[/THINK]Hi", &[thought("hm"), text("Hi")]);
    check("<|channel>thought", "", "<|channel>thought\nhm\n<channel|>Hi", &[thought("hm"), text("Hi")]);
}

#[test]
fn thinking_stays_where_nobody_asked() {
    let parts = read(HERMES, "", false, ["<think>hm</think>Hi"].into_iter());
    assert_eq!(parts, [text("<think>hm</think>Hi")]);
}

#[test]
fn hermes_and_its_mishaps() {
    let one = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Bern"}}
</tool_call>"#;
    check(HERMES, "", one, &[bern()]);
    check(
        HERMES,
        "",
        &format!("<think>hm</think>\n\nI look.\n{one}\n{one}\n"),
        &[thought("hm"), text("I look."), bern(), bern()],
    );
    // The closing mark within a string, a missing closing mark, arguments as text, text after the
    // call.
    check(
        HERMES,
        "",
        r#"<tool_call>{"name":"f","arguments":{"a":"\"</tool_call>"}}</tool_call>"#,
        &[call("f", json!({"a": "\"</tool_call>"}))],
    );
    check(HERMES, "", r#"<tool_call>{"name":"weather","arguments":{"city":"Bern"}}"#, &[bern()]);
    check(
        HERMES,
        "",
        r#"<tool_call>{"name":"weather","arguments":"{\"city\": \"Bern\"}"}</tool_call> ok"#,
        &[bern(), text("ok")],
    );
    check(HERMES, "", r#"<tool_call>{"name":"now"}</tool_call>"#, &[call("now", json!({}))]);
    for bad in [
        "a <tool_call>{\"name\": </tool_call> b",
        "<tool_call> never ends",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "a <tool_cal",
        "<tool_call></tool_call>",
    ] {
        check(HERMES, "", bad, &[text(bad)]);
    }
}

#[test]
fn values_in_tags_have_the_types_of_the_schema() {
    let types = json!({"city": "12", "days": 3, "far": true, "more": [1, "x"], "any": 1.5, "other": "7"});
    check(
        FUNCTIONS,
        "",
        "Now:\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
         <parameter=far>\nTrue\n</parameter>\n<parameter=more>\n[1, \"x\"]\n</parameter>\n<parameter=any>\n1.5\n\
         </parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>",
        &[text("Now:"), call("weather", types.clone())],
    );
    check(
        KEYS,
        "",
        "hm</think><tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>soon</arg_value>\n</tool_call>",
        &[text("hm</think>"), call("weather", json!({"city": "12", "days": "soon"}))],
    );
    check(FUNCTIONS, "", "<function=now>\n</function>", &[call("now", json!({}))]);
    check(
        FUNCTIONS,
        "",
        "<function=weather><parameter=city>a\nb</parameter></function>",
        &[call("weather", json!({"city": "a\nb"}))],
    );
    check(KEYS, "", "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", &[call("now", json!({}))]);
    check(FUNCTIONS, "", "<function=a b></function>", &[text("<function=a b></function>")]);
}

#[test]
fn calls_without_marks() {
    let object = r#"{"name": "weather", "parameters": {"city": "Bern"}}"#;
    for template in [LLAMA, GENERIC, GEMMA] {
        check(template, "", object, &[bern()]);
        check(template, "", &format!("\n{object}; {object}"), &[bern(), bern()]);
        check(template, "", &format!("{object}\nDone"), &[bern(), text("Done")]);
        // An answer that is JSON, a tool that is not offered, and a call in the middle of text are
        // text.
        for plain in [
            r#"{"answer": {"name": "weather"}}"#,
            r#"{"name": "Bern", "size": 1}"#,
            r#"{"name": "other", "parameters": {}}"#,
            r#"{"name": "weather", "parameters": {"city""#,
            "[1] first",
            "{",
            &format!("So: {object}"),
        ] {
            check(template, "", plain, &[text(plain)]);
        }
    }
    check(GENERIC, "", &format!("```json\n[{object}]\n```"), &[bern()]);
    check(GENERIC, "", "```json\n{\"a\": 1}\n```", &[text("```json\n{\"a\": 1}\n```")]);
    check(LLAMA, "", r#"{"type":"function","function":{"name":"weather","parameters":{"city":"Bern"}}}"#, &[bern()]);
    check(LLAMA, "", r#"<|python_tag|>weather.call(city="Bern")"#, &[bern()]);
    check(LLAMA, "", &format!("<|python_tag|>{object}; {object}"), &[bern(), bern()]);
    check(LLAMA, "", "<|python_tag|>x = 1\nprint(x)", &[text("<|python_tag|>x = 1\nprint(x)")]);
}

#[test]
fn calls_at_the_end_of_the_answer() {
    check(
        MISTRAL,
        "",
        r#"[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bern"}, "id": "x"}, {"name": "now"}]"#,
        &[bern(), call("now", json!({}))],
    );
    check(
        MISTRAL,
        "",
        r#"Well. [TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Bern"}[TOOL_CALLS]now[ARGS]{}"#,
        &[text("Well."), bern(), call("now", json!({}))],
    );
    check(
        GRANITE,
        "",
        r#"<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}] there"#,
        &[bern(), text("there")],
    );
    check(GRANITE, "", "<|tool_call|>none", &[text("<|tool_call|>none")]);
}

#[test]
fn calls_in_sections_and_in_python() {
    check(
        DEEPSEEK,
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\"}\n```\
         <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[bern(), call("now", json!({}))],
    );
    check(
        KIMI,
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Bern\"}\
         <|tool_call_end|><|tool_calls_section_end|>",
        &[bern()],
    );
    let arguments = json!({"city": "a'b\n", "days": -2, "more": [true, null, {"k": 1.5}]});
    let python = r#"weather(city="a'b\n", days=-2, more=[True, None, {'k': 1.5}])"#;
    check(
        LIQUID,
        "",
        &format!("<|tool_call_start|>[{python}, now()]<|tool_call_end|>"),
        &[call("weather", arguments.clone()), call("now", json!({}))],
    );
    check(GEMMA, "", &format!("```tool_code\nprint({python})\n```"), &[call("weather", arguments)]);
    check(GEMMA, "", "```tool_code\nx = [\n```", &[text("```tool_code\nx = [\n```")]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
fn calls_in_forms_of_their_own() {
    let arguments = json!({"city": "Bern, {x}: \"a\"", "days": 3, "far": null, "more": [true, {"k": -1.5}]});
    for (template, open, quote, close) in [
        (GEMMA_4, "<|tool_call>", "<|\"|>", "<tool_call|>"),
        (FUNCTION_GEMMA, "<start_function_call>", "<escape>", "<end_function_call>"),
    ] {
        let written =
            format!("call:weather{{city:{quote}Bern, {{x}}: \"a\"{quote},days:3,far:null,more:[true,{{k:-1.5}}]}}");
        let answer = format!("I look.{open}{written}{close}{open}call:now{{}}{close}");
        check(template, "", &answer, &[text("I look."), call("weather", arguments.clone()), call("now", json!({}))]);
        for bad in ["call:weather{city:Bern}", "weather{}", "call:weather{city:1} x"] {
            let bad = format!("{open}{bad}{close}");
            check(template, "", &bad, &[text(&bad)]);
        }
        let asked = format!("{open}{{\"name\": \"now\", \"arguments\": {{}}}}{close}");
        check(template, "", &asked, &[call("now", json!({}))]);
    }
    check(
        GEMMA_4,
        "",
        "<|channel>thought\nhm<channel|><|tool_call>call:now{}<tool_call|>",
        &[thought("hm"), call("now", json!({}))],
    );
    let typed = call("weather", json!({"city": "12 <b>", "days": 3, "more": ["x"]}));
    for (template, open, tag, close) in [
        (MINIMAX, "\n<minimax:tool_call>\n", "", "</minimax:tool_call>"),
        (DSML, "<｜DSML｜function_calls>\n", "｜DSML｜", "</｜DSML｜function_calls>"),
        (DSML, "<｜DSML｜tool_calls>\n", "｜DSML｜", "</｜DSML｜tool_calls>"),
    ] {
        let parameter = |key: &str, value: &str| format!("<{tag}parameter name=\"{key}\">{value}</{tag}parameter>\n");
        let parameters = [parameter("city", "12 <b>"), parameter("days", "3"), parameter("more", "['x']")].concat();
        let answer = format!(
            "{open}<{tag}invoke name=\"weather\">\n{parameters}</{tag}invoke>\n<{tag}invoke name=\"now\">\n</{tag}invoke>\n{close}"
        );
        check(template, "", &answer, &[typed.clone(), call("now", json!({}))]);
    }
    let json = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
    check(GIGACHAT, "", &format!("<|function_call|>{json}"), &[bern()]);
    check(
        HERMES,
        "",
        &format!("<tool_calls>\n{json}\n{{\"name\": \"now\"}}\n</tool_calls>"),
        &[bern(), call("now", json!({}))],
    );
    check(PHI, "", &format!("<|tool_call|>[{json}]<|/tool_call|>"), &[bern()]);
    check(
        LLAMA,
        "",
        "<|python_start|>[weather(city=\"Bern\"), now()]<|python_end|>",
        &[bern(), call("now", json!({}))],
    );
    check(
        OLMO,
        "",
        "<function_calls>weather(city=\"Bern\")\nnow()</function_calls>",
        &[bern(), call("now", json!({}))],
    );
    check(
        COMMAND,
        "",
        "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \
         \"parameters\": {\"city\": \"Bern\"}}\n]<|END_ACTION|>",
        &[thought("hm"), bern()],
    );
    // Functionary's arguments are JSON; Seed's lists and objects are Python's.
    check(FUNCTIONS, "", "<function=weather>{\"city\": \"Bern\"}</function>", &[bern()]);
    check(
        FUNCTIONS,
        "",
        "<function=weather><parameter=more>[True, 'x']</parameter></function>",
        &[call("weather", json!({"more": [true, "x"]}))],
    );
}

#[test]
fn channels_of_harmony() {
    let begin = "<|start|>user<|message|>x<|end|><|start|>assistant";
    check(
        HARMONY,
        begin,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        &[thought("hm"), text("Hi")],
    );
    check(
        HARMONY,
        begin,
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}<|call|>",
        &[bern()],
    );
    check(HARMONY, begin, " to=functions.now<|channel|>commentary<|message|>{}", &[call("now", json!({}))]);
    check(HARMONY, begin, "<|channel|>commentary<|message|>I look.<|end|>", &[text("I look.")]);
    check(HARMONY, &format!("{begin}<|channel|>final<|message|>"), "Hi <b>", &[text("Hi <b>")]);
    check(HARMONY, &format!("{begin}<|channel|>"), "analysis<|message|>hm", &[thought("hm")]);
    check(HARMONY, begin, "no header at all", &[text("no header at all")]);
    let bad = "<|channel|>commentary to=functions.f<|message|>{";
    check(HARMONY, begin, bad, &[text(bad)]);
}

#[test]
fn a_call_that_never_ends_is_text() {
    for (template, open) in [(HERMES, "<tool_call>"), (MISTRAL, "[TOOL_CALLS]"), (LLAMA, "{\"name\": \"")] {
        let answer = format!("{open}{}</tool_call>é", "é".repeat(MAX_CALL / 2 + 10));
        let dialect = Dialect::detect(template, &|_| false);
        let mut reader = OutputReader::new(&dialect, Reading { prompt: "", tools: tools(), thinking: true });
        let mut told = String::new();
        let (first, last) = answer.split_at(answer.len() - 2);
        for part in [reader.push(first), reader.push(last), reader.finish()].concat() {
            let Part::Text(text) = part else { panic!("{template}: {part:?}") };
            told.push_str(&text);
        }
        assert_eq!(told.len(), answer.len(), "{template}");
        assert!(told == answer, "{template}");
    }
}

/// Random sequences of marks and texts.
fn soup() -> impl Strategy<Value = Vec<String>> {
    const PIECES: &[&str] = &[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"now\"}",
        "{\"name\": \"",
        "\"",
        "}",
        "{",
        "[",
        "<",
        "<|channel|>",
        "analysis",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        " to=functions.now",
        "[TOOL_CALLS]",
        "now[ARGS]{}",
        "<function=now>",
        "</function>",
        "```json\n",
        "```",
        "é",
        " ",
        "\n",
        "a",
        ";",
        "<|tool_call|>",
        "now()",
        "｜",
        "<｜tool▁calls▁begin｜>",
        "{\"name\": \"now\", \"arguments\": {}}",
    ];
    let piece = prop_oneof![prop::sample::select(PIECES).prop_map(str::to_owned), "[a-z<>|{}\" ]{1,4}"];
    prop::collection::vec(piece, 0..12)
}

#[test]
fn the_beginning_of_a_mark_is_no_header() {
    let template = ALL.iter().find(|template| template.contains("<|channel|>")).expect("harmony");
    let expect = [Part::Text("<<|message|>".to_owned())];
    for pieces in [&["<<|message|>"][..], &["<", "<|message|>"], &["<<", "|message|>"]] {
        assert_eq!(read(template, "", false, pieces.iter().copied()), expect, "{pieces:?}");
    }
}

#[test]
fn blanks_before_a_header_are_none_of_it() {
    let template = ALL.iter().find(|template| template.contains("<|channel|>")).expect("harmony");
    for pieces in [&[" <|message|>Hi"][..], &[" ", "<|message|>", "Hi"], &[" ", "<", "|message|>", "Hi"]] {
        assert_eq!(read(template, "", false, pieces.iter().copied()), [Part::Text("Hi".to_owned())], "{pieces:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn without_a_dialect_text_stays_as_it_is(pieces in soup()) {
        let parts = read("", "", true, pieces.iter().map(String::as_str));
        let whole = pieces.concat();
        let expect = if whole.is_empty() { vec![] } else { vec![Part::Text(whole)] };
        prop_assert_eq!(parts, expect);
    }

    #[test]
    fn pieces_do_not_matter(pieces in soup(), template in prop::sample::select(&ALL[..]), thinking: bool) {
        let whole = pieces.concat();
        let expect = read(template, "", thinking, [whole.as_str()].into_iter());
        prop_assert_eq!(&read(template, "", thinking, pieces.iter().map(String::as_str)), &expect);
        let characters: Vec<String> = whole.chars().map(String::from).collect();
        prop_assert_eq!(&read(template, "", thinking, characters.iter().map(String::as_str)), &expect);
    }

    #[test]
    fn nothing_but_blanks_and_marks_is_lost(words in prop::collection::vec("[a-z<>|{}\\[\\]\" ]{0,8}", 0..6)) {
        // The text contains no complete mark, so all of it is text.
        let whole = words.concat();
        for template in ALL {
            let parts = read(template, "", true, words.iter().map(String::as_str));
            let expect = if whole.is_empty() { vec![] } else { vec![Part::Text(whole.clone())] };
            prop_assert_eq!(parts, expect, "{}", template);
        }
    }
}

#[test]
fn marks_of_2026_are_read() {
    check(NEMOTRON, "", r#"<TOOLCALL>[{"name": "weather", "arguments": {"city": "Bern"}}]</TOOLCALL>"#, &[bern()]);
    let solar = "<|tool_calls|><|tool_call:begin|>a7<|tool_call:name|>weather<|tool_call:args|>{\"city\": \"Bern\"}\
                 <|tool_call:end|><|calls|>";
    check(SOLAR, "", solar, &[bern()]);
    check(APERTUS, "", r#"<|tools_prefix|>[{"weather": {"city": "Bern"}}]<|tools_suffix|>"#, &[bern()]);
    let [two, calls] = [
        r#"<|tools_prefix|>[{"now": {}}, {"weather": {"city": "Bern"}}]<|tools_suffix|>"#,
        r#"<|tools_prefix|>[{"now": {}, "weather": {}}]<|tools_suffix|>"#,
    ];
    check(APERTUS, "", two, &[call("now", json!({})), bern()]);
    assert!(!matches!(read(APERTUS, "", true, [calls].into_iter())[0], Part::ToolCall { .. }), "two names");
}
