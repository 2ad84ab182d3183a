//! The time of this machine, where it stands.

use jiff::Zoned;

/// The present with its distance from UTC, as RFC 3339 writes it.
pub(crate) fn now() -> String {
    Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}
