//! Which instructions kernels are compiled for, and which of those the machine has.
//!
//! | set | needs | what it is for |
//! |---|---|---|
//! | `scalar` | nothing | the definition of every kernel |
//! | `avx2` | AVX2, FMA, F16C | vectors of 8 |
//! | `avx-vnni` | and AVX-VNNI | integer products in one instruction |
//! | `avx512` | AVX-512 F, BW, DQ, VL | vectors of 16 |
//! | `avx512-vnni` | and AVX-512 VNNI | integer products in one instruction |
//! | `avx512-bf16` | and AVX-512 BF16 | products of BF16 weights with activations rounded to BF16 |
//!
//! # Invariants
//! - A value other than `scalar` exists only where the machine has the instructions: what makes calls of kernels safe.

use std::fmt;

use anyhow::{Result, bail};

/// A set of instructions that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instructions(Set);

/// The sets, each with what those before it can do (but that AVX-512 has no AVX-VNNI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    Scalar,
    Avx2,
    AvxVnni,
    Avx512,
    Avx512Vnni,
    Avx512Bf16,
}

impl Set {
    const ALL: [Self; 6] = [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16];

    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        let avx2 =
            || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = || {
            avx2()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        let vnni = || avx512() && is_x86_feature_detected!("avx512vnni");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2(),
            Self::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
            Self::Avx512 => avx512(),
            Self::Avx512Vnni => vnni(),
            Self::Avx512Bf16 => vnni() && is_x86_feature_detected!("avx512bf16"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_here(self) -> bool {
        self == Self::Scalar
    }
}

impl Instructions {
    /// Those of every machine.
    pub(crate) const SCALAR: Self = Self(Set::Scalar);

    /// All that this machine has, the best one last.
    pub(crate) fn available() -> impl DoubleEndedIterator<Item = Self> {
        Set::ALL.into_iter().filter(|set| set.is_here()).map(Self)
    }

    /// Those of them that compute with weights of plain types in float32.
    #[cfg(test)]
    pub(crate) fn in_float32() -> impl DoubleEndedIterator<Item = Self> {
        Self::available().filter(|own| own.0 != Set::Avx512Bf16)
    }

    /// The best that this machine has.
    pub(crate) fn best() -> Self {
        Self::available().next_back().unwrap_or(Self::SCALAR)
    }

    /// The set of that name.
    ///
    /// # Errors
    /// There is no such set, or the machine does not have it.
    pub(crate) fn named(name: &str) -> Result<Self> {
        if let Some(own) = Self::available().find(|own| own.0.name() == name) {
            return Ok(own);
        }
        let here: Vec<&str> = Self::available().map(|own| own.0.name()).collect();
        bail!("LODE_CPU is `{name}`, which this machine does not have; expected one of {}", here.join(", "))
    }

    /// The set.
    pub(super) fn set(self) -> Set {
        self.0
    }

    /// Whether there are AVX2, FMA and F16C. A build for other machines has no use for it.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_avx2(self) -> bool {
        self.0 >= Set::Avx2
    }

    /// Whether there is AVX-512.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_avx512(self) -> bool {
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

    #[test]
    fn the_daemon_knows_every_name() {
        assert_eq!(Set::ALL.map(Set::name), protocol::limits::INSTRUCTIONS);
    }

    /// Tests of kernels run those that the machine has.
    #[test]
    fn sets_that_are_missing_are_told() {
        for set in Set::ALL.into_iter().filter(|set| !set.is_here()) {
            crate::fixtures::skipped(&format!("kernels with {}: this machine does not have it", set.name()));
        }
    }

    #[test]
    fn sets_are_found_by_name() {
        for own in Instructions::available() {
            assert_eq!(Instructions::named(&own.to_string()).expect("it is here"), own);
        }
        assert_eq!(Instructions::named("scalar").expect("it is everywhere").set(), Set::Scalar);
        let error = Instructions::named("avx1024").expect_err("no such set").to_string();
        assert!(error.contains("avx1024") && error.contains("scalar"), "{error}");
    }
}
