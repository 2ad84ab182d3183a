//! Tests of attention, compared with its formula in float64, for sequences that grow pass by pass.

use candle_core::Tensor;
use half::{bf16, f16};
use protocol::KvType;

use super::{Random, check, machine, numbers, tensor};
use crate::{Attention, AttentionInput, CacheRows, CachedSpan, GpuRuntime, HeadRows, Memory, Rotary};

/// Parameters of a test.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: KvType,
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    /// 0 if values are the first elements of keys.
    value_dim: usize,
    mixed_dim: usize,
    window: Option<usize>,
    chunk: Option<usize>,
    is_causal: bool,
    soft_cap: Option<f32>,
    has_sinks: bool,
    /// First rotary element, number of angles, and whether pairs are adjacent.
    rotary: Option<(usize, usize, bool)>,
    is_normed: bool,
}

const PLAIN: Case = Case {
    kind: KvType::F32,
    heads: 4,
    kv_heads: 2,
    key_dim: 32,
    value_dim: 32,
    mixed_dim: 32,
    window: None,
    chunk: None,
    is_causal: true,
    soft_cap: None,
    has_sinks: false,
    rotary: None,
    is_normed: false,
};

/// A sequence: its blocks, and a copy of its rows on the host, one for each position.
#[derive(Default)]
struct Sequence {
    blocks: Vec<Memory>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// Returns a row after a round trip through the cache type.
fn kept(kind: KvType, row: &[f32]) -> Vec<f32> {
    match kind {
        KvType::F32 => row.to_vec(),
        KvType::F16 => row.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
        KvType::Bf16 => row.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
        KvType::Q8_0 => {
            let run = |run: &[f32]| {
                let d = run.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
                let (scale, inverse) = (f16::from_f32(d).to_f32(), if d > 0.0 { 1.0 / d } else { 0.0 });
                run.iter().map(|x| (x * inverse).round_ties_even() * scale).collect::<Vec<_>>()
            };
            row.chunks(32).flat_map(run).collect()
        }
    }
}

/// Applies the norm and RoPE to the heads of a token.
fn prepared(case: &Case, x: &[f32], norm: &[f32], [cosines, sines]: [&[f32]; 2]) -> Vec<f32> {
    let head = |x: &[f32]| {
        let mut x = x.to_vec();
        if case.is_normed {
            let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
            let factor = 1.0 / (square + 1e-6).sqrt();
            x.iter_mut().zip(norm).for_each(|(x, w)| *x = (f64::from(*x) * factor * f64::from(*w)) as f32);
        }
        if let Some((first, half, is_interleaved)) = case.rotary {
            let before = x.clone();
            for pair in 0..half {
                let (a, b) = if is_interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                let (a, b) = (first + a, first + b);
                x[a] = before[a] * cosines[pair] - before[b] * sines[pair];
                x[b] = before[b] * cosines[pair] + before[a] * sines[pair];
            }
        }
        x
    };
    x.chunks(case.key_dim).flat_map(head).collect()
}

/// Returns the attention output of a token, and the sums of magnitudes.
fn mixed(case: &Case, sequence: &Sequence, query: &[f32], sinks: &[f32], [from, to]: [usize; 2]) -> Vec<(f64, f64)> {
    let group = case.heads / case.kv_heads;
    let head = |(head, query): (usize, &[f32])| {
        let own = head / group;
        let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let score = |position: usize| {
            let score = dot(&sequence.keys[position][own * case.key_dim..][..case.key_dim]) * 0.25;
            case.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = (from..to).map(|position| score(position).exp()).collect();
        let sink = if case.has_sinks { f64::from(sinks[head]).exp() } else { 0.0 };
        let sum = weights.iter().sum::<f64>() + sink;
        let value = |position: usize, d: usize| {
            let row = if case.value_dim == 0 { &sequence.keys[position] } else { &sequence.values[position] };
            let width = if case.value_dim == 0 { case.key_dim } else { case.value_dim };
            f64::from(row[own * width + d])
        };
        let element = |d: usize| {
            let mixed = (from..to).zip(&weights).map(|(position, weight)| weight * value(position, d)).sum::<f64>();
            (mixed / sum, 1.0)
        };
        (0..case.mixed_dim).map(element).collect::<Vec<_>>()
    };
    query.chunks(case.key_dim).enumerate().flat_map(head).collect()
}

/// Runs passes; each one appends the given numbers of tokens to the sequences.
fn run(machine: &GpuRuntime, case: Case, passes: &[&[usize]]) {
    run_as(machine, case, passes, true);
    run_as(machine, case, passes, false);
}

/// Runs passes with exact floats or with tensor cores.
#[expect(clippy::too_many_lines, reason = "a model of attention beside the kernels")]
fn run_as(machine: &GpuRuntime, case: Case, passes: &[&[usize]], is_exact: bool) {
    let mut random = Random(17);
    let Case { heads, kv_heads, key_dim, value_dim, .. } = case;
    let rows = CacheRows { kv_heads, key_dim, value_dim, kind: case.kind };
    let mut sequences: Vec<Sequence> = (0..passes[0].len()).map(|_| Sequence::default()).collect();
    let (norm, sinks) = (random.rows(1, key_dim), random.rows(1, heads));
    let (norm_tensor, sink_tensor) = (tensor(&norm, 1), tensor(&sinks, 1));
    for pass in passes {
        let tokens: usize = pass.iter().sum();
        let [q, k, v] =
            [heads * key_dim, kv_heads * key_dim, kv_heads * value_dim].map(|width| random.rows(tokens, width));
        let half = case.rotary.map_or(1, |(_, half, _)| half);
        let [cosines, sines] = [0, 1].map(|_| random.rows(tokens, half));
        let (cosine_tensor, sine_tensor) = (tensor(&cosines, tokens), tensor(&sines, tokens));
        let angles = |token: usize| [&cosines[token * half..][..half], &sines[token * half..][..half]];
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.keys.len()).collect();
        let mut first = 0;
        for (sequence, own) in sequences.iter_mut().zip(*pass) {
            while sequence.blocks.len() as u64 * architectures::blueprint::BLOCK < (sequence.keys.len() + own) as u64 {
                sequence.blocks.push(machine.memory(rows.block_bytes()).expect("memory"));
            }
            for token in first..first + own {
                let key = prepared(&case, &k[token * kv_heads * key_dim..][..kv_heads * key_dim], &norm, angles(token));
                sequence.keys.push(key.chunks(key_dim).flat_map(|head| kept(case.kind, head)).collect());
                let value = &v[token * kv_heads * value_dim..][..kv_heads * value_dim];
                sequence.values.push(value.chunks(value_dim.max(1)).flat_map(|head| kept(case.kind, head)).collect());
            }
            first += own;
        }
        let (mut spans, mut wanted, mut first) = (Vec::new(), Vec::new(), 0);
        for ((sequence, own), position) in sequences.iter().zip(*pass).zip(lengths) {
            if *own == 0 {
                continue;
            }
            spans.push(CachedSpan {
                first,
                tokens: *own,
                position,
                start: 0,
                blocks: sequence.blocks.iter().collect(),
            });
            for token in 0..*own {
                let query = prepared(
                    &case,
                    &q[(first + token) * heads * key_dim..][..heads * key_dim],
                    &norm,
                    angles(first + token),
                );
                let place = position + token;
                let from = case.window.map_or(0, |window| (place + 1).saturating_sub(window));
                let from = from.max(case.chunk.map_or(0, |chunk| place / chunk * chunk));
                let to = if case.is_causal {
                    place + 1
                } else {
                    case.window.map_or(position + own, |window| (position + own).min(place + window))
                };
                wanted.extend(mixed(&case, sequence, &query, &sinks, [from, to]));
            }
            first += own;
        }
        let (q, k, v) = (tensor(&q, tokens), tensor(&k, tokens), (value_dim > 0).then(|| tensor(&v, tokens)));
        let rotary = case.rotary.map(|(first, _, is_interleaved)| Rotary {
            cosines: &cosine_tensor,
            sines: &sine_tensor,
            is_interleaved,
            first,
        });
        let of = |x| HeadRows { x, norm: case.is_normed.then_some((&norm_tensor, 1e-6)), rotary };
        let attention = Attention {
            heads,
            value_dim: case.mixed_dim,
            scale: 0.25,
            soft_cap: case.soft_cap,
            window: case.window,
            chunk: case.chunk,
            is_causal: case.is_causal,
            sinks: case.has_sinks.then_some(&sink_tensor),
            is_exact,
        };
        let input = AttentionInput { queries: of(&q), keys: Some(of(&k)), values: v.as_ref() };
        let made = machine.attend(attention, rows, input, &spans, 0);
        let (found, rounded) = made.expect("attention");
        check(&format!("{case:?}, {pass:?}"), &numbers(&found), &wanted, if is_exact { 2e-5 } else { 4e-3 });
        assert_eq!(rounded.is_some(), case.mixed_dim.is_multiple_of(32));
        if let Some(rounded) = rounded {
            let apart = machine.rounded(None, &found).expect("it is rounded");
            let bytes = |memory| machine.read(memory).expect("bytes");
            assert!(bytes(&rounded.codes) == bytes(&apart.codes) && bytes(&rounded.factors) == bytes(&apart.factors));
        }
    }
}

#[test]
fn sequences_grow_by_prompts_and_by_tokens() {
    for backwards in [false, true] {
        let Some(machine) = machine(backwards) else { return };
        for kind in KvType::ALL {
            // Exceeds a block and several tiles, so that positions are divided into shares. Then
            // single tokens, then a prompt beside a token.
            let first: &[usize] = if kind == KvType::F32 { &[290, 5] } else { &[140, 5] };
            run(&machine, Case { kind, ..PLAIN }, &[first, &[1, 1], &[1, 20], &[0, 1]]);
        }
    }
}

#[test]
fn heads_of_every_shape() {
    let Some(machine) = machine(false) else { return };
    let cases = [
        Case { heads: 3, kv_heads: 3, key_dim: 7, value_dim: 5, mixed_dim: 5, ..PLAIN },
        Case { heads: 20, kv_heads: 1, key_dim: 72, value_dim: 0, mixed_dim: 64, kind: KvType::F16, ..PLAIN },
        Case { heads: 8, kv_heads: 2, key_dim: 256, value_dim: 264, mixed_dim: 264, kind: KvType::Bf16, ..PLAIN },
        Case { heads: 6, kv_heads: 2, key_dim: 96, value_dim: 40, mixed_dim: 40, window: Some(50), ..PLAIN },
        Case { heads: 4, kv_heads: 1, key_dim: 192, value_dim: 128, mixed_dim: 128, has_sinks: true, ..PLAIN },
        Case { window: Some(20), ..PLAIN },
        Case { chunk: Some(24), ..PLAIN },
        Case { window: Some(20), chunk: Some(64), ..PLAIN },
        Case { window: Some(3), is_causal: false, ..PLAIN },
        Case { is_causal: false, has_sinks: true, ..PLAIN },
        Case { soft_cap: Some(0.5), has_sinks: true, ..PLAIN },
        Case { rotary: Some((0, 16, false)), ..PLAIN },
        Case { rotary: Some((4, 5, true)), is_normed: true, kind: KvType::Q8_0, ..PLAIN },
        Case { rotary: Some((8, 12, false)), is_normed: true, ..PLAIN },
    ];
    for case in cases {
        run(&machine, case, &[&[150, 3], &[1, 1], &[9, 1]]);
    }
}

/// Returns a span of two tokens from a position on.
fn span(position: usize, block: &Memory) -> [CachedSpan<'_>; 1] {
    [CachedSpan { first: 0, tokens: 2, position, start: 0, blocks: vec![block] }]
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(machine) = machine(false) else { return };
    let rows = CacheRows { kv_heads: 1, key_dim: 8, value_dim: 8, kind: KvType::F32 };
    let block = machine.memory(rows.block_bytes()).expect("memory");
    let small = machine.memory(rows.block_bytes() - 1).expect("memory");
    let x = tensor(&[0.5; 16], 2);
    let of = |x| HeadRows { x, norm: None, rotary: None };
    let attention = Attention {
        heads: 1,
        value_dim: 8,
        scale: 1.0,
        soft_cap: None,
        window: None,
        chunk: None,
        is_causal: true,
        sinks: None,
        is_exact: false,
    };
    let attend = |rows, values: Option<&Tensor>, spans: &[CachedSpan<'_>]| {
        let input = AttentionInput { queries: of(&x), keys: Some(of(&x)), values };
        machine.attend(attention, rows, input, spans, 0).is_ok()
    };
    assert!(attend(rows, Some(&x), &span(254, &block)));
    assert!(!attend(rows, Some(&x), &span(255, &block)), "a position behind the block");
    assert!(!attend(rows, Some(&x), &span(0, &small)), "a block that is too small");
    assert!(!attend(rows, None, &span(0, &block)), "no values");
    assert!(!attend(CacheRows { key_dim: 4, ..rows }, Some(&x), &span(0, &block)), "other heads");
    let one = [CachedSpan { first: 0, tokens: 1, position: 0, start: 0, blocks: vec![&block] }];
    assert!(!attend(rows, Some(&x), &one), "a token of no sequence");
    assert!(
        !GpuRuntime::can_attend(CacheRows { key_dim: 16_384, ..rows })
            && !GpuRuntime::can_attend(CacheRows { value_dim: 641, ..rows })
    );
}
