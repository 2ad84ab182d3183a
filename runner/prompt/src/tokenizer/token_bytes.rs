//! The bytes of each token, which constraints on text are computed from.

use super::library::Library;
use crate::Error;

/// The text of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// These bytes, which can contain incomplete characters.
    Text(Vec<u8>),
    /// No bytes: a special token with this name.
    Special(String),
}

/// Returns the bytes of the `size` tokens of a `tokenizer.json`, or of a byte-level BPE from a GGUF
/// vocabulary.
pub(super) fn of_library(tokenizer: &Library, size: usize) -> Result<Vec<TokenBytes>, Error> {
    let decoder = serde_json::to_value(tokenizer.get_decoder()).map_err(Error::tokenizer)?;
    let spelling = Spelling::of(&decoder)?;
    let mut bytes = vec![TokenBytes::Special(String::new()); size];
    let mut put = |id: u32, token: TokenBytes| {
        if let Some(slot) = bytes.get_mut(id as usize) {
            *slot = token;
        }
    };
    for (text, id) in tokenizer.get_vocab(false) {
        put(id, TokenBytes::Text(spelling.bytes(&text)));
    }
    for (id, added) in tokenizer.get_added_tokens_decoder() {
        let token = if added.special {
            TokenBytes::Special(added.content)
        } else {
            TokenBytes::Text(added.content.into_bytes())
        };
        put(id, token);
    }
    Ok(bytes)
}

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// One character per byte, as in GPT-2.
    ByteLevel,
    /// Text with `▁` for spaces, and `<0xXX>` for single bytes.
    Pieces,
}

impl Spelling {
    /// Determines the spelling from the decoder.
    fn of(decoder: &serde_json::Value) -> Result<Self, Error> {
        let mut kinds = Vec::new();
        collect(decoder, &mut kinds);
        if kinds.contains(&"ByteLevel") {
            Ok(Self::ByteLevel)
        } else if kinds.iter().any(|kind| matches!(*kind, "ByteFallback" | "Metaspace" | "Replace")) {
            Ok(Self::Pieces)
        } else {
            Err(Error::Format("the model's tokenizer does not tell the bytes of its tokens".to_owned()))
        }
    }

    fn bytes(self, text: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                // A character that does not stand for a byte represents itself.
                let byte = |c: char| byte_of(c).map_or_else(|| c.to_string().into_bytes(), |byte| vec![byte]);
                text.chars().flat_map(byte).collect()
            }
            Self::Pieces => match text.strip_prefix("<0x").and_then(|hex| hex.strip_suffix('>')) {
                Some(hex) if hex.len() == 2 => u8::from_str_radix(hex, 16).map_or_else(|_| text.into(), |b| vec![b]),
                _ => text.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

/// Collects the `type`s of a decoder and of its nested decoders.
fn collect<'d>(decoder: &'d serde_json::Value, kinds: &mut Vec<&'d str>) {
    kinds.extend(decoder.get("type").and_then(serde_json::Value::as_str));
    for inner in decoder.get("decoders").and_then(serde_json::Value::as_array).into_iter().flatten() {
        collect(inner, kinds);
    }
}

/// Returns the byte that a character of a byte-level vocabulary stands for. Source:
/// `bytes_to_unicode` of GPT-2: printable bytes of Latin-1 represent themselves, the other bytes
/// are numbered from U+0100.
fn byte_of(c: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if let Ok(byte) = u8::try_from(u32::from(c)) {
        return printable(byte).then_some(byte);
    }
    let position = u32::from(c).checked_sub(0x100)?;
    (0..=255).filter(|byte| !printable(*byte)).nth(position as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_bytes() {
        assert_eq!(Spelling::ByteLevel.bytes("Ġa"), b" a");
        assert_eq!(Spelling::ByteLevel.bytes("ĊÃ©"), "\né".as_bytes());
        assert_eq!(Spelling::ByteLevel.bytes("Ń"), [0xAD], "the last one that is not printable");
        assert_eq!(Spelling::Pieces.bytes("▁a"), b" a");
        assert_eq!(Spelling::Pieces.bytes("<0x0A>"), b"\n");
        assert!(Spelling::of(&serde_json::json!({"type": "WordPiece"})).is_err());
        assert!(Spelling::of(&serde_json::Value::Null).is_err());
    }
}
