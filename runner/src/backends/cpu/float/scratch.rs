//! Memory that each thread has once.

use std::cell::RefCell;
use std::thread::LocalKey;

thread_local!(static FIRST: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
thread_local!(static SECOND: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });

/// Gives a buffer of `length` that each thread has once.
pub(in crate::backends::cpu) fn with_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&FIRST, length, work);
}

/// Gives another buffer of `length` that each thread has once.
pub(in crate::backends::cpu) fn with_second_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&SECOND, length, work);
}

fn with(buffer: &'static LocalKey<RefCell<Vec<f32>>>, length: usize, work: impl FnOnce(&mut [f32])) {
    buffer.with_borrow_mut(|buffer| {
        grow(buffer, length);
        work(&mut buffer[..length]);
    });
}

/// Makes room: at once for more, because what is asked for grows with the length of a sequence.
fn grow(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length.next_power_of_two().max(1 << 12), 0.0);
    }
}
