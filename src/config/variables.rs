//! Reading environment variables. An empty variable counts as unset.

use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::ollama::KeepAliveSpec;

/// Variables that runners receive, in addition to CUDA's and the allocators'.
const FOR_RUNNERS: [&str; 8] = [
    "GLIBC_TUNABLES",
    "HOME",
    "LD_LIBRARY_PATH",
    "LODE_LOG",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "RUST_BACKTRACE",
    "TZ",
];

/// Returns true if runners receive a variable: the ones for loaders, drivers and their caches,
/// allocators, the time zone and the log filter. All other variables, such as logins and tokens,
/// stay with the daemon.
pub(super) fn is_for_runners(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    FOR_RUNNERS.contains(&name) || ["CUDA_", "MALLOC_"].iter().any(|kind| name.starts_with(kind))
}

/// Returns the value of the first variable that is set.
pub(super) fn first(names: &[&str]) -> Option<String> {
    let value = |name: &&str| env::var(name).ok().map(|value| unquoted(value.trim()).to_owned());
    names.iter().filter_map(value).find(|value| !value.is_empty())
}

/// Removes quotes around a value, which files of variables (Docker's `--env-file`) keep.
fn unquoted(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

/// Reads a list with commas between the items.
pub(super) fn list(names: &[&str]) -> Vec<String> {
    let text = first(names).unwrap_or_default();
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// Reads an integer; 0 gives the default, as in Ollama.
pub(super) fn number(names: &[&str], default: u64) -> Result<u64> {
    match first(names) {
        Some(text) => match text.parse() {
            Ok(0) => Ok(default),
            Ok(number) => Ok(number),
            Err(_) => bail!("{}: `{text}` is not a whole number", names[0]),
        },
        None => Ok(default),
    }
}

/// Reads a number of bytes; 0 counts as unset.
pub(super) fn bytes(names: &[&str]) -> Result<Option<u64>> {
    let parse = |text: String| crate::size::bytes(&text).map_err(|e| anyhow::anyhow!("{}: {e}", names[0]));
    first(names).filter(|text| text.trim() != "0").map(parse).transpose()
}

/// Reads a boolean in Ollama's syntax; any text that does not mean false is true.
pub(super) fn flag(names: &[&str]) -> Option<bool> {
    first(names).map(|text| is_true(text.trim()))
}

fn is_true(text: &str) -> bool {
    !["0", "f", "F", "false", "FALSE", "False"].contains(&text)
}

/// Reads a duration; `None` means forever.
pub(super) fn duration(names: &[&str], default: &str) -> Result<Option<Duration>> {
    let text = first(names).unwrap_or_else(|| default.to_owned());
    KeepAliveSpec::parse(&text).map(|spec| spec.0).map_err(|e| anyhow::anyhow!("{}: {e}", names[0]))
}

/// Parses a duration above 0 that is not forever.
pub(super) fn positive(name: &str, text: &str) -> Result<Duration> {
    let spec = KeepAliveSpec::parse(text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    spec.0.filter(|span| !span.is_zero()).with_context(|| format!("{name}: `{text}` is not a span of time above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_a_value_are_not_part_of_it() {
        for (written, meant) in
            [("\"0.0.0.0:1\"", "0.0.0.0:1"), ("'a'", "a"), ("\"", "\""), ("\"a'", "\"a'"), ("a", "a"), ("\"\"", "")]
        {
            assert_eq!(unquoted(written), meant, "{written}");
        }
    }

    #[test]
    fn flags_are_as_ollama_reads_them() {
        for no in ["0", "f", "F", "false", "FALSE", "False"] {
            assert!(!is_true(no), "{no}");
        }
        for yes in ["1", "t", "true", "yes", "no", "fAlse", "2"] {
            assert!(is_true(yes), "{yes}");
        }
    }
}
