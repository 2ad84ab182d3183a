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
    token: u32,
}

impl PictureText {
    /// # Errors
    /// The tokenizer does not have the token; the text is the reason.
    pub(crate) fn new(own: &architectures::PictureText, tokenizer: &Tokenizer) -> Result<Self, String> {
        let token = tokenizer.id(&own.token);
        let token = token.ok_or_else(|| format!("the tokenizer has no token `{}`", own.token))?;
        Ok(Self { own: own.clone(), token })
    }

    /// Returns the token that is repeated for each row of a picture.
    pub(crate) fn token(&self) -> u32 {
        self.token
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
            let row: Vec<String> = (1..=tiles.columns).map(tile).collect();
            text.push_str(&row.join(&own.between));
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
        let found = tokens.iter().filter(|token| **token == self.token).count();
        let name = &self.own.token;
        ensure!(found == expected, "the prompt has {found} tokens `{name}`, expected {expected} for its pictures");
        for token in tokens.iter_mut().filter(|token| **token == self.token) {
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
                between: ",".to_owned(),
                after_row: ";".to_owned(),
                before_copy: "c".to_owned(),
            },
        };
        PictureText { own, token: 7 }
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
    fn tiles_have_places() {
        let grid = |copy| {
            let tiles = Some(TileGrid { columns: 2, rows: 2, copy });
            PictureGrid { tiles, ..PictureGrid::whole(FIRST_ROW, 1, 1) }
        };
        assert_eq!(text().expanded("<img>", &[grid(None)]), "(1.1:<p>,1.2:<p>;2.1:<p>,2.2:<p>;)");
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
