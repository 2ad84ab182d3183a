//! The query of a URL.

use reqwest::Url;

/// Returns the decoded value of a parameter in a query; `None` if it is absent.
pub(crate) fn value(query: Option<&str>, name: &str) -> Option<String> {
    let url = Url::parse(&format!("http://localhost/?{}", query.unwrap_or_default())).ok()?;
    url.query_pairs().find(|(own, _)| own == name).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        assert_eq!(value(Some("a=1&model=qwen3%3A4b"), "model").as_deref(), Some("qwen3:4b"));
        assert_eq!(value(Some("modelling=1"), "model"), None);
        assert_eq!(value(None, "model"), None);
    }
}
