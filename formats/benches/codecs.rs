//! Benchmarks of encoding and decoding weights on all cores, compared with copying the same bytes
//! on all cores.
//!
//! Throughput is measured in bytes of the BF16 weight: the source of encoding, or the decoded
//! values if they were BF16.

use std::num::NonZero;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use half::bf16;
use lode_formats::codec::{self, Encoded, EncodedBuffers, EncodingTarget};
use lode_formats::encoding::Micro;
use lode_formats::weight::{Arrays, Numbers};
use lode_formats::{Dtype, Encoding, GgmlType, Weight};

/// A matrix of 64 MB as BF16.
const SHAPE: [u64; 2] = [8192, 4096];
/// Number of elements in the matrix.
const ELEMENTS: usize = (SHAPE[0] * SHAPE[1]) as usize;

fn encodings() -> [Encoding; 9] {
    [
        Encoding::Affine { bits: 4, group: 32 },
        Encoding::Affine { bits: 8, group: 32 },
        Encoding::Micro(Micro::Nvfp4),
        Encoding::Micro(Micro::Mxfp4),
        Encoding::Micro(Micro::Mxfp8),
        Encoding::Blocks(GgmlType::Q8_0),
        Encoding::Blocks(GgmlType::Q4_0),
        Encoding::Blocks(GgmlType::Q4_K),
        Encoding::Blocks(GgmlType::IQ4_XS),
    ]
}

/// Returns values between -1 and 1 that are distributed like a model's: small magnitudes are more
/// frequent.
fn source() -> Vec<u8> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..ELEMENTS).flat_map(|_| bf16::from_f32(random() * random() * random()).to_le_bytes()).collect()
}

fn copying(group: &mut BenchmarkGroup<'_, WallTime>, source: &[u8]) {
    let share = source.len().div_ceil(std::thread::available_parallelism().map_or(1, NonZero::get));
    let mut copy = vec![0; source.len()];
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| {
            std::thread::scope(|scope| {
                for (to, from) in copy.chunks_mut(share).zip(source.chunks(share)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
        });
    });
}

fn coding(group: &mut BenchmarkGroup<'_, WallTime>, source: &Weight<'_>, encoding: Encoding) {
    let target = EncodingTarget { encoding, float: Dtype::Bf16, global_scale: None };
    let mut encoded = Encoded::default();
    codec::transcode(source, target, &mut encoded);
    let Encoded { data, scale, bias } = &mut encoded;
    group.bench_function(format!("encode {encoding}"), |bencher| {
        bencher.iter(|| codec::transcode_into(source, target, EncodedBuffers { data, scale, bias }));
    });
    let numbers = |bytes| Some(Numbers { dtype: Dtype::Bf16, bytes });
    let arrays = Arrays {
        data: &encoded.data,
        scale: Some(&encoded.scale[..]).filter(|bytes| !bytes.is_empty()).and_then(numbers),
        bias: Some(&encoded.bias[..]).filter(|bytes| !bytes.is_empty()).and_then(numbers),
        global_scale: None,
    };
    let weight = Weight::new(encoding, &SHAPE, arrays).expect("arrays as they were encoded");
    group.bench_function(format!("decode {encoding}"), |bencher| {
        bencher.iter(|| decode(&weight));
    });
}

/// Decodes row by row, as kernels do.
fn decode(weight: &Weight<'_>) {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                let mut row = vec![0.0; weight.columns()];
                for index in (first..weight.rows()).step_by(threads) {
                    weight.decode_row(index, &mut row);
                    std::hint::black_box(&mut row);
                }
            });
        }
    });
}

fn codecs(criterion: &mut Criterion) {
    let bytes = source();
    let weight = Weight::new(Encoding::Plain(Dtype::Bf16), &SHAPE, Arrays { data: &bytes, ..Arrays::default() })
        .expect("a matrix of BF16");
    let mut group = criterion.benchmark_group("codecs");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    copying(&mut group, &bytes);
    group.bench_function("decode bf16", |bencher| bencher.iter(|| decode(&weight)));
    for encoding in encodings() {
        coding(&mut group, &weight, encoding);
    }
    group.finish();
}

criterion_group!(benches, codecs);
criterion_main!(benches);
