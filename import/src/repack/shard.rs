//! Safetensors file with quantized weights in MLX's form, computed from the source file that it
//! replaces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use formats::Dtype;
use formats::encoding::Role;
use formats::safetensors::{Member, canonical_header};

use super::find::{Form, Module};
use super::packed::Packed;
use crate::read_at::read_header_part;
use crate::{ReadAt, SourceFile, SourceTensor};

/// Approximate number of bytes of an array that are computed at a time. Codes that are packed along
/// the other dimension are read again for each part; matrices of a model with 8 B parameters have
/// at most two parts.
const PANEL: u64 = if cfg!(test) { 4 << 10 } else { 32 << 20 };

/// Virtual safetensors file.
#[derive(Debug)]
pub(super) struct Shard {
    name: String,
    header: Vec<u8>,
    arrays: Vec<Placed>,
    size: u64,
}

/// Array and its range in the file.
#[derive(Debug)]
struct Placed {
    begin: u64,
    size: u64,
    content: ShardContent,
}

#[derive(Debug)]
enum ShardContent {
    /// Bytes of the source.
    Copied { file: Arc<dyn ReadAt>, offset: u64 },
    /// Array of a packed weight.
    Computed(Computed),
    /// Reciprocal of an F32 of the source.
    Inverse { file: Arc<dyn ReadAt>, offset: u64 },
}

#[derive(Debug)]
struct Computed {
    weight: Arc<Packed>,
    role: Role,
    /// Most recently computed rows: offset of the first byte in the array, and the bytes.
    panel: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

impl Shard {
    /// Creates the file that replaces the source file with this number.
    pub(super) fn new(number: usize, files: &[SourceFile], tensors: &[SourceTensor], modules: &[Module]) -> Self {
        let by_codes: HashMap<usize, &Module> = modules.iter().map(|module| (module.codes, module)).collect();
        let parts: HashSet<usize> = modules.iter().flat_map(|module| module.parts.iter().copied()).collect();
        let source = ShardSource { files, tensors };
        let mut members: Vec<(Member, ShardContent)> = Vec::new();
        for (at, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.file == number) {
            match by_codes.get(&at) {
                Some(module) => members.extend(source.of_module(module)),
                // Emitted with the codes of its weight, also if those are in another file.
                None if parts.contains(&at) => {}
                None => members.push(source.copied(at, tensor.name.clone())),
            }
        }
        for (member, _) in &mut members {
            // The file has the names without the prefix that they have in the model.
            if let Some(name) = member.name.strip_prefix(&files[number].prefix) {
                member.name = name.to_owned();
            }
        }
        let (members, contents): (Vec<Member>, Vec<ShardContent>) = members.into_iter().unzip();
        let header = canonical_header(&members, &BTreeMap::from([("format".to_owned(), "mlx".to_owned())]));
        let mut end = header.len() as u64;
        let mut arrays = Vec::with_capacity(members.len());
        for (member, content) in members.iter().zip(contents) {
            arrays.push(Placed { begin: end, size: member.size, content });
            end = end.saturating_add(member.size);
        }
        Self { name: files[number].source.name(), header, arrays, size: end }
    }

    /// Returns the header, including the length before it.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }
}

struct ShardSource<'a> {
    files: &'a [SourceFile],
    tensors: &'a [SourceTensor],
}

impl ShardSource<'_> {
    fn of_module(&self, module: &Module) -> Vec<(Member, ShardContent)> {
        let base = &module.name;
        match &module.form {
            Form::Affine(weight) => [(Role::Weight, "weight"), (Role::Scale, "scales"), (Role::Bias, "biases")]
                .map(|(role, array)| computed(weight, role, format!("{base}.{array}")))
                .into(),
            Form::Nvfp4 { scale, divisor } => {
                let SourceTensor { offset, .. } = self.tensors[*divisor];
                let inverse =
                    Member { name: format!("{base}.weight_scale_2"), dtype: Dtype::F32, shape: Vec::new(), size: 4 };
                vec![
                    self.copied(module.codes, format!("{base}.weight")),
                    self.copied(*scale, format!("{base}.weight_scale")),
                    (inverse, ShardContent::Inverse { file: self.file(*divisor), offset }),
                ]
            }
        }
    }

    fn copied(&self, at: usize, name: String) -> (Member, ShardContent) {
        let SourceTensor { dtype, dims, size, offset, .. } = &self.tensors[at];
        let member = Member { name, dtype: *dtype, shape: dims.clone(), size: *size };
        (member, ShardContent::Copied { file: self.file(at), offset: *offset })
    }

    fn file(&self, at: usize) -> Arc<dyn ReadAt> {
        Arc::clone(&self.files[self.tensors[at].file].source)
    }
}

fn computed(weight: &Arc<Packed>, role: Role, name: String) -> (Member, ShardContent) {
    let (dtype, bits) = match role {
        Role::Weight => (Dtype::U32, 32),
        _ => (weight.float, weight.float.bits()),
    };
    let line = weight.row_bytes(role);
    let member = Member { name, dtype, shape: vec![weight.rows, line * 8 / bits], size: weight.rows * line };
    (member, ShardContent::Computed(Computed { weight: Arc::clone(weight), role, panel: Mutex::default() }))
}

impl ReadAt for Shard {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut rest = read_header_part(&self.header, self.size, buffer, offset)?;
        let mut at = offset.max(self.header.len() as u64);
        let mut next = self.arrays.partition_point(|array| array.begin + array.size <= at);
        while !rest.is_empty() {
            let array = &self.arrays[next];
            let count = (array.begin + array.size - at).min(rest.len() as u64) as usize;
            let (part, after) = rest.split_at_mut(count);
            array.content.read(part, at - array.begin)?;
            (rest, at, next) = (after, at + count as u64, next + 1);
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl ShardContent {
    fn read(&self, buffer: &mut [u8], begin: u64) -> io::Result<()> {
        match self {
            Self::Copied { file, offset } => file.read_exact_at(buffer, offset + begin),
            Self::Computed(array) => array.read(buffer, begin),
            Self::Inverse { file, offset } => {
                let mut number = [0; 4];
                file.read_exact_at(&mut number, *offset)?;
                let inverse = f32::from_le_bytes(number).recip().to_le_bytes();
                buffer.copy_from_slice(&inverse[begin as usize..][..buffer.len()]);
                Ok(())
            }
        }
    }
}

impl Computed {
    fn read(&self, mut buffer: &mut [u8], mut begin: u64) -> io::Result<()> {
        let line = self.weight.row_bytes(self.role);
        let size = self.weight.rows * line;
        // A word of outputs or of zeros covers up to 16 rows.
        let rows = (PANEL / line / 32).max(1) * 32;
        while !buffer.is_empty() {
            let first = begin / (rows * line) * rows;
            let panel = self.panel(first, first.saturating_add(rows).min(self.weight.rows))?;
            let from = (begin - first * line) as usize;
            let count = (panel.len() - from).min(buffer.len());
            let (part, rest) = buffer.split_at_mut(count);
            part.copy_from_slice(&panel[from..][..count]);
            (buffer, begin) = (rest, begin + count as u64);
        }
        if begin == size {
            // The array was read to its end. Imports read each array once, from beginning to end.
            *self.panel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(())
    }

    /// Returns the bytes of a panel of rows; `first` is a multiple of the panel height.
    fn panel(&self, first: u64, end: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut kept = self.panel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = kept.as_ref().filter(|(begin, _)| *begin == first) {
            return Ok(Arc::clone(bytes));
        }
        // Only one panel is kept in memory at a time.
        *kept = None;
        let named = |e: io::Error| io::Error::new(e.kind(), format!("`{}`: {e}", self.weight.name));
        let bytes = Arc::new(self.weight.array(self.role, first..end).map_err(named)?);
        *kept = Some((first, Arc::clone(&bytes)));
        Ok(bytes)
    }
}
