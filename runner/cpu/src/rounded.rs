//! Rows of activations, rounded as the weights require, once for all projections of the same rows.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions that were looked for"))]

#[cfg(target_arch = "x86_64")]
use super::float::bf16_rows::{self, Bf16Rows};
use super::instructions::{Instructions, Set};
use super::int8::{self, Activations};
use crate::pool::Pool;
use formats::Encoding;

/// Number format to which activations are rounded for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// No rounding: float32.
    None,
    /// 8-bit integers in blocks of 32.
    Int8,
    /// BF16.
    Bf16,
}

impl Rounding {
    /// Returns the rounding of activations for a weight whose rows have `columns` elements.
    pub fn of(encoding: Encoding, columns: usize, instructions: Instructions) -> Self {
        if int8::has_kernels(encoding) && Activations::fits(columns) {
            return Self::Int8;
        }
        #[cfg(target_arch = "x86_64")]
        if instructions.set() == Set::Avx512Bf16 && bf16_rows::takes(encoding, columns) {
            return Self::Bf16;
        }
        let _ = instructions;
        Self::None
    }
}

/// Rounded rows.
#[derive(Debug)]
pub struct Rounded {
    /// Rows as 8-bit codes.
    pub int8: Activations,
    /// Rows in BF16.
    #[cfg(target_arch = "x86_64")]
    pub bf16: Bf16Rows,
}

impl Rounded {
    /// No rows.
    pub const EMPTY: Self = Self {
        int8: Activations::EMPTY,
        #[cfg(target_arch = "x86_64")]
        bf16: Bf16Rows::EMPTY,
    };

    /// Rounds `x`, `[m, columns]`, and replaces the previous rows.
    pub fn fill(&mut self, rounding: Rounding, pool: &Pool, instructions: Instructions, x: &[f32], columns: usize) {
        match rounding {
            Rounding::None => {}
            Rounding::Int8 => self.int8.fill(pool, instructions, x, columns),
            #[cfg(target_arch = "x86_64")]
            Rounding::Bf16 => {
                assert!(instructions.set() == Set::Avx512Bf16, "what wants it has the instructions");
                // SAFETY: the set exists only if the machine has the instructions.
                unsafe { self.bf16.fill(pool, x, columns) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            Rounding::Bf16 => unreachable!("invariant: only some machines want it"),
        }
    }
}
