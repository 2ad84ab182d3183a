//! Pins: tags that must not be removed by mistake. Each is an empty file
//! `pins/<host>/<repository>/:<tag>`.
//!
//! The store only records pins; callers that remove models must check them.

use crate::{Error, Names, Store, files, name_table};

impl Names<'_> {
    /// Pins a tag, which must exist.
    pub fn pin(&self, name: &str) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let path = name_table::path(&self.0.0.layout.pins(), name)?;
        let _names = self.0.lock_names();
        if self.0.names().resolve(name)?.is_none() {
            return Err(content::Error::TagNotFound(name.to_owned()).into());
        }
        self.0.write_named("pin", name, &path, "")
    }

    /// Removes a pin and returns whether it existed.
    pub fn unpin(&self, name: &str) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        let _names = self.0.lock_names();
        self.0.remove_pin(name)
    }

    /// Whether a tag is pinned.
    pub fn is_pinned(&self, name: &str) -> Result<bool, Error> {
        // If the pin cannot be checked, the result is an error: there may be one.
        files::is_there(&name_table::path(&self.0.0.layout.pins(), name)?)
    }

    /// The names of all pinned tags, sorted. A folder that cannot be listed is logged.
    pub fn pins(&self) -> Vec<String> {
        name_table::walk(&self.0.0.layout.pins()).tags()
    }
}

impl Store {
    /// Removes a pin. The caller holds the lock of names.
    pub(crate) fn remove_pin(&self, name: &str) -> Result<bool, Error> {
        let root = self.0.layout.pins();
        self.remove_named(&root, &name_table::path(&root, name)?)
    }
}
