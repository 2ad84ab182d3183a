//! Memory for activations. Released buffers are reused, so decoding a token allocates nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Free buffers.
#[derive(Clone, Debug, Default)]
pub struct Arena(Arc<Mutex<Vec<Vec<f32>>>>);

/// Numbers whose buffer returns to its arena when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    numbers: Vec<f32>,
    length: usize,
    arena: Arena,
}

impl Arena {
    /// Returns numbers with unspecified values: the smallest free buffer that is large enough, else
    /// a new one.
    pub fn take(&self, length: usize) -> Buffer {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().enumerate().filter(|(_, numbers)| numbers.len() >= length);
        let place = fits.min_by_key(|(_, numbers)| numbers.len()).map(|(place, _)| place);
        let numbers = if let Some(place) = place {
            free.swap_remove(place)
        } else {
            // The new buffer replaces the largest free one, which is too small and would stay
            // unused.
            let largest = free.iter().enumerate().max_by_key(|(_, numbers)| numbers.len()).map(|(place, _)| place);
            drop(largest.map(|place| free.swap_remove(place)));
            vec![0.0; length]
        };
        Buffer { numbers, length, arena: self.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        self.arena.0.lock().unwrap_or_else(PoisonError::into_inner).push(numbers);
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.numbers[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.numbers[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_given_out() {
        let arena = Arena::default();
        let (small, large) = (arena.take(3), arena.take(100));
        let places = [small.as_ptr(), large.as_ptr()];
        drop((small, large));
        let (a, b) = (arena.take(2), arena.take(50));
        assert_eq!([a.as_ptr(), b.as_ptr()], places, "the smallest that is large enough");
        assert_eq!((a.len(), b.len()), (2, 50));
        drop((a, b));
        assert_eq!(arena.take(200).len(), 200);
        assert_eq!(arena.0.lock().expect("no panic").len(), 2, "the one that was too small is gone");
    }
}
