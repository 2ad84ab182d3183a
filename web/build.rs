//! Compresses the files of the web page and computes their version.
//!
//! All files share one version, a digest of all of them, which is a folder in their URLs. So
//! modules can import each other by relative paths, and browsers may cache the files of a version
//! forever.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// The placeholder of the version in the HTML.
const VERSION: &str = "{version}";
/// The HTML itself; it contains the version, but its own URL has none.
const PAGE: &str = "index.html";

fn main() {
    println!("cargo::rerun-if-changed=assets");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut files = BTreeMap::new();
    collect(Path::new("assets"), "", &mut files);
    let version = version(&files);
    let page = files.remove(PAGE).expect("the page is there");
    let page = String::from_utf8(page).expect("the page is text").replace(VERSION, &version);
    fs::write(out.join("page.gz"), compressed(page.as_bytes())).expect("written");
    let mut table =
        format!("/// The version of all files: hexadecimal digits.\npub const VERSION: &str = {version:?};\n");
    table.push_str("pub(crate) const PAGE: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/page.gz\"));\n");
    table.push_str("pub(crate) const FILES: &[(&str, &[u8])] = &[\n");
    for (number, (path, bytes)) in files.iter().enumerate() {
        fs::write(out.join(format!("{number}.gz")), compressed(bytes)).expect("written");
        writeln!(table, "    ({path:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{number}.gz\"))),").expect("text");
    }
    table.push_str("];\n");
    fs::write(out.join("files.rs"), table).expect("written");
}

/// Collects all files of a folder by their relative paths.
fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("names are text");
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), files);
        } else {
            files.insert(format!("{prefix}{name}"), fs::read(entry.path()).expect("it can be read"));
        }
    }
}

fn version(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut hash = Sha256::new();
    for (path, bytes) in files {
        hash.update(format!("{path} {}\n", bytes.len()));
        hash.update(bytes);
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text");
        text
    })
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}
