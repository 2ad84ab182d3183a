//! Ollama's renderers by name, as Jinja templates: models that were made for Ollama name one (`RENDERER`) in the place of a template.
//!
//! There is one for each family that can be run here. They give what Ollama's give (`model/renderers`), but for JSON: keys are in the
//! order in which a client sends them, and nothing is escaped for HTML, as the models' makers have it.

/// By the name of the renderer: whether its models think, and what its template has before it.
const ALL: [(&str, bool, &str, &str); 13] = [
    ("cogito", true, "", include_str!("renderers/cogito.jinja")),
    ("deepseek3.1", true, "", include_str!("renderers/deepseek3.jinja")),
    ("functiongemma", false, "", include_str!("renderers/functiongemma.jinja")),
    ("glm-4.7", true, "", include_str!("renderers/glm47.jinja")),
    ("lfm2", false, "{%- set thinks = false -%}", include_str!("renderers/lfm2.jinja")),
    ("lfm2-thinking", true, "{%- set thinks = true -%}", include_str!("renderers/lfm2.jinja")),
    ("olmo3", false, "{%- set extended = false -%}", include_str!("renderers/olmo3.jinja")),
    ("olmo3.1", false, "{%- set extended = true -%}", include_str!("renderers/olmo3.jinja")),
    ("olmo3-32b-think", true, "{%- set extended = false -%}", include_str!("renderers/olmo3_think.jinja")),
    ("olmo3-think", true, "{%- set extended = true -%}", include_str!("renderers/olmo3_think.jinja")),
    ("qwen3-coder", false, "", include_str!("renderers/qwen3_coder.jinja")),
    ("qwen3-vl-instruct", false, "{%- set thinks = false -%}", include_str!("renderers/qwen3_vl.jinja")),
    ("qwen3-vl-thinking", true, "{%- set thinks = true -%}", include_str!("renderers/qwen3_vl.jinja")),
];

/// The template of a renderer; nothing where its family cannot be run here.
pub fn template(renderer: &str) -> Option<String> {
    ALL.iter().find(|(name, ..)| *name == renderer).map(|(.., before, text)| [*before, *text].concat())
}

/// Whether the models of a renderer think; nothing where it is not known. Its text does not tell: some share theirs.
pub fn thinks(renderer: &str) -> Option<bool> {
    ALL.iter().find(|(name, ..)| *name == renderer).map(|(_, thinks, ..)| *thinks)
}

/// The names that are known.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_ollama() {
        assert!(template("olmo3.1").is_some_and(|text| text.starts_with("{%- set extended = true -%}")));
        assert_eq!(template("gemma4"), None);
        assert_eq!([thinks("lfm2"), thinks("lfm2-thinking"), thinks("gemma4")], [Some(false), Some(true), None]);
        assert_eq!(names().count(), ALL.len());
    }
}
