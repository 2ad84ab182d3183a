//! Products of a panel with rows of x, for any machine; the reference for the other kernels.

use super::activation_rows::ActivationBlock;
use super::panel::Panel;
use super::panel_size::{LANES, PART, RUN};
use super::unpack::RowLayout;
use super::unpack::portable::Portable;
use super::{ActivationRows, BLOCK, PanelColumns};

/// Adds the products of a part with all rows of x to `sums`.
pub(super) fn scalar<L: RowLayout>(
    part: &PanelColumns<'_>,
    x: ActivationRows<'_>,
    panel: &mut Panel,
    sums: &mut [[f32; LANES]],
) {
    // SAFETY: it needs no special instructions.
    unsafe { panel.unpack::<Portable, L>(part) };
    panel.interleave();
    for (row, sums) in sums.iter_mut().enumerate() {
        let blocks = &x.row(row, part.first / BLOCK)[..part.columns / BLOCK];
        if L::HALVES { add::<PART>(panel, blocks, sums) } else { add::<BLOCK>(panel, blocks, sums) }
    }
}

/// Adds the products with one row of x. `SIZE` elements share a scale.
fn add<const SIZE: usize>(panel: &Panel, blocks: &[ActivationBlock], sums: &mut [f32; LANES]) {
    let halves = BLOCK / SIZE;
    for at in 0..blocks.len() * halves {
        let (block, half) = (&blocks[at / halves], at % halves);
        let quants = block.quants[half * SIZE..][..SIZE].as_chunks::<RUN>().0;
        let sum = if SIZE == BLOCK { block.sum } else { block.halves[half] };
        let runs = &panel.codes[at * (SIZE / RUN)..][..SIZE / RUN];
        for (lane, total) in sums.iter_mut().enumerate() {
            let product = |(run, quants): (&[u8; LANES * RUN], &[i8; RUN])| {
                let codes = &run[lane * RUN..][..RUN];
                codes.iter().zip(quants).map(|(q, p)| i32::from(*q) * i32::from(*p)).sum::<i32>()
            };
            let products: i32 = runs.iter().zip(quants).map(product).sum();
            *total = combined([panel.scales[at][lane], panel.offsets[at][lane]], block.scale, products, sum, *total);
        }
    }
}

/// Returns `total + e·(d·products + m·sum)`, rounded as in all kernels.
fn combined([d, m]: [f32; 2], e: f32, products: i32, sum: f32, total: f32) -> f32 {
    e.mul_add(d.mul_add(products as f32, m * sum), total)
}

/// Defines the function that adds the products of a part with all rows of x, for some CPU features.
/// `$rows` takes the number of elements that share a scale, and whether codes have up to eight
/// bits.
#[cfg(target_arch = "x86_64")]
macro_rules! products {
    ($features:literal, $products:ident, $rows:ident) => {
        /// Adds the products of a part with all rows of x.
        #[target_feature(enable = $features)]
        pub(super) fn $products<L: RowLayout>(
            part: &PanelColumns<'_>,
            x: ActivationRows<'_>,
            panel: &mut Panel,
            sums: &mut [[f32; LANES]],
        ) {
            // SAFETY: the caller has these instructions, and possibly more.
            unsafe { panel.unpack::<Vectors, L>(part) };
            interleave_all(part, panel);
            match (L::HALVES, L::WIDE) {
                (true, _) => $rows::<PART, false>(part, x, panel, sums),
                (false, false) => $rows::<BLOCK, false>(part, x, panel, sums),
                (false, true) => $rows::<BLOCK, true>(part, x, panel, sums),
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use products;
