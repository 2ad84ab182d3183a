//! Pictures in prompts of the command line: files that a prompt names, as `lode run m "what is
//! this?" photo.jpg`, or as a terminal writes a file that is dropped on it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use protocol::Message;
use serde_json::Value;

use super::chat::message;

/// Endings of the names of pictures.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];
/// Largest file of a picture, in bytes; the limit of runners.
const MOST: u64 = 32 << 20;

/// A prompt and the files of its pictures.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PicturePrompt {
    text: String,
    files: Vec<PathBuf>,
}

impl PicturePrompt {
    /// Takes the pictures out of the words of a command line. A word that is the name of a file,
    /// with spaces or without, is a picture; others may contain some.
    pub(super) fn of_words(words: &[String]) -> Self {
        let mut prompt = Self::default();
        for word in words {
            if is_picture(Path::new(word)) {
                prompt.files.push(PathBuf::from(word));
                continue;
            }
            let Self { text, files } = Self::of_text(word);
            prompt.files.extend(files);
            if !prompt.text.is_empty() && !text.is_empty() {
                prompt.text.push(' ');
            }
            prompt.text.push_str(&text);
        }
        prompt
    }

    /// Takes the names of pictures out of a text. Names with spaces are in quotes, or the spaces
    /// have backslashes before them.
    pub(super) fn of_text(text: &str) -> Self {
        let (mut rest, mut files, mut from) = (String::new(), Vec::new(), 0);
        while let Some(begin) = text[from..].find(|letter: char| !letter.is_whitespace()).map(|at| from + at) {
            let (name, end) = word(text, begin);
            let path = expanded(&name);
            if is_picture(&path) {
                // The space before a name goes with it.
                files.push(path);
            } else {
                rest.push_str(&text[from..end]);
                if has_ending(&path) && name.contains('/') {
                    eprintln!("(there is no file `{name}`; it is sent as text)");
                }
            }
            from = end;
        }
        Self { text: if files.is_empty() { text.to_owned() } else { rest.trim().to_owned() }, files }
    }

    /// Adds a text at the end.
    pub(super) fn append(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.text.push_str(text);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.files.is_empty()
    }

    /// Returns the user's message, with the contents of the files.
    ///
    /// # Errors
    /// A file cannot be read, or is too large.
    pub(super) fn into_message(self) -> Result<Message> {
        let mut message = message("user", self.text);
        if !self.files.is_empty() {
            let images: Vec<Value> = self.files.iter().map(|path| Ok(encoded(path)?.into())).collect::<Result<_>>()?;
            message.rest.insert("images".to_owned(), images.into());
        }
        Ok(message)
    }
}

/// Whether a text begins with the name of a picture.
pub(super) fn begins_with_picture(text: &str) -> bool {
    is_picture(&expanded(&word(text, 0).0))
}

/// Returns the contents of a picture as base64.
fn encoded(path: &Path) -> Result<String> {
    let shown = path.display();
    let size = path.metadata().with_context(|| format!("`{shown}` cannot be read"))?.len();
    ensure!(size <= MOST, "the picture `{shown}` has {size} bytes, at most {MOST} are taken");
    let bytes = std::fs::read(path).with_context(|| format!("`{shown}` cannot be read"))?;
    Ok(BASE64_STANDARD.encode(bytes))
}

/// Returns the word that begins at `begin`, without quotes and backslashes, and where it ends.
fn word(text: &str, begin: usize) -> (String, usize) {
    let (mut name, mut quote, mut escapes) = (String::new(), None, false);
    for (at, letter) in text[begin..].char_indices() {
        match letter {
            _ if escapes => {
                name.push(letter);
                escapes = false;
            }
            '\\' if quote != Some('\'') => escapes = true,
            '\'' | '"' if quote.is_none() && at == 0 => quote = Some(letter),
            _ if quote == Some(letter) => {
                let end = begin + at + letter.len_utf8();
                return (name, end);
            }
            _ if quote.is_none() && letter.is_whitespace() => return (name, begin + at),
            _ => name.push(letter),
        }
    }
    if quote.is_some() {
        // A quotation mark that is not closed belongs to the text.
        let end = text[begin..].find(char::is_whitespace).map_or(text.len(), |at| begin + at);
        return (text[begin..end].to_owned(), end);
    }
    (name, text.len())
}

fn expanded(name: &str) -> PathBuf {
    match (name.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(name),
    }
}

fn has_ending(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.iter().any(|own| ending.eq_ignore_ascii_case(own)))
}

fn is_picture(path: &Path) -> bool {
    has_ending(path) && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_pictures() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "x").expect("a file");
            path.to_str().expect("a path").to_owned()
        };
        let (plain, spaced, other) = (file("a.JPG"), file("my own.png"), file("a.txt"));
        let found = |text: &str| {
            let PicturePrompt { text, files } = PicturePrompt::of_text(text);
            (text, files.len())
        };
        let expected = |text: &str, count| (text.to_owned(), count);
        assert_eq!(found(&format!("what is {plain}?")), expected(&format!("what is {plain}?"), 0));
        assert_eq!(found(&format!("what is this? {plain}")), expected("what is this?", 1));
        assert_eq!(found(&format!("{plain} and '{spaced}' differ")), expected("and differ", 2));
        assert_eq!(found(&format!("x {}", spaced.replace(' ', "\\ "))), expected("x", 1));
        assert_eq!(found(&plain), expected("", 1));
        assert!(begins_with_picture(&format!("{plain} what?")) && !begins_with_picture("/bye"));
        for text in [&format!("{other} x"), "don't do it", "  a \"b c", "what is a.png?", "a \\ b"] {
            assert_eq!(found(text), expected(text, 0));
        }
        let words = [&spaced, "what", &format!("is {plain}"), "this"].map(str::to_owned);
        let prompt = PicturePrompt::of_words(&words);
        assert_eq!((prompt.text.as_str(), prompt.files.len()), ("what is this", 2));
        let message = prompt.into_message().expect("files");
        assert_eq!(message.rest["images"], serde_json::json!(["eA==", "eA=="]));
    }
}
