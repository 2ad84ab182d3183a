//! The names of all tags, for lists and searches in stores with many of them.
//!
//! The list is in memory. It is read from the folders of tags in the background
//! ([`Names::load_list`]), and follows the changes of this process. Before that, a page is read
//! from the folders. A tag that another program puts there is found after the next start. Readers
//! look at the file of a tag, so they leave out a tag that another program removes. A read-only
//! store is read each time, because another process may change it.
//!
//! Names are sorted by the parts of their repositories and then by their tags, as the folders are.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::{Names, files, name_table};

/// The list, as sort keys; `None` until it is read.
#[derive(Debug, Default)]
pub(crate) struct NameList(Mutex<Option<BTreeSet<String>>>);

impl NameList {
    /// Held while the folders are read, so that no change is missed meanwhile.
    fn lock(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tag whose file was just written.
    pub(crate) fn insert(&self, name: &str) {
        if let Some(keys) = self.lock().as_mut() {
            keys.insert(sort_key(name));
        }
    }

    /// Removes a tag whose file was just removed.
    pub(crate) fn remove(&self, name: &str) {
        if let Some(keys) = self.lock().as_mut() {
            keys.remove(&sort_key(name));
        }
    }
}

/// A text that sorts like the parts of a name: a tag comes before the repositories below it, and
/// these before repositories whose last part is longer.
fn sort_key(name: &str) -> String {
    let (repository, tag) = name.rsplit_once(':').unwrap_or((name, ""));
    format!("{}\0{tag}", repository.replace('/', "\u{1}"))
}

fn name_of(key: &str) -> String {
    key.replace('\u{1}', "/").replacen('\0', ":", 1)
}

impl Names<'_> {
    /// Reads the list of names, unless it was read before. Searches are fast afterwards.
    pub fn load_list(&self) {
        if !self.0.is_read_only() {
            self.0.0.name_list.lock().get_or_insert_with(|| self.read_keys());
        }
    }

    fn read_keys(self) -> BTreeSet<String> {
        let names = name_table::walk(&self.0.0.layout.tags()).tags();
        names.iter().map(|name| sort_key(name)).collect()
    }

    /// Returns at most `most` names of tags (`host/repository:tag`), sorted by their parts,
    /// beginning after the name `after`. It reads no tags: a name may be damaged, or removed by
    /// now.
    pub fn page(&self, after: Option<&str>, most: usize) -> Vec<String> {
        self.merged(self.page_here(after, most), most, |root| root.page_here(after, most))
    }

    /// Adds names of roots to names of the store; returns the first `most` of them.
    fn merged(self, own: Vec<String>, most: usize, of_root: impl Fn(Names<'_>) -> Vec<String>) -> Vec<String> {
        if self.0.0.roots.is_empty() {
            return own;
        }
        let roots = self.0.0.roots.iter().flat_map(|root| of_root(root.names()));
        let keys: BTreeSet<String> = own.into_iter().chain(roots).map(|name| sort_key(&name)).collect();
        keys.iter().take(most).map(|key| name_of(key)).collect()
    }

    fn page_here(self, after: Option<&str>, most: usize) -> Vec<String> {
        let after = after.map(sort_key);
        // A list that is being read would take long.
        let list = self.0.0.name_list.0.try_lock().ok();
        if let Some(keys) = list.as_ref().and_then(|list| list.as_ref()) {
            return cut(keys, after.as_deref(), most, |_| true);
        }
        drop(list);
        let mut page = FolderPage { after, most, keys: Vec::new() };
        page.read(&self.0.0.layout.tags(), "");
        page.keys.iter().map(|key| name_of(key)).collect()
    }

    /// [`Names::page`] with the names that `matches` accepts only. It reads all folders of tags if
    /// the list was not read before.
    pub fn search(&self, after: Option<&str>, most: usize, matches: impl Fn(&str) -> bool) -> Vec<String> {
        self.merged(self.search_here(after, most, &matches), most, |root| root.search_here(after, most, &matches))
    }

    fn search_here(self, after: Option<&str>, most: usize, matches: &impl Fn(&str) -> bool) -> Vec<String> {
        let after = after.map(sort_key);
        if self.0.is_read_only() {
            return cut(&self.read_keys(), after.as_deref(), most, matches);
        }
        let mut list = self.0.0.name_list.lock();
        cut(list.get_or_insert_with(|| self.read_keys()), after.as_deref(), most, matches)
    }
}

fn cut(keys: &BTreeSet<String>, after: Option<&str>, most: usize, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
    let following = keys.range::<str, _>((begin, Bound::Unbounded)).map(|key| name_of(key));
    following.filter(|name| matches(name)).take(most).collect()
}

/// A page that is read from the folders of tags. Only the folders of the page are read.
struct FolderPage {
    after: Option<String>,
    most: usize,
    keys: Vec<String>,
}

impl FolderPage {
    /// Adds the tags of a folder and of the folders below it. `key` is the beginning of their keys.
    fn read(&mut self, folder: &Path, key: &str) {
        let entries = files::entries_if_there(folder).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
        let (mut tags, mut folders) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.strip_prefix(':') {
                Some(tag) => tags.push(format!("{key}\0{tag}")),
                None if files::is_folder(&entry).unwrap_or_default() => folders.push(name),
                None => {}
            }
        }
        tags.sort_unstable();
        folders.sort_unstable();
        tags.retain(|key| self.after.as_ref().is_none_or(|after| key > after));
        tags.truncate(self.most - self.keys.len());
        self.keys.append(&mut tags);
        for name in folders {
            if self.keys.len() >= self.most {
                return;
            }
            let inner = if key.is_empty() { name.clone() } else { format!("{key}\u{1}{name}") };
            // All keys below a folder begin with its key and a character up to `\u{1}`.
            if self.after.as_ref().is_none_or(|after| format!("{inner}\u{2}") > *after) {
                self.read(&folder.join(name), &inner);
            }
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use crate::tests::{put, temporary};

    #[test]
    fn pages_of_folders_are_those_of_the_list() {
        let (_folder, store) = temporary();
        let blob = put(&store, b"a manifest");
        let names = ["h/a:x", "h/a:y", "h/a/b:x", "h/a-b:x", "h/a0:x", "h/aa/c:x", "h:1/z:x", "g/a:x", "h/a/b/c:x"];
        for name in names {
            store.names().set(name, &blob).expect("a tag");
        }
        let all = ["g/a:x", "h/a:x", "h/a:y", "h/a/b:x", "h/a/b/c:x", "h/a-b:x", "h/a0:x", "h/aa/c:x", "h:1/z:x"];
        let pages = |store: &crate::Store| {
            for most in 1..=all.len() {
                let (mut found, mut after) = (Vec::new(), None);
                loop {
                    let page = store.names().page(after.as_deref(), most);
                    let Some(last) = page.last() else { break };
                    after = Some(last.clone());
                    found.extend(page);
                }
                assert_eq!(found, all, "{most} at a time");
            }
        };
        pages(&store);
        store.names().load_list();
        pages(&store);
        store.names().remove("h/a/b:x").expect("removed");
        assert_eq!(store.names().search(Some("h/a:x"), 2, |name| name.ends_with(":x")), ["h/a/b/c:x", "h/a-b:x"]);
    }
}
