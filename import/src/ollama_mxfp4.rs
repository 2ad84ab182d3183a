//! MXFP4 in the form of Ollama's first gpt-oss files, read in ggml's form.
//!
//! Both have blocks of a scale and 16 bytes for 32 numbers of 4 bits. In Ollama's form, type 4,
//! byte `i` holds the numbers `2i` and `2i + 1`. In ggml's form, type 39, it holds the numbers `i`
//! and `i + 16`. The first of two is in the lower bits. A file in Ollama's form is presented in
//! ggml's form: it has the same size, other type numbers in its header, and blocks that are
//! converted while they are read. Source: `transform a1b2c3` in Ollama's `ml/backend/ggml/ggml.go`.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use formats::{GgmlType, Gguf};

use crate::{NamedFile, ReadAt};

/// Note for users about the conversion.
pub(crate) const NOTE: &str =
    "its MXFP4 weights have Ollama's order in blocks (type 4) and are stored in ggml's (type 39)";
/// Size of a block in bytes.
const BLOCK: u64 = 17;

/// Returns a view of the file in ggml's form; `None` if the file already has that form.
pub(crate) fn converted(gguf: &Gguf<'_>, named: &NamedFile) -> Option<NamedFile> {
    let of_ollama = || gguf.tensors.iter().filter(|tensor| tensor.ollama_mxfp4_at.is_some());
    let types: Vec<u64> = of_ollama().filter_map(|tensor| tensor.ollama_mxfp4_at).map(|at| at as u64).collect();
    let extent = |begin: u64, size: u64| begin..begin.saturating_add(size);
    let mut blocks: Vec<_> =
        of_ollama().map(|tensor| extent(gguf.data_start.saturating_add(tensor.offset), tensor.size)).collect();
    blocks.sort_by_key(|extent| extent.start);
    let source = Converted { source: Arc::clone(&named.source), types, blocks };
    (!source.types.is_empty()).then(|| NamedFile { name: named.name.clone(), source: Arc::new(source) })
}

/// View of a file with converted types and blocks.
#[derive(Debug)]
struct Converted {
    source: Arc<dyn ReadAt>,
    /// Offsets of the types in the header.
    types: Vec<u64>,
    /// Ranges of the blocks, sorted by offset.
    blocks: Vec<Range<u64>>,
}

impl ReadAt for Converted {
    fn size(&self) -> u64 {
        self.source.size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.source.read_exact_at(buffer, offset)?;
        let number = GgmlType::MXFP4.id().to_le_bytes();
        for (at, byte) in self.types.iter().flat_map(|at| (*at..).zip(number)) {
            if let Some(place) = at.checked_sub(offset).and_then(|at| buffer.get_mut(at as usize)) {
                *place = byte;
            }
        }
        let end = offset.saturating_add(buffer.len() as u64);
        let first = self.blocks.partition_point(|extent| extent.end <= offset);
        for extent in self.blocks[first..].iter().take_while(|extent| extent.start < end) {
            self.convert(buffer, offset, extent)?;
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.source.name()
    }
}

impl Converted {
    /// Converts the blocks of `extent` that overlap a buffer, also partially. The buffer holds the
    /// file's bytes from `offset` on.
    fn convert(&self, buffer: &mut [u8], offset: u64, extent: &Range<u64>) -> io::Result<()> {
        let end = extent.end.min(offset.saturating_add(buffer.len() as u64));
        let from = offset.max(extent.start);
        let mut begin = from - (from - extent.start) % BLOCK;
        while begin < end {
            let after = begin + BLOCK;
            let mut block = [0; BLOCK as usize];
            if begin >= offset && after <= end {
                let place = &mut buffer[(begin - offset) as usize..][..BLOCK as usize];
                block.copy_from_slice(place);
                place.copy_from_slice(&as_ggml(&block));
            } else {
                self.source.read_exact_at(&mut block, begin)?;
                let (first, last) = (begin.max(offset), after.min(end));
                let part = &as_ggml(&block)[(first - begin) as usize..(last - begin) as usize];
                buffer[(first - offset) as usize..][..part.len()].copy_from_slice(part);
            }
            begin = after;
        }
        Ok(())
    }
}

/// Returns a block in ggml's order.
fn as_ggml(block: &[u8; BLOCK as usize]) -> [u8; BLOCK as usize] {
    let mut out = *block;
    let pairs = &block[1..];
    for (at, (first, second)) in pairs[..8].iter().zip(&pairs[8..]).enumerate() {
        out[1 + 2 * at] = first & 0x0f | second << 4;
        out[2 + 2 * at] = first >> 4 | second & 0xf0;
    }
    out
}

#[cfg(test)]
mod tests {
    use formats::gguf::{NewTensor, OLLAMA_MXFP4_ARCHITECTURE, write_header};

    use super::*;
    use crate::read_at::InMemory;

    /// Returns a file in both forms: two tensors of Ollama's type with 32 × 3 numbers, and a float
    /// tensor between them.
    fn file() -> (Vec<u8>, Vec<u8>) {
        let tensor = |name: &str, kind, dims: Vec<u64>| NewTensor { name: name.to_owned(), kind, dims };
        let mxfp4 = |name: &str| tensor(name, GgmlType::MXFP4, vec![32, 3]);
        let keys = [("general.architecture".to_owned(), OLLAMA_MXFP4_ARCHITECTURE.into())];
        let header = write_header(&keys, &[mxfp4("a"), tensor("b", GgmlType::F32, vec![16]), mxfp4("c")]);
        let header = header.expect("a header");
        let mut numbers = (0u32..).map(|at| (at * at / 7 % 16) as u8);
        let (mut of_ollama, mut of_ggml) = (header.bytes.clone(), header.bytes.clone());
        let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
        for tensor in &gguf.tensors {
            let begin = (gguf.data_start + tensor.offset) as usize;
            of_ollama.resize(begin, 0);
            of_ggml.resize(begin, 0);
            if tensor.kind == GgmlType::F32 {
                of_ollama.extend([0x17; 64]);
                of_ggml.extend([0x17; 64]);
                continue;
            }
            for scale in [125, 126, 127] {
                let block: Vec<u8> = numbers.by_ref().take(32).collect();
                of_ollama.push(scale);
                of_ollama.extend((0..16).map(|at| block[2 * at] | block[2 * at + 1] << 4));
                of_ggml.push(scale);
                of_ggml.extend((0..16).map(|at| block[at] | block[at + 16] << 4));
            }
        }
        for place in types(&of_ggml) {
            of_ollama[place..place + 4].copy_from_slice(&formats::gguf::OLLAMA_MXFP4.to_le_bytes());
        }
        (of_ollama, of_ggml)
    }

    /// Returns the offsets of the types of MXFP4 tensors: after a name of one letter, the number of
    /// dimensions, and two dimensions.
    fn types(bytes: &[u8]) -> Vec<usize> {
        let find = |name: &[u8]| {
            let entry = [&1u64.to_le_bytes()[..], name, &2u32.to_le_bytes()].concat();
            bytes.windows(entry.len()).position(|window| window == entry).expect("a tensor") + entry.len() + 16
        };
        vec![find(b"a"), find(b"c")]
    }

    #[test]
    fn blocks_and_types_are_ggml_s_from_any_place_on() {
        let (of_ollama, of_ggml) = file();
        let gguf = Gguf::parse_header(&of_ollama).expect("it is read");
        assert_eq!(
            gguf.tensors.iter().map(|tensor| tensor.kind).collect::<Vec<_>>(),
            [GgmlType::MXFP4, GgmlType::F32, GgmlType::MXFP4]
        );
        let named = |bytes: &[u8]| NamedFile { name: "a.gguf".to_owned(), source: Arc::new(InMemory(bytes.to_vec())) };
        let file = converted(&gguf, &named(&of_ollama)).expect("it is converted").source;
        assert_eq!(file.size(), of_ggml.len() as u64);
        for begin in 0..of_ggml.len() {
            for end in [begin + 1, begin + 16, begin + 17, begin + 40, of_ggml.len()] {
                let Some(expect) = of_ggml.get(begin..end) else { continue };
                let mut found = vec![0; expect.len()];
                file.read_exact_at(&mut found, begin as u64).expect("it is read");
                assert_eq!(found, expect, "{begin}..{end}");
            }
        }
        let ggml = Gguf::parse_header(&of_ggml).expect("it is read");
        assert!(converted(&ggml, &named(&of_ggml)).is_none(), "ggml's own stays");
    }
}
