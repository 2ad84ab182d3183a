//! Joins schemas that apply at the same time into one: `allOf`, and keys beside `$ref` and `anyOf`.

use std::cell::Cell;

use serde_json::{Value, json};

use super::unfold::Unfolding;
use super::{MAX_DEPTH, Schema};

/// Keys of an object schema that can be joined with another.
const OF_OBJECTS: [&str; 4] = ["type", "properties", "required", "additionalProperties"];
/// Keys that do not constrain a value, in addition to keys that begin with `x-`.
const NOTES: [&str; 18] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    "discriminator",
    "nullable",
    "example",
    "externalDocs",
    "propertyOrdering",
];
/// Maximum number of values that are copied while schemas are joined; schemas beyond it are not
/// joined.
const MAX_JOINED: usize = 1 << 20;

/// The whole schema, which references point into.
pub(super) struct Root {
    definitions: Schema,
    /// Remaining number of values that may be copied while schemas are joined.
    left: Cell<usize>,
    /// Joined schemas that recursively contain themselves.
    pub(super) unfolding: Unfolding,
}

impl Root {
    pub(super) fn new(schema: &Schema) -> Self {
        Self { definitions: schema.clone(), left: Cell::new(MAX_JOINED), unfolding: Unfolding::default() }
    }

    /// Joins a schema with all schemas that apply together with it, if possible.
    pub(super) fn joined(&self, schema: &Schema) -> Schema {
        let mut base = schema.clone();
        let only = match base.get("allOf") {
            Some(Value::Array(parts)) if parts.len() == 1 => parts.first().cloned(),
            _ => None,
        };
        if let Some(only) = only.filter(|_| !says_more(&base, "allOf")) {
            // A single part is not expanded, because a reference can refer to itself.
            base.shift_remove("allOf");
            base = self.join(base, &only, 0).unwrap_or_else(|| schema.clone());
        } else {
            let joined = self.flat(base, 0).or_else(|| self.spread(schema));
            base = joined.unwrap_or_else(|| self.opened(schema, 0));
        }
        base
    }

    /// Distributes the keys beside alternatives over each alternative.
    pub(super) fn distributed(&self, schema: Schema) -> Schema {
        let Some(key) = ["anyOf", "oneOf"].into_iter().find(|key| schema.contains_key(*key) && says_more(&schema, key))
        else {
            return schema;
        };
        let mut base = schema.clone();
        let Some(Value::Array(alternatives)) = base.shift_remove(key) else { return schema };
        let (notes, base): (Schema, Schema) = base.into_iter().partition(|(key, _)| is_note(key));
        let copied = base.values().map(weight).sum::<usize>() + 1;
        let join = |one: &Value| self.spend(copied).and_then(|()| self.join(base.clone(), one, 0)).map(Value::Object);
        let all: Option<Vec<Value>> = alternatives.iter().map(join).collect();
        match all {
            Some(all) => notes.into_iter().chain([(key.to_owned(), Value::Array(all))]).collect(),
            None => schema,
        }
    }

    /// Distributes a conjunction over alternatives: schemas that apply together, one of which has
    /// alternatives, become alternatives of such conjunctions.
    fn spread(&self, schema: &Schema) -> Option<Schema> {
        let parts = schema.get("allOf")?.as_array()?;
        let (place, own, key) = parts.iter().enumerate().find_map(|(place, part)| {
            let own = self.flat(part.as_object()?.clone(), 0)?;
            let key = ["anyOf", "oneOf"].into_iter().find(|key| own.contains_key(*key))?;
            Some((place, own, key))
        })?;
        let mut others = own;
        let Some(Value::Array(alternatives)) = others.shift_remove(key) else { return None };
        let mut rest = schema.clone();
        rest.get_mut("allOf")?.as_array_mut()?.remove(place);
        let (notes, rest): (Schema, Schema) = rest.into_iter().partition(|(key, _)| is_note(key));
        let beside = [Value::Object(others), Value::Object(rest)];
        let copied = beside.iter().map(weight).sum::<usize>() + 1;
        let with = |one: Value| {
            self.spend(copied)?;
            Some(json!({"allOf": [one, beside[0], beside[1]]}))
        };
        let all: Option<Vec<Value>> = alternatives.into_iter().map(with).collect();
        Some(notes.into_iter().chain([(key.to_owned(), Value::Array(all?))]).collect())
    }

    /// Joins two schemas that apply together. Returns `None` unless both describe objects, or one
    /// of them is empty.
    fn join(&self, mut base: Schema, part: &Value, depth: usize) -> Option<Schema> {
        let part = part.as_object()?;
        if !says_anything(part) {
            return Some(base);
        }
        if !says_anything(&base) {
            base.extend(part.clone());
            return Some(base);
        }
        let (base, part) = (self.flat(base, depth)?, self.flat(part.clone(), depth)?);
        join_apart(&base, &part).or_else(|| join_objects(base, part))
    }

    /// Resolves the references and joins the conjunctions of a schema.
    fn flat(&self, mut schema: Schema, depth: usize) -> Option<Schema> {
        self.spend(schema.values().map(weight).sum::<usize>() + 1)?;
        if depth > MAX_DEPTH {
            return None;
        }
        let target = schema.shift_remove("$ref").map(|target| self.target(target.as_str()?).cloned());
        let mut parts = match schema.shift_remove("allOf") {
            Some(Value::Array(parts)) => parts,
            Some(_) => return None,
            None => Vec::new(),
        };
        if let Some(target) = target {
            parts.insert(0, target?);
        }
        for part in parts {
            let part = self.flat(part.as_object()?.clone(), depth + 1)?;
            schema = self.join(schema, &Value::Object(part), depth + 1)?;
        }
        Some(schema)
    }

    /// Consumes the budget of copied values; `None` if it is exceeded.
    fn spend(&self, values: usize) -> Option<()> {
        self.left.set(self.left.get().checked_sub(values)?);
        Some(())
    }

    /// Returns a schema whose parts are not joined. References in the parts are replaced by their
    /// targets: the definition itself is closed and would refuse properties that the other parts
    /// name.
    fn opened(&self, schema: &Schema, depth: usize) -> Schema {
        let mut opened = schema.clone();
        if depth > MAX_DEPTH {
            return opened;
        }
        if let Some(target) = opened.get("$ref").and_then(|target| self.target(target.as_str()?)).cloned()
            && self.spend(weight(&target)).is_some()
            && let Some(parts) = opened.entry("allOf").or_insert_with(|| json!([])).as_array_mut()
        {
            parts.insert(0, target);
            opened.shift_remove("$ref");
        }
        for part in opened.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(inner) = part.as_object() {
                *part = Value::Object(self.opened(inner, depth + 1));
            }
        }
        opened
    }

    /// Whether the schema has a definition of this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        self.definitions.get("$defs").is_some_and(|own| own.get(name).is_some())
    }

    /// Returns the target of a reference within the schema.
    fn target(&self, reference: &str) -> Option<&Value> {
        let path = reference.strip_prefix("#/")?;
        let mut parts = path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
        let first = self.definitions.get(&parts.next()?)?;
        parts.try_fold(first, |value, part| match value {
            Value::Array(items) => items.get(part.parse::<usize>().ok()?),
            value => value.get(&part),
        })
    }
}

/// Whether a schema is a conjunction of several schemas.
pub(super) fn joins(schema: &Schema) -> bool {
    schema.contains_key("allOf") || says_more(schema, "$ref")
}

/// Returns the number of values in a value.
fn weight(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(items) => 1 + items.values().map(weight).sum::<usize>(),
        _ => 1,
    }
}

/// Whether a key of a schema is a mere annotation.
fn is_note(key: &str) -> bool {
    NOTES.contains(&key) || key.starts_with("x-")
}

/// Whether a schema constrains a value.
pub(super) fn says_anything(schema: &Schema) -> bool {
    schema.keys().any(|key| !is_note(key))
}

/// Whether a schema contains `key` and further keys that constrain a value.
fn says_more(schema: &Schema, key: &str) -> bool {
    schema.contains_key(key) && schema.keys().any(|own| own != key && !is_note(own))
}

/// Joins two schemas that have different keywords.
fn join_apart(base: &Schema, part: &Schema) -> Option<Schema> {
    // The meaning of these keywords depends on their neighbours.
    let depends = [
        "properties",
        "additionalProperties",
        "patternProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "anyOf",
        "oneOf",
    ];
    let is_apart = |key: &String| is_note(key) || (!base.contains_key(key) && !depends.contains(&key.as_str()));
    let own = |key: &String| !depends.contains(&key.as_str());
    (part.keys().all(is_apart) && base.keys().all(own)).then(|| {
        let mut joined = part.clone();
        joined.extend(base.clone());
        joined
    })
}

/// Joins the schemas of two objects.
fn join_objects(mut base: Schema, part: Schema) -> Option<Schema> {
    let is_plain = |schema: &Schema| {
        let known = |key: &String| OF_OBJECTS.contains(&key.as_str()) || is_note(key);
        let kind = schema.get("type").is_none_or(|kind| kind == "object");
        // A restriction of other properties would also apply to the properties that the other
        // schema names.
        let others = schema.get("additionalProperties").is_none_or(|others| *others == Value::Bool(true));
        schema.keys().all(known) && kind && others
    };
    if !is_plain(&base) || !is_plain(&part) {
        return None;
    }
    for (key, value) in part {
        match (key.as_str(), base.get_mut(&key), value) {
            ("properties", Some(Value::Object(own)), Value::Object(more)) => {
                for (name, schema) in more {
                    let schema = match own.get(&name) {
                        Some(known) if *known != schema => json!({"allOf": [known, schema]}),
                        _ => schema,
                    };
                    own.insert(name, schema);
                }
            }
            ("required", Some(Value::Array(own)), Value::Array(more)) => {
                let new: Vec<Value> = more.into_iter().filter(|name| !own.contains(name)).collect();
                own.extend(new);
            }
            // The outer annotation is more specific to the place of the value.
            (_, Some(_), _) => {}
            (_, None, value) => {
                base.insert(key, value);
            }
        }
    }
    Some(base)
}
