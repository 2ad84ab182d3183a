//! Output that cannot be written: the reader of a pipeline ends first (`lode list | head -1`), or the disk is full.

use std::io::{self, Write};
use std::panic;

/// What shells tell of a program that ended so: 128 and the number of `SIGPIPE`.
const ENDED: i32 = 141;

/// Ends the program in silence where the reader of its output has gone, as other programs do, and with an error where the
/// output cannot be written. The standard library panics there, and has no other way to be asked.
pub(super) fn end_with_the_reader() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        let Some(reason) = text.strip_prefix("failed printing to ") else { return default(info) };
        if reason.contains("Broken pipe") {
            std::process::exit(ENDED);
        }
        // Standard error may be what cannot be written to.
        let _ = writeln!(io::stderr(), "Error: cannot write to {reason}");
        std::process::exit(1);
    }));
}
