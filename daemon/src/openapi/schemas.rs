//! The schemas of types, each under its name.
//!
//! A type may have different schemas for reading and for writing: a field with a default may be
//! absent in a request, but is always present in a response. If both are used and differ, the
//! schema for writing is called `…Answer`.

use std::collections::BTreeSet;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

const READ: &str = "#/components/schemas/";
/// The temporary location of schemas for writing, until they get their final names.
const WRITTEN: &str = "#/components/written/";

/// Collects schemas.
pub(crate) struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = |path: &str| {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = path.trim_start_matches('#').trim_end_matches('/').to_owned().into();
                settings.meta_schema = None;
            })
        };
        Self {
            read: settings(READ).for_deserialize().into_generator(),
            written: settings(WRITTEN).for_serialize().into_generator(),
        }
    }

    /// Adds the schema for reading a type.
    pub(super) fn read(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.read).to_value()
    }

    /// Adds the schema for writing a type.
    pub(super) fn written(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.written).to_value()
    }

    /// Inserts all schemas into the document that refers to them.
    pub(super) fn complete(mut self, mut document: Value) -> Value {
        let (mut all, mut written) = (self.read.take_definitions(true), self.written.take_definitions(true));
        let apart = differing(&all, &written);
        let name = |name: &str| if apart.contains(name) { format!("{name}Answer") } else { name.to_owned() };
        written.values_mut().for_each(|schema| rename(schema, &name));
        rename(&mut document, &name);
        all.extend(written.into_iter().map(|(own, schema)| (name(&own), schema)));
        all.sort_keys();
        document["components"]["schemas"] = all.into();
        document
    }
}

/// Returns the names of types whose two schemas differ, or refer to types whose schemas differ.
fn differing(read: &Map<String, Value>, written: &Map<String, Value>) -> BTreeSet<String> {
    let both: Vec<(&String, &Value, Value)> = written
        .iter()
        .filter_map(|(name, schema)| {
            let mut same = schema.clone();
            rename(&mut same, &str::to_owned);
            read.get(name).map(|read| (name, read, same))
        })
        .collect();
    let mut apart: BTreeSet<String> =
        both.iter().filter(|(_, read, same)| *read != same).map(|(name, _, _)| (*name).clone()).collect();
    loop {
        let before = apart.len();
        for (name, read, _) in &both {
            if refers(read, &apart) {
                apart.insert((*name).clone());
            }
        }
        if apart.len() == before {
            return apart;
        }
    }
}

/// Whether a schema refers directly to one of these names.
fn refers(schema: &Value, names: &BTreeSet<String>) -> bool {
    match schema {
        Value::Object(object) => object.iter().any(|(key, value)| match value {
            Value::String(text) if key == "$ref" => text.strip_prefix(READ).is_some_and(|name| names.contains(name)),
            value => refers(value, names),
        }),
        Value::Array(items) => items.iter().any(|item| refers(item, names)),
        _ => false,
    }
}

/// Replaces references to schemas for writing by their final names.
fn rename(value: &mut Value, name: &dyn Fn(&str) -> String) {
    match value {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(own) = text.strip_prefix(WRITTEN) {
                            *text = format!("{READ}{}", name(own));
                        }
                    }
                    value => rename(value, name),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, name)),
        _ => {}
    }
}

/// A function that generates the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;
