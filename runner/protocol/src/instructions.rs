//! CPU instruction sets that kernels are compiled for.
//!
//! | set | needs | used for |
//! |---|---|---|
//! | `scalar` | nothing | the definition of every kernel |
//! | `avx2` | AVX2, FMA, F16C | vectors of 8 |
//! | `avx-vnni` | `avx2`, AVX-VNNI | integer products in one instruction |
//! | `avx512` | `avx2`, AVX-512 F, BW, DQ, VL | vectors of 16 |
//! | `avx512-vnni` | `avx512`, AVX-512 VNNI | integer products in one instruction |
//! | `avx512-bf16` | `avx512-vnni`, AVX-512 BF16, VBMI | BF16, FP8 weights × BF16 activations |

/// An instruction set. Each includes all sets before it, except that AVX-512 does not include
/// AVX-VNNI.
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
    /// All instruction sets, in ascending order.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16];

    /// Returns the name that users write.
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

    /// Parses a name, ignoring case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name().eq_ignore_ascii_case(name))
    }

    /// Returns the sets that this machine supports, the best one last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.is_here())
    }

    /// Returns the names of the available sets, separated by commas, for messages.
    pub fn available_names() -> String {
        Self::available().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// Whether this machine supports the instruction set.
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

    /// Whether this machine supports the instruction set.
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
