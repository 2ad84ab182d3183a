//! Tests of blocks, windows, shared prefixes, shifts and checkpoints.

use architectures::HeadLayout;

use protocol::limits::{AHEAD, CHUNK};

use super::*;
use crate::backend::State as _;

const DIM: usize = 32;

fn row(position: usize, head: usize) -> Vec<f32> {
    (0..DIM).map(|i| ((position * 7 + head * 3 + i) % 13) as f32 - 6.0).collect()
}

/// Appends keys without a rotary embedding; the values are the position.
fn append(kv: &mut Kv, positions: Range<usize>) {
    let keys: Vec<f32> = positions.clone().flat_map(|p| [row(p, 0), row(p, 1)].concat()).collect();
    let values: Vec<f32> = positions.flat_map(|p| vec![p as f32; 2 * DIM]).collect();
    kv.append(&keys, &values).expect("memory");
}

fn kv(window: Option<usize>) -> Kv {
    Kv::new([2, DIM, DIM], window, KvType::F32)
}

fn read(kv: &Kv, half: Half, head: usize, positions: Range<usize>) -> Vec<f32> {
    let mut all = Vec::new();
    for rows in kv.rows(half, head, positions.start, positions.end) {
        let mut numbers = vec![0.0; rows.len() * DIM];
        rows.decode(Instructions::best(), &mut numbers);
        all.extend(numbers);
    }
    all
}

fn expected(positions: Range<usize>, head: usize) -> Vec<f32> {
    positions.flat_map(|position| row(position, head)).collect()
}

#[test]
fn rows_come_back_over_the_ends_of_blocks() {
    let mut kv = kv(None);
    append(&mut kv, 0..200);
    append(&mut kv, 200..601);
    for (from, to) in [(0, 601), (255, 257), (256, 512), (600, 601), (7, 7)] {
        for head in 0..2 {
            assert_eq!(read(&kv, Half::Keys, head, from..to), expected(from..to, head), "{from}..{to}");
        }
    }
    assert_eq!(kv.kept.nearest(300), 300);
    kv.kept.truncate(300);
    append(&mut kv, 300..301);
    assert_eq!((kv.kept.length, kv.kept.all.len()), (301, 2));
}

#[test]
fn a_window_keeps_what_it_shows_and_a_little_more() {
    let window = 40;
    let mut kv = kv(Some(window));
    let most = LayerState::Kv { kv_heads: 2, key_dim: 32, value_dim: 32, window: Some(window as u64) };
    let most = most.positions(1 << 20, AHEAD as u64) as usize / BLOCK;
    for chunk in 0..40 {
        let (from, to) = (chunk * CHUNK, (chunk + 1) * CHUNK);
        append(&mut kv, from..to);
        assert!(kv.kept.all.len() + kv.kept.spare.len() <= most, "{} blocks, planned {most}", kv.kept.all.len());
        let seen = (from + 1).saturating_sub(window);
        assert_eq!(read(&kv, Half::Keys, 1, seen..to), expected(seen..to, 1));
    }
    let length = kv.kept.length;
    assert_eq!(kv.kept.nearest(length - 200), length - 200, "an answer can be taken back");
    assert_eq!(kv.kept.nearest(100), 0, "what is gone is gone");
}

#[test]
fn sequences_share_a_beginning_until_they_write() {
    let mut whole = State::Kv(kv(None));
    let State::Kv(kv) = &mut whole else { panic!("keys and values") };
    append(kv, 0..600);
    let Some(State::Kv(mut other)) = whole.share(300) else { panic!("it has the beginning") };
    let State::Kv(kv) = &whole else { panic!("keys and values") };
    assert!(Arc::ptr_eq(&kv.kept.all[0], &other.kept.all[0]));
    append(&mut other, 900..1000);
    assert!(Arc::ptr_eq(&kv.kept.all[0], &other.kept.all[0]) && !Arc::ptr_eq(&kv.kept.all[1], &other.kept.all[1]));
    assert_eq!(read(kv, Half::Keys, 0, 0..600), expected(0..600, 0), "the first one is as it was");
    let both = [expected(0..300, 0), expected(900..1000, 0)].concat();
    assert_eq!(read(&other, Half::Keys, 0, 0..400), both);
}

fn turned(numbers: &mut [f32], position: f64) {
    for head in numbers.chunks_exact_mut(DIM) {
        let (sines, cosines): (Vec<f32>, Vec<f32>) = (0..4)
            .map(|i| {
                ((position * 0.1 / f64::from(i + 1)).sin() as f32, (position * 0.1 / f64::from(i + 1)).cos() as f32)
            })
            .unzip();
        rotation::rotate(&mut head[8..16], &cosines, &sines, HeadLayout::Half);
    }
}

/// Compares with sequences without the removed tokens: rows behind the gap have the earlier
/// positions.
#[test]
fn keys_are_turned_back_where_they_are() {
    for (window, length, removed) in
        [(None, 700, 10..300), (None, 300, 0..256), (Some(100), 2000, 5..900), (Some(300), 600, 64..300)]
    {
        let mut kv = kv(window);
        for position in 0..length {
            let mut keys = [row(position, 0), row(position, 1)].concat();
            turned(&mut keys, position as f64);
            kv.append(&keys, &vec![position as f32; 2 * DIM]).expect("memory");
        }
        let gap = removed.len();
        let angles = |i: i32| -(gap as f64) * 0.1 / f64::from(i + 1);
        let (sines, cosines): (Vec<f32>, Vec<f32>) =
            (0..4).map(|i| (angles(i).sin() as f32, angles(i).cos() as f32)).unzip();
        let rotation = KeyRotation { cosines: &cosines, sines: &sines, layout: HeadLayout::Half, first: 8 };
        let shift = Shift { removed: removed.clone(), rotation: Some(rotation) };
        assert!(kv.can_shift(&shift), "{window:?} {length} {removed:?}");
        kv.shift(&shift).expect("memory");
        assert_eq!(kv.kept.length, length - gap);
        let seen = window.map_or(0, |window| (kv.kept.length + 1).saturating_sub(window));
        for position in seen..kv.kept.length {
            let old = if position < removed.start { position } else { position + gap };
            let mut keys = row(old, 1);
            turned(&mut keys, position as f64);
            let found = read(&kv, Half::Keys, 1, position..position + 1);
            let close = found.iter().zip(&keys).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(close, "{window:?} {removed:?}: key {position} is {found:?}, not {keys:?}");
            assert!((read(&kv, Half::Values, 0, position..position + 1)[0] - old as f32).abs() < 0.5);
        }
    }
}

#[test]
fn recurrent_states_go_back_to_checkpoints() {
    let mut state = State::new(LayerState::Recurrent { numbers: 2 }, KvType::F32);
    let go = |state: &mut State, length: usize| {
        let State::Recurrent(own) = state else { panic!("recurrent") };
        own.numbers.fill(length as f32);
        own.length = length;
    };
    for length in [10, 20, 30, 40, 50] {
        go(&mut state, length);
        state.checkpoint();
    }
    go(&mut state, 60);
    assert_eq!(
        [state.nearest(70), state.nearest(60), state.nearest(59), state.nearest(35), state.nearest(29)],
        [60, 60, 50, 30, 0]
    );
    let Some(State::Recurrent(other)) = state.share(40) else { panic!("there is a checkpoint") };
    assert_eq!((other.length, other.numbers), (40, vec![40.0; 2]));
    state.truncate(30);
    let State::Recurrent(own) = &state else { panic!("recurrent") };
    assert_eq!((own.length, &own.numbers), (30, &vec![30.0; 2]));
    state.truncate(0);
    let State::Recurrent(own) = &state else { panic!("recurrent") };
    assert_eq!((own.length, &own.numbers), (0, &vec![0.0; 2]));
}

/// Returns rows of tokens; each has its position.
fn rows_of(positions: Range<usize>, from: f32) -> Vec<f32> {
    positions.flat_map(|position| [position as f32 + from; DIM]).collect()
}

#[test]
fn complete_segments_have_entries() {
    let state = State::new(LayerState::Entries { width: DIM as u64, every: 4 }, KvType::F32);
    let State::Entries(mut own) = state else { panic!("entries") };
    own.append(&rows_of(0..3, 0.0), 3).expect("memory");
    own.append(&rows_of(3..11, 0.0), 8).expect("memory");
    assert_eq!(
        read(&own.kv, Half::Keys, 0, 0..2),
        rows_of(3..4, 0.0).into_iter().chain(rows_of(7..8, 0.0)).collect::<Vec<_>>()
    );
    let planned = LayerState::Entries { width: DIM as u64, every: 4 }.positions(11, 0);
    assert_eq!((own.kv.kept.length, planned), (2, 2));
    let mut state = State::Entries(own);
    assert_eq!((state.nearest(9), state.nearest(20)), (9, 11), "a shorter sequence has fewer entries");
    assert!(state.share(12).is_none(), "more than there are");
    let Some(State::Entries(shared)) = state.share(7) else { panic!("the first entry is shared") };
    assert_eq!((shared.kv.kept.length, state.nearest(11)), (1, 11));
    state.truncate(6);
    let State::Entries(mut own) = state else { panic!("entries") };
    own.append(&rows_of(6..8, 100.0), 2).expect("memory");
    assert_eq!(read(&own.kv, Half::Keys, 0, 1..2), rows_of(7..8, 100.0), "the segment is complete again");
    assert_eq!(read(&shared.kv, Half::Keys, 0, 0..1), rows_of(3..4, 0.0));
}
