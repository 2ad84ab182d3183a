//! The pictures of a request. Their files go to the runner beside the messages; in the text, a mark
//! stands for each of them. A picture is base64, or an https URL, which the daemon replaces.

use protocol::picture_mark;

/// The pictures of a request, in the order of their marks.
#[derive(Debug, Default)]
pub(crate) struct Pictures {
    files: Vec<String>,
}

impl Pictures {
    /// Adds a picture, as base64. Returns its mark.
    pub(crate) fn add(&mut self, file: String) -> String {
        self.files.push(file);
        picture_mark(self.files.len() - 1)
    }

    /// Adds the picture in a data URL, or at an https URL. Returns its mark.
    ///
    /// # Errors
    /// It is another URL, or its data is not base64.
    pub(crate) fn add_url(&mut self, url: &str) -> Result<String, String> {
        if is_remote(url) {
            return Ok(self.add(url.to_owned()));
        }
        let data = url.strip_prefix("data:").ok_or_else(|| not_fetched(url))?;
        let shown = beginning(url);
        let (kind, file) = data.split_once(',').ok_or_else(|| format!("`{shown}` is a data URL without data"))?;
        if !kind.ends_with(";base64") {
            return Err(format!("the data of `{shown}` is not base64"));
        }
        Ok(self.add(file.to_owned()))
    }

    /// Returns the files, in the order of their marks.
    pub(crate) fn into_files(self) -> Vec<String> {
        self.files
    }

    /// Adds the pictures of an Ollama message with this text. Returns the text with their marks: at
    /// the first tag of each, which is `[img]` for the next picture, or `[img-N]`. Pictures without
    /// a tag come first.
    pub(crate) fn add_tagged(&mut self, text: &str, files: &[String]) -> String {
        let tags = tags(text, files.len());
        let is_tagged = |index: usize| tags.iter().any(|(_, _, own)| *own == index);
        let mut marked = String::new();
        for (_, file) in files.iter().enumerate().filter(|(index, _)| !is_tagged(*index)) {
            marked.push_str(&self.add(file.clone()));
        }
        let mut from = 0;
        for (begin, end, index) in &tags {
            marked.push_str(&text[from..*begin]);
            marked.push_str(&self.add(files[*index].clone()));
            from = *end;
        }
        marked.push_str(&text[from..]);
        marked
    }
}

/// True if a picture of a request is an https URL, and not base64.
pub fn is_remote(picture: &str) -> bool {
    picture.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

/// Returns the error for a URL from which pictures are not fetched.
pub fn not_fetched(url: &str) -> String {
    let shown = beginning(url);
    format!("pictures are not fetched from `{shown}`; send the picture as a data URL: data:image/png;base64,…")
}

/// Returns as much of a URL as errors show.
fn beginning(url: &str) -> String {
    url.chars().take(40).collect()
}

/// Longest text of a number in a tag, in bytes.
const LONGEST_NUMBER: usize = 12;

/// Returns the tags of `count` pictures in a text: where they begin and end, and the index of the
/// picture.
fn tags(text: &str, count: usize) -> Vec<(usize, usize, usize)> {
    let (mut found, mut from, mut next) = (Vec::<(usize, usize, usize)>::new(), 0, 0);
    if count == 0 {
        return found;
    }
    while let Some(begin) = text[from..].find("[img").map(|at| from + at) {
        let behind = begin + "[img".len();
        // The longest number of a tag is short.
        let near = &text.as_bytes()[behind..text.len().min(behind + LONGEST_NUMBER)];
        let number = near.iter().position(|byte| *byte == b']').and_then(|end| text.get(behind..behind + end));
        let tag = number.and_then(|number| {
            let index = match number.strip_prefix('-') {
                Some(number) => number.parse().ok()?,
                None if number.is_empty() => next,
                None => return None,
            };
            let is_new = !found.iter().any(|(_, _, known)| *known == index);
            (index < count && is_new).then_some((begin, behind + number.len() + 1, index))
        });
        from = behind;
        if let Some(tag) = tag {
            (from, next) = (tag.1, tag.2 + 1);
            found.push(tag);
        }
    }
    found
}

/// The text of a content that consists of parts. Texts that follow each other are joined by line
/// breaks.
#[derive(Debug, Default)]
pub(crate) struct JoinedText {
    text: String,
    ends_with_text: bool,
}

impl JoinedText {
    pub(crate) fn push_text(&mut self, text: &str) {
        if self.ends_with_text {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.ends_with_text = true;
    }

    /// Adds the mark of a picture.
    pub(crate) fn push_mark(&mut self, mark: &str) {
        self.text.push_str(mark);
        self.ends_with_text = false;
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_are_taken() {
        let mut pictures = Pictures::default();
        assert_eq!(pictures.add_url("data:image/png;base64,QUJD"), Ok(picture_mark(0)));
        assert_eq!(pictures.add_url("data:;base64,RA=="), Ok(picture_mark(1)));
        assert_eq!(pictures.add_url("https://example.com/a.png"), Ok(picture_mark(2)));
        for url in [
            "http://example.com/a.png",
            "ftp://example.com/a.png",
            "data:image/png,abc",
            "data:image/png;base64",
            "",
            "a.png",
        ] {
            assert!(pictures.add_url(url).is_err(), "{url}");
        }
        assert_eq!(pictures.into_files(), ["QUJD", "RA==", "https://example.com/a.png"]);
    }

    #[test]
    fn tags_of_ollama_say_where_pictures_are() {
        let marked = |text: &str, files: &[&str]| {
            let mut pictures = Pictures::default();
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            let text = pictures.add_tagged(text, &files);
            let text = (0..=files.len()).fold(text, |text, at| text.replace(&picture_mark(at), &format!("<{at}>")));
            (text, pictures.into_files().join(""))
        };
        let expected = |text: &str, files: &str| (text.to_owned(), files.to_owned());
        assert_eq!(marked("what?", &["a", "b"]), expected("<0><1>what?", "ab"));
        assert_eq!(marked("x [img] y [img]", &["a", "b"]), expected("x <0> y <1>", "ab"));
        assert_eq!(marked("[img-1] and [img-0]", &["a", "b"]), expected("<0> and <1>", "ba"));
        assert_eq!(marked("[img-1]!", &["a", "b"]), expected("<0><1>!", "ab"));
        assert_eq!(marked("[img] [img] [img-7] [image] [img", &["a"]), expected("<0> [img] [img-7] [image] [img", "a"));
        assert_eq!(marked("[img-0][img-0]", &["a"]), expected("<0>[img-0]", "a"));
        assert_eq!(marked("[img]", &[]), expected("[img]", ""));
    }
}
