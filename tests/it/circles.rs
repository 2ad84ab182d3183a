//! Files of a crate do not need each other in circles, so that they can be read one after the
//! other. A module and the modules below it belong together and may need each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust_source::product_code;
use crate::tidy::{EDGES, sources};

/// The modules of a crate.
struct Crate {
    /// Code by module path; the root of the crate is the empty path.
    modules: BTreeMap<String, String>,
    /// The path behind a name that a module re-exports.
    exports: BTreeMap<(String, String), String>,
}

#[test]
fn files_do_not_need_each_other_in_circles() {
    let sources = sources();
    let mut circles = Vec::new();
    for (folder, name, _) in EDGES {
        let own = if folder.is_empty() { "src/".to_owned() } else { format!("{folder}/src/") };
        let files = sources.iter().filter_map(|(path, source)| Some((path.strip_prefix(&own)?, source.as_str())));
        let files = Crate::new(files);
        assert!(files.modules.len() > 1, "only {} files were found below `{own}`", files.modules.len());
        let needs = files.needs();
        if !needs.is_empty() {
            circles.push(format!("{name}: {needs:#?}"));
        }
    }
    assert!(circles.is_empty(), "these files need each other: {}", circles.join("\n"));
}

#[test]
fn circles_are_found() {
    let check = |files: &[(&str, &str)]| Crate::new(files.iter().copied()).needs().len();
    let root = ("lib.rs", "mod a; mod b; pub use b::Thing;");
    assert_eq!(check(&[root, ("a.rs", "use crate::b::X;"), ("b.rs", "use crate::{c, a::{Y, Z}};")]), 2);
    assert_eq!(check(&[root, ("a.rs", "use super::b;"), ("b.rs", "fn f() { crate::a::g() }")]), 2);
    // Through a name that the root re-exports.
    assert_eq!(check(&[root, ("a.rs", "use crate::Thing;"), ("b.rs", "use crate::a;")]), 2);
    assert_eq!(check(&[root, ("a.rs", "use crate::b;"), ("b.rs", "// crate::a")]), 0);
    assert_eq!(check(&[root, ("a.rs", "use crate::b;"), ("b.rs", "#[cfg(test)] mod tests { use crate::a; }")]), 0);
    assert_eq!(check(&[root, ("a.rs", "mod c; use c::X;"), ("a/c.rs", "use super::Y;")]), 0);
}

impl Crate {
    /// Files by their path below `src`, with their text.
    fn new<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let modules: BTreeMap<String, String> =
            files.filter_map(|(path, source)| Some((module(path)?, product_code(source)))).collect();
        let mut exports = BTreeMap::new();
        for (name, code) in &modules {
            for statement in code.split(';') {
                let Some((before, tree)) = statement.rsplit_once("use ") else { continue };
                let visibility = before.split_whitespace().last().unwrap_or_default();
                if visibility != "pub" && !visibility.starts_with("pub(") {
                    continue;
                }
                for path in expanded(tree) {
                    let path = if is_relative(&path) { path } else { format!("self::{path}") };
                    if let Some((_, last)) = path.rsplit_once("::") {
                        exports.insert((name.clone(), last.to_owned()), path.clone());
                    }
                }
            }
        }
        Self { modules, exports }
    }

    /// The modules that are in a circle or between circles, with the modules there that they need.
    fn needs(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut needs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, code) in self.modules.iter().filter(|(name, _)| !name.is_empty()) {
            let found = references(code).into_iter().filter_map(|path| self.resolve(name, &path, 0));
            needs.insert(name, found.filter(|other| !is_within(name, other) && !is_within(other, name)).collect());
        }
        // A module that needs no other module, or that no other module needs, is in no circle.
        loop {
            let before = needs.len();
            let needed: BTreeSet<&str> = needs.values().flatten().copied().collect();
            needs.retain(|name, others| needed.contains(name) && !others.is_empty());
            let names: BTreeSet<&str> = needs.keys().copied().collect();
            for others in needs.values_mut() {
                others.retain(|other| names.contains(other));
            }
            needs.retain(|_, others| !others.is_empty());
            if needs.len() == before {
                return needs;
            }
        }
    }

    /// The module that a path leads into, as `from` writes it. Names that are re-exported lead on.
    fn resolve(&self, from: &str, path: &str, depth: usize) -> Option<&str> {
        let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
        let mut module: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
        if parts.first() == Some(&"crate") {
            module.clear();
            parts.remove(0);
        }
        while let Some(first) = parts.first().filter(|first| ["self", "super"].contains(first)) {
            if *first == "super" {
                module.pop()?;
            }
            parts.remove(0);
        }
        let whole = [module, parts].concat();
        for length in (0..=whole.len()).rev() {
            let name = whole[..length].join("::");
            let Some((found, _)) = self.modules.get_key_value(&name) else { continue };
            let exported = whole.get(length).and_then(|item| self.exports.get(&(name.clone(), (*item).to_owned())));
            return match exported.filter(|_| depth < 8).and_then(|path| self.resolve(&name, path, depth + 1)) {
                Some(other) => Some(other),
                None => Some(found),
            };
        }
        None
    }
}

/// `a/b.rs` as `a::b`, the root as an empty path; `None` for tests.
fn module(path: &str) -> Option<String> {
    let name = path.strip_suffix(".rs")?;
    let is_test = name.split('/').any(|part| part == "tests");
    let name = if ["lib", "main"].contains(&name) { String::new() } else { name.replace('/', "::") };
    (!is_test).then_some(name)
}

fn is_relative(path: &str) -> bool {
    ["crate::", "self::", "super::"].iter().any(|start| path.starts_with(start))
}

/// All paths in the code that begin with `crate`, `self` or `super`.
fn references(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == ':' {
                continue;
            }
            let rest = &code[at..];
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
            let tree = if rest[end..].starts_with('{') { end + group(&rest[end..]) } else { end };
            found.extend(expanded(&rest[..tree]));
        }
    }
    found
}

/// Bytes of the group in braces that the text begins with.
fn group(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// The paths of a tree `a::{b, c::{d, e}}`, without new names and globs.
fn expanded(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((start, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().trim_end_matches('*').trim_end_matches("::").to_owned()];
    };
    let body = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut begin, mut paths) = (0_i32, 0, Vec::new());
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths.extend(
                    expanded(&body[begin..at]).into_iter().filter(|p| !p.is_empty()).map(|p| format!("{start}{p}")),
                );
                begin = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// True if a module is the other one or below it.
fn is_within(inner: &str, outer: &str) -> bool {
    outer.is_empty() || inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
}
