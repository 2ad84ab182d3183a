//! Tests of each method: codes, scales and zeros are packed as the method's own code does, and the
//! decoded numbers must equal its numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use formats::safetensors::{Member, canonical_header};
use formats::{Dtype, Encoding};
use serde_json::{Value, json};

use crate::read_at::InMemory;
use crate::{Inventory, NamedFile, ReadAt, RowOrder, SourceFormat, SourceModel, TensorSource, inventory, plan};

/// Folder under construction.
struct Folder {
    arrays: Vec<(Member, Vec<u8>)>,
    config: Value,
}

impl Folder {
    fn new(quantization: &Value) -> Self {
        let config = json!({"model_type": "llama", "quantization_config": quantization});
        let mut folder = Self { arrays: Vec::new(), config };
        folder.add("model.norm.weight", Dtype::F32, &[2], vec![1, 2, 3, 4, 5, 6, 7, 8]);
        folder
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let shape: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
        assert_eq!(dtype.byte_count(&shape), Ok(bytes.len() as u64), "{name}");
        self.arrays.push((Member { name: name.to_owned(), dtype, shape, size: bytes.len() as u64 }, bytes));
    }

    fn words(&mut self, name: &str, shape: [usize; 2], words: &[u32]) {
        self.add(name, Dtype::I32, &shape, words.iter().flat_map(|word| word.to_le_bytes()).collect());
    }

    fn halves(&mut self, name: &str, shape: [usize; 2], numbers: &[f32]) {
        self.add(name, Dtype::F16, &shape, numbers.iter().flat_map(|number| half(*number)).collect());
    }

    /// Adds packed codes in the form of compressed-tensors, with scales and without zeros.
    fn compressed(&mut self, matrix: &SourceMatrix, bits: u32) {
        let SourceMatrix { outputs, inputs, .. } = *matrix;
        let codes = pack(&matrix.codes, bits, &IN_ORDER);
        self.words("a.weight_packed", [outputs, inputs * bits as usize / 32], &codes);
        self.halves("a.weight_scale", [outputs, matrix.groups()], &matrix.scales);
        let sides = [outputs as u64, inputs as u64];
        self.add("a.weight_shape", Dtype::I64, &[2], sides.iter().flat_map(|side| side.to_le_bytes()).collect());
    }

    /// Returns the files, with the arrays distributed over this many shards.
    fn files(&self, shards: usize) -> Vec<NamedFile> {
        let named = |name: String, bytes| NamedFile { name, source: Arc::new(InMemory(bytes)) as Arc<dyn ReadAt> };
        let mut files = vec![named("config.json".to_owned(), self.config.to_string().into_bytes())];
        for (number, arrays) in self.arrays.chunks(self.arrays.len().div_ceil(shards)).enumerate() {
            let members: Vec<Member> = arrays.iter().map(|(member, _)| member.clone()).collect();
            let mut bytes = canonical_header(&members, &BTreeMap::new());
            for (_, data) in arrays {
                bytes.extend(data);
            }
            files.push(named(format!("model-{number}.safetensors"), bytes));
        }
        files
    }

    fn inventory(&self, shards: usize) -> Result<Inventory, String> {
        inventory(&self.files(shards)).map_err(|e| e.to_string())
    }

    /// Returns the encoding and the decoded numbers of `a.weight`, which must be the same from one
    /// file and from three.
    fn weight(&self) -> (Encoding, Vec<f32>) {
        let [one, three] = [1, 3].map(|shards| {
            let inventory = self.inventory(shards).expect("it can be read");
            assert_eq!(inventory.format, SourceFormat::HuggingFace);
            weight(&inventory)
        });
        assert_eq!(one, three, "in one file and in three");
        one
    }
}

fn weight(inventory: &Inventory) -> (Encoding, Vec<f32>) {
    let planned = plan(inventory).expect("a plan");
    let model = SourceModel::files(inventory, &planned);
    let tensors = model.tensors().expect("tensors");
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["model.norm.weight", "a.weight"], "no array is left");
    let source = TensorSource::of(&tensors[1], model.open()).expect("its blobs");
    let mut numbers = Vec::new();
    source
        .pieces(RowOrder::Stored, &mut |piece| {
            let mut part = vec![0.0; piece.rows() * piece.columns()];
            piece.decode(&mut part);
            numbers.extend(part);
            Ok(())
        })
        .expect("its numbers");
    (source.encoding, numbers)
}

/// Deterministic random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(most)) as u32
    }
}

/// Returns a scale with few significant bits, which F16 represents exactly.
fn scale(random: &mut Random) -> f32 {
    (random.below(1000) + 1) as f32 / 4096.0
}

/// Returns the F16 of a number between 2^-12 and 1 that F16 represents exactly.
fn half(number: f32) -> [u8; 2] {
    let bits = number.to_bits();
    let exponent = ((bits >> 23) & 0xff) + 15 - 127;
    let mantissa = (bits >> 13) & 0x3ff;
    assert!(bits.trailing_zeros() >= 13 && (1..31).contains(&exponent), "{number}");
    ((exponent << 10 | mantissa) as u16).to_le_bytes()
}

/// Quantized matrix, outputs by inputs.
struct SourceMatrix {
    outputs: usize,
    inputs: usize,
    group: usize,
    codes: Vec<u32>,
    scales: Vec<f32>,
    zeros: Vec<u32>,
}

impl SourceMatrix {
    fn new([outputs, inputs, group]: [usize; 3], bits: u32, is_symmetric: bool, random: &mut Random) -> Self {
        let codes = (0..outputs * inputs).map(|_| random.below(1 << bits)).collect();
        let groups = outputs * (inputs / group);
        let scales = (0..groups).map(|_| scale(random)).collect();
        let middle = 1 << (bits - 1);
        let zeros = (0..groups).map(|_| if is_symmetric { middle } else { random.below(1 << bits) }).collect();
        Self { outputs, inputs, group, codes, scales, zeros }
    }

    fn groups(&self) -> usize {
        self.inputs / self.group
    }

    fn code(&self, output: usize, input: usize) -> u32 {
        self.codes[output * self.inputs + input]
    }

    /// Returns the numbers as the method's own code computes them.
    fn numbers(&self) -> Vec<f32> {
        let at = |index: usize| {
            let (output, input) = (index / self.inputs, index % self.inputs);
            let group = output * self.groups() + input / self.group;
            self.scales[group] * (f64::from(self.codes[index]) - f64::from(self.zeros[group])) as f32
        };
        (0..self.codes.len()).map(at).collect()
    }

    /// Transposes values from `[outputs, groups]` to `[groups, outputs]`.
    fn across<T: Copy>(&self, values: &[T]) -> Vec<T> {
        let groups = self.groups();
        (0..groups * self.outputs).map(|at| values[at % self.outputs * groups + at / self.outputs]).collect()
    }

    fn check(&self, folder: &Folder, bits: u8, group: u32, about: &str) {
        let (encoding, numbers) = folder.weight();
        assert_eq!(encoding, Encoding::Affine { bits, group }, "{about}");
        let expected = self.numbers();
        let differs = numbers.iter().zip(&expected).position(|(found, expected)| (found - expected).abs() > 1e-6);
        assert_eq!((numbers.len(), differs), (expected.len(), None), "{about}");
    }
}

/// Packs codes into words, each with `32 / bits` neighbouring codes in the given order.
fn pack(codes: &[u32], bits: u32, order: &[usize]) -> Vec<u32> {
    let word =
        |codes: &[u32]| (0..codes.len()).fold(0, |word, place| word | codes[order[place]] << (bits * place as u32));
    codes.chunks((32 / bits) as usize).map(word).collect()
}

const IN_ORDER: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Packs as `AutoGPTQ` does: for each output, words of inputs, `[inputs / n, outputs]`; zeros minus
/// one.
fn gptq(matrix: &SourceMatrix, bits: u32, config: &Value, less: u32) -> Folder {
    let SourceMatrix { outputs, inputs, .. } = *matrix;
    let of_word = (32 / bits) as usize;
    let mut words = Vec::new();
    for first in (0..inputs).step_by(of_word) {
        for output in 0..outputs {
            let codes: Vec<u32> = (first..first + of_word).map(|input| matrix.code(output, input)).collect();
            words.extend(pack(&codes, bits, &IN_ORDER));
        }
    }
    let mask = (1 << bits) - 1;
    let zeros: Vec<u32> = matrix.across(&matrix.zeros).iter().map(|zero| zero.wrapping_sub(less) & mask).collect();
    let mut folder = Folder::new(config);
    folder.words("a.qweight", [inputs / of_word, outputs], &words);
    folder.words("a.qzeros", [matrix.groups(), outputs / of_word], &pack(&zeros, bits, &IN_ORDER));
    folder.halves("a.scales", [matrix.groups(), outputs], &matrix.across(&matrix.scales));
    let groups: Vec<u32> = (0..inputs).map(|input| (input / matrix.group) as u32).collect();
    folder.add("a.g_idx", Dtype::I32, &[inputs], groups.iter().flat_map(|group| group.to_le_bytes()).collect());
    folder
}

#[test]
fn gptq_in_every_width() {
    let mut random = Random(1);
    for (bits, shape, expected) in [
        (4, [64, 256, 32], 32),
        (4, [96, 384, 128], 128),
        (4, [64, 192, 192], 64),
        (8, [64, 256, 64], 64),
        (2, [64, 512, 256], 128),
    ] {
        for (is_symmetric, version) in [(true, "gptq"), (false, "gptq"), (false, "gptq_v2")] {
            let matrix = SourceMatrix::new(shape, bits, is_symmetric, &mut random);
            let config = json!({"quant_method": "gptq", "bits": bits, "group_size": shape[2], "sym": is_symmetric,
                "desc_act": false, "checkpoint_format": version});
            let folder = gptq(&matrix, bits, &config, u32::from(version == "gptq"));
            let about = format!("{bits} bits, {shape:?}, {version}, {is_symmetric}");
            matrix.check(&folder, bits as u8, expected, &about);
        }
    }
}

#[test]
fn awq_has_its_own_order() {
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    for shape in [[64, 256, 32], [72, 128, 128]] {
        let matrix = SourceMatrix::new(shape, 4, false, &mut Random(2));
        let [outputs, inputs, _] = shape;
        let across: Vec<u32> = (0..inputs * outputs).map(|at| matrix.code(at % outputs, at / outputs)).collect();
        let mut folder = Folder::new(&json!({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": true}));
        folder.words("a.qweight", [inputs, outputs / 8], &pack(&across, 4, &order));
        let zeros = pack(&matrix.across(&matrix.zeros), 4, &order);
        folder.words("a.qzeros", [matrix.groups(), outputs / 8], &zeros);
        folder.halves("a.scales", [matrix.groups(), outputs], &matrix.across(&matrix.scales));
        matrix.check(&folder, 4, shape[2] as u32, &format!("{shape:?}"));
    }
}

#[test]
fn compressed_tensors_packed_and_in_bytes() {
    let mut random = Random(3);
    let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized"});
    for (bits, shape, expected) in [(4, [64, 256, 128], 128), (4, [40, 96, 32], 32), (8, [64, 192, 192], 64)] {
        for is_symmetric in [true, false] {
            let matrix = SourceMatrix::new(shape, bits, is_symmetric, &mut random);
            let outputs = shape[0];
            let of_word = (32 / bits) as usize;
            let mut folder = Folder::new(&config);
            folder.compressed(&matrix, bits);
            if !is_symmetric {
                // For each group, words of neighbouring outputs.
                let across: Vec<u32> = (0..outputs)
                    .step_by(of_word)
                    .flat_map(|first| (0..matrix.groups()).map(move |group| (first, group)))
                    .flat_map(|(first, group)| {
                        let zero = |output| matrix.zeros[output * matrix.groups() + group];
                        let zeros: Vec<u32> = (first..first + of_word).map(zero).collect();
                        pack(&zeros, bits, &IN_ORDER)
                    })
                    .collect();
                folder.words("a.weight_zero_point", [outputs / of_word, matrix.groups()], &across);
            }
            matrix.check(&folder, bits as u8, expected, &format!("{bits} bits, {shape:?}, {is_symmetric}"));
        }
    }
    for bits in [4, 8] {
        let matrix = SourceMatrix::new([40, 96, 32], bits, false, &mut random);
        let mut folder = Folder::new(&config);
        folder.compressed(&matrix, bits);
        let middle = 1u8 << (bits - 1);
        let zeros = matrix.zeros.iter().map(|zero| (*zero as u8).wrapping_sub(middle)).collect();
        folder.add("a.weight_zero_point", Dtype::I8, &[40, 3], zeros);
        matrix.check(&folder, bits as u8, 32, &format!("{bits} bits, zeros in bytes"));
    }
    for is_symmetric in [true, false] {
        let matrix = SourceMatrix::new([24, 160, 160], 8, is_symmetric, &mut random);
        let mut folder = Folder::new(&json!({"quant_method": "compressed-tensors", "format": "int-quantized"}));
        let signed = |codes: &[u32]| codes.iter().map(|code| (*code as u8).wrapping_sub(128)).collect();
        folder.add("a.weight", Dtype::I8, &[24, 160], signed(&matrix.codes));
        folder.halves("a.weight_scale", [24, 1], &matrix.scales);
        if !is_symmetric {
            folder.add("a.weight_zero_point", Dtype::I8, &[24, 1], signed(&matrix.zeros));
        }
        matrix.check(&folder, 8, 32, &format!("bytes, {is_symmetric}"));
    }
}

#[test]
fn blocks_of_fp8_beside_packed_codes() {
    let matrix = SourceMatrix::new([40, 96, 32], 4, true, &mut Random(10));
    let groups = json!({
        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "block_structure": null}},
        "group_1": {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}},
    });
    let mut folder = Folder::new(&json!({"quant_method": "compressed-tensors", "config_groups": groups}));
    folder.compressed(&matrix, 4);
    folder.add("b.weight", Dtype::F8_E4M3, &[40, 96], vec![0x38; 40 * 96]);
    folder.halves("b.weight_scale", [3, 3], &[0.5; 9]);
    let inventory = folder.inventory(1).expect("it can be read");
    let planned = plan(&inventory).expect("a plan");
    let model = SourceModel::files(&inventory, &planned);
    let tensors = model.tensors().expect("tensors");
    let encodings: Vec<_> = tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), TensorSource::of(tensor, model.open()).expect("its blobs").encoding))
        .collect();
    assert_eq!(
        encodings,
        [
            ("model.norm.weight", Encoding::Plain(Dtype::F32)),
            ("a.weight", Encoding::Affine { bits: 4, group: 32 }),
            ("b.weight", Encoding::BlockFp8 { rows: 16, columns: 32 }),
        ]
    );
}

#[test]
fn settings_of_the_methods_do_not_stay() {
    let matrix = SourceMatrix::new([64, 256, 32], 4, true, &mut Random(11));
    let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true});
    let mut files = gptq(&matrix, 4, &config, 1).files(1);
    for name in ["quantize_config.json", "quant_config.json", "generation_config.json"] {
        files.push(NamedFile { name: name.to_owned(), source: Arc::new(InMemory(b"{}".to_vec())) });
    }
    let inventory = inventory(&files).expect("it can be read");
    let names: Vec<&str> = inventory.side_files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["config.json", "generation_config.json"]);
}

#[test]
fn bitsandbytes_in_bytes() {
    let mut matrix = SourceMatrix::new([48, 128, 128], 8, true, &mut Random(4));
    let mut folder = Folder::new(&json!({"quant_method": "bitsandbytes", "load_in_8bit": true}));
    let codes = matrix.codes.iter().map(|code| (*code as u8).wrapping_sub(128)).collect();
    folder.add("a.weight", Dtype::I8, &[48, 128], codes);
    let most: Vec<f32> = matrix.scales.iter().map(|scale| scale * 127.0).collect();
    folder.add("a.SCB", Dtype::F32, &[48], most.iter().flat_map(|number| number.to_le_bytes()).collect());
    folder.add("a.weight_format", Dtype::U8, &[], vec![0]);
    matrix.scales = most.iter().map(|number| number / 127.0).collect();
    matrix.check(&folder, 8, 128, "bitsandbytes");
    if let Some((_, layout)) = folder.arrays.last_mut() {
        *layout = vec![2];
    }
    let inventory = folder.inventory(1).expect("its headers can be read");
    let file = &inventory.files[0];
    let error = file.source.read_exact_at(&mut vec![0; (file.size - file.header) as usize], file.header);
    assert!(error.expect_err("another layout").to_string().contains("layout"));
}

#[test]
fn nvfp4_of_compressed_tensors_divides() {
    let mut folder = Folder::new(&json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}));
    // 1 and 1.5 in E2M1, 2 in E4M3.
    folder.add("a.weight_packed", Dtype::U8, &[2, 8], vec![0x32; 16]);
    folder.add("a.weight_scale", Dtype::F8_E4M3, &[2, 1], vec![0x40; 2]);
    folder.add("a.weight_global_scale", Dtype::F32, &[1], 4.0f32.to_le_bytes().to_vec());
    let (encoding, numbers) = folder.weight();
    assert_eq!((encoding.quant_type().as_deref(), &numbers[..4]), (Some("nvfp4"), &[0.5, 0.75, 0.5, 0.75][..]));
}

#[test]
fn a_file_may_be_read_in_any_pieces() {
    let matrix = SourceMatrix::new([96, 256, 32], 4, false, &mut Random(5));
    let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    let inventory = gptq(&matrix, 4, &config, 1).inventory(1).expect("it can be read");
    let file = &inventory.files[0].source;
    let mut whole = vec![0; file.size() as usize];
    file.read_exact_at(&mut whole, 0).expect("all of it");
    let mut random = Random(6);
    for _ in 0..200 {
        let from = random.below(whole.len() as u32) as usize;
        let count = random.below((whole.len() - from) as u32 + 1) as usize;
        let mut part = vec![0; count];
        file.read_exact_at(&mut part, from as u64).expect("inside");
        assert_eq!(part, whole[from..from + count], "{from} {count}");
    }
    assert!(file.read_exact_at(&mut [0; 2], file.size() - 1).is_err(), "after the end");
}

#[test]
fn the_config_says_what_the_weights_are() {
    let matrix = SourceMatrix::new([64, 256, 32], 4, true, &mut Random(7));
    let quantization = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true});
    let inventory = gptq(&matrix, 4, &quantization, 1).inventory(2).expect("it can be read");
    let config = inventory.side_files.iter().find(|file| file.name == "config.json").expect("a config");
    let mut raw = vec![0; config.size as usize];
    config.source.read_exact_at(&mut raw, 0).expect("it can be read");
    let config: Value = serde_json::from_slice(&raw).expect("JSON");
    let expected = json!({"model_type": "llama", "quantization": {"bits": 4, "group_size": 32,
        "converted_from": {"quant_method": "gptq", "version": 1}}});
    assert_eq!(config, expected);
    let note = inventory.note.expect("people are told");
    assert!(note.contains("1 weights quantized by gptq") && note.contains("int4 in groups of 32"), "{note}");
}

#[test]
fn what_groups_cannot_express_is_named() {
    let matrix = |shape: [usize; 3]| SourceMatrix::new(shape, 4, true, &mut Random(8));
    let config = |key: &str, value: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true});
        config[key] = value;
        config
    };
    let usual = || matrix([64, 256, 32]);
    let of = |key: &str, value: Value| gptq(&usual(), 4, &config(key, value), 1);
    let without = |array: &str, change: &dyn Fn(&mut Member)| {
        let mut folder = of("bits", json!(4));
        folder.arrays.iter_mut().filter(|(member, _)| member.name == array).for_each(|(member, _)| change(member));
        folder
    };
    for (folder, expect) in [
        (of("desc_act", json!(true)), "act-order"),
        (of("checkpoint_format", json!("marlin")), "Marlin"),
        (gptq(&matrix([64, 256, 16]), 4, &config("group_size", json!(16)), 1), "groups have 16 inputs"),
        (without("a.scales", &|member| member.dtype = Dtype::I16), "`a.scales` is I16"),
    ] {
        let error = folder.inventory(1).map(|inventory| inventory.note).expect_err(expect);
        assert!(error.contains("`a.qweight` is quantized by gptq") && error.contains(expect), "{error}");
    }
    // With static groups, groups are in the order of the inputs.
    let mut static_groups = config("desc_act", json!(true));
    static_groups["static_groups"] = json!(true);
    usual().check(&gptq(&usual(), 4, &static_groups, 1), 4, 32, "static groups");
    // Errors that depend on the bytes are reported when the bytes are read.
    let mut sorted = of("desc_act", json!(false));
    sorted.arrays.iter_mut().filter(|(member, _)| member.name == "a.g_idx").for_each(|(_, bytes)| bytes[0] = 3);
    let asymmetric = SourceMatrix::new([64, 256, 32], 4, false, &mut Random(9));
    for (folder, expect) in [(sorted, "act-order"), (gptq(&asymmetric, 4, &config("bits", json!(4)), 1), "`sym`")] {
        let inventory = folder.inventory(1).expect("its headers are right");
        let file = &inventory.files[0];
        let read = file.source.read_exact_at(&mut vec![0; (file.size - file.header) as usize], file.header);
        assert!(read.expect_err(expect).to_string().contains(expect));
    }
}
