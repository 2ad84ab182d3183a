//! Tests of vocabularies.

use formats::gguf::{OwnedValue, write_header};

use super::*;

fn read(model: &str, kinds: &[i32], more: &[(&str, OwnedValue)]) -> Result<Vocabulary, Error> {
    let key = |name: &str, value: OwnedValue| (format!("tokenizer.ggml.{name}"), value);
    let texts = (0..kinds.len()).map(|n| if n == 3 { "<|im_end|>".to_owned() } else { n.to_string() });
    let mut keys = vec![
        key("model", model.into()),
        key("tokens", OwnedValue::texts(texts)),
        key("token_type", OwnedValue::integers(kinds.iter().copied())),
        key("merges", OwnedValue::texts(["0 1"])),
        key("scores", OwnedValue::floats(vec![0.0; kinds.len()])),
    ];
    keys.extend(more.iter().map(|(name, value)| key(name, value.clone())));
    let header = write_header(&keys, &[]).expect("a header").bytes;
    Vocabulary::read(&Gguf::parse(&header).expect("it is read")).map(|found| found.expect("a vocabulary"))
}

#[test]
fn tokens_without_a_key_have_the_usual_numbers() {
    let special = |vocabulary: &Vocabulary| [vocabulary.bos, vocabulary.eos, vocabulary.unknown];
    let pieces = read("llama", &[2, 3], &[]).expect("scores");
    assert_eq!(special(&pieces), [Some(1), None, Some(0)], "there are two tokens");
    assert!(pieces.add_bos && pieces.add_space_prefix);
    let control = read("gpt2", &[3; 12], &[]).expect("merges");
    assert_eq!(special(&control), [Some(11), Some(11), None]);
    assert_eq!(control.ends, [11, 3], "by number, then by text");
    let text = read("gpt2", &[1; 12], &[]).expect("merges");
    assert_eq!(special(&text), [None; 3], "it is text");
    assert_eq!(text.ends, [3], "whatever its type");
    assert!(!text.add_bos && !text.add_space_prefix);
    let named = read("gpt2", &[1; 5], &[("pre", "llama-bpe".into()), ("eos_token_id", 2u32.into())]);
    let named = named.expect("merges");
    assert!(named.add_bos && named.eos == Some(2));
}

#[test]
fn lists_are_as_long_as_the_vocabulary() {
    let header = |lists: &[(&str, OwnedValue)]| {
        let keys: Vec<_> =
            lists.iter().map(|(name, value)| (format!("tokenizer.ggml.{name}"), value.clone())).collect();
        write_header(&keys, &[]).expect("a header").bytes
    };
    let (tokens, model) = (("tokens", OwnedValue::texts(["a", "b"])), ("model", OwnedValue::from("llama")));
    for (more, expect) in [
        (vec![("scores", OwnedValue::floats(vec![0.0]))], "1 items for 2 tokens"),
        (vec![], "no `tokenizer.ggml.scores`"),
    ] {
        let bytes = header(&[vec![tokens.clone(), model.clone()], more].concat());
        let error = Vocabulary::read(&Gguf::parse(&bytes).expect("it is read")).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    }
}
