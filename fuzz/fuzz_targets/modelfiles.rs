//! Fuzzes the parser of Modelfiles with any text: every parsed Modelfile survives a round trip
//! through its text.
#![no_main]

use api::modelfile::{Modelfile, instruction, message, parameter};
use lode_fuzz::assert_told;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Modelfile::parse(text) {
        Ok(file) => check(&file),
        Err(error) => assert_told(&error),
    }
    // No text, however it is quoted, can add an instruction.
    let lines = ["FROM a".to_owned(), instruction("SYSTEM", text), message("user", text), message(text, "x")];
    let file = Modelfile::parse(&lines.join("\n")).expect("what is written is a Modelfile");
    let said = said(text);
    assert!(file.from == "a" && file.adapters.is_empty() && file.licenses.is_empty() && file.template.is_none());
    assert!(file.system.is_none_or(|system| system == said));
    assert!(file.messages.iter().all(|(_, content)| *content == said || content == "x"));
});

fn check(file: &Modelfile) {
    let Modelfile { from, adapters, template, renderer, parser, system, licenses, messages, .. } = file;
    assert!(!from.is_empty() && adapters.iter().all(|adapter| !adapter.is_empty()));
    let texts = |word: &'static str, texts: &[String]| -> Vec<String> {
        texts.iter().map(|text| instruction(word, text)).collect()
    };
    let optional = |word: &'static str, text: &Option<String>| texts(word, text.as_slice());
    let mut lines = vec![instruction("FROM", from)];
    lines.extend(texts("ADAPTER", adapters));
    lines.extend(optional("TEMPLATE", template));
    lines.extend(optional("RENDERER", renderer));
    lines.extend(optional("PARSER", parser));
    lines.extend(optional("SYSTEM", system));
    lines.extend(texts("LICENSE", licenses));
    lines.extend(messages.iter().map(|(role, content)| message(role, content)));
    // `stop` is a list of texts; it is written as one instruction per text.
    let numbers = file.parameters.iter().filter(|(_, value)| value.is_number() || value.is_boolean());
    let numbers: Vec<_> = numbers.collect();
    lines.extend(numbers.iter().flat_map(|(name, value)| parameter(name, value)));
    if lines.iter().any(|line| line.starts_with('#')) {
        // The grammar cannot express one of the texts.
        return;
    }
    let again = Modelfile::parse(&lines.join("\n")).expect("what was read can be written");
    let all = |texts: &[String]| texts.iter().map(|text| said(text)).collect::<Vec<_>>();
    let one = |text: &Option<String>| text.as_deref().map(said);
    assert_eq!(again.from, said(from));
    assert_eq!((again.adapters, again.licenses), (all(adapters), all(licenses)));
    assert_eq!((again.template, again.system), (one(template), one(system)));
    assert_eq!((again.renderer, again.parser), (one(renderer), one(parser)));
    let expect: Vec<_> = messages.iter().map(|(role, content)| (role.clone(), said(content))).collect();
    assert_eq!(again.messages, expect);
    for (name, value) in numbers {
        assert_eq!(again.parameters.get(name), Some(value), "{name}");
    }
}

/// Returns a text as the parser reads it: `\r\n` becomes `\n`.
fn said(text: &str) -> String {
    text.replace("\r\n", "\n")
}
