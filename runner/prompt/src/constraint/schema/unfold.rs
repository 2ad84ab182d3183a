//! Joined schemas that stand in themselves: two lists whose items are lists of their kind, for instance. What is joined of them is
//! joined of the same parts again further in; there it gets a name, and is referred to.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};

use super::Schema;

/// Which joined schemas are being made, and those that got a name.
#[derive(Default)]
pub(super) struct Unfolding {
    /// What each is made of, from the outermost on, and its name where it was met again.
    open: RefCell<Vec<(String, Option<String>)>>,
    made: RefCell<Schema>,
    names: Cell<usize>,
}

impl Unfolding {
    /// A reference to the schema of these parts, where that is being made.
    ///
    /// `taken` says which names others have.
    pub(super) fn again(&self, parts: &str, taken: impl Fn(&str) -> bool) -> Option<Schema> {
        let mut open = self.open.borrow_mut();
        let (_, name) = open.iter_mut().find(|(own, _)| own == parts)?;
        let name = name.get_or_insert_with(|| {
            loop {
                self.names.set(self.names.get() + 1);
                let name = format!("x-joined-{}", self.names.get());
                if !taken(&name) {
                    return name;
                }
            }
        });
        Some(reference(name))
    }

    /// Remembers that the schema of these parts is being made.
    pub(super) fn begin(&self, parts: String) {
        self.open.borrow_mut().push((parts, None));
    }

    /// The schema that was begun last, or a reference to it where it was met again.
    pub(super) fn end(&self, schema: Schema) -> Schema {
        let Some((_, Some(name))) = self.open.borrow_mut().pop() else { return schema };
        let reference = reference(&name);
        self.made.borrow_mut().insert(name, Value::Object(schema));
        reference
    }

    /// The schemas that got names.
    pub(super) fn made(&self) -> Schema {
        self.made.take()
    }
}

fn reference(name: &str) -> Schema {
    Schema::from_iter([("$ref".to_owned(), json!(format!("#/$defs/{name}")))])
}
