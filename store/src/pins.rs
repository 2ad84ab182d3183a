//! Pins: tags that must not be removed by mistake. An empty file `pins/<host>/<repository>/:<tag>` each.
//!
//! The store only remembers them; whoever removes models asks.

use crate::{Error, Store, files, names};

impl Store {
    /// Pins a tag; it must be there.
    pub fn pin(&self, name: &str) -> Result<(), Error> {
        self.ensure_writable()?;
        let path = names::path(&self.0.layout.pins(), name)?;
        let _names = self.names();
        if self.resolve_tag(name)?.is_none() {
            return Err(content::Error::TagNotFound(name.to_owned()).into());
        }
        self.write_named("pin", name, &path, "")
    }

    /// Takes the pin away; says whether there was one.
    pub fn unpin(&self, name: &str) -> Result<bool, Error> {
        self.ensure_writable()?;
        let _names = self.names();
        self.remove_pin(name)
    }

    /// Whether a tag is pinned.
    pub fn is_pinned(&self, name: &str) -> Result<bool, Error> {
        // A pin that cannot be looked at may be one.
        files::is_there(&names::path(&self.0.layout.pins(), name)?)
    }

    /// The names of all pinned tags, sorted. A folder that cannot be listed is logged.
    pub fn pins(&self) -> Vec<String> {
        names::walk(&self.0.layout.pins()).tags()
    }

    /// Takes the pin away. The caller holds the lock of names.
    pub(crate) fn remove_pin(&self, name: &str) -> Result<bool, Error> {
        let root = self.0.layout.pins();
        self.remove_named(&root, &names::path(&root, name)?)
    }
}
