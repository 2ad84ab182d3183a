//! Human-readable time spans.

/// Parses `90s`, `15m`, `12h`, `30d` or `8w` to seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a time; expected a number with s, m, h, d or w, e.g. 30d");
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 24 * 3600,
        Some('w') => 7 * 24 * 3600,
        _ => return Err(bad()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    number.checked_mul(unit).ok_or_else(bad)
}
