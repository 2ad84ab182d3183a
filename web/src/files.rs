//! The files of the web page, compressed at build time.

use std::io::Read;

use flate2::read::GzDecoder;

mod table {
    include!(concat!(env!("OUT_DIR"), "/files.rs"));
}

pub use table::VERSION;

/// The Content-Security-Policy of the page: only its own files and this daemon, nothing inline and
/// no other hosts.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Its media type, for `Content-Type`.
    pub media: &'static str,
    /// Its bytes, compressed with gzip.
    pub compressed: &'static [u8],
}

impl File {
    /// Returns the uncompressed bytes, for clients that do not accept gzip.
    pub fn plain(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(self.compressed).read_to_end(&mut bytes).expect("invariant: the build compressed it");
        bytes
    }
}

/// Returns the HTML, which is the same at all of its addresses.
pub fn page() -> File {
    File { media: media("index.html"), compressed: table::PAGE }
}

/// Returns the file at a path; `None` if there is no such file, or if the version belongs to
/// another build.
pub fn file(version: &str, path: &str) -> Option<File> {
    let (_, compressed) = table::FILES.iter().find(|(known, _)| version == VERSION && *known == path)?;
    Some(File { media: media(path), compressed })
}

fn media(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_files_that_are_there() {
        let page = String::from_utf8(page().plain()).expect("text");
        let prefix = format!("/ui/files/{VERSION}/");
        let named: Vec<&str> = page.split(&prefix).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(named.len() > 2, "{page}");
        for path in named {
            assert!(file(VERSION, path).is_some(), "{path}");
        }
        assert!(!page.contains("{version}"));
    }

    #[test]
    fn modules_import_files_that_are_there() {
        for (path, _) in table::FILES.iter().filter(|(path, _)| path.rsplit('.').next() == Some("js")) {
            let text = String::from_utf8(file(VERSION, path).expect("it is there").plain()).expect("text");
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            for import in text.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next()) {
                let wanted = if folder.is_empty() { import.to_owned() } else { format!("{folder}/{import}") };
                assert!(file(VERSION, &wanted).is_some(), "{path} imports {wanted}");
            }
        }
    }

    #[test]
    fn all_code_and_styles_are_small() {
        let size: usize = table::FILES.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(size < 300 << 10, "{size} bytes compressed");
    }

    #[test]
    fn other_versions_have_no_files() {
        assert!(file("0000000000000000", "app.js").is_none() && file(VERSION, "../Cargo.toml").is_none());
    }
}
