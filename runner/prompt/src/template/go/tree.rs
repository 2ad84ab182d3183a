//! The syntax tree of a Go template.

use std::collections::HashMap;

/// A node of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Prints the value of a pipeline, unless the pipeline sets variables.
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// Renders another template.
    Template {
        name: String,
        pipe: Option<Pipe>,
        line: usize,
    },
    Break,
    Continue,
}

/// A block: its condition or loop value, its body, and its `else` part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Branch {
    pub(super) pipe: Pipe,
    pub(super) list: Vec<Node>,
    pub(super) otherwise: Option<Vec<Node>>,
}

/// `$a, $b := command | command`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipe {
    pub(super) line: usize,
    pub(super) declared: Vec<String>,
    /// True for `=`, which assigns to existing variables.
    pub(super) assigns: bool,
    pub(super) commands: Vec<TemplateCommand>,
}

/// An operation, followed by its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TemplateCommand(pub(super) Vec<Operand>);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// `.A.B`.
    Field(Vec<String>),
    /// `$a.B`.
    Variable(String, Vec<String>),
    Function(String),
    /// `(…).A`.
    Chain(Box<Operand>, Vec<String>),
    Pipe(Box<Pipe>),
}

/// Templates by name; the main template has an empty name.
pub(super) type Templates = HashMap<String, Vec<Node>>;
