//! Suggestions for mistyped names.

use strsim::damerau_levenshtein;

/// Returns the known name that is nearest to `name`, if one is near: a few letters differ, or one
/// name contains the other.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let short = |name: &str| name.to_lowercase().trim_end_matches(":latest").to_owned();
    let wanted = short(name);
    let most = (wanted.chars().count() / 3).max(1);
    let distance = |known: &str| {
        let known = short(known);
        let is_part = wanted.len() >= 3 && (known.contains(&wanted) || wanted.contains(&known) && known.len() >= 3);
        // Compared without its tag, the name may be closer.
        let untagged = known.split(':').next().map_or(usize::MAX, |base| damerau_levenshtein(base, &wanted));
        let away = damerau_levenshtein(&known, &wanted).min(untagged);
        if is_part { away.min(most) } else { away }
    };
    let scored = known.map(|known| (distance(known), known));
    scored.filter(|(away, _)| *away <= most).min_by_key(|(away, known)| (*away, known.len())).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_found() {
        let known = ["smollm2:latest", "llama3.2:1b", "qwen3:latest", "registry.example/team/coder:v2"];
        for (name, expect) in [
            ("smolm2", Some("smollm2:latest")),
            ("SmolLM2", Some("smollm2:latest")),
            ("llama3.2", Some("llama3.2:1b")),
            ("lama3.2:1b", Some("llama3.2:1b")),
            ("qwen", Some("qwen3:latest")),
            ("coder", Some("registry.example/team/coder:v2")),
            ("mistral", None),
            ("x", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), expect, "{name}");
        }
    }
}
