//! The text of prompts with pictures: the marks of a request become the text that stands for
//! pictures, and then the ids of their rows.
//!
//! ```text
//! content with marks ─▶ template ─▶ text with the model's marks ─▶ expanded text ─▶ ids
//! ```

use anyhow::{Result, ensure};
use prompt::Tokenizer;
use protocol::{TextPart, text_parts};

use crate::picture_rows::PictureGrid;

/// The text that stands for pictures, with the token of their rows.
#[derive(Debug)]
pub(crate) struct PictureText {
    own: architectures::PictureText,
    /// `None` if the vocabulary does not have it, as that of `LLaVA`'s first files.
    token: Option<u32>,
}

/// Stands for a row until its id is known, if the vocabulary has no token for it.
const NO_TOKEN: u32 = u32::MAX;

impl PictureText {
    /// # Errors
    /// The tokenizer does not have the token, which is more than a mark; the text is the reason.
    pub(crate) fn new(own: &architectures::PictureText, tokenizer: &Tokenizer) -> Result<Self, String> {
        let token = tokenizer.id(&own.token);
        if token.is_none() && own.mark != own.token {
            return Err(format!("the tokenizer has no token `{}`", own.token));
        }
        Ok(Self { own: own.clone(), token })
    }

    /// Creates a value for a vocabulary without a token for rows.
    #[cfg(test)]
    pub(crate) fn without_token(own: &architectures::PictureText) -> Self {
        Self { own: own.clone(), token: None }
    }

    /// Returns the token that is repeated for each row of a picture, or one that stands for it.
    pub(crate) fn token(&self) -> u32 {
        self.token.unwrap_or(0)
    }

    /// Converts an expanded text to tokens. If the vocabulary has no token for rows, the texts
    /// between pictures are converted one by one; `encode` gets each, and whether it is the first.
    ///
    /// # Errors
    /// `encode` fails.
    pub(crate) fn tokens(&self, expanded: &str, encode: impl Fn(&str, bool) -> Result<Vec<u32>>) -> Result<Vec<u32>> {
        if self.token.is_some() {
            return encode(expanded, true);
        }
        let mut tokens = Vec::new();
        for (index, piece) in expanded.split(&self.own.token).enumerate() {
            if index > 0 {
                tokens.push(NO_TOKEN);
            }
            if index == 0 || !piece.is_empty() {
                tokens.extend(encode(piece, index == 0)?);
            }
        }
        Ok(tokens)
    }

    /// Refuses a text with the model's own mark or token: it would be taken for a picture.
    pub(crate) fn check(&self, text: &str) -> Result<()> {
        for own in [&self.own.mark, &self.own.token] {
            ensure!(!text.contains(own.as_str()), "the text has `{own}`, which stands for pictures here; remove it");
        }
        Ok(())
    }

    /// Whether a text has the model's mark of each of `count` pictures, and no others.
    pub(crate) fn marks(&self, text: &str, count: usize) -> bool {
        text.matches(&self.own.mark).count() == count
    }

    /// Replaces the marks of a request by the model's text for a picture.
    pub(crate) fn framed(&self, text: &str, count: usize) -> String {
        let part = |part| match part {
            TextPart::Text(text) => text,
            TextPart::Picture(_) => self.own.framed.as_str(),
        };
        text_parts(text, count).into_iter().map(part).collect()
    }

    /// Replaces the model's marks by as many tokens as the pictures have rows.
    pub(crate) fn expanded(&self, text: &str, pictures: &[PictureGrid]) -> String {
        let mut pieces = text.split(&self.own.mark);
        let mut expanded = pieces.next().unwrap_or_default().to_owned();
        for (piece, picture) in pieces.zip(pictures) {
            expanded.push_str(&self.own.before);
            self.add_parts(picture, &mut expanded);
            expanded.push_str(&self.own.after);
            expanded.push_str(piece);
        }
        expanded
    }

    /// Appends the text of a picture, or of its tiles and its small copy.
    fn add_parts(&self, picture: &PictureGrid, text: &mut String) {
        let own = &self.own.tiles;
        let of_part = |[columns, lines]: [usize; 2]| {
            let line = self.own.token.repeat(columns);
            vec![line; lines].join(&self.own.between_lines)
        };
        let part = of_part([picture.columns, picture.lines]);
        let Some(tiles) = picture.tiles else {
            text.push_str(&own.before_whole);
            text.push_str(&part);
            return;
        };
        for row in 1..=tiles.rows {
            let tile = |column: usize| {
                let before = own.before.replace("{row}", &row.to_string()).replace("{column}", &column.to_string());
                before + &part
            };
            text.extend((1..=tiles.columns).map(tile));
            text.push_str(&own.after_row);
        }
        if let Some(copy) = tiles.copy {
            text.push_str(&own.before_copy);
            text.push_str(&of_part(copy));
        }
    }

    /// Replaces the tokens of pictures by the ids of their rows.
    ///
    /// # Errors
    /// Fails if there are more or fewer of these tokens than rows.
    pub(crate) fn placed(&self, mut tokens: Vec<u32>, pictures: &[PictureGrid]) -> Result<Vec<u32>> {
        let mut rows = pictures.iter().flat_map(|picture| picture.ids());
        let expected: usize = pictures.iter().map(|picture| picture.count()).sum();
        let own = self.token.unwrap_or(NO_TOKEN);
        let found = tokens.iter().filter(|token| **token == own).count();
        let name = &self.own.token;
        ensure!(found == expected, "the prompt has {found} tokens `{name}`, expected {expected} for its pictures");
        for token in tokens.iter_mut().filter(|token| **token == own) {
            *token = rows.next().unwrap_or(*token);
        }
        Ok(tokens)
    }
}

/// Checks that the contents of a prompt have the mark of each picture once, in order.
///
/// # Errors
/// A mark is missing, repeated or misplaced.
pub(crate) fn check_marks<'a>(texts: impl Iterator<Item = &'a str>, count: usize) -> Result<()> {
    let part = |part| match part {
        TextPart::Picture(index) => Some(index),
        TextPart::Text(_) => None,
    };
    let found: Vec<usize> = texts.flat_map(|text| text_parts(text, count)).filter_map(part).collect();
    ensure!(
        found.iter().copied().eq(0..count),
        "the prompt has the marks of pictures {found:?}, expected those of {count} pictures in order"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use architectures::TileText;
    use protocol::picture_mark;

    use super::*;
    use crate::picture_rows::{FIRST_ROW, TileGrid};

    fn text() -> PictureText {
        let own = architectures::PictureText {
            mark: "<img>".to_owned(),
            framed: "[<img>]".to_owned(),
            before: "(".to_owned(),
            token: "<p>".to_owned(),
            between_lines: "|".to_owned(),
            after: ")".to_owned(),
            tiles: TileText {
                before_whole: "w".to_owned(),
                before: "{row}.{column}:".to_owned(),
                after_row: ";".to_owned(),
                before_copy: "c".to_owned(),
            },
        };
        PictureText { own, token: Some(7) }
    }

    #[test]
    fn marks_become_rows() {
        let (text, grid) = (text(), |first, columns| PictureGrid::whole(first, columns, 1));
        let framed = text.framed(&format!("a{}b{}", picture_mark(0), picture_mark(1)), 2);
        assert_eq!(framed, "a[<img>]b[<img>]");
        assert!(text.marks(&framed, 2) && !text.marks(&framed, 1));
        assert!(text.check("a <image>").is_ok() && text.check("a <img>").is_err() && text.check("<p>").is_err());
        let grids = [grid(FIRST_ROW, 2), grid(FIRST_ROW + 3, 1)];
        assert_eq!(text.expanded(&framed, &grids), "a[(w<p><p>)]b[(w<p>)]");
        let lines = PictureGrid::whole(FIRST_ROW, 2, 2);
        assert_eq!(text.expanded("<img>", &[lines]), "(w<p><p>|<p><p>)");
        let placed = text.placed(vec![1, 7, 7, 2, 7], &grids).expect("rows");
        assert_eq!(placed, [1, FIRST_ROW, FIRST_ROW + 1, 2, FIRST_ROW + 3]);
        assert!(text.placed(vec![7, 7, 7, 7], &grids).is_err(), "one too many");
    }

    #[test]
    fn rows_need_no_token() {
        let own = architectures::PictureText { mark: "<p>".to_owned(), token: "<p>".to_owned(), ..text().own };
        let text = PictureText { own, token: None };
        let encode = |piece: &str, is_first: bool| {
            Ok(std::iter::once(1).filter(|_| is_first).chain(piece.bytes().map(u32::from)).collect())
        };
        let tokens = text.tokens("<p><p>a<p>b", encode).expect("tokens");
        assert_eq!(tokens, [1, NO_TOKEN, NO_TOKEN, 97, NO_TOKEN, 98]);
        let placed = text.placed(tokens, &[PictureGrid::whole(FIRST_ROW, 3, 1)]).expect("rows");
        assert_eq!(placed, [1, FIRST_ROW, FIRST_ROW + 1, 97, FIRST_ROW + 2, 98]);
    }

    #[test]
    fn tiles_have_places() {
        let grid = |copy| {
            let tiles = Some(TileGrid { columns: 2, rows: 2, copy });
            PictureGrid { tiles, ..PictureGrid::whole(FIRST_ROW, 1, 1) }
        };
        assert_eq!(text().expanded("<img>", &[grid(None)]), "(1.1:<p>1.2:<p>;2.1:<p>2.2:<p>;)");
        assert!(text().expanded("<img>", &[grid(Some([2, 1]))]).ends_with(";c<p><p>)"));
    }

    #[test]
    fn marks_are_in_order() {
        let [first, second] = [0, 1].map(picture_mark);
        let check = |texts: &[&str]| check_marks(texts.iter().copied(), 2).is_ok();
        assert!(check(&[&first, "x", &second]));
        assert!(!check(&[&second, &first]) && !check(&[&first]) && !check(&[&first, &first, &second]));
    }
}
