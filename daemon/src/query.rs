//! The query of a request.

use reqwest::Url;

/// The value of a name in a query, decoded; `None` where it is not there.
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
