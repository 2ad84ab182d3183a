//! Canonical writing: the same tensors give the same bytes on every machine and in every release.
//!
//! Keys are sorted bytewise. The members of an entry are in the order `dtype`, `shape`,
//! `data_offsets`. There is no white space. Strings are escaped as by Go's `encoding/json`. The
//! header is padded with spaces to a multiple of 8. The data follows in the order of the members,
//! without gaps. `__metadata__` is omitted if it is empty. Golden digests pin this.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Dtype;

/// A tensor to be written; its bytes follow the header in the order of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Key of the tensor.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Length in bytes.
    pub size: u64,
}

/// Returns the length prefix and header of a blob with these members, whose bytes follow.
pub fn canonical_header(members: &[Member], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut at = 0;
    for member in members {
        let shape: Vec<String> = member.shape.iter().map(ToString::to_string).collect();
        let (dtype, shape, end) = (member.dtype, shape.join(","), at + member.size);
        let entry = format!(r#"{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{at},{end}]}}"#);
        entries.insert(member.name.as_str(), entry);
        at = end;
    }
    if !metadata.is_empty() {
        let pairs: Vec<String> =
            metadata.iter().map(|(key, value)| format!("{}:{}", quote(key), quote(value))).collect();
        entries.insert("__metadata__", format!("{{{}}}", pairs.join(",")));
    }
    let pairs: Vec<String> = entries.iter().map(|(name, entry)| format!("{}:{entry}", quote(name))).collect();
    let mut text = format!("{{{}}}", pairs.join(","));
    while text.len() % 8 != 0 {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Quotes a JSON string as Go's `encoding/json` does.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Header;

    #[test]
    fn canonical_bytes() {
        let member = |name: &str, size| Member { name: name.to_owned(), dtype: Dtype::U8, shape: vec![size], size };
        let members = [member("b<&>", 3), member("a\u{2028}\"é", 2)];
        let metadata = BTreeMap::from([("group_size".to_owned(), "32".to_owned())]);
        let bytes = canonical_header(&members, &metadata);
        let text = std::str::from_utf8(&bytes[8..]).expect("UTF-8");
        let expect = concat!(
            r#"{"__metadata__":{"group_size":"32"},"#,
            r#""a\u2028\"é":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"#,
            r#""b\u003c\u0026\u003e":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#
        );
        assert_eq!(text.trim_end(), expect);
        assert_eq!(text.len() % 8, 0);
        let header = Header::parse(&bytes, bytes.len() as u64 + 5).expect("own header parses");
        assert_eq!(header.tensors[0].name, "b<&>");
        assert_eq!(header.metadata, metadata);
    }
}
