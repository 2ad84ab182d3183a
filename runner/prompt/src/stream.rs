//! Incremental decoding of tokens to text, in complete characters.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Dialect, Error, Tokenizer};

/// Maximum number of tokens that are decoded together while a character is incomplete.
const MAX_PENDING: usize = 16;

/// Marks of a dialect: tokens whose text is emitted although they can be special.
#[derive(Clone, Debug, Default)]
pub struct Markers(Arc<HashMap<u32, &'static str>>);

impl Markers {
    /// Collects the marks that the vocabulary contains.
    pub fn new(dialect: &Dialect, tokenizer: &Tokenizer) -> Self {
        let markers = dialect.markers().into_iter();
        Self(Arc::new(markers.filter_map(|text| Some((tokenizer.id(text)?, text))).collect()))
    }
}

/// Decodes tokens to text piece by piece. The pieces add up to the text of all tokens.
#[derive(Debug)]
pub struct TextStream {
    markers: Markers,
    /// Tokens whose text is still needed as context: a decoder can treat the first token of a text
    /// differently.
    ids: Vec<u32>,
    /// Number of these tokens whose text has been emitted.
    told: usize,
}

impl TextStream {
    /// Creates a stream that continues after `context`, the last tokens of the existing text.
    pub fn new(context: &[u32]) -> Self {
        Self::with_markers(context, Markers::default())
    }

    /// The same with markers, whose text is emitted; other special tokens have no text.
    pub fn with_markers(context: &[u32], markers: Markers) -> Self {
        let ids = context[context.len().saturating_sub(MAX_PENDING)..].to_vec();
        Self { markers, told: ids.len(), ids }
    }

    /// Adds a token and returns the text that is now complete; empty while a character is
    /// incomplete.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, Error> {
        if let Some(mark) = self.markers.0.get(&id).copied() {
            return Ok(self.tell(tokenizer, false)? + mark);
        }
        self.ids.push(id);
        let waiting = self.ids.len() - self.told < MAX_PENDING;
        self.tell(tokenizer, waiting)
    }

    /// Returns the remaining text; incomplete characters become U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, Error> {
        self.tell(tokenizer, false)
    }

    /// Returns the text that the pending tokens add to the emitted ones.
    fn tell(&mut self, tokenizer: &Tokenizer, may_wait: bool) -> Result<String, Error> {
        let before = tokenizer.decode(&self.ids[..self.told], false)?;
        let all = tokenizer.decode(&self.ids, false)?;
        // The end of the whole text is decisive: a decoder may convert a run of bytes to characters
        // only when it is complete.
        if may_wait && all.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let text = match all.strip_prefix(&before) {
            Some(text) => text.to_owned(),
            // Invalid bytes at the end changed the text before them, so the pending tokens are
            // decoded separately.
            None => tokenizer.decode(&self.ids[self.told..], false)?,
        };
        if text.is_empty() {
            // Control tokens have no text and give no context.
            self.ids.truncate(self.told.max(1));
        } else {
            // The emitted text begins at a character boundary, so it is sufficient as context.
            self.ids.drain(..self.told);
        }
        self.told = self.ids.len();
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a byte vocabulary, decoded like `SentencePiece` models with a `tokenizer.json`.
    fn bytes() -> Tokenizer {
        let vocab: Vec<String> = (0..=255).map(|byte: u8| format!(r#""<0x{byte:02X}>":{byte}"#)).collect();
        let json = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{{"id":256,"content":"<pad>","special":true,
            "single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":{{"type":"Sequence","decoders":[{{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},
            "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
            "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":true,"vocab":{{{}}},"merges":[]}}}}"#,
            vocab.join(",")
        );
        Tokenizer::from_json(json.as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn characters_come_whole() {
        let tokenizer = bytes();
        for text in ["a🦙🦙é", "🦙", "日本", "ab"] {
            let mut stream = TextStream::new(&[u32::from(b'x')]);
            let mut pieces: Vec<String> =
                text.bytes().map(|byte| stream.push(&tokenizer, u32::from(byte)).expect("a piece")).collect();
            pieces.push(stream.finish(&tokenizer).expect("the rest"));
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        }
    }

    #[test]
    fn marks_are_told_and_other_special_tokens_are_not() {
        let special = |id: u32, text: &str| {
            format!(
                r#"{{"id":{id},"content":"{text}","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}"#
            )
        };
        let json = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{}],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}},
            "model":{{"type":"BPE","vocab":{{"a":0,"Ã":1}},"merges":[]}}}}"#,
            special(2, "<tool_call>"),
            special(3, "<pad>")
        );
        let tokenizer = Tokenizer::from_json(json.as_bytes()).expect("a tokenizer");
        let markers = Markers::new(&Dialect::detect("<tool_call>", &|_| false), &tokenizer);
        let mut stream = TextStream::with_markers(&[0], markers);
        let told: Vec<String> = [0, 2, 3, 0, 1, 2, 0].map(|id| stream.push(&tokenizer, id).expect("a piece")).to_vec();
        assert_eq!(told, ["a", "<tool_call>", "", "a", "", "\u{fffd}<tool_call>", "a"]);
    }

    #[test]
    fn tokens_without_text_leave_nothing_behind() {
        let tokenizer = bytes();
        let mut stream = TextStream::new(&[u32::from(b'x')]);
        for _ in 0..1000 {
            assert_eq!(stream.push(&tokenizer, 256).expect("nothing"), "");
        }
        assert!(stream.ids.len() <= 2, "{}", stream.ids.len());
        assert_eq!(stream.push(&tokenizer, u32::from(b'y')).expect("a piece"), "y");
        // Half a character at the end is emitted as U+FFFD.
        assert_eq!(stream.push(&tokenizer, 0xF0).expect("waits"), "");
        assert_eq!(stream.finish(&tokenizer).expect("the rest"), "\u{fffd}");
    }
}
