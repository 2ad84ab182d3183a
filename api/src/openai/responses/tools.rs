//! The tools of a request and the names of their calls. The responses API has tool types that chat
//! templates do not know.
//!
//! A `namespace` groups functions. The model sees each function as `NAMESPACE__NAME`, and its calls
//! are split into namespace and name again. Tools that run on another server or take input that is
//! not JSON are omitted; the metadata of the response lists their types.

use serde_json::{Map, Value};

use crate::Refusal;

/// Separator between a namespace and a function name. Function names may contain only letters,
/// digits, `_` and `-`.
const SEPARATOR: &str = "__";
/// Tool types that are omitted. Other unknown types are refused: they may be a misspelt `function`.
const OMITTED: &[&str] = &[
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "apply_patch",
    "tool_search",
    "web_search",
    "web_search_preview",
];

/// The tools of a request, sorted by how they are handled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Offered {
    /// Functions as in the request, with namespaces joined into their names.
    pub(super) functions: Vec<Value>,
    /// The namespaces of the request.
    pub(super) namespaces: Vec<String>,
    /// Types of the omitted tools, without duplicates.
    pub(super) omitted: Vec<String>,
}

/// Sorts the tools of a request.
pub(super) fn offered(given: &[Value]) -> Result<Offered, Refusal> {
    let mut offered = Offered::default();
    for (at, tool) in given.iter().enumerate() {
        match tool["type"].as_str() {
            Some("namespace") => offered.expand(at, tool)?,
            Some(kind) if OMITTED.contains(&kind) => offered.omit(kind),
            _ => offered.functions.push(tool.clone()),
        }
    }
    Ok(offered)
}

impl Offered {
    fn expand(&mut self, at: usize, namespace: &Value) -> Result<(), Refusal> {
        let refuse = |field: &str, message: &str| Refusal::new(format!("tools[{at}].{field}"), message);
        let name = namespace["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| refuse("name", "a namespace needs a name"))?;
        let tools = namespace["tools"].as_array();
        let tools = tools.ok_or_else(|| refuse("tools", "a namespace needs a list of tools"))?;
        for tool in tools {
            match (tool["type"].as_str(), tool.as_object(), tool["name"].as_str()) {
                (Some(kind), _, _) if OMITTED.contains(&kind) => self.omit(kind),
                (_, Some(function), Some(own)) => {
                    let mut function = function.clone();
                    function.insert("name".to_owned(), joined(Some(name), own).into());
                    self.functions.push(function.into());
                }
                _ => return Err(refuse("tools", "a function of a namespace is an object with a name")),
            }
        }
        self.namespaces.push(name.to_owned());
        Ok(())
    }

    fn omit(&mut self, kind: &str) {
        if !self.omitted.iter().any(|known| known == kind) {
            self.omitted.push(kind.to_owned());
        }
    }
}

/// Returns the name by which the model knows a function.
pub(super) fn joined(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}{SEPARATOR}{name}"),
        None => name.to_owned(),
    }
}

/// Splits the name of a called function into namespace and name. The longest matching namespace
/// wins.
pub(super) fn split(called: &str, namespaces: &[String]) -> (Option<String>, String) {
    let within = |namespace: &String| {
        let name = called.strip_prefix(namespace.as_str())?.strip_prefix(SEPARATOR)?;
        Some((Some(namespace.clone()), name.to_owned()))
    };
    let found = namespaces.iter().filter(|namespace| within(namespace).is_some()).max_by_key(|name| name.len());
    found.and_then(within).unwrap_or_else(|| (None, called.to_owned()))
}

/// Lists the omitted types in the response's metadata, whose values are strings.
pub(super) fn list_omitted(metadata: &mut Map<String, Value>, omitted: &[String]) {
    if !omitted.is_empty() {
        metadata.insert("lode_omitted_tools".to_owned(), omitted.join(", ").into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_are_expanded_and_other_types_left_out() {
        let function = json!({"type": "function", "name": "run", "parameters": {}});
        let given = [
            function.clone(),
            json!({"type": "namespace", "name": "agents", "tools": [function, {"type": "custom", "name": "c"}]}),
            json!({"type": "web_search", "external_web_access": false}),
            json!({"type": "custom", "name": "apply_patch"}),
        ];
        let offered = offered(&given).expect("tools");
        let names: Vec<&str> = offered.functions.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, ["run", "agents__run"]);
        assert_eq!(offered.omitted, ["custom", "web_search"]);
        for bad in [json!({"type": "namespace", "tools": []}), json!({"type": "namespace", "name": "n"})] {
            assert!(super::offered(&[bad]).is_err());
        }
    }

    #[test]
    fn a_call_names_its_namespace() {
        let namespaces = ["a".to_owned(), "a__b".to_owned()];
        for (called, namespace, name) in [
            ("run", None, "run"),
            ("a__run", Some("a"), "run"),
            ("a__b__run", Some("a__b"), "run"),
            ("c__run", None, "c__run"),
        ] {
            assert_eq!(split(called, &namespaces), (namespace.map(str::to_owned), name.to_owned()), "{called}");
            assert_eq!(joined(namespace, name), called);
        }
    }
}
