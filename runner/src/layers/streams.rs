//! Several residual streams, see [`architectures::Streams`]. They are side by side in the rows of
//! activations: `[tokens, count · hidden]`.

mod balanced;
mod connected;

use anyhow::{Result, bail};
use architectures::Blueprint;
use balanced::BalancedConnection;
pub(super) use connected::copies;
use connected::{StreamConnection, StreamMix};

use super::Loader;
use crate::backend::{Activations, Backend, HeadPart, Map, MatrixSource, NormOf, WeightSource};
use crate::weights::Weights;

/// The parts that make streams of the embedding, and the last stream of streams.
#[derive(Debug)]
pub(crate) enum Streams<B: Backend> {
    /// See [`architectures::PredictedStreams`].
    Predicted(PredictedStreams<B>),
    /// See [`architectures::ConnectedStreams`].
    Connected(StreamMix<B>),
    /// See [`architectures::BalancedStreams`].
    Balanced(BalancedConnection<B>),
}

/// How a layer computes the streams.
#[derive(Debug)]
pub(crate) enum LayerStreams<B: Backend> {
    Predicted(StreamPrediction<B>),
    Connected(StreamConnections<B>),
}

/// Connections of the parts of a layer to all streams.
#[derive(Debug)]
pub(crate) struct StreamConnections<B: Backend> {
    pub(crate) mixer: PartConnection<B>,
    pub(crate) ffn: PartConnection<B>,
}

/// The connection of a part of a layer.
#[derive(Debug)]
pub(crate) enum PartConnection<B: Backend> {
    /// See [`architectures::StreamConnection`].
    Connected(StreamConnection<B>),
    /// See [`architectures::BalancedConnections`].
    Balanced(BalancedConnection<B>),
}

impl<B: Backend> PartConnection<B> {
    /// Computes a part of a layer: returns the streams behind it.
    pub(crate) fn around(
        &self,
        backend: &B,
        streams: B::Act,
        part: impl FnOnce(&B::Act) -> Result<Option<B::Act>>,
    ) -> Result<B::Act> {
        match self {
            Self::Connected(own) => own.around(backend, streams, part),
            Self::Balanced(own) => own.around(backend, streams, part),
        }
    }
}

/// The parts that make the streams that are not the embedding.
#[derive(Debug)]
pub(crate) struct PredictedStreams<B: Backend> {
    enter: Vec<B::Matrix>,
    leave: Vec<B::Matrix>,
    hidden: usize,
}

impl<B: Backend> Streams<B> {
    pub(crate) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Option<Self>> {
        let hidden = blueprint.hidden as usize;
        Ok(match &blueprint.streams {
            None => None,
            Some(architectures::Streams::Predicted(own)) => {
                let each = |matrices: &architectures::Matrices| -> Result<Vec<B::Matrix>> {
                    let one = |index| weights.matrix(backend, &matrices.projection(index), hidden, hidden, None);
                    (0..own.count - 1).map(one).collect()
                };
                Some(Self::Predicted(PredictedStreams { enter: each(&own.enter)?, leave: each(&own.leave)?, hidden }))
            }
            Some(architectures::Streams::Connected(own)) => {
                Some(Self::Connected(StreamMix::load(backend, weights, &own.leave, [own.count as usize, hidden])?))
            }
            Some(architectures::Streams::Balanced(own)) => {
                Some(Self::Balanced(BalancedConnection::of_norm(backend, weights, own, hidden)?))
            }
        })
    }

    /// Returns the streams of an embedding.
    pub(crate) fn enter(&self, backend: &B, x: B::Act) -> Result<B::Act> {
        match self {
            Self::Predicted(own) => own.enter(backend, x),
            Self::Connected(own) => copies(backend, &x, own.count),
            Self::Balanced(own) => copies(backend, &x, own.count()),
        }
    }

    /// Returns the input of the last norm.
    pub(crate) fn leave(&self, backend: &B, streams: &B::Act) -> Result<B::Act> {
        match self {
            Self::Predicted(own) => own.leave(backend, streams),
            Self::Connected(own) => own.mixed(backend, &own.normed(backend, streams)?),
            Self::Balanced(own) => Ok(own.read(backend, streams)?.0),
        }
    }
}

impl<B: Backend> LayerStreams<B> {
    /// Loads the parts of a layer that compute several streams; `None` if there is one stream.
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        own: Option<&architectures::LayerStreams>,
        streams: Option<&architectures::Streams>,
    ) -> Result<Option<Self>> {
        Ok(match (own, streams) {
            (None, None) => None,
            (Some(architectures::LayerStreams::Predicted(own)), Some(architectures::Streams::Predicted(all))) => {
                Some(Self::Predicted(StreamPrediction::load(loader, own, all)?))
            }
            (Some(architectures::LayerStreams::Connected(own)), Some(architectures::Streams::Connected(all))) => {
                let load = |own| StreamConnection::load(loader, own, all.count as usize).map(PartConnection::Connected);
                Some(Self::Connected(StreamConnections { mixer: load(&own.mixer)?, ffn: load(&own.ffn)? }))
            }
            (Some(architectures::LayerStreams::Balanced(own)), Some(architectures::Streams::Balanced(all))) => {
                let load = |own| BalancedConnection::of_part(loader, own, all).map(PartConnection::Balanced);
                Some(Self::Connected(StreamConnections { mixer: load(&own.mixer)?, ffn: load(&own.ffn)? }))
            }
            _ => bail!("invariant: a layer computes the streams that there are"),
        })
    }
}

impl<B: Backend> PredictedStreams<B> {
    fn enter(&self, backend: &B, x: B::Act) -> Result<B::Act> {
        let mut all = None;
        for matrix in &self.enter {
            let [other] = backend.project([matrix], &x)?;
            let other = backend.with_magnitude(other, &x)?;
            all = Some(backend.join(all.as_ref().unwrap_or(&x), &other, 1)?);
        }
        Ok(all.unwrap_or(x))
    }

    /// Returns the mean of all streams.
    fn leave(&self, backend: &B, streams: &B::Act) -> Result<B::Act> {
        let stream = |index| stream_of(backend, streams, [self.leave.len() + 1, self.hidden], index);
        let first = stream(0)?;
        let mut sum = stream(0)?;
        for (matrix, index) in self.leave.iter().zip(1..) {
            let [other] = backend.project([matrix], &stream(index)?)?;
            sum = backend.map(sum, Map::Add(&backend.with_magnitude(other, &first)?, 1.0))?;
        }
        backend.map(sum, Map::Scale(1.0 / (self.leave.len() + 1) as f32))
    }
}

fn stream_of<B: Backend>(backend: &B, streams: &B::Act, [count, hidden]: [usize; 2], index: usize) -> Result<B::Act> {
    backend.part(streams, HeadPart { width: count * hidden, first: index * hidden, count: hidden })
}

/// The way in which a layer predicts and corrects the streams, see
/// [`architectures::StreamPrediction`].
#[derive(Debug)]
pub(crate) struct StreamPrediction<B: Backend> {
    norm: NormOf<B>,
    router: B::Matrix,
    /// From router outputs to the shares of each stream in each predicted one.
    predict: B::Matrix,
    /// From router outputs to the shares of the predicted streams and of the layer's output in each
    /// corrected stream.
    correct: B::Matrix,
    output_scale: Option<Vec<f32>>,
    count: usize,
    active: usize,
    hidden: usize,
}

impl<B: Backend> StreamPrediction<B> {
    fn load(
        loader: &Loader<'_, B>,
        own: &architectures::StreamPrediction,
        all: &architectures::PredictedStreams,
    ) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [count, active] = [all.count, all.active].map(|number| number as usize);
        let predict = weights.numbers(&own.predict, &[count * count, count])?;
        let correct = weights.numbers(&own.correct, &[count, count])?;
        let matrix = |numbers: Vec<f32>, bias: Vec<f32>| {
            let shape = [bias.len(), count];
            let weight = WeightSource::Numbers { numbers, shape };
            backend.matrix(MatrixSource { weight, bias: Some(bias), adapters: Vec::new() })
        };
        let is_own = |at: usize, width: usize| if at / width == at % width { 1.0 } else { 0.0 };
        let kept = (0..count * count).map(|at| is_own(at, count)).collect();
        // `corrected[k] = predicted[k] + c[k] · (y - predicted[active])` with `c = 1 + correct(m)`:
        // each row is the share of one of the predicted streams, or of `y`, in one stream.
        let inputs = count + 1;
        let (mut shares, mut constants) = (Vec::new(), Vec::new());
        for at in 0..count * inputs {
            let (stream, input) = (at / inputs, at % inputs);
            let sign = if input == count {
                1.0
            } else if input == active {
                -1.0
            } else {
                0.0
            };
            shares.extend(correct[stream * count..][..count].iter().map(|weight| sign * weight));
            constants.push(sign + is_own(at, inputs));
        }
        Ok(Self {
            norm: weights.norm(backend, &own.norm, hidden)?,
            router: weights.matrix(backend, &own.router, hidden, count, None)?,
            predict: matrix(predict, kept)?,
            correct: matrix(shares, constants)?,
            output_scale: own.output_scale.as_ref().map(|scale| weights.numbers(scale, &[hidden])).transpose()?,
            count,
            active,
            hidden,
        })
    }

    /// Returns the predicted streams.
    pub(crate) fn predict(&self, backend: &B, streams: &B::Act) -> Result<B::Act> {
        let modes = self.modes(backend, &self.active(backend, streams)?)?;
        let [shares] = backend.project([&self.predict], &modes)?;
        backend.mix(streams, &shares, self.count)
    }

    /// Returns the active stream.
    pub(crate) fn active(&self, backend: &B, streams: &B::Act) -> Result<B::Act> {
        stream_of(backend, streams, [self.count, self.hidden], self.active)
    }

    /// Returns the predicted streams, corrected by the output of the layer.
    pub(crate) fn correct(&self, backend: &B, predicted: &B::Act, output: &B::Act) -> Result<B::Act> {
        let [shares] = backend.project([&self.correct], &self.modes(backend, output)?)?;
        backend.mix(&backend.join(predicted, output, 1)?, &shares, self.count + 1)
    }

    /// Returns the active stream as the layer's token input reads it.
    pub(crate) fn for_token_input(&self, backend: &B, corrected: &B::Act) -> Result<B::Act> {
        let active = self.active(backend, corrected)?;
        let Some(scale) = &self.output_scale else { return Ok(active) };
        let scales = backend.rows(active.count(), self.hidden, |rows| {
            rows.chunks_exact_mut(self.hidden).for_each(|row| row.copy_from_slice(scale));
            Ok(())
        })?;
        backend.map(active, Map::Times(&scales))
    }

    /// Adds rows to all streams but the first.
    pub(crate) fn add_behind_first(&self, backend: &B, streams: &B::Act, rows: &B::Act) -> Result<B::Act> {
        let inputs = self.count + 1;
        let shares = backend.rows(rows.count(), self.count * inputs, |shares| {
            for (at, share) in shares.iter_mut().enumerate() {
                let (stream, input) = (at / inputs % self.count, at % inputs);
                *share = if stream == input || (input == self.count && stream > 0) { 1.0 } else { 0.0 };
            }
            Ok(())
        })?;
        backend.mix(&backend.join(streams, rows, 1)?, &shares, inputs)
    }

    /// `tanh(router(norm(x)) / hidden)`.
    fn modes(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let [routed] = backend.project([&self.router], &backend.norm(&self.norm, x)?)?;
        let scaled = backend.map(routed, Map::Scale(1.0 / self.hidden as f32))?;
        backend.map(scaled, Map::SoftCap(1.0))
    }
}
