//! Names of types: a name has one meaning in the workspace, as far as possible.

use std::collections::BTreeMap;

use crate::rust_source::product_code;
use crate::tidy::sources;

/// How often a name may be defined, unless [`OFTEN`] lists it.
const MOST: usize = 3;

/// Names that may be defined more often, with their number. The list may only become shorter.
const OFTEN: [(&str, usize); 10] = [
    // Every crate has its error, and every shared handle its inner state.
    ("Error", usize::MAX),
    ("Inner", usize::MAX),
    // APIs of other programs define the names of their documents.
    ("Model", 5),
    ("Usage", 4),
    ("Kind", 4),
    ("Embedding", 4),
    ("Reader", 4),
    ("Writer", 4),
    ("Memory", 4),
    ("Kernels", 4),
];

/// Names that were replaced by standard terms, and may not return.
const REFUSED: [&str; 13] = [
    "Answer", "Border", "Called", "Demand", "Dialogue", "Found", "Held", "Named", "Own", "Place", "Pulse", "TurnOf",
    "Wanted",
];

#[test]
fn names_of_types_are_distinct() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in sources() {
        let is_test = path.split('/').any(|part| part == "tests") || path.ends_with("tests.rs");
        if is_test || path.starts_with("fuzz/") {
            continue;
        }
        for name in product_code(&source).lines().filter_map(defined_type) {
            defined.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(defined.len() > 1000, "only {} types were found", defined.len());
    let refused: Vec<_> = defined.iter().filter(|(name, _)| REFUSED.contains(&name.as_str())).collect();
    assert!(refused.is_empty(), "these names say nothing: {refused:#?}");
    let often: BTreeMap<&str, usize> = OFTEN.into_iter().collect();
    let allowed = |name: &str| often.get(name).copied().unwrap_or(MOST);
    let too_often: Vec<_> = defined.iter().filter(|(name, paths)| paths.len() > allowed(name)).collect();
    assert!(too_often.is_empty(), "these names have too many meanings: {too_often:#?}");
    let lower = |(name, most): &(&&str, &usize)| {
        **most != usize::MAX && defined.get(**name).is_none_or(|paths| paths.len() < **most)
    };
    let lower: Vec<_> = often.iter().filter(lower).collect();
    assert!(lower.is_empty(), "these entries of OFTEN can be lowered: {lower:?}");
}

/// The name of the type that a line at the left margin defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split(' ').filter(|word| !word.starts_with("pub"));
    // `pub(in crate::…)` has a blank.
    let first = words.find(|word| !word.ends_with(')') || !word.contains("::"))?;
    let is_definition = ["struct", "enum", "trait", "union", "type"].contains(&first);
    let name = words.next().filter(|_| is_definition && line.starts_with(|c: char| !c.is_whitespace()))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end])
}

#[test]
fn definitions_are_found() {
    for (line, expect) in [
        ("struct A;", Some("A")),
        ("pub(crate) enum B<T> {", Some("B")),
        ("pub(in crate::x) trait C: Send {", Some("C")),
        ("    type D = u8;", None),
        ("impl E {", None),
        ("fn f() {}", None),
    ] {
        assert_eq!(defined_type(line), expect, "{line}");
    }
}
