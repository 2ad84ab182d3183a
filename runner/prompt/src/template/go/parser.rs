//! The parser of Go templates.

use std::collections::HashMap;

use super::functions;
use super::lexer::{LexerToken, Word, lex};
use super::tree::{Branch, Node, Operand, Pipe, TemplateCommand, Templates};
use crate::Error;

/// Maximum depth of nested parentheses and blocks.
const MAX_DEPTH: usize = 100;

/// Parses a source. Every template that it calls must be defined.
pub(super) fn read(source: &str) -> Result<Templates, Error> {
    let mut parser = Parser {
        tokens: lex(source)?,
        at: 0,
        depth: 0,
        loops: 0,
        variables: vec![String::new()],
        templates: HashMap::new(),
    };
    let (root, end) = parser.list()?;
    if let Some(end) = end {
        return parser.failed(&format!("unexpected `{{{{{}}}}}`", end.name()));
    }
    parser.templates.insert(String::new(), root);
    let called = |nodes: &Vec<Node>| missing(nodes, &parser.templates);
    if let Some((name, line)) = parser.templates.values().find_map(called) {
        return Err(Error::Template(format!("the template `{name}` is not defined (line {line})")));
    }
    Ok(parser.templates)
}

/// Returns a template that is called but not defined.
fn missing(nodes: &[Node], known: &Templates) -> Option<(String, usize)> {
    nodes.iter().find_map(|node| match node {
        Node::Template { name, line, .. } => (!known.contains_key(name)).then(|| (name.clone(), *line)),
        Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
            missing(&branch.list, known).or_else(|| missing(branch.otherwise.as_deref().unwrap_or_default(), known))
        }
        _ => None,
    })
}

/// The end of a list of nodes.
#[derive(Clone, Debug, PartialEq)]
enum End {
    End,
    /// `else`, with the keyword that follows in the same action: none, `if` or `with`.
    Else(Option<&'static str>),
}

impl End {
    fn name(&self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Else(_) => "else",
        }
    }
}

struct Parser {
    tokens: Vec<LexerToken>,
    at: usize,
    depth: usize,
    /// Number of open loops; `break` and `continue` require one.
    loops: usize,
    /// Variables in scope; the first is `$`, which has an empty name.
    variables: Vec<String>,
    templates: Templates,
}

impl Parser {
    fn failed<T>(&self, reason: &str) -> Result<T, Error> {
        Err(Error::Template(format!("{reason} (line {})", self.line())))
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn peek(&self) -> Option<&Word> {
        self.tokens.get(self.at).map(|token| &token.word)
    }

    fn next(&mut self) -> Option<Word> {
        let word = self.peek().cloned();
        self.at += 1;
        word
    }

    /// Returns the next word other than white space.
    fn solid(&mut self) -> Option<&Word> {
        while self.peek() == Some(&Word::Space) {
            self.at += 1;
        }
        self.peek()
    }

    fn close(&mut self) -> Result<(), Error> {
        match self.solid() {
            Some(Word::Close) => {
                self.at += 1;
                Ok(())
            }
            Some(other) => {
                let other = format!("{other:?}");
                self.failed(&format!("expected the end of the action, found {other}"))
            }
            None => self.failed("an action is not closed"),
        }
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_DEPTH {
            return self.failed(&format!("blocks and parentheses can be nested at most {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Parses nodes up to the end of the list; the end is `None` at the end of the source.
    fn list(&mut self) -> Result<(Vec<Node>, Option<End>), Error> {
        let mut nodes = Vec::new();
        loop {
            match self.next() {
                None => return Ok((nodes, None)),
                Some(Word::Text(text)) => nodes.push(Node::Text(text)),
                Some(Word::Open) => match self.deeper(Self::action)? {
                    ParsedAction::Node(node) => nodes.push(node),
                    ParsedAction::Nothing => {}
                    ParsedAction::End(end) => return Ok((nodes, Some(end))),
                },
                Some(_) => return self.failed("unexpected word outside of an action"),
            }
        }
    }

    fn action(&mut self) -> Result<ParsedAction, Error> {
        let Some(Word::Name(name)) = self.solid().cloned() else { return self.pipe_action() };
        let begin = self.at;
        self.at += 1;
        Ok(match name.as_str() {
            "end" => {
                self.close()?;
                ParsedAction::End(End::End)
            }
            "else" => ParsedAction::End(End::Else(self.after_else()?)),
            "if" => ParsedAction::Node(Node::If(self.branch("if")?)),
            "with" => ParsedAction::Node(Node::With(self.branch("with")?)),
            "range" => ParsedAction::Node(Node::Range(self.branch("range")?)),
            "break" | "continue" => {
                self.close()?;
                if self.loops == 0 {
                    return self.failed(&format!("`{name}` is only valid in a loop"));
                }
                ParsedAction::Node(if name == "break" { Node::Break } else { Node::Continue })
            }
            "template" => ParsedAction::Node(self.template()?),
            "define" => self.define()?,
            "block" => self.block()?,
            _ => {
                self.at = begin;
                return self.pipe_action();
            }
        })
    }

    fn after_else(&mut self) -> Result<Option<&'static str>, Error> {
        let word = match self.solid() {
            Some(Word::Name(name)) if name == "if" => "if",
            Some(Word::Name(name)) if name == "with" => "with",
            _ => {
                self.close()?;
                return Ok(None);
            }
        };
        self.at += 1;
        Ok(Some(word))
    }

    fn pipe_action(&mut self) -> Result<ParsedAction, Error> {
        let pipe = self.pipe(&Word::Close)?;
        Ok(ParsedAction::Node(Node::Action(pipe)))
    }

    /// Parses the rest of `if`, `with` or `range`, to the end of the block.
    fn branch(&mut self, kind: &'static str) -> Result<Branch, Error> {
        let known = self.variables.len();
        let is_loop = usize::from(kind == "range");
        let pipe = self.pipe_with(&Word::Close, 1 + is_loop)?;
        self.loops += is_loop;
        let (list, end) = self.list()?;
        self.loops -= is_loop;
        let otherwise = match end {
            None => return self.failed(&format!("`{kind}` has no `end`")),
            Some(End::End) => None,
            Some(End::Else(None)) => match self.list()? {
                (nodes, Some(End::End)) => Some(nodes),
                _ => return self.failed(&format!("the `else` of `{kind}` has no `end`")),
            },
            // A single `end` closes the whole chain.
            Some(End::Else(Some(next))) if next == kind => {
                let branch = self.deeper(|parser| parser.branch(next))?;
                Some(vec![if next == "if" { Node::If(branch) } else { Node::With(branch) }])
            }
            Some(End::Else(Some(next))) => return self.failed(&format!("`else {next}` within `{kind}`")),
        };
        self.variables.truncate(known);
        Ok(Branch { pipe, list, otherwise })
    }

    fn name_of_template(&mut self) -> Result<String, Error> {
        match self.solid().cloned() {
            Some(Word::Quoted(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => self.failed("the name of a template is a text between quotes"),
        }
    }

    fn template(&mut self) -> Result<Node, Error> {
        let line = self.line();
        let name = self.name_of_template()?;
        let pipe = match self.solid() {
            Some(Word::Close) => {
                self.at += 1;
                None
            }
            _ => Some(self.pipe(&Word::Close)?),
        };
        Ok(Node::Template { name, pipe, line })
    }

    /// Parses the body of a named template, which has no variables in scope except its data.
    fn body(&mut self, name: String) -> Result<(), Error> {
        let outer = std::mem::replace(&mut self.variables, vec![String::new()]);
        let loops = std::mem::take(&mut self.loops);
        let (nodes, end) = self.list()?;
        if end != Some(End::End) {
            return self.failed(&format!("the template `{name}` has no `end`"));
        }
        (self.variables, self.loops) = (outer, loops);
        self.templates.insert(name, nodes);
        Ok(())
    }

    fn define(&mut self) -> Result<ParsedAction, Error> {
        let name = self.name_of_template()?;
        self.close()?;
        self.body(name)?;
        Ok(ParsedAction::Nothing)
    }

    fn block(&mut self) -> Result<ParsedAction, Error> {
        let line = self.line();
        let name = self.name_of_template()?;
        let pipe = self.pipe(&Word::Close)?;
        self.body(name.clone())?;
        Ok(ParsedAction::Node(Node::Template { name, pipe: Some(pipe), line }))
    }

    /// Parses a pipeline, including the word that ends it.
    fn pipe(&mut self, end: &Word) -> Result<Pipe, Error> {
        self.pipe_with(end, 1)
    }

    /// Parses a pipeline that may set up to `most` variables.
    fn pipe_with(&mut self, end: &Word, most: usize) -> Result<Pipe, Error> {
        let line = self.line();
        let (declared, assigns) = self.declaration()?;
        if declared.len() > most {
            return self.failed("only a loop sets two variables");
        }
        let mut commands = Vec::new();
        loop {
            let command = self.command(end)?;
            // Go accepts a `|` before the end.
            if command.0.is_empty() && !commands.is_empty() && self.peek() == Some(end) {
                self.at += 1;
                break;
            }
            if command.0.is_empty() {
                return self.failed("a value is missing");
            }
            if let (
                false,
                Operand::Bool(_) | Operand::Int(_) | Operand::Float(_) | Operand::Nil | Operand::Text(_) | Operand::Dot,
            ) = (commands.is_empty(), &command.0[0])
            {
                return self.failed("only functions can follow `|`");
            }
            commands.push(command);
            let ended = self.next();
            if ended.as_ref() == Some(end) {
                break;
            }
            if ended != Some(Word::Sign("|")) {
                return self.failed("an action is not closed");
            }
        }
        for name in declared.iter().filter(|_| !assigns) {
            self.variables.push(name.clone());
        }
        Ok(Pipe { line, declared, assigns, commands })
    }

    /// Parses `$a := `, `$a, $b := ` or `$a = `, if it is at the current position.
    fn declaration(&mut self) -> Result<(Vec<String>, bool), Error> {
        let begin = self.at;
        let mut names = Vec::new();
        while let Some(Word::Variable(name)) = self.solid().cloned() {
            self.at += 1;
            names.push(name);
            match self.solid() {
                Some(Word::Sign(",")) if names.len() == 1 => self.at += 1,
                Some(Word::Sign(":=")) => {
                    self.at += 1;
                    return Ok((names, false));
                }
                Some(Word::Sign("=")) => {
                    self.at += 1;
                    if let Some(unknown) = names.iter().find(|name| !self.variables.contains(name)) {
                        return self.failed(&format!("the variable `${unknown}` is not defined"));
                    }
                    return Ok((names, true));
                }
                _ => break,
            }
        }
        self.at = begin;
        Ok((Vec::new(), false))
    }

    /// Parses operands up to a `|` or the end.
    fn command(&mut self, end: &Word) -> Result<TemplateCommand, Error> {
        let mut operands = Vec::new();
        loop {
            match self.solid() {
                None => return self.failed("an action is not closed"),
                Some(word) if word == end || *word == Word::Sign("|") => return Ok(TemplateCommand(operands)),
                Some(_) => {
                    let operand = self.operand()?;
                    let apart = match self.peek() {
                        Some(Word::Space | Word::Sign("|" | ")") | Word::Close) | None => true,
                        Some(_) => false,
                    };
                    if !apart {
                        return self.failed("white space is missing between operands");
                    }
                    operands.push(operand);
                }
            }
        }
    }

    fn operand(&mut self) -> Result<Operand, Error> {
        let operand = match self.next() {
            Some(Word::Dot) => Operand::Dot,
            Some(Word::Field(name)) => Operand::Field([vec![name], self.fields()].concat()),
            Some(Word::Variable(name)) if self.variables.contains(&name) => Operand::Variable(name, self.fields()),
            Some(Word::Variable(name)) => return self.failed(&format!("the variable `${name}` is not defined")),
            Some(Word::Quoted(text)) => Operand::Text(text),
            Some(Word::Int(number)) => Operand::Int(number),
            Some(Word::Float(number)) => Operand::Float(number),
            Some(Word::Name(name)) => match name.as_str() {
                "true" | "false" => Operand::Bool(name == "true"),
                "nil" => Operand::Nil,
                _ if functions::is_known(&name) => Operand::Function(name),
                _ => return self.failed(&format!("the function `{name}` is not defined")),
            },
            Some(Word::Sign("(")) => Operand::Pipe(Box::new(self.deeper(|parser| parser.pipe(&Word::Sign(")")))?)),
            other => return self.failed(&format!("unexpected {other:?} in an action")),
        };
        let fields = self.fields();
        Ok(if fields.is_empty() { operand } else { Operand::Chain(Box::new(operand), fields) })
    }

    /// Parses fields that follow without white space.
    fn fields(&mut self) -> Vec<String> {
        let mut fields = Vec::new();
        while let Some(Word::Field(name)) = self.peek().cloned() {
            self.at += 1;
            fields.push(name);
        }
        fields
    }
}

/// Result of parsing an action.
enum ParsedAction {
    Node(Node),
    /// A definition without output.
    Nothing,
    End(End),
}
