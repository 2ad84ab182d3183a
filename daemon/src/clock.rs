//! The local time of this machine.

use jiff::Zoned;

/// Returns the current local time with its offset from UTC, in RFC 3339 format.
pub(crate) fn now() -> String {
    Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}
