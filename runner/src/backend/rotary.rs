//! Parameters of rotary embeddings: the angles of a pass, and the parts of heads that are rotated.

use architectures::{Axis, HeadLayout, QueryGrowth};

/// Positions of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenPosition {
    pub(crate) time: usize,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl TokenPosition {
    /// Returns the positions of a token of text.
    pub(crate) fn of_text(position: usize) -> Self {
        Self { time: position, row: position, column: position }
    }

    fn on(self, axis: Axis) -> usize {
        match axis {
            Axis::Time => self.time,
            Axis::Row => self.row,
            Axis::Column => self.column,
        }
    }
}

/// A range of elements of each head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPart {
    /// Number of elements of a head.
    pub(crate) width: usize,
    /// Index of the first selected element.
    pub(crate) first: usize,
    /// Number of selected elements.
    pub(crate) count: usize,
}

/// Parameters of the rotary angles of a pass's tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnglesOf<'a> {
    /// Radians per position, one for each pair of rotated elements: for short sequences, then for
    /// long ones.
    pub(crate) frequencies: [&'a [f64]; 2],
    /// Positions of each token.
    pub(crate) positions: &'a [TokenPosition],
    /// Axis of each pair; empty if all are for time.
    pub(crate) axes: &'a [Axis],
    /// Number that is subtracted from positions; smaller positions become 0.
    pub(crate) back: usize,
    /// For each token, whether its sequence uses the frequencies of long sequences.
    pub(crate) long: &'a [bool],
    /// Factor by which rotated elements are multiplied.
    pub(crate) magnitude: f64,
    /// Growth of that factor with the position.
    pub(crate) growth: Option<QueryGrowth>,
    pub(crate) layout: HeadLayout,
}

impl AnglesOf<'_> {
    /// Returns the number of angles of a token.
    pub(crate) fn half(&self) -> usize {
        self.frequencies[0].len()
    }

    /// Writes the scaled cosines and sines of all tokens, `[tokens, half]` each.
    pub(crate) fn fill(&self, cosines: &mut [f32], sines: &mut [f32]) {
        let rows = cosines.chunks_exact_mut(self.half()).zip(sines.chunks_exact_mut(self.half()));
        for ((cosines, sines), (position, long)) in rows.zip(self.positions.iter().zip(self.long)) {
            let magnitude = self.magnitude * self.growth.map_or(1.0, |growth| growth.factor(position.time));
            let numbers = cosines.iter_mut().zip(sines).zip(self.frequencies[usize::from(*long)]);
            for (pair, ((cosine, sine), frequency)) in numbers.enumerate() {
                let position = self.axes.get(pair).map_or(position.time, |axis| position.on(*axis));
                let (s, c) = (position.saturating_sub(self.back) as f64 * frequency).sin_cos();
                (*cosine, *sine) = ((c * magnitude) as f32, (s * magnitude) as f32);
            }
        }
    }
}
