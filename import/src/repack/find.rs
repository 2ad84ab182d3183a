//! Finds the modules that one of the methods quantized, and their forms, by the names, dtypes and
//! shapes of their arrays.

use std::collections::HashMap;
use std::sync::Arc;

use formats::Dtype;

use super::matrix::SourceMatrix;
use super::packed::{ACT_ORDER, AWQ_ORDER, Check, Codes, IN_ORDER, Packed, Scales, Zeros};
use crate::{Error, QuantizationConfig, SourceFile, SourceTensor};

/// Module with a quantized weight.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) name: String,
    /// Method to which the arrays belong, if the config does not state it.
    pub(super) method: &'static str,
    pub(super) form: Form,
    /// Position of the array with the codes.
    pub(super) codes: usize,
    /// Positions of the arrays that belong to the weight and are not separate tensors.
    pub(super) parts: Vec<usize>,
}

/// Form into which a weight is converted.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Affine(Arc<Packed>),
    /// Codes and scales are unchanged; the source divides by the number in the array `divisor`.
    Nvfp4 {
        scale: usize,
        divisor: usize,
    },
}

impl Module {
    pub(super) fn affine(&self) -> Option<&Packed> {
        match &self.form {
            Form::Affine(packed) => Some(packed),
            Form::Nvfp4 { .. } => None,
        }
    }
}

/// Returns the modules in the order of their codes.
///
/// # Errors
/// The form of a module cannot be expressed in groups with scales and biases.
pub(super) fn modules(
    files: &[SourceFile],
    tensors: &[SourceTensor],
    config: &QuantizationConfig,
) -> Result<Vec<Module>, Error> {
    let positions = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
    let source = PackedSource { files, tensors, positions, config };
    let mut modules = Vec::new();
    for (codes, tensor) in tensors.iter().enumerate() {
        let found = source.module(codes);
        let found = found.map_err(|(method, reason)| {
            let method = config.method().unwrap_or(method);
            Error::Source(format!(
                "`{}` is quantized by {method}, but {reason}; import the model that it was made from, or one in GGUF, MLX or block FP8",
                tensor.name
            ))
        })?;
        modules.extend(found);
    }
    Ok(modules)
}

struct PackedSource<'a> {
    files: &'a [SourceFile],
    tensors: &'a [SourceTensor],
    positions: HashMap<&'a str, usize>,
    config: &'a QuantizationConfig,
}

/// Method that quantized a weight, and the reason for refusing the weight.
type RefusedWeight = (&'static str, String);

impl PackedSource<'_> {
    fn module(&self, codes: usize) -> Result<Option<Module>, RefusedWeight> {
        let SourceTensor { name, dtype, dims, .. } = &self.tensors[codes];
        let is_matrix = dims.len() == 2;
        let (base, method, form): (&str, &'static str, Result<Option<FoundModule>, String>) = match dtype {
            Dtype::I32 | Dtype::U32 if is_matrix && name.ends_with(".qweight") => {
                let base = name.strip_suffix(".qweight").unwrap_or_default();
                let (method, form) = self.words(base, codes);
                (base, method, form)
            }
            Dtype::I32 | Dtype::U32 if is_matrix && name.ends_with(".weight_packed") => {
                let base = name.strip_suffix(".weight_packed").unwrap_or_default();
                (base, COMPRESSED, self.compressed(base, codes))
            }
            Dtype::U8 if name.ends_with(".weight_packed") => {
                let base = name.strip_suffix(".weight_packed").unwrap_or_default();
                (base, COMPRESSED, Ok(self.nvfp4(base)))
            }
            Dtype::I8 if is_matrix && name.ends_with(".weight") => {
                let base = name.strip_suffix(".weight").unwrap_or_default();
                match self.find(base, "SCB") {
                    Some(_) => (base, "bitsandbytes", self.bytes(base, codes, "SCB")),
                    None => (base, COMPRESSED, self.bytes(base, codes, "weight_scale")),
                }
            }
            _ => return Ok(None),
        };
        let found = form.map_err(|reason| (method, reason))?;
        let module = |(form, parts)| Module { name: base.to_owned(), method, form, codes, parts };
        Ok(found.map(module))
    }

    /// Parses a weight of GPTQ, whose codes are packed along the inputs, or of AWQ, whose codes are
    /// packed along the outputs.
    fn words(&self, base: &str, codes: usize) -> (&'static str, Result<Option<FoundModule>, String>) {
        let (Some(scales), Some(zeros)) = (self.find(base, "scales"), self.find(base, "qzeros")) else {
            return ("gptq", Ok(None));
        };
        let [stored_rows, stored_columns] = *self.dims(codes) else { return ("gptq", Ok(None)) };
        let [groups, outputs] = *self.dims(scales) else { return ("gptq", Ok(None)) };
        if stored_columns == outputs {
            return ("gptq", self.gptq(base, codes, [stored_rows, groups, outputs], (scales, zeros)).map(Some));
        }
        ("awq", self.awq([stored_rows, stored_columns], codes, [groups, outputs], (scales, zeros)).map(Some))
    }

    fn gptq(
        &self,
        base: &str,
        codes: usize,
        [words, groups, outputs]: [u64; 3],
        (scales, zeros): (usize, usize),
    ) -> Result<FoundModule, String> {
        let order = self.find(base, "g_idx");
        let of_group = self.config.number("group_size").filter(|size| *size > 0);
        let inputs = match (order.map(|at| self.dims(at)), of_group) {
            (Some([inputs]), _) => *inputs,
            (_, Some(size)) => groups.saturating_mul(size),
            // All inputs form one group.
            _ => words.saturating_mul(32) / self.config.number("bits").unwrap_or(4).max(1),
        };
        let bits = bits_of(words, inputs)?;
        let (group, of_source) = group_of(inputs, groups)?;
        // With static groups, `desc_act` changes only the order in which columns are quantized:
        // neighbouring inputs still share a group.
        if self.config.flag("desc_act") && !self.config.flag("static_groups") && groups > 1 {
            return Err(ACT_ORDER.to_owned());
        }
        if self.config.text("checkpoint_format").is_some_and(|format| format.contains("marlin")) {
            return Err("its codes are in the order of Marlin's kernels".to_owned());
        }
        // The first version of the format stores each zero minus one.
        let add = u8::from(self.config.text("checkpoint_format") != Some("gptq_v2"));
        self.is_whole_numbers(zeros)?;
        let check = order.map(|at| self.in_order(at, inputs, of_source)).transpose()?;
        let zero_words = outputs.div_ceil(u64::from(32 / bits));
        let packed = Packed {
            name: self.tensors[codes].name.clone(),
            bits,
            group,
            rows: outputs,
            columns: inputs,
            codes: Codes::Words(self.matrix(codes, [outputs, words], 4, true)?),
            scales: self.scales(scales, [outputs, groups], true)?,
            zeros: Zeros::Words { matrix: self.matrix(zeros, [zero_words, groups], 4, true)?, order: &IN_ORDER, add },
            float: self.float(scales, self.config.flag("sym")),
            checks: check.into_iter().collect(),
        };
        Ok((Form::Affine(Arc::new(packed)), [Some(scales), Some(zeros), order].into_iter().flatten().collect()))
    }

    fn awq(
        &self,
        [inputs, words]: [u64; 2],
        codes: usize,
        [groups, outputs]: [u64; 2],
        (scales, zeros): (usize, usize),
    ) -> Result<FoundModule, String> {
        let bits = bits_of(words, outputs)?;
        if bits != 4 {
            return Err(format!("its codes have {bits} bits, expected 4"));
        }
        if self.config.text("version").is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
            return Err(format!("its version is {:?}, expected gemm", self.config.text("version").unwrap_or_default()));
        }
        self.is_whole_numbers(zeros)?;
        let (group, _) = group_of(inputs, groups)?;
        let packed = Packed {
            name: self.tensors[codes].name.clone(),
            bits,
            group,
            rows: outputs,
            columns: inputs,
            codes: Codes::Outputs(self.matrix(codes, [words, inputs], 4, true)?),
            scales: self.scales(scales, [outputs, groups], true)?,
            zeros: Zeros::Words { matrix: self.matrix(zeros, [words, groups], 4, true)?, order: &AWQ_ORDER, add: 0 },
            float: Dtype::F32,
            checks: Vec::new(),
        };
        Ok((Form::Affine(Arc::new(packed)), vec![scales, zeros]))
    }

    fn compressed(&self, base: &str, codes: usize) -> Result<Option<FoundModule>, String> {
        let (Some(scales), Some(shape)) = (self.find(base, "weight_scale"), self.find(base, "weight_shape")) else {
            return Ok(None);
        };
        let [outputs, words] = *self.dims(codes) else { return Ok(None) };
        let groups = self.dims(scales).get(1).copied().unwrap_or(1);
        let [stored_outputs, inputs] = self.stored_shape(shape)?;
        if stored_outputs != outputs {
            return Err(format!("`{base}.weight_shape` says {stored_outputs} rows, expected {outputs}"));
        }
        let bits = bits_of(words, inputs)?;
        let (group, of_source) = group_of(inputs, groups)?;
        let order = self.find(base, "weight_g_idx");
        let zeros = self.find(base, "weight_zero_point");
        let zero_words = outputs.div_ceil(u64::from(32 / bits));
        let zeros_of = |at: usize| -> Result<Zeros, String> {
            // compressed-tensors packs zero points since its pull request 296.
            if self.tensors[at].dtype == Dtype::I8 {
                return Ok(Zeros::Signed(self.matrix(at, [outputs, groups], 1, false)?));
            }
            self.is_whole_numbers(at)?;
            Ok(Zeros::Words { matrix: self.matrix(at, [zero_words, groups], 4, false)?, order: &IN_ORDER, add: 0 })
        };
        let check = order.map(|at| self.in_order(at, inputs, of_source)).transpose()?;
        let packed = Packed {
            name: self.tensors[codes].name.clone(),
            bits,
            group,
            rows: outputs,
            columns: inputs,
            codes: Codes::Words(self.matrix(codes, [outputs, words], 4, false)?),
            scales: self.scales(scales, [outputs, groups], false)?,
            float: self.float(scales, zeros.is_none()),
            zeros: zeros.map_or(Ok(Zeros::Middle), zeros_of)?,
            checks: check.into_iter().collect(),
        };
        let parts = [Some(scales), Some(shape), order, zeros].into_iter().flatten().collect();
        Ok(Some((Form::Affine(Arc::new(packed)), parts)))
    }

    /// Parses codes as signed bytes: bitsandbytes' with one scale for each output, or
    /// compressed-tensors'.
    fn bytes(&self, base: &str, codes: usize, scale: &str) -> Result<Option<FoundModule>, String> {
        let Some(scales) = self.find(base, scale) else { return Ok(None) };
        let [outputs, inputs] = *self.dims(codes) else { return Ok(None) };
        let groups = self.dims(scales).get(1).copied().unwrap_or(1);
        let (group, _) = group_of(inputs, groups)?;
        let is_compressed = scale != "SCB";
        let zeros = self.find(base, "weight_zero_point").filter(|_| is_compressed);
        let layout = self.find(base, "weight_format").filter(|_| !is_compressed);
        let zeros_of =
            |at| -> Result<Zeros, String> { Ok(Zeros::Signed(self.matrix(at, [outputs, groups], 1, false)?)) };
        let check = layout.map(|at| Check::RowMajor { file: self.file(at), offset: self.tensors[at].offset });
        let packed = Packed {
            name: self.tensors[codes].name.clone(),
            bits: 8,
            group,
            rows: outputs,
            columns: inputs,
            codes: Codes::Signed(self.matrix(codes, [outputs, inputs], 1, false)?),
            scales: Scales { of_127: !is_compressed, ..self.scales(scales, [outputs, groups], false)? },
            float: if is_compressed { self.float(scales, zeros.is_none()) } else { Dtype::F32 },
            zeros: zeros.map_or(Ok(Zeros::Middle), zeros_of)?,
            checks: check.into_iter().collect(),
        };
        let parts = [Some(scales), zeros, layout].into_iter().flatten().collect();
        Ok(Some((Form::Affine(Arc::new(packed)), parts)))
    }

    fn nvfp4(&self, base: &str) -> Option<FoundModule> {
        let (scale, divisor) = (self.find(base, "weight_scale")?, self.find(base, "weight_global_scale")?);
        let divisor_of = &self.tensors[divisor];
        let fits =
            self.tensors[scale].dtype == Dtype::F8_E4M3 && divisor_of.dtype == Dtype::F32 && divisor_of.size == 4;
        fits.then(|| (Form::Nvfp4 { scale, divisor }, vec![scale, divisor]))
    }

    fn find(&self, base: &str, array: &str) -> Option<usize> {
        self.positions.get(format!("{base}.{array}").as_str()).copied()
    }

    fn dims(&self, at: usize) -> &[u64] {
        &self.tensors[at].dims
    }

    fn file(&self, at: usize) -> Arc<dyn crate::ReadAt> {
        Arc::clone(&self.files[self.tensors[at].file].source)
    }

    /// Returns the array as a matrix of these dimensions.
    fn matrix(
        &self,
        at: usize,
        [rows, columns]: [u64; 2],
        unit: u64,
        is_transposed: bool,
    ) -> Result<SourceMatrix, String> {
        let SourceTensor { name, size, dims, offset, dtype, .. } = &self.tensors[at];
        if rows.checked_mul(columns).and_then(|count| count.checked_mul(unit)) != Some(*size) || *size == 0 {
            return Err(format!("`{name}` is {dtype} {dims:?}, expected {rows} × {columns} elements of {unit} bytes"));
        }
        Ok(SourceMatrix { file: self.file(at), offset: *offset, unit, rows, columns, is_transposed })
    }

    /// Refuses words and group indices that are not I32 or U32.
    fn is_whole_numbers(&self, at: usize) -> Result<(), String> {
        let SourceTensor { name, dtype, .. } = &self.tensors[at];
        let fits = matches!(dtype, Dtype::I32 | Dtype::U32);
        fits.then_some(()).ok_or_else(|| format!("`{name}` is {dtype}, expected I32"))
    }

    fn scales(&self, at: usize, shape: [u64; 2], is_transposed: bool) -> Result<Scales, String> {
        let SourceTensor { name, dtype, .. } = &self.tensors[at];
        if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            return Err(format!("`{name}` is {dtype}, expected F32, F16 or BF16"));
        }
        let matrix = self.matrix(at, shape, dtype.bits() / 8, is_transposed)?;
        Ok(Scales { matrix, dtype: *dtype, of_127: false })
    }

    fn in_order(&self, at: usize, inputs: u64, group: u64) -> Result<Check, String> {
        self.is_whole_numbers(at)?;
        let SourceMatrix { file, offset, .. } = self.matrix(at, [1, inputs], 4, false)?;
        Ok(Check::InOrder { file, offset, inputs, group })
    }

    /// Returns the dtype of scales and biases. If the middle code means zero, the source's dtype
    /// suffices, because multiplying by a power of two needs no more bits.
    fn float(&self, scales: usize, is_symmetric: bool) -> Dtype {
        if is_symmetric { self.tensors[scales].dtype } else { Dtype::F32 }
    }

    /// Reads the rows and columns that compressed-tensors stores next to packed codes, as two I64.
    fn stored_shape(&self, at: usize) -> Result<[u64; 2], String> {
        let SourceTensor { name, size, offset, dtype, .. } = &self.tensors[at];
        if (*dtype, *size) != (Dtype::I64, 16) {
            return Err(format!("`{name}` is {dtype} of {size} bytes, expected two I64"));
        }
        let mut bytes = [0; 16];
        self.file(at).read_exact_at(&mut bytes, *offset).map_err(|e| format!("`{name}` cannot be read: {e}"))?;
        let (rows, columns) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok([number(rows), number(columns)])
    }
}

const COMPRESSED: &str = "compressed-tensors";

type FoundModule = (Form, Vec<usize>);

/// Returns the bits per code, from the number of words for this many codes.
fn bits_of(words: u64, codes: u64) -> Result<u8, String> {
    match words.checked_mul(32).map(|bits| (bits.checked_div(codes), bits.checked_rem(codes))) {
        Some((Some(2), Some(0))) => Ok(2),
        Some((Some(4), Some(0))) => Ok(4),
        Some((Some(8), Some(0))) => Ok(8),
        _ => Err(format!("{codes} codes are in {words} words, expected 2, 4 or 8 bits each")),
    }
}

/// Returns the group size of the result and of the source. The latter is equal or a multiple.
fn group_of(inputs: u64, groups: u64) -> Result<(u32, u64), String> {
    let of_source = inputs.checked_div(groups).filter(|size| size * groups == inputs);
    let of_source = of_source.ok_or_else(|| format!("{inputs} inputs are not {groups} groups"))?;
    let group = [128u32, 64, 32].into_iter().find(|group| of_source > 0 && of_source.is_multiple_of(u64::from(*group)));
    let group = group.ok_or_else(|| format!("its groups have {of_source} inputs, expected a multiple of 32"))?;
    Ok((group, of_source))
}
