//! Rules of the project that no compiler checks: allowed dependencies between crates, the length of
//! files, and required documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Folder, crate, and the workspace crates on which it may depend. Any other dependency fails the
/// test.
pub(super) const EDGES: [(&str, &str, &[&str]); 28] = [
    ("content", "content", &[]),
    ("archive", "archive", &[]),
    ("manifests", "manifests", &["content"]),
    ("store", "store", &["content"]),
    ("formats", "formats", &[]),
    ("architectures", "architectures", &["formats"]),
    ("vocabulary", "vocabulary", &["formats"]),
    ("import", "import", &["architectures", "archive", "content", "formats", "manifests"]),
    ("export", "export", &["architectures", "content", "formats", "import", "manifests", "vocabulary"]),
    ("registry", "registry", &["content", "manifests"]),
    ("bucket", "bucket", &["content", "manifests", "registry"]),
    (
        "runner",
        "runner",
        &["architectures", "device", "formats", "kernels", "pictures", "prompt", "protocol", "vocabulary"],
    ),
    ("runner/cpu", "kernels", &["architectures", "formats", "protocol"]),
    ("runner/device", "device", &["architectures", "formats", "protocol"]),
    ("runner/pictures", "pictures", &["architectures"]),
    ("runner/protocol", "protocol", &[]),
    ("runner/prompt", "prompt", &["protocol", "vocabulary"]),
    ("estimate", "estimate", &["architectures", "protocol"]),
    ("scheduler", "scheduler", &["content", "protocol"]),
    ("api", "api", &["protocol"]),
    (
        "ops/library",
        "library",
        &["architectures", "content", "estimate", "formats", "import", "manifests", "protocol", "store", "vocabulary"],
    ),
    (
        "ops/build",
        "build",
        &["archive", "content", "export", "formats", "import", "library", "manifests", "protocol", "store"],
    ),
    (
        "ops/transfer",
        "transfer",
        &["build", "content", "formats", "import", "library", "manifests", "registry", "store"],
    ),
    ("web", "web", &[]),
    ("ops/tier", "tier", &["content", "library", "manifests", "store"]),
    ("ops/upkeep", "upkeep", &["content", "formats", "import", "library", "manifests", "store"]),
    (
        "daemon",
        "daemon",
        &[
            "api",
            "bucket",
            "build",
            "content",
            "estimate",
            "import",
            "library",
            "manifests",
            "protocol",
            "registry",
            "scheduler",
            "store",
            "tier",
            "transfer",
            "upkeep",
            "web",
        ],
    ),
    (
        "",
        "lode",
        &[
            "api",
            "archive",
            "bucket",
            "content",
            "daemon",
            "import",
            "library",
            "manifests",
            "protocol",
            "registry",
            "store",
            "tier",
            "transfer",
        ],
    ),
];

/// The maximum number of lines of a source file.
const LONGEST: usize = 800;

/// Folders that are not part of the project.
const FOREIGN: [&str; 3] = ["target", ".git", "shared"];

#[test]
fn crates_depend_on_what_the_table_says() {
    let ours: BTreeSet<&str> = EDGES.iter().map(|(_, name, _)| *name).collect();
    let mut wrong = Vec::new();
    for (folder, name, allowed) in EDGES {
        let path = root().join(folder).join("Cargo.toml");
        let manifest = text(&path);
        let (declared, allowed): (BTreeSet<&str>, BTreeSet<&str>) =
            (dependencies(&manifest).intersection(&ours).copied().collect(), allowed.iter().copied().collect());
        wrong.extend(declared.difference(&allowed).map(|other| format!("`{name}` depends on `{other}`")));
        wrong.extend(allowed.difference(&declared).map(|other| format!("`{name}` need not depend on `{other}`")));
        for (section, line) in lines(&manifest) {
            let foreign = is_dependencies(section) && !line.contains("workspace = true");
            // A dependency with a path or a separate table would escape the check above.
            if foreign || section.contains("dependencies.") {
                wrong.push(format!("`{name}` has `{line}`, expected `NAME.workspace = true`"));
            }
        }
    }
    assert!(wrong.is_empty(), "edges that are not those of ARCHITECTURE.md: {wrong:#?}");
}

#[test]
fn what_a_crate_depends_on_it_uses() {
    let mut unused = Vec::new();
    for (folder, name, _) in EDGES {
        let manifest = text(&root().join(folder).join("Cargo.toml"));
        let own = if folder.is_empty() { "src/".to_owned() } else { format!("{folder}/src/") };
        let build = format!("{folder}/build.rs");
        let is_own = |path: &String| path.starts_with(&own) || *path == build;
        let all: String = sources().into_iter().filter(|(path, _)| is_own(path)).map(|(_, s)| s).collect();
        for dependency in dependencies(&manifest) {
            let word = dependency.replace('-', "_");
            let is_named = |(at, _): (usize, &str)| {
                let before = all[..at].chars().next_back().unwrap_or(' ');
                let rest = &all[at + word.len()..];
                !before.is_alphanumeric() && before != '_' && (rest.starts_with("::") || rest.starts_with(" as "))
            };
            if !all.match_indices(&word).any(is_named) {
                unused.push(format!("`{name}` does not use `{dependency}`"));
            }
        }
    }
    assert!(unused.is_empty(), "dependencies without a use: {unused:#?}");
}

#[test]
fn every_member_is_in_the_table() {
    let manifest = text(&root().join("Cargo.toml"));
    let members: BTreeSet<&str> = lines(&manifest)
        .into_iter()
        .filter(|(section, line)| *section == "workspace" && line.starts_with('"'))
        .map(|(_, line)| line.trim_matches(['"', ',']))
        .collect();
    assert!(members.contains("content"), "no members were found in Cargo.toml");
    let folders: BTreeSet<&str> = EDGES.iter().map(|(folder, _, _)| *folder).collect();
    let unknown: Vec<&&str> = members.difference(&folders).collect();
    assert!(unknown.is_empty(), "crates without a row in the table: {unknown:?}");
}

#[test]
fn only_the_runner_names_candle() {
    let names_candle = |path: &PathBuf| {
        let manifest = text(path);
        // The workspace section sets the version and profiles set compiler options; neither links
        // the crate.
        let mut own = lines(&manifest)
            .into_iter()
            .filter(|(section, _)| !section.starts_with("workspace") && !section.starts_with("profile"));
        own.any(|(_, line)| line.contains("candle"))
    };
    let manifests = project_files().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let found: Vec<String> = manifests.filter(names_candle).map(|path| relative(&path)).collect();
    assert_eq!(found, ["runner/Cargo.toml", "runner/device/Cargo.toml"]);
}

#[test]
fn no_source_file_is_too_long() {
    let is_test = |path: &str| path.split('/').any(|part| part == "tests");
    let long: Vec<String> = sources()
        .into_iter()
        .filter(|(path, source)| !is_test(path) && source.lines().count() > LONGEST)
        .map(|(path, source)| format!("{path}: {} lines", source.lines().count()))
        .collect();
    assert!(long.is_empty(), "over {LONGEST} lines, split them: {long:#?}");
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = text(&root().join("Cargo.toml"));
    let (_, theirs) = manifest.split_once("\n# theirs\n").expect("Cargo.toml has the comment `# theirs`");
    let names: Vec<&str> = theirs
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(dependency_name)
        .collect();
    assert!(names.contains(&"serde"), "no dependencies were found in Cargo.toml");
    let architecture = text(&root().join("ARCHITECTURE.md"));
    let silent: Vec<&&str> = names.iter().filter(|name| !architecture.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "ARCHITECTURE.md gives no reason for {silent:?}");
}

#[test]
fn every_source_file_says_what_it_is() {
    let silent: Vec<String> = sources()
        .into_iter()
        .filter(|(path, source)| !source.starts_with("//!") && !Path::new(path).ends_with("build.rs"))
        .map(|(path, _)| path)
        .collect();
    assert!(silent.is_empty(), "these do not begin with `//!`: {silent:#?}");
}

/// Returns the nonempty, non-comment lines of a `Cargo.toml`, each with the name of its section.
fn lines(manifest: &str) -> Vec<(&str, &str)> {
    let mut section = "";
    let mut lines = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        } else if !line.is_empty() && !line.starts_with('#') {
            lines.push((section, line));
        }
    }
    lines
}

/// Returns the dependencies of a crate, without those of its tests.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let lines = lines(manifest).into_iter();
    lines.filter(|(section, _)| is_dependencies(section)).map(|(_, line)| dependency_name(line)).collect()
}

fn is_dependencies(section: &str) -> bool {
    ["dependencies", "build-dependencies"].contains(&section)
        || (section.starts_with("target.") && section.ends_with(".dependencies"))
}

fn dependency_name(line: &str) -> &str {
    line.split(['.', ' ', '=']).next().unwrap_or_default().trim_matches('"')
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", path.display()))
}

pub(super) fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Returns the Rust files of the project with their text.
pub(super) fn sources() -> Vec<(String, String)> {
    let sources: Vec<(String, String)> = project_files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (relative(&path), text(&path)))
        .collect();
    assert!(sources.len() > 50, "only {} source files were found", sources.len());
    sources
}

/// Returns all files of the project, without following links.
pub(super) fn project_files() -> Vec<PathBuf> {
    let mut folders = vec![root()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project can be listed") {
            let entry = entry.expect("an entry of a folder");
            let kind = entry.file_type().expect("an entry is of some kind");
            if kind.is_file() {
                files.push(entry.path());
            } else if kind.is_dir() && !FOREIGN.iter().any(|foreign| entry.file_name() == *foreign) {
                folders.push(entry.path());
            }
        }
    }
    files.sort();
    files
}
