//! Searching for marks in text that arrives in pieces.

/// Returns the position of the first mark in a text, and the mark. If several begin at the same
/// position, the longest is returned.
pub(crate) fn first<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> Option<(usize, &'m str)> {
    let found = marks.filter_map(|mark| Some((text.find(mark)?, mark)));
    found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())))
}

/// Returns how many leading bytes of a text cannot be part of a mark, for any text that follows.
pub(super) fn settled<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> usize {
    let beginning = |mark: &str| {
        let longest = mark.len().saturating_sub(1).min(text.len());
        (1..=longest).rev().find(|n| {
            let at = text.len() - n;
            text.is_char_boundary(at) && mark.as_bytes().starts_with(&text.as_bytes()[at..])
        })
    };
    text.len() - marks.filter_map(beginning).max().unwrap_or(0)
}

/// Returns the largest character boundary up to `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Incremental scan of JSON that tracks depth and strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    seen: usize,
}

impl JsonScan {
    /// Scans up to the byte at `end`, or to the end of a bracketed value; returns the position
    /// after the value.
    pub(super) fn advance(&mut self, text: &str, end: usize) -> Option<usize> {
        while self.seen < end.min(text.len()) {
            let byte = text.as_bytes()[self.seen];
            self.seen += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.seen);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Whether the current position is within a string.
    pub(super) fn in_string(self) -> bool {
        self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_and_held_back() {
        let marks = || ["<a>", "<ab>", "｜x"].into_iter();
        assert_eq!(first("1<ab><a>", marks()), Some((1, "<ab>")));
        assert_eq!(first("none", marks()), None);
        assert_eq!(settled("1<a", marks()), 1);
        assert_eq!(settled("1<x", marks()), 3);
        assert_eq!(settled("é｜", marks()), 2);
        assert_eq!(cut("aé", 2), 1);
    }

    #[test]
    fn json_is_followed() {
        let text = r#"{"a": "}\"]", "b": [1]} x"#;
        let mut scan = JsonScan::default();
        assert_eq!(scan.advance(text, 8), None);
        assert!(scan.in_string());
        assert_eq!(scan.advance(text, text.len()), Some(text.len() - 2));
    }
}
