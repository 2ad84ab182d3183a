//! Runs each benchmark in a short form, and checks that the benchmark script accepts the command
//! lines in the documents.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::server::LODE;
use crate::support::{root, skip};

/// Each kind on small inputs; `MODEL` stands for a small model's file.
const SHORT: [(&str, &[&str]); 11] = [
    ("basics", &["--only", "import", "--only", "reimport", "--only", "adopt", "--only", "start", "--size", "0.01"]),
    ("basics", &["--only", "load", "--only", "memory", "--model", "MODEL"]),
    ("transfer", &["--only", "lode", "--only", "again", "--only", "serve", "--size", "0.01"]),
    ("quantize", &["--size", "0.01", "--type", "int4"]),
    ("models", &["--models", "150", "--blobs", "2"]),
    ("tier", &["--only", "folder", "--size", "0.02", "--repeats", "1"]),
    ("batching", &["--clients", "2", "--tokens", "4", "--repeats", "1", "--model", "MODEL"]),
    ("perplexity", &["--type", "int4", "--model", "MODEL"]),
    ("pictures", &["--models", "tiny", "--repeats", "1"]),
    (
        "generate",
        &["--model", "MODEL", "--quantize", "int4", "--pairs", "1", "--tokens", "4", "--prompt", "16", "--first"],
    ),
    ("generate", &["--synthetic", "tiny", "--pairs", "1", "--tokens", "4", "--prompt", "16", "--markdown"]),
];

fn programs() -> PathBuf {
    Path::new(&*LODE).parent().expect("a folder of programs").to_owned()
}

/// Returns a small real model, if there is one.
fn small_model() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("LODE_TEST_MODELS")?).join("smollm2-135m-q4_1.gguf");
    file.is_file().then_some(file)
}

fn python(script: &str, arguments: &[String]) -> std::io::Result<Output> {
    Command::new("python3").args(["-c", script]).args(arguments).current_dir(root()).output()
}

#[test]
fn every_kind_runs_in_a_short_form() {
    const TEST: &str = "benchmarks::every_kind_runs_in_a_short_form";
    let Some(model) = small_model() else {
        return skip(TEST, "LODE_TEST_MODELS has no smollm2-135m-q4_1.gguf; scripts/test fetches it");
    };
    for (kind, arguments) in SHORT {
        let words = arguments.iter().map(|word| if *word == "MODEL" { model.as_os_str() } else { word.as_ref() });
        measured(kind, &words.collect::<Vec<_>>());
    }
}

#[test]
fn the_page_is_measured_in_a_short_form() {
    if std::env::var_os("LODE_TEST_BROWSER").is_none() {
        let reason = "LODE_TEST_BROWSER names no Python with a browser; scripts/test makes one";
        return skip("benchmarks::the_page_is_measured_in_a_short_form", reason);
    }
    let words = ["--models", "5", "--tensors", "100", "--repeats", "1"];
    measured("page", &words.iter().map(AsRef::as_ref).collect::<Vec<_>>());
}

/// Runs a benchmark, and asserts that it reports measurements.
fn measured(kind: &str, words: &[&OsStr]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rows = folder.path().join("rows");
    let mut command = Command::new(root().join("scripts/bench"));
    command.arg(kind).args(words);
    command.arg("--bin").arg(programs()).arg("--dir").arg(folder.path()).arg("--json").arg(&rows);
    let output = command.output().expect("scripts/bench runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kind} {words:?}: {said}");
    let rows = std::fs::read_to_string(rows).expect("rows");
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).expect("a row of JSON")).collect();
    assert!(!rows.is_empty(), "{kind} {words:?} measured nothing: {said}");
}

/// Returns the command lines of `scripts/bench` in the documents, without the program.
fn documented() -> Vec<String> {
    let documents =
        std::fs::read_dir(root().join("docs")).expect("documents").map(|entry| entry.expect("an entry").path());
    let documents = documents.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut lines = Vec::new();
    for document in documents.chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(document).expect("a document");
        for (at, found) in text.match_indices("scripts/bench") {
            let rest = &text[at + found.len()..];
            let end = rest.find(['`', '\n']).unwrap_or(rest.len());
            lines.push(rest[..end].trim().to_owned());
        }
    }
    lines
}

#[test]
fn documented_commands_are_taken() {
    const TEST: &str = "benchmarks::documented_commands_are_taken";
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip(TEST, "there is no python3");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("BF16.gguf");
    for name in ["BF16.gguf", "programs.tar.xz"] {
        std::fs::write(folder.path().join(name), b"GGUF").expect("a file");
    }
    let lines = documented();
    assert!(lines.len() > 10, "the documents show {lines:?}");
    let script =
        "import sys; sys.path.insert(0, 'scripts'); from benchmarks.command_line import arguments; arguments()";
    for line in lines {
        // Replaces placeholders of the documents.
        let place = |word: &str| match word {
            "FILE" | "BF16.gguf" => file.display().to_string(),
            "FOLDER" => folder.path().display().to_string(),
            "LIST" => "int4".to_owned(),
            other => other.to_owned(),
        };
        let mut arguments: Vec<String> = line.split_whitespace().map(place).collect();
        if arguments.is_empty() {
            arguments.push("basics".to_owned());
        }
        if arguments[0] == "gpu" && arguments.len() == 1 {
            arguments.extend(["--programs".to_owned(), folder.path().display().to_string()]);
        }
        if arguments[0] != "gpu" && !arguments[0].starts_with('-') {
            arguments.extend(["--bin".to_owned(), programs().display().to_string()]);
        }
        let output = python(script, &arguments).expect("Python runs");
        assert!(output.status.success(), "scripts/bench {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
