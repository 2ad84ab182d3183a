//! Execution of a Go template with its data.

use super::functions::{call, entry};
use super::tree::{Branch, Node, Operand, Pipe, TemplateCommand, Templates};
use super::value::Value;
use crate::template::clock::Clock;
use crate::template::explain_length;
use crate::{Error, MAX_TEXT};

/// Maximum depth of nested template calls.
const MAX_DEPTH: usize = 100;
/// Maximum number of nodes, operands and loop items that a template may process. The largest
/// published templates need a fraction of it per message.
const FUEL: u64 = 10_000_000;

/// Renders the nodes with their data, and appends to `out`.
pub(super) fn execute(
    templates: &Templates,
    nodes: &[Node],
    data: &Value,
    clock: &Clock,
    out: &mut String,
) -> Result<(), Error> {
    let mut run = Run { templates, clock, out, fuel: FUEL, depth: 0, line: 0, variables: Vec::new() };
    run.call(nodes, data).map(drop).map_err(|reason| {
        let line = run.line;
        Error::Template(if line > 0 { format!("{reason} (line {line})") } else { reason })
    })
}

struct Run<'r> {
    templates: &'r Templates,
    clock: &'r Clock,
    out: &'r mut String,
    fuel: u64,
    depth: usize,
    /// Line of the last evaluated pipeline.
    line: usize,
    variables: Vec<(String, Value)>,
}

/// How the execution of a list of nodes ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run<'_> {
    fn spend(&mut self, steps: usize) -> Result<(), String> {
        let left = self.fuel.checked_sub(steps as u64 + 1);
        self.fuel = left.ok_or("it takes too many steps, and is stopped")?;
        Ok(())
    }

    fn print(&mut self, text: &str) -> Result<(), String> {
        if self.out.len() + text.len() > MAX_TEXT {
            return Err(explain_length());
        }
        self.out.push_str(text);
        Ok(())
    }

    /// Renders a template with a separate scope of variables, in which `$` is its data.
    fn call(&mut self, nodes: &[Node], data: &Value) -> Result<Flow, String> {
        if self.depth == MAX_DEPTH {
            return Err(format!("template calls can be nested at most {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let outer = std::mem::replace(&mut self.variables, vec![(String::new(), data.clone())]);
        let flow = self.list(nodes, data)?;
        self.variables = outer;
        self.depth -= 1;
        Ok(flow)
    }

    fn list(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, String> {
        for node in nodes {
            self.spend(0)?;
            let flow = self.node(node, dot)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow, String> {
        match node {
            Node::Text(text) => self.print(text)?,
            Node::Action(pipe) => {
                let value = self.pipe(pipe, dot)?;
                if pipe.declared.is_empty() {
                    self.print(&value.printed())?;
                }
            }
            Node::If(branch) | Node::With(branch) => return self.branch(branch, dot, matches!(node, Node::With(_))),
            Node::Range(branch) => return self.range(branch, dot),
            Node::Template { name, pipe, .. } => {
                let data = pipe.as_ref().map_or(Ok(Value::Nil), |pipe| self.pipe(pipe, dot))?;
                let templates = self.templates;
                let nodes = templates.get(name).ok_or_else(|| format!("the template `{name}` is not defined"))?;
                self.call(nodes, &data)?;
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn branch(&mut self, branch: &Branch, dot: &Value, is_with: bool) -> Result<Flow, String> {
        let known = self.variables.len();
        let value = self.pipe(&branch.pipe, dot)?;
        let flow = if value.is_true() {
            self.list(&branch.list, if is_with { &value } else { dot })
        } else {
            self.list(branch.otherwise.as_deref().unwrap_or_default(), dot)
        };
        self.variables.truncate(known);
        flow
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Result<Flow, String> {
        let known = self.variables.len();
        let value = self.commands(&branch.pipe, dot)?;
        let number = |at: usize| Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
        let items: Box<dyn Iterator<Item = (Value, Value)> + '_> = match &value {
            Value::List(list) => {
                Box::new(list.items.iter().enumerate().map(move |(at, item)| (number(at), item.clone())))
            }
            Value::Map(map) => Box::new(map.items.iter().map(|(key, item)| (Value::text(key), item.clone()))),
            Value::Int(count) => Box::new((0..*count).map(|at| (Value::Int(at), Value::Int(at)))),
            Value::Nil => Box::new(std::iter::empty()),
            other => return Err(format!("range can't iterate over {}", other.kind())),
        };
        let mut any = false;
        for (key, item) in items {
            any = true;
            self.spend(0)?;
            let begun = self.variables.len();
            self.set(&branch.pipe, key, &item)?;
            let flow = self.list(&branch.list, &item)?;
            self.variables.truncate(begun);
            if flow == Flow::Break {
                break;
            }
        }
        let otherwise = branch.otherwise.as_deref().filter(|_| !any).unwrap_or_default();
        let flow = self.list(otherwise, dot);
        self.variables.truncate(known);
        flow
    }

    /// Sets the variables of a loop: the item, or its key and the item.
    fn set(&mut self, pipe: &Pipe, key: Value, item: &Value) -> Result<(), String> {
        let values = match pipe.declared.len() {
            0 => return Ok(()),
            1 => vec![item.clone()],
            _ => vec![key, item.clone()],
        };
        for (name, value) in pipe.declared.iter().zip(values) {
            self.assign(pipe, name, value)?;
        }
        Ok(())
    }

    fn assign(&mut self, pipe: &Pipe, name: &str, value: Value) -> Result<(), String> {
        if !pipe.assigns {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        let known = self.variables.iter_mut().rev().find(|(known, _)| known == name);
        known.ok_or_else(|| format!("the variable `${name}` is not defined"))?.1 = value;
        Ok(())
    }

    /// Evaluates a pipeline, and assigns the value to its variable if it has one.
    fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, String> {
        let value = self.commands(pipe, dot)?;
        if let Some(name) = pipe.declared.first() {
            self.assign(pipe, name, value.clone())?;
        }
        Ok(value)
    }

    /// Evaluates the commands in sequence; the result of each is the last argument of the next.
    fn commands(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, String> {
        self.line = pipe.line;
        let mut last = None;
        for command in &pipe.commands {
            last = Some(self.command(command, dot, last)?);
        }
        self.line = pipe.line;
        Ok(last.unwrap_or(Value::Nil))
    }

    fn command(
        &mut self,
        TemplateCommand(operands): &TemplateCommand,
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, String> {
        let [first, args @ ..] = &operands[..] else { return Ok(Value::Nil) };
        if let Operand::Function(name) = first {
            return self.function(name, args, dot, last);
        }
        if !args.is_empty() || last.is_some() {
            return Err(format!("{} is no function but has arguments", shown(first)));
        }
        if *first == Operand::Nil {
            return Err("nil is not a command".to_owned());
        }
        self.operand(first, dot)
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, String> {
        self.spend(0)?;
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Value::Nil),
            Operand::Bool(flag) => Ok(Value::Bool(*flag)),
            Operand::Int(number) => Ok(Value::Int(*number)),
            Operand::Float(number) => Ok(Value::Float(*number)),
            Operand::Text(text) => Ok(Value::text(text)),
            Operand::Field(path) => fields(dot.clone(), path),
            Operand::Variable(name, path) => fields(self.variable(name)?, path),
            Operand::Function(name) => self.function(name, &[], dot, None),
            Operand::Chain(operand, path) => fields(self.operand(operand, dot)?, path),
            Operand::Pipe(pipe) => self.pipe(pipe, dot),
        }
    }

    fn variable(&self, name: &str) -> Result<Value, String> {
        let known = self.variables.iter().rev().find(|(known, _)| known == name);
        known.map(|(_, value)| value.clone()).ok_or_else(|| format!("the variable `${name}` is not defined"))
    }

    fn function(&mut self, name: &str, args: &[Operand], dot: &Value, last: Option<Value>) -> Result<Value, String> {
        if matches!(name, "and" | "or") {
            return self.first(name == "or", args, dot, last);
        }
        let mut values = args.iter().map(|arg| self.operand(arg, dot)).collect::<Result<Vec<_>, _>>()?;
        values.extend(last);
        if let ("slice", [Value::List(list), ..]) = (name, &values[..]) {
            self.spend(list.items.len())?;
        }
        call(name, &values, self.clock)
    }

    /// Returns the first argument that is true (`or`) or false (`and`), else the last one. Later
    /// arguments are not evaluated.
    fn first(&mut self, wanted: bool, args: &[Operand], dot: &Value, last: Option<Value>) -> Result<Value, String> {
        let mut value = None;
        for arg in args {
            let found = self.operand(arg, dot)?;
            if found.is_true() == wanted {
                return Ok(found);
            }
            value = Some(found);
        }
        last.or(value).ok_or_else(|| "`and` and `or` have one argument at least".to_owned())
    }
}

/// Resolves a path of fields in a value.
fn fields(value: Value, path: &[String]) -> Result<Value, String> {
    path.iter().try_fold(value, |value, name| match &value {
        Value::Map(map) => Ok(entry(map, name)),
        Value::Struct(inner) => match inner.fields.iter().find(|field| field.name == name) {
            Some(field) => Ok(field.value.clone()),
            None => Err(format!("can't evaluate field {name} in type {}", inner.kind)),
        },
        Value::Nil => Err(format!("nil pointer evaluating interface {{}}.{name}")),
        other => Err(format!("can't evaluate field {name} in type {}", other.kind())),
    })
}

/// Formats an operand as in the source, for error messages.
fn shown(operand: &Operand) -> String {
    match operand {
        Operand::Field(path) => format!(".{}", path.join(".")),
        Operand::Variable(name, path) => [&[format!("${name}")], &path[..]].concat().join("."),
        Operand::Dot => ".".to_owned(),
        _ => "the value".to_owned(),
    }
}
