//! Go's templates, as Ollama renders them.
//!
//! Ollama's models and Modelfiles contain such templates. A template that uses `.Messages` is
//! rendered once with the whole conversation. Any other template is rendered once for each prompt
//! and its answer, the last time up to the beginning of the answer. A template that uses `.Suffix`
//! supports fill-in-the-middle.
//!
//! Sources: Go's `text/template`; Ollama's `template/template.go`.

mod conversation;
mod execute;
mod functions;
mod lexer;
mod parser;
mod print;
#[cfg(test)]
mod tests;
mod tree;
mod value;

use std::collections::BTreeSet;

use protocol::RenderRequest;

use super::clock::Clock;
use crate::Error;
use tree::{Node, Operand, Pipe, TemplateCommand, Templates};

/// A parsed template.
#[derive(Debug)]
pub(super) struct GoTemplate {
    templates: Templates,
    /// Names of the fields and variables that it uses, in lower case.
    names: BTreeSet<String>,
}

impl GoTemplate {
    /// Parses a template. If it has no place for the answer, the answer is appended at its end.
    pub(super) fn read(source: &str) -> Result<Self, Error> {
        let mut templates = parser::read(source)?;
        let mut names = BTreeSet::new();
        for nodes in templates.values() {
            collect(nodes, &mut names);
        }
        if !names.contains("messages") && !names.contains("response") {
            let response = TemplateCommand(vec![Operand::Field(vec!["Response".to_owned()])]);
            let pipe = Pipe { line: 0, declared: Vec::new(), assigns: false, commands: vec![response] };
            templates.entry(String::new()).or_default().push(Node::Action(pipe));
            names.insert("response".to_owned());
        }
        Ok(Self { templates, names })
    }

    /// Renders a conversation, or the text before a gap if the request specifies the text after it.
    pub(super) fn render(&self, request: &RenderRequest, clock: &Clock) -> Result<String, Error> {
        let mut out = String::new();
        let root = self.templates.get("").map(Vec::as_slice).unwrap_or_default();
        let mut execute = |nodes: &[Node], data| execute::execute(&self.templates, nodes, &data, clock, &mut out);
        if let Some(suffix) = request.suffix.as_deref().filter(|_| self.names.contains("suffix")) {
            let prefix = request.messages.last().map_or("", |message| message.content.as_str());
            execute(root, conversation::insert(request, prefix, suffix))?;
        } else if self.names.contains("messages") {
            execute(root, conversation::whole(request))?;
        } else {
            let turns = conversation::turns(&request.messages);
            if let Some((last, before)) = turns.split_last() {
                for turn in before {
                    execute(root, conversation::turn(request, turn))?;
                }
                execute(&up_to_response(root), conversation::turn(request, last))?;
            }
        }
        Ok(out)
    }
}

/// Collects the names of all fields and variables.
fn collect(nodes: &[Node], names: &mut BTreeSet<String>) {
    for node in nodes {
        match node {
            Node::Action(pipe) | Node::Template { pipe: Some(pipe), .. } => collect_pipe(pipe, names),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                collect_pipe(&branch.pipe, names);
                collect(&branch.list, names);
                collect(branch.otherwise.as_deref().unwrap_or_default(), names);
            }
            _ => {}
        }
    }
}

fn collect_pipe(pipe: &Pipe, names: &mut BTreeSet<String>) {
    for operand in pipe.commands.iter().flat_map(|command| &command.0) {
        collect_operand(operand, names);
    }
}

fn collect_operand(operand: &Operand, names: &mut BTreeSet<String>) {
    match operand {
        Operand::Field(path) | Operand::Variable(_, path) => names.extend(path.iter().map(|name| name.to_lowercase())),
        Operand::Chain(operand, path) => {
            collect_operand(operand, names);
            names.extend(path.iter().map(|name| name.to_lowercase()));
        }
        Operand::Pipe(pipe) => collect_pipe(pipe, names),
        _ => {}
    }
}

/// Returns a template without the part after the answer.
fn up_to_response(nodes: &[Node]) -> Vec<Node> {
    let mut found = false;
    cut(nodes, &mut found)
}

fn cut(nodes: &[Node], found: &mut bool) -> Vec<Node> {
    let mut kept = Vec::new();
    for node in nodes {
        if *found {
            break;
        }
        let mut node = node.clone();
        match &mut node {
            Node::Action(pipe) => *found = is_response(pipe),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                branch.list = cut(&branch.list, found);
                let otherwise = branch.otherwise.take().filter(|_| !*found);
                branch.otherwise = otherwise.map(|nodes| cut(&nodes, found));
            }
            _ => {}
        }
        kept.push(node);
    }
    kept
}

fn is_response(pipe: &Pipe) -> bool {
    let mut operands = pipe.commands.iter().flat_map(|command| &command.0);
    operands.any(|operand| matches!(operand, Operand::Field(path) if path.iter().any(|name| name == "Response")))
}
