//! Fuzzes the reader of model output with any text in any dialect: the parts that are read do not
//! depend on how the text was cut into pieces.
//!
//! An input is a line of a chat template, which determines the dialect; a line whose bytes give the
//! sizes of the pieces; a line with the end of the prompt; and the model's output.
#![no_main]

use prompt::{Dialect, OutputReader, Part, Reading, Tools};
use serde_json::json;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(4, |byte| *byte == b'\n');
    let (Some(template), Some(cuts), Some(prompt), Some(answer)) =
        (lines.next(), lines.next(), lines.next(), lines.next())
    else {
        return;
    };
    let text = String::from_utf8_lossy;
    let (template, prompt, answer) = (text(template), text(prompt), text(answer));
    let dialect = Dialect::detect(&template, &|token| prompt.contains(token));
    for thinking in [true, false] {
        let read = |pieces: &[&str]| read(&dialect, Reading { prompt: &prompt, tools: tools(), thinking }, pieces);
        let whole = read(&[&*answer]);
        assert_eq!(read(&pieces(&answer, cuts)), whole, "{template}: {answer}");
        assert_eq!(read(&pieces(&answer, &[0])), whole, "{template}: {answer}, by characters");
        for part in &whole {
            match part {
                Part::Text(text) | Part::Thinking(text) => assert!(!text.is_empty()),
                Part::ToolCall { .. } => assert!(dialect.calls_tools(), "{template}: it has no calls"),
            }
        }
        let has_thoughts = whole.iter().any(|part| matches!(part, Part::Thinking(_)));
        assert!(thinking || dialect.thinking().is_none() || !has_thoughts, "{template}: thinking is text here");
    }
    let plain = Reading { prompt: &prompt, ..Reading::default() };
    if OutputReader::new(&dialect, plain.clone()).is_plain() {
        let expect = (!answer.is_empty()).then(|| Part::Text(answer.to_string()));
        assert_eq!(read(&dialect, plain, &pieces(&answer, cuts)), expect.into_iter().collect::<Vec<_>>());
    } else {
        assert_eq!(dialect.call_syntax(), "harmony", "only its headers are told apart where nothing is asked for");
    }
});

fn tools() -> Tools {
    Tools::new(Some(&json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "far": {"type": ["boolean", "null"]},
            "more": {"type": "array"}, "any": {"anyOf": [{"type": "number"}, {"type": "string"}]}}}}},
        {"name": "now"},
    ])))
}

/// Cuts a text into pieces. The bytes give the number of characters of each piece, cyclically;
/// without bytes the text stays in one piece.
fn pieces<'t>(text: &'t str, cuts: &[u8]) -> Vec<&'t str> {
    let mut sizes = cuts.iter().map(|byte| usize::from(byte % 16) + 1).cycle();
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(usize::MAX);
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(end, _)| end);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Reads the pieces one after the other, and joins adjacent parts of the same kind.
fn read(dialect: &Dialect, reading: Reading<'_>, pieces: &[&str]) -> Vec<Part> {
    let mut reader = OutputReader::new(dialect, reading);
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    parts.extend(reader.finish());
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(text)) | (Some(Part::Thinking(last)), Part::Thinking(text)) => {
                last.push_str(&text);
            }
            (_, part) => joined.push(part),
        }
    }
    joined
}
