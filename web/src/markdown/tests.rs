//! Tests of the conversion of Markdown, and that the result contains nothing active.

use proptest::prelude::*;

use super::*;

fn whole(text: &str) -> String {
    render(text).concat()
}

#[test]
fn blocks_are_apart() {
    let blocks = render("# A\n\ntext *b*\n\n- 1\n- 2\n\n---\n");
    assert_eq!(blocks.len(), 4, "{blocks:?}");
    assert_eq!(blocks[1].trim(), "<p>text <em>b</em></p>");
    // As an answer grows, only its last block changes.
    let more = render("# A\n\ntext *b*\n\n- 1\n- 2\n\n---\n\nmore");
    assert_eq!(blocks[..], more[..4]);
}

#[test]
fn html_is_text() {
    for (text, absent) in [
        ("<script>alert(1)</script>", "<script"),
        ("a <img src=x onerror=alert(1)> b", "<img"),
        ("<div>\n<iframe src=//x>\n</div>", "<iframe"),
        ("![a](https://x/y.png)", "<img"),
        ("[a](javascript:alert(1))", "href="),
        ("[a](/api/delete)", "href="),
        ("[a](data:text/html,x)", "href="),
        ("<a href=\"https://x\" onclick=\"x\">y</a>", "<a "),
        ("$\\href{javascript:alert(1)}{x}$", "href="),
        ("$\\operatorname{<h1 class=\"panel\">}$", "<h1"),
        ("$\\operatorname{</math><input type=password>}$", "<input"),
        ("```js\n</code></pre><script>x</script>\n```", "<script"),
        ("```\"><script>\nx\n```", "<script"),
    ] {
        let html = whole(text);
        assert!(!html.contains(absent), "{text}: {html}");
    }
    assert!(whole("<b>x</b>").contains("&lt;b&gt;x&lt;/b&gt;"), "{}", whole("<b>x</b>"));
    let link = whole("[a](https://example.org)");
    assert!(link.contains("noopener") && link.contains("target=\"_blank\""), "{link}");
}

#[test]
fn code_has_colours() {
    let html = whole("```rust\nfn main() {}\n```");
    assert!(html.contains("c-storage") && html.contains("data-language=\"rust\""), "{html}");
    assert!(whole("```nothing\na < b\n```").contains("a &lt; b"));
    let long = format!("```rust\n{}\n```", "a".repeat(2000));
    assert!(!whole(&long).contains("<span"), "a long line is data");
}

#[test]
fn formulas_are_set() {
    for text in ["$x^2$", "\\(x^2\\)", "so \\(x^2\\) is", "$$x^2$$", "\\[\nx^2\n\\]", "- \\[x^2\\]"] {
        let html = whole(text);
        assert!(html.contains("<math") && html.contains("<msup>"), "{text}: {html}");
    }
    for text in [
        "`\\(x\\)`",
        "``a ` \\(x\\)``",
        "```\n\\(x\\)\n```",
        "~~~\n\\[x\\]\n~~~",
        "    \\(x\\)",
        "- a\n\n      \\(x\\)",
        "> ```\n> \\[x\\]\n> ```",
        "\\\\(x\\\\)",
        "\\(x",
        "\\(x `\\)`",
        "[a](https://example.org/f_\\(x\\))",
        "![a](https://example.org/f_\\(x\\))",
        "<https://example.org/\\(x\\)>",
        "[a]: https://example.org/\\(x\\)\n\n[a]",
        "<script>\nlet a = /\\(x\\)/;\n</script>",
        "it costs $5 and $10",
    ] {
        assert!(!whole(text).contains("<math"), "{text}: {}", whole(text));
    }
    // Code keeps its original delimiters.
    assert!(whole("text \\(y\\)\n\n    print(\\(x\\))").contains("print(\\(x\\))"));
    assert!(whole("[f](https://example.org/f_\\(x\\))").contains("href=\"https://example.org/f_(x)\""));
    let quoted = whole("> \\[\n> x^2\n> > 1\n> \\]");
    let second = whole("> a\n\ntext\n\n> \\[\n> x\n> > 0\n> \\]");
    assert_eq!(second.matches("&gt;").count(), 1, "{second}");
    assert!(quoted.contains("<blockquote>") && quoted.matches("&gt;").count() == 1, "{quoted}");
    assert!(whole("a `b` \\(x\\) é \\[y\\]").matches("<math").count() == 2);
    for text in [
        "$\\def\\a{\\a\\a}\\a$",
        "$\\frac{1}$",
        "$\\nosuch$",
        // The library slices this string inside of a character.
        "$\\textcolor{#aéaaa}{x}$",
        &format!("${}x{}$", "{".repeat(500), "}".repeat(500)),
    ] {
        let html = whole(text);
        assert!(html.contains("<code>") && !html.contains("<math"), "{text}: {html}");
    }
}

#[test]
fn lines_end_where_they_were_ended() {
    assert!(whole("one\ntwo").contains("one<br>\ntwo"), "{}", whole("one\ntwo"));
}

/// Before the limits existed, each of these texts took minutes or more at a megabyte.
#[test]
fn texts_without_end_are_bounded() {
    for nested in ["> ", "+ "] {
        let blocks = render(&nested.repeat(LONGEST / nested.len()));
        assert!(blocks.len() == 1 && blocks[0].starts_with("<pre>"), "{nested}: {}", blocks.len());
    }
    for piece in ["\\(", "\\[", "*a ", "[", "`", "$", "<b>", "| a ", "\\operatorname{"] {
        assert!(!render(&piece.repeat(32_000 / piece.len())).is_empty(), "{piece}");
    }
    let line = format!("{}\n", "a".repeat(299));
    let code = whole(&format!("```js\n{}```", line.repeat(2000)));
    assert!(!code.contains("<span") && code.contains(&line), "it is there without colours");
}

#[test]
fn what_is_too_long_is_plain() {
    let text = "<b>".repeat(LONGEST / 2);
    let blocks = render(&text);
    assert!(blocks.len() == 1 && blocks[0].starts_with("<pre>&lt;b&gt;"));
}

/// Random sequences of Markdown, HTML and formulas.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        " ",
        "\n",
        "\n\n",
        "*",
        "**",
        "`",
        "```",
        "~~~",
        "rust\n",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "{",
        "}",
        "\\frac",
        "\\begin{matrix}",
        "\\end{matrix}",
        "&",
        "\\\\",
        "^",
        "_",
        "<script>",
        "</code>",
        "</pre>",
        "<math>",
        "<a href=",
        "\"",
        "'",
        "[",
        "](",
        ")",
        "javascript:",
        "> ",
        "- ",
        "1. ",
        "| ",
        "|-|-|\n",
        "![",
        "é",
        "\u{202e}",
        "<!--",
        "-->",
        "&lt;",
        "onerror=",
        "style=",
        "\\operatorname{",
        "\\left(",
        "\\right)",
        "\\text{",
        "#",
        "[^1]",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Returns the tags of HTML, without their brackets.
fn tags(html: &str) -> Vec<&str> {
    let (mut tags, mut begin, mut quoted) = (Vec::new(), None, false);
    for (at, character) in html.char_indices() {
        match (character, begin) {
            ('<', None) => (begin, quoted) = (Some(at + 1), false),
            ('"', Some(_)) => quoted = !quoted,
            ('>', Some(start)) if !quoted => {
                tags.push(&html[start..at]);
                begin = None;
            }
            _ => {}
        }
    }
    tags
}

proptest! {
    #[test]
    fn nothing_acts_by_itself(text in pieces()) {
        for block in render(&text) {
            let lower = block.to_lowercase();
            for tag in ["<script", "<img", "<iframe", "<style", "<svg", "<form", "<object", "<!--", "<base", "<link"] {
                prop_assert!(!lower.contains(tag), "{text:?}: {block}");
            }
            for tag in tags(&lower) {
                // Parts inside of quotes are values; the other parts are the tag and the names of
                // its attributes.
                let names: String = tag.split('"').step_by(2).collect();
                prop_assert!(!names.contains(" on") && !names.contains("style="), "{text:?}: {block}");
                for address in tag.split("href=\"").skip(1) {
                    prop_assert!(address.starts_with("http") || address.starts_with("mailto:"), "{text:?}: {block}");
                }
            }
        }
    }
}
