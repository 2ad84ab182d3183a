//! Human-readable tables, sizes and times, and sanitizing of untrusted text.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::SystemTime;

use indicatif::HumanDuration;
use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Prints a table with columns as wide as needed. On a terminal, the widest columns shrink until a
/// line fits.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) {
    let cell = |cell: &String| plain(cell).replace(['\n', '\t'], " ");
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width());
        cells.chain([head[column].width()]).max().unwrap_or(0)
    };
    let (widths, gap) = fitted((0..head.len()).map(width).collect(), columns());
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
        println!("{}", padded.join(&" ".repeat(gap)).trim_end());
    };
    line(&mut head.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
}

/// Returns the column widths that fit a line, and the gap between columns.
fn fitted(mut widths: Vec<usize>, columns: Option<usize>) -> (Vec<usize>, usize) {
    /// Minimum width of a column.
    const NARROWEST: usize = 12;
    let Some(columns) = columns else { return (widths, 4) };
    let total = |widths: &[usize], gap: usize| widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1);
    let gap = if total(&widths, 4) > columns { 2 } else { 4 };
    while total(&widths, gap) > columns {
        let widest = widths.iter_mut().max().filter(|width| **width > NARROWEST);
        let Some(widest) = widest else { break };
        *widest -= 1;
    }
    (widths, gap)
}

/// Pads a cell to a width, or cuts it.
fn padded(cell: &str, width: usize) -> String {
    let own = cell.width();
    if own <= width {
        return format!("{cell}{}", " ".repeat(width - own));
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= left;
        left = if fits { left - wide } else { 0 };
        fits
    };
    let kept: String = cell.chars().take_while(fits).collect();
    let blanks = width.saturating_sub(kept.width() + 1);
    format!("{kept}…{}", " ".repeat(blanks))
}

/// Breaks a text between words into lines of at most `columns` columns. A longer word gets a
/// separate line.
pub(super) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut out = words.next().unwrap_or_default().to_owned();
        for word in words {
            if !out.trim().is_empty() && out.width() + 1 + word.width() > columns {
                lines.push(std::mem::replace(&mut out, word.to_owned()));
            } else {
                out.push(' ');
                out.push_str(word);
            }
        }
        lines.push(out);
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

/// Prints why a command failed, wrapped at the width of the terminal if there is one.
pub(super) fn tell_error(error: &anyhow::Error) {
    let text = format!("Error: {}", plain(&format!("{error:#}")));
    match columns_of(std::io::stderr()) {
        Some(columns) => eprintln!("{}", wrapped(&text, columns).join("\n")),
        None => eprintln!("{text}"),
    }
}

/// Returns the width of the terminal at standard output; `None` if it is not a terminal.
pub(super) fn columns() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn columns_of(file: impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(file).ok()?;
    // A terminal that does not report its size gets the usual width.
    Some(if size.ws_col == 0 { 80 } else { size.ws_col.into() })
}

/// Removes from an untrusted text (of a model, a registry or another machine) all characters that
/// control a terminal. They could move the cursor, change colors or the window, or reverse the text
/// direction, and so imitate other output.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    // `\r` ends lines in Windows texts, and Hebrew and Arabic texts may contain the direction
    // marks, so these are dropped without a replacement.
    let dropped = |c: char| matches!(c, '\r' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(|c| dropped(c) || obeyed(c)) {
        return text.into();
    }
    text.replace(dropped, "").replace(obeyed, "\u{fffd}").into()
}

/// Sanitizes a text if standard output is a terminal; files and other programs receive it
/// unchanged.
pub(super) fn plain_for_terminal(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { plain(text) } else { text.into() }
}

/// Formats an RFC 3339 time relative to now: `3 minutes ago`, `in 4 minutes`.
pub(super) fn relative(time: &str) -> String {
    let Ok(time) = time.parse::<Timestamp>() else {
        // jiff cannot express the last days of the year 9999, which stand for an unlimited time.
        let is_last = time.starts_with("9999-12-3");
        return if is_last { "forever".to_owned() } else { time.to_owned() };
    };
    let (time, now) = (SystemTime::from(time), SystemTime::now());
    match (now.duration_since(time), time.duration_since(now)) {
        (Ok(ago), _) => format!("{} ago", HumanDuration(ago)),
        (_, Ok(left)) if left.as_secs() > 10 * 365 * 24 * 3600 => "forever".to_owned(),
        (_, Ok(left)) => format!("in {}", HumanDuration(left)),
        _ => "now".to_owned(),
    }
}

/// Returns the digits of a digest that tables show.
pub(super) fn short(digest: &str) -> String {
    digest.strip_prefix("sha256:").unwrap_or(digest).chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_the_terminal() {
        assert_eq!(fitted(vec![10, 20], Some(80)), (vec![10, 20], 4));
        assert_eq!(fitted(vec![10, 20], Some(33)), (vec![10, 20], 2));
        assert_eq!(fitted(vec![10, 64, 30], Some(80)), (vec![10, 36, 30], 2));
        assert_eq!(fitted(vec![64, 64], None), (vec![64, 64], 4));
        // If the columns cannot shrink any further, the line is too long.
        assert_eq!(fitted(vec![12; 10], Some(80)).0, vec![12; 10]);
        for (cell, width, expect) in
            [("ab", 4, "ab  "), ("abcdef", 4, "abc…"), ("漢字漢", 4, "漢… "), ("漢字", 4, "漢字")]
        {
            assert_eq!(padded(cell, width), expect);
        }
    }

    #[test]
    fn texts_are_broken_between_words() {
        for (text, columns, expect) in [
            ("", 80, vec![""]),
            ("one two three", 80, vec!["one two three"]),
            ("one two three", 7, vec!["one two", "three"]),
            ("one two three", 2, vec!["one", "two", "three"]),
            ("漢字 漢字 漢字", 9, vec!["漢字 漢字", "漢字"]),
            ("one\n\ntwo", 80, vec!["one", "", "two"]),
            ("  indented  text", 80, vec!["  indented  text"]),
        ] {
            assert_eq!(wrapped(text, columns), expect, "{text} in {columns}");
        }
    }

    #[test]
    fn texts_of_strangers_move_no_cursor() {
        let cases = [
            ("é\n\tü 漢字", "é\n\tü 漢字"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\u{fffd}[2J\u{fffd}]0;title\u{fffd}"),
            ("a\r\nb\rc\u{8}\u{9b}31m", "a\nbc\u{fffd}\u{fffd}31m"),
            ("safe\u{202e}gpj.exe", "safegpj.exe"),
        ];
        for (text, expect) in cases {
            assert_eq!(plain(text), expect);
        }
    }
}
