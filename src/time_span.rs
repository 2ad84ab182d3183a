//! Human-readable time spans.

/// Writes seconds in the largest unit that divides them: `7d`.
pub(crate) fn text(seconds: u64) -> String {
    let units = [("w", 7 * 24 * 3600), ("d", 24 * 3600), ("h", 3600), ("m", 60)];
    let unit = units.into_iter().find(|(_, unit)| seconds > 0 && seconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{seconds}s"), |(name, unit)| format!("{}{name}", seconds / unit))
}

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
