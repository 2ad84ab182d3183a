//! Listing models, and finding the names of a manifest.

use std::convert::Infallible;
use std::sync::Arc;

use content::Digest;
use content::operation::Result;
use manifests::ModelRef;
use manifests::reference::{DEFAULT_HOST, DEFAULT_NAMESPACE};
use store::TagEntry;

use crate::capability::Capabilities;
use crate::library::Library;
use crate::summary::{Listed, Summary};

/// Number of models that are read at a time.
const READERS: usize = 16;

/// A part of the list of models.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The key of the name (`host/repository:tag`) before the first one of the page.
    pub after: Option<String>,
    /// Maximum number of models; at least 1.
    pub most: usize,
    /// Text in the names of the models, in any case; empty for all models.
    pub text: String,
}

/// The models of a page.
#[derive(Clone, Debug)]
pub struct ListedPage {
    /// The models.
    pub models: Vec<Listed>,
    /// The key of the last name, if more models follow.
    pub next: Option<String>,
}

/// The part of a name that users see: without the default host and namespace.
fn unqualified(key: &str) -> &str {
    let Some(own) = key.strip_prefix(DEFAULT_HOST).and_then(|rest| rest.strip_prefix('/')) else { return key };
    own.strip_prefix(DEFAULT_NAMESPACE).and_then(|rest| rest.strip_prefix('/')).unwrap_or(own)
}

impl Library {
    /// Returns every model, the newest first. A model that cannot be read is logged and omitted, so
    /// that it does not hide the rest.
    ///
    /// # Errors
    /// The names cannot be listed.
    pub fn list(&self) -> Result<Vec<Listed>> {
        self.store.names().check()?;
        let mut tags = self.store.names().list();
        tags.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.name.cmp(&b.name)));
        self.summaries.keep(&tags.iter().map(|tag| tag.digest).collect());
        Ok(tags.iter().filter_map(|tag| self.line(tag)).collect())
    }

    /// Returns the models of a page, sorted by their complete names. A model that cannot be read is
    /// logged and omitted.
    ///
    /// # Errors
    /// The names cannot be listed.
    pub fn list_page(&self, page: &ListPage) -> Result<ListedPage> {
        self.store.names().check()?;
        let text = page.text.to_lowercase();
        let matches = |key: &str| unqualified(key).to_lowercase().contains(&text);
        let mut models = Vec::new();
        let mut after = page.after.clone();
        loop {
            let missing = page.most.saturating_sub(models.len());
            // One name more tells whether models follow.
            let mut names = if text.is_empty() {
                self.store.names().page(after.as_deref(), missing + 1)
            } else {
                self.store.names().search(after.as_deref(), missing + 1, matches)
            };
            let has_more = names.len() > missing;
            names.truncate(missing);
            models.extend(self.lines(&names));
            after = names.pop().or(after);
            if !has_more || models.len() >= page.most {
                return Ok(ListedPage { models, next: after.filter(|_| has_more) });
            }
        }
    }

    /// The lines of some names, in their order. Several models are read at a time, because they are
    /// all over the disk.
    fn lines(&self, names: &[String]) -> Vec<Listed> {
        let line = |(): &mut (), position: usize| -> Result<Option<Listed>, Infallible> {
            let tag = self.store.names().get(&names[position]).inspect_err(|error| tracing::warn!("{error}"));
            Ok(tag.ok().flatten().and_then(|tag| self.line(&tag)))
        };
        let Ok(lines) = import::in_parallel(names.len(), READERS, || (), line);
        lines.into_iter().flatten().collect()
    }

    /// A line of a list. A model that cannot be read is logged.
    fn line(&self, tag: &TagEntry) -> Option<Listed> {
        let line = || -> Result<Listed> {
            let name = tag.name.parse::<ModelRef>()?.to_string();
            Ok(Listed { name, modified: tag.modified, summary: self.summary_of(tag)? })
        };
        line().inspect_err(|error| tracing::warn!(model = tag.name, "cannot be read: {error:#}")).ok()
    }

    /// Returns the summary of the model that a tag names.
    ///
    /// # Errors
    /// The model's documents cannot be read.
    pub fn summary_of(&self, tag: &TagEntry) -> Result<Arc<Summary>> {
        if let Some(known) = self.summaries.get(&tag.digest) {
            return Ok(known);
        }
        let (model, lasts) = self.peek(tag)?;
        let general = self.general(&model.manifest).unwrap_or_default();
        match self.capabilities(&model) {
            Ok(capabilities) => {
                let summary = Arc::new(Summary::of(&model, capabilities, &general));
                if lasts {
                    self.summaries.remember(&summary);
                }
                Ok(summary)
            }
            Err(error) => {
                tracing::warn!(model = model.name, "its capabilities cannot be determined: {error:#}");
                Ok(Arc::new(Summary::of(&model, Capabilities::default(), &general)))
            }
        }
    }

    /// Whether the manifest has another name than `name`.
    pub fn has_other_name(&self, manifest: &Digest, name: &ModelRef) -> bool {
        let key = name.tag_key();
        self.store.names().list().iter().any(|tag| tag.digest == *manifest && Some(&tag.name) != key.as_ref())
    }

    /// Returns the summary of the model with a manifest, if a name refers to it.
    pub fn summary(&self, manifest: &Digest) -> Option<Arc<Summary>> {
        if let Some(known) = self.summaries.get(manifest) {
            return Some(known);
        }
        let tag = self.store.names().list().into_iter().find(|tag| tag.digest == *manifest)?;
        self.summary_of(&tag).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use content::Descriptor;
    use manifests::{ManifestBuilder, ModelConfig, annotations, media_types};
    use store::{Options, Store};

    use super::*;
    use crate::testing::put;

    fn model(store: &Store, title: &str, names: &[&str]) {
        let config = ModelConfig { model_family: title.to_owned(), ..ModelConfig::default() };
        let config = config.to_bytes().expect("a config");
        put(store, &config);
        let manifest = ManifestBuilder {
            config: Descriptor::of(media_types::CONFIG, &config),
            layers: Vec::new(),
            annotations: [(annotations::TITLE.to_owned(), title.to_owned())].into(),
        };
        let digest = put(store, manifest.build().expect("a manifest").raw());
        for name in names {
            let name: ModelRef = name.parse().expect("a name");
            store.names().set(&name.tag_key().expect("a tag"), &digest).expect("a name");
        }
    }

    #[test]
    fn a_list_remembers_what_it_says_and_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = Library::new(Store::open(folder.path(), Options::default()).expect("a store"));
        model(&library.store, "first", &["a"]);
        model(&library.store, "second", &["b", "c"]);
        // The times are set explicitly, because a file system's clock can be coarse.
        for (second, name) in ["a", "b", "c"].into_iter().enumerate() {
            let tag = folder.path().join(format!("tags/{}/library/{name}/:latest", manifests::reference::DEFAULT_HOST));
            let given = SystemTime::UNIX_EPOCH + Duration::from_secs(second as u64);
            std::fs::File::open(tag).and_then(|tag| tag.set_modified(given)).expect("a tag");
        }
        let listed = || -> Vec<(String, String)> {
            let lines = library.list().expect("a list").into_iter();
            lines.map(|line| (line.name, line.summary.family.clone())).collect()
        };
        let line = |name: &str, family: &str| (name.to_owned(), family.to_owned());
        let all = [line("c:latest", "second"), line("b:latest", "second"), line("a:latest", "first")];
        assert_eq!(listed(), all, "the newest first");
        assert_eq!(library.summaries.all().len(), 2, "by manifest");
        assert_eq!(listed(), all);
        let [a, b]: [ModelRef; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let tag = |name| library.find_tag(name).expect("a look").expect("it is there").digest;
        assert!(library.has_other_name(&tag(&b), &b) && !library.has_other_name(&tag(&a), &a));
        assert_eq!(library.summary(&tag(&a)).expect("it is there").family, "first");
        library.delete(&a).expect("it is there");
        assert_eq!(listed(), all[..2]);
        assert_eq!(library.summaries.all().len(), 1, "what is gone is forgotten");
        library.forget_contents();
        assert!(library.summaries.all().is_empty(), "what was read may have been damaged");
    }
}
