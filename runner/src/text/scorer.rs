//! The head of a model that scores texts.
//!
//! It gets one row for a text, so it is computed here, in float64 and from the mapped weights,
//! whichever backend computes the layers. Formula and sources: [`architectures::Scorer`].

use anyhow::Result;
use architectures::{Norm, NormKind, PooledActivation, Projection, ScorerDense};

use crate::mapped::MappedTensor;
use crate::pooled_activation::activate;
use crate::text::pooling::Pooling;
use crate::weights::Weights;

/// A head that scores texts, with its weights.
#[derive(Debug)]
pub(crate) struct Scorer {
    /// How hidden states are pooled to the input of the head.
    pub(crate) pooling: Pooling,
    dense: Option<Dense>,
    output: Linear,
}

#[derive(Debug)]
struct Dense {
    projection: Linear,
    activation: PooledActivation,
    norm: Option<Normed>,
}

/// `W · x + b`.
#[derive(Debug)]
struct Linear {
    /// `[output, input]`.
    weight: MappedTensor,
    bias: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Normed {
    kind: NormKind,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f64,
}

impl Scorer {
    /// Reads the weights of a head for hidden states of that width.
    ///
    /// # Errors
    /// Fails if a tensor is missing, or has another shape.
    pub(crate) fn load(weights: &Weights, own: &architectures::Scorer, hidden: usize) -> Result<Self> {
        let dense = |own: &ScorerDense| -> Result<Dense> {
            Ok(Dense {
                projection: Linear::load(weights, &own.projection, [hidden, hidden])?,
                activation: own.activation,
                norm: own.norm.as_ref().map(|norm| Normed::load(weights, norm, hidden)).transpose()?,
            })
        };
        Ok(Self {
            pooling: own.input.into(),
            dense: own.dense.as_ref().map(dense).transpose()?,
            output: Linear::load(weights, &own.output, [own.labels as usize, hidden])?,
        })
    }

    /// Returns the scores of a text, one for each label, from its pooled hidden states, `[hidden]`.
    pub(crate) fn scores(&self, pooled: &[f64]) -> Vec<f64> {
        match &self.dense {
            None => self.output.apply(pooled),
            Some(dense) => self.output.apply(&dense.apply(pooled)),
        }
    }
}

impl Dense {
    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let mut y = self.projection.apply(x);
        for y in &mut y {
            *y = activate(self.activation, *y);
        }
        if let Some(norm) = &self.norm {
            norm.apply(&mut y);
        }
        y
    }
}

impl Linear {
    fn load(weights: &Weights, own: &Projection, [rows, columns]: [usize; 2]) -> Result<Self> {
        // Some files store a matrix of one row as a vector.
        let weight = match weights.table(&own.weight, rows, columns) {
            Err(_) if rows == 1 => weights.vector_table(&own.weight, columns)?,
            found => found?,
        };
        let bias = own.bias.as_ref().map(|bias| weights.numbers(bias, &[rows])).transpose()?;
        Ok(Self { weight, bias })
    }

    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let weight = self.weight.weight();
        let mut row = vec![0.0; weight.columns()];
        let of_row = |index: usize| {
            weight.decode_row(index, &mut row);
            let product: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            product + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[index]))
        };
        (0..weight.rows()).map(of_row).collect()
    }
}

impl Normed {
    fn load(weights: &Weights, own: &Norm, width: usize) -> Result<Self> {
        let weight = weights.norm_weights(own, &[width])?;
        let bias = own.bias.as_ref().map(|bias| weights.numbers(bias, &[width])).transpose()?;
        Ok(Self { kind: own.kind, weight, bias, epsilon: own.epsilon })
    }

    fn apply(&self, x: &mut [f64]) {
        let count = x.len() as f64;
        let mean = match self.kind {
            NormKind::Layer => x.iter().sum::<f64>() / count,
            NormKind::Rms | NormKind::Factors => 0.0,
        };
        let scale = if self.kind == NormKind::Factors {
            1.0
        } else {
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            1.0 / (variance + self.epsilon).sqrt()
        };
        for (index, x) in x.iter_mut().enumerate() {
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[index]));
            *x = (*x - mean) * scale * f64::from(self.weight[index]) + bias;
        }
    }
}
