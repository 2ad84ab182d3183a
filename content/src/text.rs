//! Formats sizes and errors as text for people.

/// Formats a number of bytes in the largest unit (powers of 1024) that is at most this number: `512
/// B`, `12.34 MiB`.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let step = bytes.ilog2() / 10;
    format!("{:.2} {}", bytes as f64 / (1_u64 << (10 * step)) as f64, units[step as usize - 1])
}

/// Formats an error and its causes. A cause is left out if the text so far ends with it.
pub fn error_with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !told.ends_with(&text) {
            told = format!("{told}: {text}");
        }
        next = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (12_939_428, "12.34 MiB"),
            ((1 << 30) - 1, "1024.00 MiB"),
            (3 << 29, "1.50 GiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let outer = crate::Error::Io { operation: "write", path: "/x".into(), source: full };
        assert_eq!(error_with_causes(&outer), "write `/x`: no storage space");
    }
}
