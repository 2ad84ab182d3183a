//! Human-readable numbers of bytes.

/// Parses `5GB`, `500MiB` or `1000000`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 7] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("", 1),
    ];
    let bad = || format!("`{text}` is not a number of bytes; expected e.g. 5GB, 500MiB or 1000000");
    let found = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.ok_or_else(bad)?;
    let number: u64 = number.trim().parse().map_err(|_| bad())?;
    number.checked_mul(*factor).filter(|bytes| *bytes > 0).ok_or_else(bad)
}
