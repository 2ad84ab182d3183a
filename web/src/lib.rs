//! The web page of the daemon: its files, and the conversion of Markdown to safe HTML.
//!
//! The page (`assets/`) consists of HTML, CSS and plain JavaScript modules, without a build step
//! and without third-party code. It uses only the public API. Work that would need a library in the
//! browser is done here in the daemon.
//!
//! # Invariants
//! - A file's URL changes with any change of any file, so browsers may cache files forever. They
//!   revalidate the HTML at every visit.
//! - The output of [`markdown`] has no script, no style, no form, and no URL that a browser fetches
//!   by itself for any input.

mod files;
pub mod markdown;

pub use files::{File, POLICY, VERSION, file, page};
