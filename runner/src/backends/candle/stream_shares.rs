//! The shares by which parts of layers read, write and mix several residual streams, with candle's
//! operations.

use anyhow::Result;
use candle_core::{D, Tensor};

use super::Candle;
use super::act::composed::sigmoid;
use crate::backend::{ShareFactors, StreamShares};

/// Makes the shares of all tokens, `[tokens, made]`, of their numbers, `[tokens, numbers]`.
pub(super) fn make(rule: &StreamShares<Candle>, x: &Tensor) -> Result<Tensor> {
    let (count, tokens, epsilon) = (rule.count, x.dim(0)?, f64::from(rule.epsilon));
    let part = |first: usize, count: usize, factor: f32| -> Result<Tensor> {
        let scaled = (x.narrow(1, first, count)? * f64::from(factor))?;
        Ok(scaled.broadcast_add(&rule.bias.narrow(0, first, count)?)?)
    };
    let reads = (sigmoid(&part(0, count, rule.factors.read())?)? + epsilon)?;
    let ShareFactors::ReadWriteMix([_, of_writes, of_shares]) = rule.factors else { return Ok(reads) };
    let writes = (sigmoid(&part(count, count, of_writes)?)? * 2.0)?;
    let shares = part(2 * count, count * count, of_shares)?.reshape((tokens, count, count))?;
    let mut balanced = (candle_nn::ops::softmax_last_dim(&shares.contiguous()?)? + epsilon)?;
    let divided =
        |x: &Tensor, dim: usize| -> Result<Tensor> { Ok(x.broadcast_div(&(x.sum_keepdim(dim)? + epsilon)?)?) };
    for iteration in 0..rule.iterations {
        if iteration > 0 {
            balanced = divided(&balanced, 2)?;
        }
        balanced = divided(&balanced, 1)?;
    }
    let rows = Tensor::cat(&[&balanced.transpose(1, 2)?, &writes.unsqueeze(D::Minus1)?], 2)?;
    Ok(Tensor::cat(&[&reads, &rows.flatten_from(1)?], 1)?)
}
