//! Tar headers: the 512 bytes before each member.
//!
//! | bytes | field |
//! |---|---|
//! | 0–99 | name |
//! | 100–107, 108–115, 116–123 | mode, user, group: octal digits |
//! | 124–135 | size: octal digits, or binary if the first bit is set |
//! | 136–147 | modification time |
//! | 148–155 | checksum: the sum of all bytes, with this field counted as spaces |
//! | 156 | type |
//! | 157–256 | target of a link |
//! | 257–264 | `ustar\0` and a version; GNU's variant has spaces |
//! | 345–499 | prefix of the name: the name is `prefix/name` |

use crate::BLOCK;

/// Largest size that fits into eleven octal digits.
const MAX_OCTAL: u64 = 0o777_7777_7777;
/// Longest name, in bytes, without a prefix.
const MAX_NAME: usize = 100;

/// One block of an archive, such as a header.
pub type HeaderBlock = [u8; BLOCK as usize];

/// Parsed fields of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) path: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) kind: u8,
}

impl Header {
    /// Parses a header. The error names the invalid field.
    pub(crate) fn parse(block: &HeaderBlock) -> Result<Self, &'static str> {
        let claimed = octal(&block[148..156]).ok_or("the checksum of a header is no number")?;
        if claimed != checksum(block) {
            return Err("the checksum of a header is wrong");
        }
        let size = number(&block[124..136]).ok_or("the size in a header is no number")?;
        let mut path = text(&block[..MAX_NAME]).to_vec();
        let prefix = text(&block[345..500]);
        // GNU's variant uses these bytes for other fields.
        if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
            path = [prefix, b"/", path.as_slice()].concat();
        }
        Ok(Self { path, size, kind: block[156] })
    }

    /// True if path and size fit into a header without pax records.
    pub(crate) fn fits(path: &str, size: u64) -> bool {
        path.len() <= MAX_NAME && size <= MAX_OCTAL
    }

    /// Encodes the header. A path or size that does not fit is truncated; pax records carry the
    /// full value.
    pub(crate) fn write(&self) -> HeaderBlock {
        let mut block = [0; BLOCK as usize];
        let name = &self.path[..self.path.len().min(MAX_NAME)];
        block[..name.len()].copy_from_slice(name);
        block[100..108].copy_from_slice(b"0000644\0");
        block[108..116].copy_from_slice(b"0000000\0");
        block[116..124].copy_from_slice(b"0000000\0");
        block[124..136].copy_from_slice(format!("{:011o}\0", self.size.min(MAX_OCTAL)).as_bytes());
        block[136..148].copy_from_slice(b"00000000000\0");
        block[156] = self.kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum = checksum(&block);
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

fn checksum(block: &HeaderBlock) -> u64 {
    let other: u64 = block[..148].iter().chain(&block[156..]).map(|byte| u64::from(*byte)).sum();
    other + 8 * u64::from(b' ')
}

/// Returns the bytes before the first zero byte.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text(field)).ok()?.trim_matches(' ');
    if digits.is_empty() {
        return Some(0);
    }
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| u64::from_str_radix(digits, 8).ok()).flatten()
}

fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 == 0 {
        return octal(field);
    }
    // Binary, in big-endian order. The second bit is the sign bit; negative sizes are not accepted.
    let begin = u64::from(first & 0x7f);
    rest.iter().try_fold(begin, |number, byte| number.checked_mul(256)?.checked_add(u64::from(*byte)))
}
