//! The page of the daemon: its files as browsers get them, and Markdown made safe for it.
//!
//! The page (`assets/`) is HTML, CSS and modules for the browser's own platform; nothing builds it and nothing of others is in it.
//! It uses the public API alone. What a library does for it is done here, on the daemon's side.
//!
//! # Invariants
//! - A file's address changes with any change of any file, so browsers keep files for good; the page itself they ask for each time.
//! - What [`markdown`] gives has no script, no style, no form and no address that is fetched by itself, whatever the text was.

mod files;
pub mod markdown;

pub use files::{File, POLICY, VERSION, file, page};
