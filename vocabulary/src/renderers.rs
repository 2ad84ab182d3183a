//! Ollama's renderers by name, as Jinja templates. Models made for Ollama can name a renderer
//! (`RENDERER`) instead of a template.
//!
//! There is one for each model family that this project can run. The output equals that of Ollama's
//! renderers (`model/renderers`), except for JSON: keys keep the client's order, and nothing is
//! escaped for HTML, as the models' makers specify.

/// Name of the renderer, whether its models think, a prefix for its template, and the template.
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

/// Returns the template of a renderer; `None` if the renderer is unknown.
pub fn template(renderer: &str) -> Option<String> {
    ALL.iter().find(|(name, ..)| *name == renderer).map(|(.., before, text)| [*before, *text].concat())
}

/// Whether the models of a renderer think; `None` if the renderer is unknown. The template does not
/// show it, because renderers with and without thinking share templates.
pub fn thinks(renderer: &str) -> Option<bool> {
    ALL.iter().find(|(name, ..)| *name == renderer).map(|(_, thinks, ..)| *thinks)
}

/// Returns the names of the known renderers.
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
