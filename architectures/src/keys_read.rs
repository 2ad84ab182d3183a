//! Records the keys of a config that the reader of a family asked for. A key that it did not ask for, and that is not known to be
//! harmless, may change what the model computes: an import with such a key is refused.

use std::cell::RefCell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::harmless_keys::is_harmless;

type Object = Map<String, Value>;

/// The keys that were asked for. Objects are told apart by where they lie in memory, as a config is not moved while it is read.
#[derive(Debug, Default)]
pub(crate) struct KeysRead {
    keys: RefCell<HashSet<(usize, String)>>,
    /// Objects whose keys were asked for one by one; the others were read whole.
    opened: RefCell<HashSet<usize>>,
}

fn place(map: &Object) -> usize {
    std::ptr::from_ref(map).addr()
}

impl KeysRead {
    /// Notes that a key was asked for.
    pub(crate) fn note(&self, map: &Object, key: &str) {
        if map.contains_key(key) {
            self.keys.borrow_mut().insert((place(map), key.to_owned()));
        }
    }

    /// Notes that nothing more of an object matters.
    pub(crate) fn whole(&self, map: &Object) {
        map.keys().for_each(|key| self.note(map, key));
    }

    /// Notes that the keys of an object are asked for one by one.
    pub(crate) fn open(&self, map: &Object) {
        self.opened.borrow_mut().insert(place(map));
    }

    /// The keys that have a value, were not asked for and are not harmless: those of objects with the keys of all that they
    /// are in before them.
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
