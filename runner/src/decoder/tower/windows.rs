//! Windows of a picture, see [`architectures::PatchWindows`]: the blocks of each window follow each
//! other, so that its patches are a sequence.

/// The blocks of a picture in the order of its windows.
#[derive(Debug)]
pub(super) struct WindowOrder {
    /// Index of each block among the blocks of the picture.
    pub(super) blocks: Vec<usize>,
    /// Number of blocks of each window.
    pub(super) lengths: Vec<usize>,
}

impl WindowOrder {
    /// Returns the order for a picture of `rows` rows and `columns` columns of blocks, with windows
    /// of `side` blocks of each side. Those at the last row and column may be smaller.
    pub(super) fn of(rows: usize, columns: usize, side: usize) -> Self {
        let (mut blocks, mut lengths) = (Vec::with_capacity(rows * columns), Vec::new());
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let before = blocks.len();
                for row in top..rows.min(top + side) {
                    blocks.extend((left..columns.min(left + side)).map(|column| row * columns + column));
                }
                lengths.push(blocks.len() - before);
            }
        }
        Self { blocks, lengths }
    }

    /// Returns the numbers of blocks in the order of the picture; `numbers` has them in the order
    /// of the windows.
    pub(super) fn restored(&self, numbers: &[f32]) -> Vec<f32> {
        let width = numbers.len() / self.blocks.len().max(1);
        let mut restored = vec![0.0; numbers.len()];
        for (block, own) in self.blocks.iter().zip(numbers.chunks_exact(width.max(1))) {
            restored[block * width..][..width].copy_from_slice(own);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_squares_from_the_first_block_on() {
        let order = WindowOrder::of(3, 5, 2);
        assert_eq!(order.blocks, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(order.lengths, [4, 4, 2, 2, 2, 1]);
        let numbers: Vec<f32> = order.blocks.iter().flat_map(|block| [*block as f32, -(*block as f32)]).collect();
        let expected: Vec<f32> = (0..15).flat_map(|block| [block as f32, -(block as f32)]).collect();
        assert_eq!(order.restored(&numbers), expected);
    }
}
