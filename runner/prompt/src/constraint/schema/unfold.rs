//! Joined schemas that contain themselves: for instance, two lists whose items are lists of the
//! same kind. A join of the same parts recurs inside the joined schema. There it gets a name and is
//! referenced.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};

use super::Schema;

/// The joined schemas in progress, and the ones that got a name.
#[derive(Default)]
pub(super) struct Unfolding {
    /// The parts of each joined schema, from the outermost on, and its name if it recurred.
    open: RefCell<Vec<(String, Option<String>)>>,
    made: RefCell<Schema>,
    names: Cell<usize>,
}

impl Unfolding {
    /// Returns a reference to the joined schema of these parts, if it is in progress.
    ///
    /// `taken` returns whether a name is in use.
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

    /// Records that the joined schema of these parts is in progress.
    pub(super) fn begin(&self, parts: String) {
        self.open.borrow_mut().push((parts, None));
    }

    /// Finishes the schema that was begun last. Returns it, or a reference to it if it recurred.
    pub(super) fn end(&self, schema: Schema) -> Schema {
        let Some((_, Some(name))) = self.open.borrow_mut().pop() else { return schema };
        let reference = reference(&name);
        self.made.borrow_mut().insert(name, Value::Object(schema));
        reference
    }

    /// Returns the schemas that got names.
    pub(super) fn made(&self) -> Schema {
        self.made.take()
    }
}

fn reference(name: &str) -> Schema {
    Schema::from_iter([("$ref".to_owned(), json!(format!("#/$defs/{name}")))])
}
