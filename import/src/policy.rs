//! Policies: which tensor is quantized to which encoding.
//!
//! The rules are data: `tables/parts.toml` says what tensors are for, told by their names; the other tables what those
//! parts get. A user's rules come before them. Pure; looks at names and shapes only.

mod condition;
mod part;
mod scheme;
mod survey;
mod tables;
mod user;

use formats::dtype::element_count;
use formats::{Dtype, Encoding, GgmlType};

pub use scheme::Scheme;
pub use survey::Survey;
pub use user::{UserPolicy, UserRule};

use crate::Error;
use part::Part;
use tables::Choice;
use user::UserChoice;

/// A scheme with a user's rules before its own.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What the model is quantized to.
    pub scheme: Scheme,
    /// What the user wants otherwise.
    pub user: UserPolicy,
}

/// What is to become of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stays as it is.
    Keep(Reason),
    /// The model does not have it.
    Drop,
    /// It is encoded.
    Encode(Encoding),
}

/// Why a tensor stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of the user says so.
    User,
    /// Such tensors keep their precision: norms, routers, embeddings, vectors, small ones.
    Precision,
    /// Its rows are not whole groups or blocks of any type that was to be tried.
    Misaligned,
    /// Its elements are no floats of 16 or 32 bits.
    NotFloat,
    /// It has the encoding already.
    Already,
}

impl Policy {
    /// What is to become of a tensor, and which of the user's rules said so, by its position.
    ///
    /// # Errors
    /// A user's rule asks for what the tensor cannot be.
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
                    let (rule, to) = (rule.describe(), scheme::type_name(to));
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

    /// The rules of the user, by their position.
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
            Choice::Keep => return Decision::Keep(Reason::Precision),
            Choice::Base => vec![self.scheme.base],
            Choice::Eight => eights(self.scheme.eight, self.scheme.base),
            Choice::Type(encoding) => vec![encoding],
        };
        match wanted.into_iter().find_map(|encoding| fitting(encoding, shape)) {
            None => Decision::Keep(Reason::Misaligned),
            Some(to) if to == from => Decision::Keep(Reason::Already),
            Some(to) => Decision::Encode(to),
        }
    }

    fn choice(&self, survey: &Survey, name: &str, shape: &[u64]) -> Choice {
        let (part, place) = (Part::of(name), survey.place(name));
        let elements = element_count(shape).unwrap_or(u64::MAX);
        let rule = self.scheme.rules.iter().find(|rule| {
            (rule.parts.is_empty() || rule.parts.contains(&part))
                && rule.when.iter().all(|condition| condition.holds(survey, place, elements))
        });
        rule.map_or(Choice::Keep, |rule| rule.choice)
    }
}

/// What is tried for a tensor that is to have 8 bits: the type asked for is better than none.
fn eights(eight: Encoding, base: Encoding) -> Vec<Encoding> {
    match (eight, base) {
        // Who asks for 8 bits in groups of a certain size gets those.
        (Encoding::Affine { .. }, Encoding::Affine { bits: 8, .. }) => vec![base],
        (Encoding::Affine { bits, .. }, _) => vec![eight, Encoding::Affine { bits, group: 32 }, base],
        _ => vec![eight, base],
    }
}

/// The encoding, or what takes its place where rows are not whole blocks.
///
/// Source of the replacements: `tensor_type_fallback` in `llama-quant.cpp` of llama.cpp, before it was changed to give
/// `Q2_K` and `Q3_K` less than 4.5 bits for a weight of theirs. What fits nothing is kept, where llama.cpp takes F16.
fn fitting(encoding: Encoding, shape: &[u64]) -> Option<Encoding> {
    let fits = |encoding: &Encoding| encoding.parts(shape, Dtype::F32).is_ok();
    let Encoding::Blocks(kind) = encoding else { return Some(encoding).filter(fits) };
    let smaller = match kind {
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        other => other,
    };
    [encoding, Encoding::Blocks(smaller)].into_iter().find(fits)
}

/// Whether there are numbers in it to encode: floats, or what decodes to them.
fn is_source(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Plain(dtype) => matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16),
        Encoding::Blocks(_) | Encoding::Affine { .. } | Encoding::Micro(_) | Encoding::BlockFp8 { .. } => true,
    }
}

/// Why a tensor cannot be encoded so.
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
