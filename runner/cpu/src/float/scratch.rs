//! Scratch memory of each thread.

use std::cell::RefCell;
use std::thread::LocalKey;

thread_local!(static FIRST: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
thread_local!(static SECOND: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });

/// Calls `work` with the thread's first buffer, cut to `length`.
pub fn with_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&FIRST, length, work);
}

/// Calls `work` with the thread's second buffer, cut to `length`.
pub fn with_second_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&SECOND, length, work);
}

fn with(buffer: &'static LocalKey<RefCell<Vec<f32>>>, length: usize, work: impl FnOnce(&mut [f32])) {
    buffer.with_borrow_mut(|buffer| {
        grow(buffer, length);
        work(&mut buffer[..length]);
    });
}

/// Grows a buffer to the next power of two, since lengths grow with the sequence.
fn grow(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length.next_power_of_two().max(1 << 12), 0.0);
    }
}
