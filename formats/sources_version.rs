//! Build script of crates whose output is cached as derived data. It computes a version of the
//! crate from its sources and those of the parsers below it. Data derived by other sources is
//! derived again.
#![expect(clippy::print_stdout, reason = "that is how a build script speaks")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let mut files = Vec::new();
    for folder in ["src", "../formats/src"] {
        println!("cargo::rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    files.sort();
    // Another compiler may use another hash; the data is then derived once more, which is harmless.
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        std::fs::read(&file).expect("a source file").hash(&mut hasher);
    }
    println!("cargo::rustc-env=LODE_SOURCES_VERSION={:016x}", hasher.finish());
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
