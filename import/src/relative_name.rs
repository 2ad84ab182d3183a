//! Validation of untrusted file names inside of a model.

use crate::Error;

/// Longest name that is accepted, in bytes.
const MAX_NAME: usize = 1024;

/// Validates a file name from an archive, a manifest or a listing, and returns it as a relative
/// path with slashes inside of the model's folder. A leading `./` and doubled slashes are removed.
///
/// # Errors
/// [`Error::Source`] for a name that is empty, absolute, contains `..`, is longer than 1024 bytes,
/// or has a backslash or a control character.
pub fn relative_name(name: &str) -> Result<String, Error> {
    let shown: String = name.chars().take(100).collect();
    let refuse = |reason: &str| Err(Error::Source(format!("{shown:?} cannot be a file of a model: {reason}")));
    if name.len() > MAX_NAME {
        return refuse(&format!("it has {} bytes, {MAX_NAME} at most are allowed", name.len()));
    }
    if name.starts_with('/') {
        return refuse("it is absolute, expected a path inside of the model");
    }
    if name.chars().any(|c| c.is_control() || c == '\\') {
        return refuse("it has a backslash or a control character");
    }
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return refuse("it goes up by `..`, expected a path inside of the model");
    }
    if parts.is_empty() || name.ends_with('/') {
        return refuse("it names no file");
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_names_inside() {
        for (name, expect) in
            [("config.json", "config.json"), ("./a//b.txt", "a/b.txt"), ("a/./b", "a/b"), ("..a/b..", "..a/b..")]
        {
            assert_eq!(relative_name(name).expect(name), expect);
        }
        let long = "a".repeat(MAX_NAME + 1);
        for name in ["", ".", "./", "/etc/passwd", "..", "a/../b", "../a", "a\\b", "a\0", "a\n", "a/", &long] {
            assert!(relative_name(name).is_err(), "{name:?}");
        }
    }
}
