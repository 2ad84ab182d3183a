//! Records the keys of a config that a family reads. A key that is not read and is not known to be
//! harmless may change the model's output. An import with such a key is refused.

use std::cell::RefCell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::harmless_keys::is_harmless;

type Object = Map<String, Value>;

/// Keys that were read. Objects are identified by their address, because a config does not move
/// while it is read.
#[derive(Debug, Default)]
pub(crate) struct KeysRead {
    keys: RefCell<HashSet<(usize, String)>>,
    /// Objects whose keys are read one by one; all other objects are read as a whole.
    opened: RefCell<HashSet<usize>>,
}

fn place(map: &Object) -> usize {
    std::ptr::from_ref(map).addr()
}

impl KeysRead {
    /// Records that a key was read.
    pub(crate) fn note(&self, map: &Object, key: &str) {
        if map.contains_key(key) {
            self.keys.borrow_mut().insert((place(map), key.to_owned()));
        }
    }

    /// Records that the rest of an object can be ignored.
    pub(crate) fn whole(&self, map: &Object) {
        map.keys().for_each(|key| self.note(map, key));
    }

    /// Records that the keys of an object are read one by one.
    pub(crate) fn open(&self, map: &Object) {
        self.opened.borrow_mut().insert(place(map));
    }

    /// Returns the keys that have a value, were not read and are not harmless. Keys of nested
    /// objects are prefixed with the keys of the enclosing objects.
    pub(crate) fn unread(&self, family: &str, map: &Object) -> Vec<String> {
        let mut found = Vec::new();
        for (key, value) in map {
            if has_no_value(value) || is_harmless(family, key, value) {
                continue;
            }
            if !self.keys.borrow().contains(&(place(map), key.clone())) {
                found.push(key.clone());
            } else if let Some(inner) = value.as_object().filter(|inner| self.opened.borrow().contains(&place(inner))) {
                found.extend(self.unread(family, inner).into_iter().map(|own| format!("{key}.{own}")));
            }
        }
        found
    }
}

fn has_no_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
