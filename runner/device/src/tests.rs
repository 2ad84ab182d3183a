//! Tests of kernels on the emulator or on a GPU. They compare with the numbers of the codecs,
//! computed in float64, and need nothing but this program.

mod attention;
mod experts;
mod products;
mod recording;
mod rows;
mod select;

use std::io::Write;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Tensor};
use formats::encoding::{Micro, PartShape, Role};
use formats::weight::{Arrays as HostArrays, Numbers};
use formats::{Dtype, Encoding, GgmlType, Weight};
use half::{bf16, f16};

use crate::{Arrays, DeviceArray, DeviceWeight, GpuRuntime, Product, ProductInput, Purpose, RowBlocks, WeightSet};

/// Environment variable that selects a GPU instead of the emulator: `cuda:0`.
const DEVICE: &str = "LODE_TEST_DEVICE";

/// Returns the selected GPU.
fn gpu() -> Option<&'static Device> {
    static GPU: OnceLock<Option<Device>> = OnceLock::new();
    let open = || {
        let name = std::env::var(DEVICE).ok()?;
        let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        Some(Device::new_cuda_with_stream(index.expect("`cuda:` and a number")).expect("the GPU"))
    };
    GPU.get_or_init(open).as_ref()
}

/// Returns the emulator or the selected GPU; reports a skipped test and returns `None` if there is
/// neither.
fn machine(backwards: bool) -> Option<GpuRuntime> {
    let machine = match gpu() {
        Some(gpu) => GpuRuntime::of(gpu).expect("the driver takes the kernels"),
        None => emulated(backwards),
    };
    if let (None, Some(list)) = (&machine, std::env::var_os("LODE_TEST_SKIPPED")) {
        let list = std::fs::File::options().append(true).create(true).open(list);
        list.expect("the list")
            .write_all(b"kernels of GPUs: there is no C++ compiler to emulate them\n")
            .expect("a line");
    }
    machine
}

fn emulated(backwards: bool) -> Option<GpuRuntime> {
    GpuRuntime::emulated(backwards).expect("kernels are compiled")
}

/// Deterministic pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Returns a number between -1 and 1.
    fn number(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }

    fn rows(&mut self, rows: usize, width: usize) -> Vec<f32> {
        (0..rows * width).map(|_| self.number()).collect()
    }
}

/// A weight with random codes, on the host and on the device.
struct Sample {
    encoding: Encoding,
    shape: [usize; 2],
    bytes: Vec<Vec<u8>>,
    float: Dtype,
    global: Option<f32>,
}

impl Sample {
    fn new(encoding: Encoding, shape: [usize; 2], float: Dtype, random: &mut Random) -> Self {
        let parts = encoding.parts(&shape.map(|n| n as u64), float).expect("such a weight");
        let bytes = parts.iter().map(|part| part_bytes(encoding, part, random)).collect();
        let global = matches!(encoding, Encoding::Micro(Micro::Nvfp4)).then_some(0.37);
        Self { encoding, shape, bytes, float, global }
    }

    /// Returns the rows as float32.
    fn numbers(&self) -> Vec<f32> {
        let numbers = |at: usize, dtype| self.bytes.get(at).map(|bytes| Numbers { dtype, bytes });
        let dtype = if self.encoding.has_float_scale() { self.float } else { Dtype::U8 };
        let arrays = HostArrays {
            data: &self.bytes[0],
            scale: numbers(1, dtype),
            bias: numbers(2, dtype),
            global_scale: self.global,
        };
        let weight = Weight::new(self.encoding, &self.shape.map(|n| n as u64), arrays).expect("a weight");
        let mut all = vec![0.0; self.shape[0] * self.shape[1]];
        weight.decode(&mut all);
        all
    }

    fn arrays(&self, machine: &GpuRuntime) -> Arrays {
        let array = |bytes: &Vec<u8>| DeviceArray {
            memory: Arc::new(machine.upload(bytes).expect("memory")),
            offset: 0,
            size: bytes.len(),
        };
        Arrays {
            codes: array(&self.bytes[0]),
            scales: self.bytes.get(1).map(|bytes| (array(bytes), self.float)),
            biases: self.bytes.get(2).map(array),
            global_scale: self.global,
        }
    }

    fn upload(&self, machine: &GpuRuntime, part: RowBlocks) -> DeviceWeight {
        DeviceWeight::new(self.encoding, self.shape, self.arrays(machine), part).expect("a weight")
    }
}

/// Returns random codes, and small numbers as scales.
fn part_bytes(encoding: Encoding, part: &PartShape, random: &mut Random) -> Vec<u8> {
    let count = part.size() as usize / part.dtype.byte_count(&[1]).expect("whole bytes") as usize;
    match (part.dtype, part.role) {
        (Dtype::F32, _) => (0..count).flat_map(|_| random.number().to_le_bytes()).collect(),
        (Dtype::F16, _) => (0..count).flat_map(|_| f16::from_f32(random.number()).to_le_bytes()).collect(),
        (Dtype::Bf16, _) => (0..count).flat_map(|_| bf16::from_f32(random.number()).to_le_bytes()).collect(),
        // Exponents, and E4M3 codes that are not NaN.
        (Dtype::U8 | Dtype::F8_E8M0, Role::Scale) => (0..count).map(|_| (120 + random.next() % 6) as u8).collect(),
        (Dtype::F8_E4M3, _) => {
            (0..count).map(|_| (random.next() % 126) as u8 | (random.next() % 2 * 128) as u8).collect()
        }
        _ => blocks(encoding, part.size() as usize, random),
    }
}

/// Returns blocks of random bytes. The float16 numbers of the layouts are small.
fn blocks(encoding: Encoding, size: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
    if encoding == Encoding::Micro(Micro::Mxfp8) {
        bytes.iter_mut().filter(|code| **code & 127 == 127).for_each(|code| *code = 0);
    }
    let Encoding::Blocks(kind) = encoding else { return bytes };
    let halves: &[usize] = match kind {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        GgmlType::TQ1_0 => &[52],
        GgmlType::TQ2_0 => &[64],
        GgmlType::MXFP4 | GgmlType::NVFP4 | GgmlType::IQ1_M => &[],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(kind.block_bytes() as usize) {
        for at in halves {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(random.number()).to_le_bytes());
        }
        match kind {
            GgmlType::MXFP4 => block[0] = 120 + block[0] % 6,
            GgmlType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale %= 126),
            // The nibbles of the four words are 0.5.
            GgmlType::IQ1_M => {
                for (at, nibble) in [0x00, 0x00, 0x08, 0x03].into_iter().enumerate() {
                    block[49 + 2 * at] = block[49 + 2 * at] & 15 | nibble << 4;
                }
            }
            _ => {}
        }
    }
    bytes
}

/// Returns every encoding with kernels.
fn encodings() -> Vec<(Encoding, Dtype)> {
    let mut all: Vec<(Encoding, Dtype)> =
        [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| (Encoding::Plain(dtype), Dtype::F32)).into();
    all.push((Encoding::BlockFp8 { rows: 24, columns: 32 }, Dtype::F32));
    all.push((Encoding::BlockFp8 { rows: 16, columns: 128 }, Dtype::Bf16));
    all.push((Encoding::BlockFp8 { rows: 48, columns: 48 }, Dtype::F16));
    all.push((Encoding::BlockFp8 { rows: 16, columns: 64 }, Dtype::F8_E8M0));
    for (bits, group, float) in [
        (2, 32, Dtype::Bf16),
        (3, 64, Dtype::F16),
        (4, 128, Dtype::F32),
        (4, 32, Dtype::Bf16),
        (5, 32, Dtype::F16),
        (6, 64, Dtype::Bf16),
        (8, 128, Dtype::F32),
    ] {
        all.push((Encoding::Affine { bits, group }, float));
    }
    for micro in [Micro::Mxfp4, Micro::Mxfp8, Micro::Nvfp4] {
        all.push((Encoding::Micro(micro), Dtype::U8));
    }
    for kind in GgmlType::ALL {
        if kind.dtype().is_none() && DeviceWeight::is_known(Encoding::Blocks(*kind), 256) {
            all.push((Encoding::Blocks(*kind), Dtype::F32));
        }
    }
    assert!(all.len() >= 35, "{all:?}");
    all
}

fn tensor(numbers: &[f32], rows: usize) -> Tensor {
    Tensor::from_slice(numbers, (rows, numbers.len() / rows), gpu().unwrap_or(&Device::Cpu)).expect("a tensor")
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|all| all.to_vec1()).expect("numbers")
}

/// Rounds x as the integer kernels do.
fn rounded(x: &[f32]) -> Vec<f32> {
    let round = |run: &[f32]| {
        let e = run.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
        let inverse = 1.0 / e;
        run.iter().map(|x| (x * inverse).round_ties_even() * e).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(round).collect()
}

/// Returns `x · Wᵀ` in float64, and the sum of the magnitudes.
fn expected(w: &[f32], x: &[f32], columns: usize) -> Vec<(f64, f64)> {
    let dot = |x: &[f32], w: &[f32]| {
        let each = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        each.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
    };
    x.chunks(columns).flat_map(|x| w.chunks(columns).map(move |w| dot(x, w))).collect()
}

fn check(what: &str, found: &[f32], expected: &[(f64, f64)], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, (expected, size))) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        assert!(
            off <= tolerance * size + 1e-9,
            "{what}: number {at} is {found}, expected {expected} (off by {off:e} of {size})"
        );
    }
}

/// Returns the tolerance relative to the sum of magnitudes: for rounding to the types of tensor
/// cores in tiles, else for float32 sums.
fn tolerance(encoding: Encoding, is_tile: bool) -> f64 {
    match encoding {
        Encoding::Plain(Dtype::F32 | Dtype::F16) if is_tile => 2f64.powi(-10),
        Encoding::Plain(Dtype::Bf16) | Encoding::BlockFp8 { .. } | Encoding::Micro(Micro::Mxfp8) if is_tile => {
            2f64.powi(-8)
        }
        _ => 1e-5,
    }
}

/// Returns a set of a single weight without a bias.
fn alone(weight: &DeviceWeight) -> [WeightSet<'_>; 1] {
    [vec![(weight, None)]]
}

fn product<'a>(sets: &'a [WeightSet<'a>], purpose: Purpose<'a>) -> Product<'a> {
    Product { sets, runs: None, purpose, is_exact: false }
}

fn run(machine: &GpuRuntime, product: Product<'_>, x: &Tensor) -> Vec<Tensor> {
    if product.sets[0][0].0.rounds() {
        let rounded = machine.rounded(None, x).expect("it is rounded");
        machine.product(product, ProductInput::Rounded(&rounded))
    } else {
        machine.product(product, ProductInput::Rows(x))
    }
    .expect("a product")
    .rows
}
