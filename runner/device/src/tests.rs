//! Kernels on the emulator, or on a GPU, against the codecs' numbers, computed in float64. Nothing else is needed for it but this program.

mod attention;

use std::io::Write;
use std::sync::{Arc, OnceLock};

use architectures::{Activation, NormKind};
use candle_core::{Device, Tensor};
use formats::encoding::{Micro, PartShape, Role};
use formats::weight::{Arrays as HostArrays, Numbers};
use formats::{Dtype, Encoding, GgmlType, Weight};
use half::{bf16, f16};

use crate::{Array, Arrays, DeviceWeight, ExpertRows, Input, Machine, Norm, Product, Purpose, RowBlocks};

/// Which device is tried in the place of the emulator: `cuda:0`.
const DEVICE: &str = "LODE_TEST_DEVICE";

/// The GPU that is asked for.
fn gpu() -> Option<&'static Device> {
    static GPU: OnceLock<Option<Device>> = OnceLock::new();
    let open = || {
        let name = std::env::var(DEVICE).ok()?;
        let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        Some(Device::new_cuda_with_stream(index.expect("`cuda:` and a number")).expect("the GPU"))
    };
    GPU.get_or_init(open).as_ref()
}

/// The emulator, or the GPU that is asked for; `None`, said aloud, where there is neither.
fn machine(backwards: bool) -> Option<Machine> {
    let machine = match gpu() {
        Some(gpu) => Machine::of(gpu).expect("the driver takes the kernels"),
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

#[cfg(debug_assertions)]
fn emulated(backwards: bool) -> Option<Machine> {
    Machine::emulated(backwards).expect("kernels are compiled")
}

#[cfg(not(debug_assertions))]
fn emulated(_backwards: bool) -> Option<Machine> {
    None
}

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -1 and 1.
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

    /// Row after row as float32.
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

    fn upload(&self, machine: &Machine, part: RowBlocks) -> DeviceWeight {
        let array = |bytes: &Vec<u8>| Array {
            memory: Arc::new(machine.upload(bytes).expect("memory")),
            offset: 0,
            size: bytes.len(),
        };
        let arrays = Arrays {
            codes: array(&self.bytes[0]),
            scales: self.bytes.get(1).map(|bytes| (array(bytes), self.float)),
            biases: self.bytes.get(2).map(array),
            global_scale: self.global,
        };
        DeviceWeight::new(self.encoding, self.shape, arrays, part).expect("a weight")
    }
}

/// Codes are random bytes; numbers that are scales are small.
fn part_bytes(encoding: Encoding, part: &PartShape, random: &mut Random) -> Vec<u8> {
    let count = part.size() as usize / part.dtype.byte_count(&[1]).expect("whole bytes") as usize;
    match (part.dtype, part.role) {
        (Dtype::F32, _) => (0..count).flat_map(|_| random.number().to_le_bytes()).collect(),
        (Dtype::F16, _) => (0..count).flat_map(|_| f16::from_f32(random.number()).to_le_bytes()).collect(),
        (Dtype::Bf16, _) => (0..count).flat_map(|_| bf16::from_f32(random.number()).to_le_bytes()).collect(),
        // Exponents, and E4M3 that is a number.
        (Dtype::U8, Role::Scale) => (0..count).map(|_| (120 + random.next() % 6) as u8).collect(),
        (Dtype::F8_E4M3, _) => {
            (0..count).map(|_| (random.next() % 126) as u8 | (random.next() % 2 * 128) as u8).collect()
        }
        _ => blocks(encoding, part.size() as usize, random),
    }
}

/// Blocks of random bytes whose float16 numbers are small: what they are is where the layouts have them.
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

/// Every encoding that there are kernels for.
fn encodings() -> Vec<(Encoding, Dtype)> {
    let mut all: Vec<(Encoding, Dtype)> =
        [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| (Encoding::Plain(dtype), Dtype::F32)).into();
    all.push((Encoding::BlockFp8 { rows: 24, columns: 32 }, Dtype::F32));
    all.push((Encoding::BlockFp8 { rows: 16, columns: 128 }, Dtype::Bf16));
    all.push((Encoding::BlockFp8 { rows: 48, columns: 48 }, Dtype::F16));
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

/// x as the integer kernels see it.
fn rounded(x: &[f32]) -> Vec<f32> {
    let round = |run: &[f32]| {
        let e = run.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
        let inverse = 1.0 / e;
        run.iter().map(|x| (x * inverse).round_ties_even() * e).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(round).collect()
}

/// `x · Wᵀ` in float64, and the same of magnitudes.
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

/// What rounding of floats for tensor cores may cost, of the sum of magnitudes; sums of float32 otherwise.
fn tolerance(encoding: Encoding, is_tile: bool) -> f64 {
    match encoding {
        Encoding::Plain(Dtype::F32 | Dtype::F16) if is_tile => 2f64.powi(-10),
        Encoding::Plain(Dtype::Bf16) | Encoding::BlockFp8 { .. } | Encoding::Micro(Micro::Mxfp8) if is_tile => {
            2f64.powi(-8)
        }
        _ => 1e-5,
    }
}

const PLAIN: [Option<&Tensor>; 1] = [None];

fn product<'a>(weights: &'a [&'a DeviceWeight], biases: &'a [Option<&'a Tensor>], purpose: Purpose<'a>) -> Product<'a> {
    Product { weights, biases, purpose, is_exact: false }
}

fn run(machine: &Machine, product: Product<'_>, x: &Tensor) -> Vec<Tensor> {
    if product.weights[0].rounds() {
        let rounded = machine.rounded(None, x).expect("it is rounded");
        machine.product(product, Input::Rounded(&rounded))
    } else {
        machine.product(product, Input::Rows(x))
    }
    .expect("a product")
    .rows
}

#[test]
fn products_of_every_encoding() {
    let Some(machine) = machine(false) else { return };
    // Rows that are no whole tile; of x one, some of a few, a tile and a part of one.
    every_encoding(&machine, [70, 512], &[1, 3, 9, 67]);
}

/// Where a barrier is missing, the order of threads shows.
#[test]
fn the_order_of_threads_does_not_matter() {
    let Some(machine) = machine(true) else { return };
    every_encoding(&machine, [20, 512], &[2, 17]);
}

fn every_encoding(machine: &Machine, shape: [usize; 2], tokens: &[usize]) {
    let mut random = Random(7);
    for (encoding, float) in encodings() {
        let sample = Sample::new(encoding, shape, float, &mut random);
        let weight = sample.upload(machine, RowBlocks::all(shape[0]));
        let w = sample.numbers();
        for tokens in tokens.iter().copied() {
            let x = random.rows(tokens, shape[1]);
            let seen = if weight.rounds() { rounded(&x) } else { x.clone() };
            let found = run(machine, product(&[&weight], &PLAIN, Purpose::Write), &tensor(&x, tokens));
            let what = format!("{encoding} of {tokens} rows");
            check(&what, &numbers(&found[0]), &expected(&w, &seen, shape[1]), tolerance(encoding, tokens > 8));
        }
    }
}

/// Columns that are no multiple of anything; and exact sums where they are asked for.
#[test]
fn plain_rows_of_any_width() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(3);
    for (dtype, columns) in [(Dtype::F32, 1), (Dtype::F16, 7), (Dtype::Bf16, 30), (Dtype::Bf16, 100), (Dtype::F32, 264)]
    {
        let encoding = Encoding::Plain(dtype);
        let sample = Sample::new(encoding, [9, columns], Dtype::F32, &mut random);
        let weight = sample.upload(&machine, RowBlocks::all(9));
        for (tokens, is_exact) in [(1, false), (20, false), (20, true)] {
            let x = random.rows(tokens, columns);
            let weights = [&weight];
            let asked = Product { is_exact, ..product(&weights, &PLAIN, Purpose::Write) };
            let found = run(&machine, asked, &tensor(&x, tokens));
            let is_tile = tokens > 8 && !is_exact;
            let what = format!("{encoding} of {columns} columns");
            check(&what, &numbers(&found[0]), &expected(&sample.numbers(), &x, columns), tolerance(encoding, is_tile));
        }
    }
}

/// What becomes of products: several at once, biases, gates, sums; few rows and tiles, rounded and not.
#[test]
fn purposes_of_products() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(11);
    let columns = 256;
    for encoding in [Encoding::Plain(Dtype::F32), Encoding::Affine { bits: 4, group: 64 }] {
        let samples = [50, 50, 19].map(|rows| Sample::new(encoding, [rows, columns], Dtype::F32, &mut random));
        let weights = samples.each_ref().map(|own| own.upload(&machine, RowBlocks::all(own.shape[0])));
        let biases = samples.each_ref().map(|own| random.rows(1, own.shape[0]));
        let bias_tensors = biases.each_ref().map(|own| tensor(own, 1));
        for tokens in [1, 5, 33] {
            let x = random.rows(tokens, columns);
            let seen = if weights[0].rounds() { rounded(&x) } else { x.clone() };
            let tolerance = tolerance(encoding, tokens > 8);
            // `y + bias` of each weight.
            let each = |at: usize| -> Vec<(f64, f64)> {
                let all = expected(&samples[at].numbers(), &seen, columns);
                let rows = samples[at].shape[0];
                all.iter()
                    .zip(0..)
                    .map(|((y, size), at_y)| (y + f64::from(biases[at][at_y % rows]), size + 1.0))
                    .collect()
            };
            let all = [Some(&bias_tensors[0]), Some(&bias_tensors[1]), Some(&bias_tensors[2])];
            let asked = [&weights[0], &weights[1], &weights[2]];
            let found = run(&machine, product(&asked, &all, Purpose::Write), &tensor(&x, tokens));
            for (at, found) in found.iter().enumerate() {
                check(&format!("{encoding}, weight {at}"), &numbers(found), &each(at), tolerance);
            }
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu] {
                let one =
                    run(&machine, product(&asked[..1], &all[..1], Purpose::Activate(activation)), &tensor(&x, tokens));
                let wanted: Vec<_> = each(0).iter().map(|(y, size)| (activated(activation, *y), size * 2.0)).collect();
                check(&format!("{encoding}, {activation:?}"), &numbers(&one[0]), &wanted, tolerance);
            }
            for activation in [Activation::Gelu, Activation::ClampedSilu { limit: 7.0 }] {
                let gated =
                    run(&machine, product(&asked[..2], &all[..2], Purpose::Gate(activation)), &tensor(&x, tokens));
                let pairs = each(0).into_iter().zip(each(1));
                let wanted: Vec<_> = pairs
                    .map(|((g, g_size), (u, u_size))| {
                        (gated_by(activation, g, u), g_size * (u.abs() + 2.0) * 2.0 + u_size * (g.abs() + 2.0) * 2.0)
                    })
                    .collect();
                check(&format!("{encoding}, {activation:?}"), &numbers(&gated[0]), &wanted, tolerance);
            }
            let residual = random.rows(tokens, samples[0].shape[0]);
            let sum = Purpose::Add(&tensor(&residual, tokens), 0.5);
            let found = run(&machine, product(&asked[..1], &all[..1], sum), &tensor(&x, tokens));
            let wanted: Vec<_> =
                each(0).iter().zip(&residual).map(|((y, size), r)| (f64::from(*r) + 0.5 * y, *size + 1.0)).collect();
            check(&format!("{encoding}, a sum"), &numbers(&found[0]), &wanted, tolerance);
        }
    }
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::Relu => x.max(0.0),
        Activation::Silu | Activation::ClampedSilu { .. } => x / (1.0 + (-x).exp()),
    }
}

fn gated_by(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::ClampedSilu { limit } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
        }
        other => activated(other, gate) * up,
    }
}

/// The error function: its series, or 1 where that would lose digits.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn rows_of_a_weight_that_lie_apart() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(5);
    let sample = Sample::new(Encoding::Plain(Dtype::Bf16), [60, 64], Dtype::F32, &mut random);
    // Of blocks of 10 the last four.
    let part = RowBlocks { first: 6, count: 24, block: 4, stride: 10 };
    let weight = sample.upload(&machine, part);
    let all = sample.numbers();
    let w: Vec<f32> = (0..24).flat_map(|row| all[(6 + row / 4 * 10 + row % 4) * 64..][..64].to_vec()).collect();
    for tokens in [2, 12] {
        let x = random.rows(tokens, 64);
        let found = run(&machine, product(&[&weight], &PLAIN, Purpose::Write), &tensor(&x, tokens));
        let tolerance = tolerance(sample.encoding, tokens > 8);
        check("rows apart", &numbers(&found[0]), &expected(&w, &x, 64), tolerance);
    }
    let arrays = || sample.upload(&machine, RowBlocks::all(60)).arrays;
    for wrong in [
        RowBlocks { first: 14, count: 9, block: 8, stride: 1 },
        RowBlocks { count: 61, ..RowBlocks::all(60) },
        RowBlocks { first: 31, ..part },
        RowBlocks { block: 0, ..part },
    ] {
        assert!(DeviceWeight::new(sample.encoding, [60, 64], arrays(), wrong).is_err(), "{wrong:?}");
    }
    assert!(DeviceWeight::new(sample.encoding, [61, 64], arrays(), RowBlocks::all(61)).is_err(), "other lengths");
}

#[test]
fn experts_have_rows_of_their_own() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(9);
    for encoding in [Encoding::Plain(Dtype::Bf16), Encoding::Blocks(GgmlType::Q4_0)] {
        let samples: Vec<Sample> = (0..4).map(|_| Sample::new(encoding, [40, 64], Dtype::F32, &mut random)).collect();
        let weights: Vec<_> = samples.iter().map(|own| own.upload(&machine, RowBlocks::all(40))).collect();
        let pairs: Vec<[&DeviceWeight; 2]> = vec![[&weights[0], &weights[1]], [&weights[2], &weights[3]]];
        let sets: Vec<&[&DeviceWeight]> = pairs.iter().map(<[_; 2]>::as_slice).collect();
        let none: [Option<&Tensor>; 2] = [None, None];
        let run = |expert, first, count| ExpertRows { expert, first, count };
        for runs in [vec![run(1, 0, 1), run(0, 1, 3)], vec![run(0, 0, 13), run(1, 13, 2)]] {
            let tokens = runs.iter().map(|run| run.count).sum();
            let x = random.rows(tokens, 64);
            let asked = product(&pairs[0], &none, Purpose::Write);
            let (x_tensor, biases) = (tensor(&x, tokens), vec![&none[..]; 2]);
            let rounded_x = weights[0].rounds().then(|| machine.rounded(None, &x_tensor).expect("it is rounded"));
            let input = rounded_x.as_ref().map_or(Input::Rows(&x_tensor), Input::Rounded);
            let found = machine.grouped_product(&sets, &biases, &runs, asked, input).expect("products").rows;
            let seen = if weights[0].rounds() { rounded(&x) } else { x.clone() };
            for (at, found) in found.iter().enumerate() {
                let own = |run: &ExpertRows| {
                    let rows = &seen[run.first * 64..(run.first + run.count) * 64];
                    expected(&samples[2 * run.expert + at].numbers(), rows, 64)
                };
                let wanted: Vec<_> = runs.iter().flat_map(own).collect();
                check(&format!("{encoding}, {runs:?}"), &numbers(found), &wanted, tolerance(encoding, tokens > 8));
            }
        }
        let x = tensor(&random.rows(2, 64), 2);
        let beyond = machine.grouped_product(
            &sets,
            &[&none, &none],
            &[run(0, 1, 2)],
            product(&pairs[0], &none, Purpose::Write),
            Input::Rows(&x),
        );
        assert!(beyond.is_err(), "rows that there are not");
    }
}

#[test]
fn norms_of_rows_and_of_runs() {
    let Some(machine) = machine(true) else { return };
    let mut random = Random(13);
    for (kind, width, runs, turns, has_bias) in [
        (NormKind::Rms, 320, 1, 1, false),
        (NormKind::Layer, 2080, 1, 1, true),
        (NormKind::Rms, 64, 6, 1, false),
        (NormKind::Layer, 24, 4, 2, false),
        (NormKind::Rms, 7, 1, 1, true),
    ] {
        let rows = 3;
        let mut x = random.rows(rows, width * runs);
        for x in &mut x {
            *x += 0.5;
        }
        let (weight, bias) = (random.rows(turns, width), random.rows(1, width));
        let (weight_tensor, bias_tensor) = (tensor(&weight, turns), tensor(&bias, 1));
        let norm = Norm { kind, width, weight: &weight_tensor, bias: has_bias.then_some(&bias_tensor), epsilon: 1e-5 };
        let wanted: Vec<(f64, f64)> = x
            .chunks(width)
            .enumerate()
            .flat_map(|(run, x)| {
                let count = width as f64;
                let mean =
                    if kind == NormKind::Layer { x.iter().map(|x| f64::from(*x)).sum::<f64>() / count } else { 0.0 };
                let square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
                let factor = 1.0 / (square + f64::from(1e-5f32)).sqrt();
                let (weight, bias) = (&weight[run % turns * width..][..width], &bias);
                let each = x.iter().zip(weight).zip(bias).map(move |((x, w), b)| {
                    (f64::from(*x) - mean) * factor * f64::from(*w) + if has_bias { f64::from(*b) } else { 0.0 }
                });
                each.collect::<Vec<_>>()
            })
            .map(|y| (y, 1.0))
            .collect();
        let normed = machine.norm(norm, &tensor(&x, rows)).expect("a norm");
        check(&format!("{kind:?} of {width}"), &numbers(&normed), &wanted, 1e-5);
    }
    // Rounding after a norm, by a product with ones.
    let weight = Sample::new(Encoding::Affine { bits: 8, group: 32 }, [3, 96], Dtype::F32, &mut random);
    let x = tensor(&random.rows(2, 96), 2);
    let ones = tensor(&[1.0; 96], 1);
    let norm = Norm { kind: NormKind::Rms, width: 96, weight: &ones, bias: None, epsilon: 0.0 };
    let normed = numbers(&machine.norm(norm, &x).expect("a norm"));
    let rounded_x = machine.rounded(Some(norm), &x).expect("it is rounded");
    let uploaded = weight.upload(&machine, RowBlocks::all(3));
    let found = machine
        .product(product(&[&uploaded], &PLAIN, Purpose::Write), Input::Rounded(&rounded_x))
        .expect("a product")
        .rows;
    check("rounded after a norm", &numbers(&found[0]), &expected(&weight.numbers(), &rounded(&normed), 96), 1e-4);
    assert!(machine.rounded(None, &tensor(&[0.0; 40], 1)).is_err(), "no whole runs");
}

/// What gates let through and what is mixed is rounded on the way, as it would be by itself.
#[test]
fn results_are_rounded_for_the_next_product() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(19);
    let encoding = Encoding::Affine { bits: 4, group: 32 };
    let [gate, up] =
        [0, 1].map(|_| Sample::new(encoding, [96, 64], Dtype::F32, &mut random).upload(&machine, RowBlocks::all(96)));
    let next = Sample::new(encoding, [5, 96], Dtype::F32, &mut random).upload(&machine, RowBlocks::all(5));
    let (both, none) = ([&gate, &up], [None, None]);
    for tokens in [1, 8] {
        let x = machine.rounded(None, &tensor(&random.rows(tokens, 64), tokens)).expect("it is rounded");
        let gates = product(&both, &none, Purpose::Gate(Activation::Silu));
        let made = machine.product(gates, Input::Rounded(&x)).expect("a product");
        let apart = machine.rounded(None, &made.rows[0]).expect("it is rounded");
        let on_the_way = made.rounded.expect("few rows of integers");
        for rounded in [(&on_the_way.codes, &apart.codes), (&on_the_way.factors, &apart.factors)] {
            assert_eq!(machine.read(rounded.0).expect("bytes"), machine.read(rounded.1).expect("bytes"));
        }
        let again = machine.product(product(&[&next], &PLAIN, Purpose::Write), Input::Rounded(&on_the_way));
        assert_eq!(again.expect("a product").rows[0].dims(), [tokens, 5]);
    }
}

/// What is not a number stays so, and is not taken for one.
#[test]
fn what_is_not_a_number_is_told() {
    let Some(machine) = machine(false) else { return };
    let sample = Sample::new(Encoding::Affine { bits: 4, group: 32 }, [5, 64], Dtype::F32, &mut Random(1));
    let weight = sample.upload(&machine, RowBlocks::all(5));
    let mut x = vec![0.25; 64];
    x[40] = f32::NAN;
    let found = run(&machine, product(&[&weight], &PLAIN, Purpose::Write), &tensor(&x, 1));
    assert!(numbers(&found[0]).iter().all(|y| y.is_nan()));
    // Of tiles as well, whatever bits it has.
    let floats = Sample::new(Encoding::Plain(Dtype::F32), [5, 64], Dtype::F32, &mut Random(1));
    let floats = floats.upload(&machine, RowBlocks::all(5));
    let long = [f32::from_bits(0x7fff_ffff); 64 * 20];
    let found = run(&machine, product(&[&floats], &PLAIN, Purpose::Write), &tensor(&long, 20));
    assert!(numbers(&found[0]).iter().all(|y| y.is_nan()));
    let found = run(&machine, product(&[&weight], &PLAIN, Purpose::Write), &tensor(&[0.0; 64], 1));
    assert!(numbers(&found[0]).iter().all(|y| *y == 0.0), "{found:?}");
}
