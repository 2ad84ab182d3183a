//! Instruction sets that kernels are compiled for. See
//! [`InstructionSet`](protocol::InstructionSet).
//!
//! # Invariants
//! - A value other than `scalar` exists only if the machine has the instructions. This makes calls
//!   of the kernels sound.

use std::fmt;

use anyhow::{Result, bail};
pub use protocol::InstructionSet as Set;

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instructions(Set);

impl Instructions {
    /// The set that every machine has.
    pub const SCALAR: Self = Self(Set::Scalar);

    /// Returns all sets that this machine has, from the worst to the best.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Set::available().map(Self)
    }

    /// Returns the sets that multiply weights of plain types and FP8 in float32.
    pub fn in_float32() -> impl DoubleEndedIterator<Item = Self> {
        Self::available().filter(|own| own.0 != Set::Avx512Bf16)
    }

    /// Returns the best set that this machine has.
    pub fn best() -> Self {
        Self::available().next_back().unwrap_or(Self::SCALAR)
    }

    /// Returns the set of this name.
    ///
    /// # Errors
    /// There is no such set, or the machine does not have it.
    pub fn named(name: &str) -> Result<Self> {
        match Set::parse(name) {
            Some(set) if set.is_here() => Ok(Self(set)),
            _ => bail!(
                "instruction set `{name}` is not available on this machine; expected one of {}",
                Set::available_names()
            ),
        }
    }

    /// Returns the set.
    pub fn set(self) -> Set {
        self.0
    }

    /// Returns whether AVX2, FMA and F16C are available. Only builds for x86-64 need it.
    #[cfg(target_arch = "x86_64")]
    pub fn has_avx2(self) -> bool {
        self.0 >= Set::Avx2
    }

    /// Returns whether AVX-512 is available.
    #[cfg(target_arch = "x86_64")]
    pub fn has_avx512(self) -> bool {
        self.0 >= Set::Avx512
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports the sets that the machine lacks; the tests of kernels skip them.
    #[test]
    fn sets_that_are_missing_are_told() {
        for set in Set::ALL.into_iter().filter(|set| !set.is_here()) {
            crate::skipped::skipped(&format!("kernels with {}: this machine does not have it", set.name()));
        }
    }

    #[test]
    fn a_missing_set_is_refused() {
        assert_eq!(Instructions::named("scalar").expect("it is everywhere"), Instructions::SCALAR);
        let error = Instructions::named("avx1024").expect_err("no such set").to_string();
        assert!(error.contains("avx1024") && error.contains("scalar"), "{error}");
    }
}
