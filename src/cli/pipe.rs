//! A command in a pipeline whose reader ends first, as in `lode list | head -1`.

use std::panic;

/// What shells tell of a program that ended so: 128 and the number of `SIGPIPE`.
const ENDED: i32 = 141;

/// Ends the program in silence where there is nobody to print for any more, as other programs do. The standard library
/// panics there, and has no other way to be asked.
pub(super) fn end_with_the_reader() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to") && text.contains("Broken pipe") {
            std::process::exit(ENDED);
        }
        default(info);
    }));
}
