//! The manifests about another one, such as its signatures.

use content::Digest;
use manifests::Document;

use super::{Error, Remote, catalog};

impl Remote {
    /// The manifests of the repository about the manifest `subject`; empty if there are none.
    /// Registries without lists of referrers have them in an index with the tag `sha256-HEX`.
    ///
    /// # Errors
    /// All errors of [`Self::manifest`], except that the index does not exist.
    pub async fn referrers(&self, subject: &Digest) -> Result<Vec<Digest>, Error> {
        if let Some(host) = self.sources().last() {
            match catalog::referrers(host, self.repository(), subject).await {
                Err(Error::NotFound { .. } | Error::Protocol { .. }) => {}
                Err(error @ Error::Refused { .. }) if !error.is_transient() => {}
                listed => return listed,
            }
        }
        let tag = subject.to_string().replace(':', "-");
        match self.manifest(&tag).await {
            Ok((_, raw)) => Ok(Document::parse(&raw).map(|index| index.children().manifests).unwrap_or_default()),
            Err(Error::NotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
