//! Gives the crate a version that changes with its sources and those of the parsers below it: what was derived by other
//! sources is derived anew.

use std::path::{Path, PathBuf};

fn main() {
    let mut files = Vec::new();
    for folder in ["src", "../formats/src"] {
        println!("cargo::rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    files.sort();
    let mut hash = Fnv::default();
    for file in files {
        hash.update(file.to_string_lossy().as_bytes());
        hash.update(&std::fs::read(&file).expect("a source file"));
    }
    println!("cargo::rustc-env=LODE_ARCHITECTURES_VERSION={:016x}", hash.0);
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

/// FNV-1a with 64 bits: the same on every machine, and no secret.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&[0]) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
