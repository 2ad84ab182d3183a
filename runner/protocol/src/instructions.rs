//! Instructions of the CPU that kernels are compiled for.
//!
//! | set | needs | what it is for |
//! |---|---|---|
//! | `scalar` | nothing | the definition of every kernel |
//! | `avx2` | AVX2, FMA, F16C | vectors of 8 |
//! | `avx-vnni` | and AVX-VNNI | integer products in one instruction |
//! | `avx512` | AVX-512 F, BW, DQ, VL | vectors of 16 |
//! | `avx512-vnni` | and AVX-512 VNNI | integer products in one instruction |
//! | `avx512-bf16` | and AVX-512 BF16, VBMI | products of BF16 and FP8 weights with activations rounded to BF16 |

/// A set of instructions, each with what those before it can do (but that AVX-512 has no AVX-VNNI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// `scalar`
    Scalar,
    /// `avx2`
    Avx2,
    /// `avx-vnni`
    AvxVnni,
    /// `avx512`
    Avx512,
    /// `avx512-vnni`
    Avx512Vnni,
    /// `avx512-bf16`
    Avx512Bf16,
}

impl InstructionSet {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
        }
    }

    /// Reads what people write, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name().eq_ignore_ascii_case(name))
    }

    /// Those that this machine has, the best one last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.is_here())
    }

    /// Their names, for people.
    pub fn available_names() -> String {
        Self::available().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// Whether this machine has them.
    #[cfg(target_arch = "x86_64")]
    pub fn is_here(self) -> bool {
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
            Self::Avx512Bf16 => {
                vnni() && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi")
            }
        }
    }

    /// Whether this machine has them.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_here(self) -> bool {
        self == Self::Scalar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_name() {
        for set in InstructionSet::ALL {
            assert_eq!(InstructionSet::parse(&set.name().to_uppercase()), Some(set));
        }
        assert_eq!(InstructionSet::parse("avx1024"), None);
        assert_eq!(InstructionSet::available().next(), Some(InstructionSet::Scalar), "every machine has it");
    }
}
