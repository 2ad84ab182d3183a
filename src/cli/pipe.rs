//! Handling of output errors: the reader of a pipeline ends first (`lode list | head -1`), or the
//! disk is full.

use std::io::{self, Write};
use std::panic;

/// The exit code that shells report for a program that `SIGPIPE` ended: 128 plus its number.
const ENDED: i32 = 141;

/// Ends the program silently if the reader of its output has gone, as other programs do, and with
/// an error if the output cannot be written. The standard library panics in both cases, so this
/// needs a panic hook.
pub(super) fn end_with_the_reader() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        let Some(reason) = text.strip_prefix("failed printing to ") else { return default(info) };
        if reason.contains("Broken pipe") {
            std::process::exit(ENDED);
        }
        // Writing to standard error may fail too.
        let _ = writeln!(io::stderr(), "Error: cannot write to {reason}");
        std::process::exit(1);
    }));
}
