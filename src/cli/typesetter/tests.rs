//! Texts and their typeset output.

use super::*;

fn set(text: &str, columns: Option<usize>, styled: bool) -> String {
    let mut typesetter = Typesetter::new(Setting { columns, styled });
    typesetter.push(text) + &typesetter.end()
}

/// Typesets a text and makes its styles readable.
fn shown(text: &str) -> String {
    set(text, None, true)
        .replace(BOLD.0, "<b>")
        .replace(BOLD.1, "</b>")
        .replace(ITALIC.0, "<i>")
        .replace(ITALIC.1, "</i>")
        .replace(CODE.0, "<c>")
        .replace(CODE.1, "</c>")
}

#[test]
fn words_stay_whole() {
    for (text, columns, expect) in [
        ("one two three", 7, "one two\nthree"),
        ("one two three", 8, "one two\nthree"),
        ("one  two", 80, "one  two"),
        ("a\n\nb\n", 3, "a\n\nb\n"),
        ("trailing \nblank", 80, "trailing\nblank"),
        // A word longer than the line is left to the terminal to break.
        ("see https://example.com/a/b end", 10, "see\nhttps://example.com/a/b\nend"),
        ("- one two three", 9, "- one two\n  three"),
        ("10. one two three", 11, "10. one two\n    three"),
        ("  - one two", 8, "  - one\n    two"),
        ("漢字漢字漢字。", 8, "漢字漢字\n漢字。"),
        ("日本語。終", 6, "日本\n語。終"),
        ("e\u{301}e\u{301} e\u{301}e\u{301}", 5, "e\u{301}e\u{301} e\u{301}e\u{301}"),
        ("```\na b c d e f\n```\na b c", 5, "```\na b c d e f\n```\na b c"),
        ("| a | b | c |\n", 5, "| a | b | c |\n"),
    ] {
        assert_eq!(set(text, Some(columns), false), expect, "{text:?} in {columns}");
    }
}

#[test]
fn marks_become_styles() {
    for (text, expect) in [
        ("a **b c** d", "a <b>b c</b> d"),
        ("*a* _b_ ***c***", "<i>a</i> <i>b</i> <b><i>c</b></i>"),
        ("`a*b*` and ``c`d``", "<c>a*b*</c> and <c>c`d</c>"),
        ("# Title\ntext", "<b>Title</b>\ntext"),
        ("## A **b** c", "<b>A b c</b>"),
        ("- a\n* **b**: c\n1. d", "• a\n• <b>b</b>: c\n1. d"),
        ("**a**b, (**c**).", "<b>a</b>b, (<b>c</b>)."),
        // An unclosed style ends with its line.
        ("**a\nb", "<b>a</b>\nb"),
    ] {
        assert_eq!(shown(text), expect, "{text:?}");
    }
}

#[test]
fn what_is_no_mark_is_text() {
    for text in [
        "2 * 3 * 4",
        "2*3*4",
        "2**10",
        "snake_case_name",
        "a * b",
        "#hashtag",
        "-5",
        "3.14",
        "***",
        "---",
        "5 > 3",
        "```rust\nlet a = **b; // *c*\n```",
        "~~~\n# no title\n~~~",
        "| **a** | b |",
        "\\(a_1 + b_2\\)",
        "****",
        "a ` b",
    ] {
        assert_eq!(shown(text), text);
    }
}

#[test]
fn plain_texts_keep_their_marks() {
    let text = "# A\n- **b** `c`\n";
    assert_eq!(set(text, None, false), text);
}

#[test]
fn pieces_of_any_length_give_the_same() {
    let text = "# Über\n\n1. **Lemon** - the *only* `citrus` fruit that is not a tree, 漢字漢字漢字。\n\n```py\nx = a**b  # c\n```\n- done_it **now\nend";
    for columns in [None, Some(20), Some(37)] {
        let whole = set(text, columns, true);
        let characters: Vec<char> = text.chars().collect();
        for length in 1..9 {
            let mut typesetter = Typesetter::new(Setting { columns, styled: true });
            let pieces = characters.chunks(length).map(|piece| typesetter.push(&piece.iter().collect::<String>()));
            let pieces: String = pieces.collect();
            assert_eq!(pieces + &typesetter.end(), whole, "pieces of {length}");
        }
    }
}

#[test]
fn little_is_held_back() {
    let mut typesetter = Typesetter::new(Setting { columns: Some(80), styled: true });
    assert_eq!(typesetter.push("Hello"), "");
    assert_eq!(typesetter.push(" wor"), "Hello");
    assert_eq!(typesetter.push("ld\n"), " world\n");
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    let text = "The quick **brown** fox _jumps_ over the `lazy` dog, again and again. ".repeat(20);
    for columns in [10, 20, 79] {
        let set = set(&text, Some(columns), false);
        assert!(set.lines().all(|line| line.chars().count() <= columns), "{set}");
    }
}
