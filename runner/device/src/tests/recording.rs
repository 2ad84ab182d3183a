//! Tests of recordings that are replayed with other inputs.

use std::sync::{Arc, Mutex, Weak};

use formats::{Dtype, Encoding};
use protocol::KvType;

use super::{Random, Sample, alone, machine, numbers, product, tensor};
use crate::{
    Attention, AttentionInput, CacheRows, CachedSpan, GpuRuntime, HeadRows, Map, Memory, Obstacle, ProductInput,
    Purpose, Recording, RowBlocks, Spare,
};

const ROWS: CacheRows = CacheRows { kv_heads: 2, key_dim: 32, value_dim: 32, kind: KvType::F16 };

/// A pass over a sequence that computes a product, attention and a sum of an input.
fn pass(
    machine: &GpuRuntime,
    weight: &crate::DeviceWeight,
    x: &candle_core::Tensor,
    spans: &[CachedSpan<'_>],
) -> candle_core::Tensor {
    let made = machine
        .product(product(&alone(weight), Purpose::Write), ProductInput::Rows(x))
        .expect("a product")
        .rows
        .remove(0);
    let of = |x| HeadRows { x, norm: None, rotary: None };
    let attention = Attention {
        heads: 2,
        value_dim: 32,
        scale: 0.25,
        soft_cap: None,
        window: None,
        chunk: None,
        is_causal: true,
        sinks: None,
        is_exact: false,
    };
    let input = AttentionInput { queries: of(&made), keys: Some(of(&made)), values: Some(&made) };
    let (mixed, _) = machine.attend(attention, ROWS, input, spans, 3).expect("attention");
    machine.map_rows(&mixed, Map::Add(&made, 1.0)).expect("a sum")
}

fn span<'a>(position: usize, blocks: &[&'a Memory]) -> [CachedSpan<'a>; 1] {
    [CachedSpan { first: 0, tokens: 1, position, start: 0, blocks: blocks.to_vec() }]
}

#[test]
fn a_recording_gives_what_launches_give() {
    for backwards in [false, true] {
        let Some(machine) = machine(backwards) else { return };
        let mut random = Random(47);
        let weight = Sample::new(Encoding::Plain(Dtype::F32), [64, 48], Dtype::F32, &mut random);
        let weight = weight.upload(&machine, RowBlocks::all(64));
        let blocks = || [0, 1, 2].map(|_| machine.memory(ROWS.block_bytes()).expect("memory"));
        let (own, again) = (blocks(), blocks());
        let inputs: Vec<Vec<f32>> = (0..700).map(|_| random.rows(1, 48)).collect();
        let mut recording: Option<Recording> = None;
        let mut out = None;
        for (position, input) in inputs.iter().enumerate() {
            let expected = pass(&machine, &weight, &tensor(input, 1), &span(position, &own.each_ref()));
            if position < 400 {
                let x = tensor(input, 1);
                pass(&machine, &weight, &x, &span(position, &again.each_ref()));
                continue;
            }
            // Three hundred further positions need a third block, and have more tiles.
            let made = if let Some(recording) = &recording {
                let filled = machine.refill(recording, || machine.input([1, 48], input));
                filled.expect("the same inputs");
                let spans = |layer| {
                    assert_eq!(layer, 3);
                    Ok(span(position, &again.each_ref()).to_vec())
                };
                machine.replay(recording, spans).expect("launches");
                out.clone().expect("it was recorded")
            } else {
                let draft = machine.record(8, 1, 1 << 20);
                let x = machine.input([1, 48], input).expect("an input");
                let made = pass(&machine, &weight, &x, &span(position, &again.each_ref()));
                recording = Some(draft.finish().expect("the driver takes it"));
                assert!(recording.as_ref().is_some_and(|own| own.bytes() > 0));
                out = Some(made.clone());
                made
            };
            let (found, expected) = (numbers(&made), numbers(&expected));
            let is_close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(is_close, "position {position}: {found:?}, expected {expected:?}");
        }
        let recording = recording.expect("it was recorded");
        if let Some(other) = GpuRuntime::emulated(backwards).expect("kernels are compiled") {
            assert!(other.refill(&recording, || Ok(())).is_err(), "a recording of another machine");
            assert!(other.replay(&recording, |_| Ok(Vec::new())).is_err());
        }
        let other = machine.refill(&recording, || machine.input([1, 47], &inputs[0][..47]));
        assert!(other.is_err(), "another width");
        assert!(machine.refill(&recording, || Ok(())).is_err(), "no inputs");
        let beyond = machine.replay(&recording, |_| Ok(span(1024, &own.each_ref()).to_vec()));
        assert!(beyond.is_err(), "no room, and more tiles than were recorded");
        assert!(machine.replay(&recording, |_| Ok(Vec::new())).is_err(), "no sequence");
    }
}

#[test]
fn what_cannot_be_launched_again_is_no_recording() {
    let Some(machine) = machine(false) else { return };
    let x = tensor(&[1.0; 64], 1);
    let scale = || machine.map_rows(&x, Map::Scale(2.0)).expect("rows");
    let draft = machine.record(1, 0, 1 << 20);
    scale();
    machine.cannot_be_recorded();
    assert!(matches!(draft.finish(), Err(Obstacle::Other)), "something else was done");
    let draft = machine.record(1, 0, 100);
    scale();
    assert!(matches!(draft.finish(), Err(Obstacle::TooLarge)), "more than it may keep");
    let draft = machine.record(1, 0, 1 << 20);
    scale();
    machine.input([1, 1], &[0.0]).expect("an input");
    assert!(matches!(draft.finish(), Err(Obstacle::Other)), "an input behind a launch");
    drop(machine.record(1, 0, 1 << 20));
    scale();
    let draft = machine.record(1, 0, 1 << 20);
    scale();
    draft.finish().expect("launches");
}

/// Memory that can be recreated, as recordings can.
struct Again(Mutex<Vec<Memory>>);

impl Spare for Again {
    fn give_up(&self) -> bool {
        self.0.lock().expect("nobody panicked").pop().is_some()
    }
}

#[test]
fn what_can_be_made_again_gives_way() {
    const BLOCK: usize = 1 << 20;
    let Some(machine) = GpuRuntime::emulated_with(4 * BLOCK as u64).expect("kernels are compiled") else { return };
    let memory = || machine.memory(BLOCK);
    let again = Arc::new(Again(Mutex::new(vec![memory().expect("room"), memory().expect("room")])));
    let known: Weak<Again> = Arc::downgrade(&again);
    machine.may_give_up(known);
    let draft = machine.record(1, 0, usize::MAX);
    // Memory of a recording in progress is freed, too.
    drop(memory().expect("room"));
    let own = [memory().expect("room"), memory().expect("the draft has given its memory up")];
    assert!(matches!(draft.finish(), Err(Obstacle::NoRoom)));
    let more = memory().expect("the other has given one up");
    assert!(again.0.lock().expect("nobody panicked").len() <= 1);
    drop((own, more));
    again.0.lock().expect("nobody panicked").clear();
    let all = [(); 4].map(|()| memory().expect("all of it is left"));
    let error = memory().expect_err("nothing is left");
    assert!(error.to_string().contains("0 are left"), "{error:#}");
    drop(all);
}

#[test]
fn memory_that_there_is_not_is_an_error_and_no_more() {
    let found = if super::gpu().is_some() {
        machine(false)
    } else {
        GpuRuntime::emulated_with(64 << 20).expect("kernels are compiled")
    };
    let Some(machine) = found else { return };
    for _ in 0..3 {
        let error = machine.memory(1 << 50).expect_err("nobody has a pebibyte");
        assert!(format!("{error:#}").contains("1125899906842624 bytes"), "{error:#}");
    }
    let memory = machine.upload(&[7; 4096]).expect("it goes on");
    assert_eq!(machine.read(&memory).expect("it is read"), [7; 4096]);
}
