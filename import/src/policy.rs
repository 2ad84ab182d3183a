//! Quantization policies: map each tensor to its encoding.
//!
//! The rules are data. `tables/parts.toml` classifies tensors by name; the other tables assign
//! types to those classes. A user's rules take precedence. Pure; uses names and shapes only.

mod condition;
mod part;
mod scheme;
mod survey;
mod tables;
mod type_names;
mod user;

use formats::dtype::element_count;
use formats::{Dtype, Encoding};

pub use scheme::Scheme;
pub use survey::Survey;
pub use user::{UserPolicy, UserRule};

use crate::Error;
use part::TensorRole;
use tables::RuleChoice;
use user::UserChoice;

/// Scheme, with a user's rules that take precedence.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Target scheme of the model.
    pub scheme: Scheme,
    /// Rules of the user.
    pub user: UserPolicy,
}

/// Decision about a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The tensor is copied unchanged.
    Keep(Reason),
    /// The tensor is removed from the model.
    Drop,
    /// The tensor is encoded.
    Encode(Encoding),
}

/// Reason for keeping a tensor unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of the user requires it.
    User,
    /// Tensors of this kind keep their precision: norms, routers, embeddings, vectors, small
    /// tensors.
    Precision,
    /// Its rows are not whole groups or blocks of any candidate type.
    Misaligned,
    /// Its elements are not floats of 16 or 32 bits.
    NotFloat,
    /// It already has the encoding.
    Already,
}

impl Policy {
    /// Returns the decision about a tensor, and the position of the user's rule that made it, if
    /// any.
    ///
    /// # Errors
    /// A user's rule requires an encoding that the tensor cannot have.
    pub fn decide(
        &self,
        survey: &Survey,
        name: &str,
        from: Encoding,
        shape: &[u64],
    ) -> Result<(Decision, Option<usize>), Error> {
        let found = self.user.rules.iter().enumerate().find(|(_, rule)| rule.pattern.is_match(name));
        let Some((position, rule)) = found else { return Ok((self.built_in(survey, name, from, shape), None)) };
        let decision = match rule.choice {
            UserChoice::Keep => Decision::Keep(Reason::User),
            UserChoice::Drop => Decision::Drop,
            UserChoice::Type(to) if to == from => Decision::Keep(Reason::Already),
            UserChoice::Type(to) => {
                check(from, to, shape).map_err(|reason| {
                    let (rule, to) = (rule.describe(), type_names::type_name(to));
                    Error::Source(format!(
                        "the policy's {rule} asks for {to}, which `{name}` cannot be: {reason}; give it a rule of its \
                         own before that one"
                    ))
                })?;
                Decision::Encode(to)
            }
        };
        Ok((decision, Some(position)))
    }

    /// Returns the user's rules, in the order of their positions.
    pub fn user_rules(&self) -> &[UserRule] {
        &self.user.rules
    }

    fn built_in(&self, survey: &Survey, name: &str, from: Encoding, shape: &[u64]) -> Decision {
        if shape.len() < 2 {
            return Decision::Keep(Reason::Precision);
        }
        if !is_source(from) {
            return Decision::Keep(Reason::NotFloat);
        }
        let wanted = match self.choice(survey, name, shape) {
            RuleChoice::Keep => return Decision::Keep(Reason::Precision),
            RuleChoice::Base => vec![self.scheme.base],
            RuleChoice::Eight => eights(self.scheme.eight, self.scheme.base),
            RuleChoice::Type(encoding) => vec![encoding],
        };
        match wanted.into_iter().find_map(|encoding| fitting(encoding, shape)) {
            None => Decision::Keep(Reason::Misaligned),
            Some(to) if to == from => Decision::Keep(Reason::Already),
            Some(to) => Decision::Encode(to),
        }
    }

    fn choice(&self, survey: &Survey, name: &str, shape: &[u64]) -> RuleChoice {
        let (part, place) = (TensorRole::of(name), survey.place(name));
        let elements = element_count(shape).unwrap_or(u64::MAX);
        let rule = self.scheme.rules.iter().find(|rule| {
            (rule.parts.is_empty() || rule.parts.contains(&part))
                && rule.when.iter().all(|condition| condition.holds(survey, place, elements))
        });
        rule.map_or(RuleChoice::Keep, |rule| rule.choice)
    }
}

/// Returns the candidate encodings for a tensor that needs 8 bits, in order. The base type is the
/// last resort.
fn eights(eight: Encoding, base: Encoding) -> Vec<Encoding> {
    match (eight, base) {
        // A request for 8 bits with a certain group size is met exactly.
        (Encoding::Affine { .. }, Encoding::Affine { bits: 8, .. }) => vec![base],
        (Encoding::Affine { bits, .. }, _) => vec![eight, Encoding::Affine { bits, group: 32 }, base],
        _ => vec![eight, base],
    }
}

/// Returns the encoding, or its replacement if rows are not whole blocks.
///
/// A tensor that fits no type is kept; llama.cpp uses F16 there.
fn fitting(encoding: Encoding, shape: &[u64]) -> Option<Encoding> {
    let fits = |encoding: &Encoding| encoding.parts(shape, Dtype::F32).is_ok();
    let Encoding::Blocks(kind) = encoding else { return Some(encoding).filter(fits) };
    let shorter = kind.shorter().map(Encoding::Blocks);
    [encoding].into_iter().chain(shorter).find(fits)
}

/// True if the encoding holds numbers to encode: floats, or types that decode to floats.
fn is_source(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Plain(dtype) => matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16),
        Encoding::Blocks(_) | Encoding::Affine { .. } | Encoding::Micro(_) | Encoding::BlockFp8 { .. } => true,
    }
}

/// Returns the reason why a tensor cannot be encoded as `to`, as an error.
fn check(from: Encoding, to: Encoding, shape: &[u64]) -> Result<(), String> {
    if !is_source(from) {
        return Err(format!("its elements are {from}, expected F32, F16 or BF16"));
    }
    if shape.len() < 2 && !matches!(to, Encoding::Plain(_)) {
        return Err(format!("it has the shape {shape:?}, expected a matrix"));
    }
    to.parts(shape, Dtype::F32).map(drop)
}

#[cfg(test)]
mod tests;
