//! The decoder: embedding, layers, norm and output projection, built from a blueprint and computed
//! by a backend.

mod embedding;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use architectures::{Blueprint, HeadLayout, LayerState, Rope, Switch};
use protocol::KvType;

use crate::backend::{AnglesOf, Backend, Best, Map, NormOf, PassParts, Selection, Sequence, StateShape};
use crate::heartbeat::Heartbeat;
use crate::layers::{Ffn, Loader, Mixer, Pass, Residual};
use crate::weights::Weights;
use embedding::{Embedding, TokenPlace};

/// Largest number of tokens whose logits are in memory at a time: a vocabulary has up to some
/// hundred thousand.
const LOGITS: usize = 64;

/// A decoder with its weights.
#[derive(Debug)]
pub(crate) struct Decoder<B: Backend> {
    /// Backend of the embedding and of the first layer.
    first: B,
    /// Backend of the final norm and the output projection.
    last: B,
    embedding: Embedding<B>,
    layers: Vec<Layer<B>>,
    norm: Option<NormOf<B>>,
    output: Option<Output<B>>,
    /// The distinct rotary embeddings of all layers.
    rotary_tables: Vec<RotaryTable>,
    /// For each layer the state that it keeps of a sequence, and the rotary embedding of its keys,
    /// if any.
    states: Vec<(LayerState, Option<KeyRotary>)>,
    /// Largest number of query heads of a layer.
    heads: usize,
    causal: bool,
    /// Rule that selects one of two sets of rotary frequencies for a sequence.
    switch: Option<Switch>,
    /// Buffers of a pass.
    scratch: Mutex<Scratch<B>>,
    heartbeat: Heartbeat,
    /// The backend's recordings of passes.
    recordings: B::Recordings,
}

/// The rotary embedding of a layer's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRotary {
    /// Index in the decoder's `rotary_tables`.
    table: usize,
    /// Index of the first rotated element of a key.
    first: usize,
}

#[derive(Debug)]
struct Output<B: Backend> {
    projection: B::Matrix,
    scale: Option<f32>,
    soft_cap: Option<f32>,
}

/// A rotary embedding.
#[derive(Debug)]
struct RotaryTable {
    /// Its parameters, the size of heads, and their layout.
    key: (Rope, u64, HeadLayout),
    /// Radians per position: for short sequences, then for long ones.
    frequencies: [Vec<f64>; 2],
}

/// Buffers of a pass, reused by the next pass.
#[derive(Debug)]
struct Scratch<B: Backend> {
    places: Vec<TokenPlace>,
    positions: Vec<usize>,
    long: Vec<bool>,
    angles: Vec<B::Angles>,
}

/// The residual stream after the last layer, of all tokens of a pass.
#[derive(Debug)]
pub(crate) struct Stream<B: Backend>(B::Act);

#[derive(Debug)]
struct Layer<B: Backend> {
    backend: B,
    mixer: Mixer<B>,
    mixer_residual: Residual<B>,
    ffn: Ffn<B>,
    ffn_residual: Residual<B>,
    parallel: bool,
}

impl<B: Backend> Decoder<B> {
    pub(crate) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let (vocabulary, hidden) = (blueprint.vocabulary as usize, blueprint.hidden as usize);
        let mut rotary_tables = Vec::new();
        let (mut layers, mut states) = (Vec::new(), Vec::new());
        for (layer, state) in blueprint.layers.iter().zip(blueprint.states()) {
            let rotary = RotaryTable::of(weights, &layer.mixer, &mut rotary_tables)?;
            let own = backend.of_layer(layers.len());
            let loader = Loader { backend: &own, weights, hidden, angles: rotary.map(|rotary| rotary.table) };
            layers.push(Layer {
                mixer: Mixer::load(&loader, &layer.mixer, blueprint.causal)?,
                mixer_residual: Residual::load(&loader, &layer.mixer_residual)?,
                ffn: Ffn::load(&loader, &layer.ffn)?,
                ffn_residual: Residual::load(&loader, &layer.ffn_residual)?,
                parallel: layer.parallel,
                backend: own,
            });
            states.push((state, rotary));
        }
        let (first, last) = (backend.of_layer(0), backend.of_layer(layers.len()));
        let output = |output: &architectures::Output| -> Result<Output<B>> {
            Ok(Output {
                projection: weights.matrix(&last, &output.projection, hidden, vocabulary, None)?,
                scale: output.scale.map(|scale| scale as f32),
                soft_cap: output.soft_cap.map(|cap| cap as f32),
            })
        };
        let norm = |norm: &architectures::Norm| weights.norm(&last, norm, hidden);
        let mut switches = rotary_tables.iter().filter_map(|table: &RotaryTable| table.key.0.switch());
        let switch = switches.next();
        ensure!(switches.all(|other| Some(other) == switch), "layers change their frequencies at different lengths");
        let decoder = Self {
            embedding: Embedding::load(&first, weights, &blueprint.embedding, vocabulary, hidden)?,
            layers,
            norm: blueprint.norm.as_ref().map(norm).transpose()?,
            output: blueprint.output.as_ref().map(output).transpose()?,
            rotary_tables,
            states,
            heads: blueprint.heads() as usize,
            causal: blueprint.causal,
            switch,
            scratch: Mutex::new(Scratch {
                places: Vec::new(),
                positions: Vec::new(),
                long: Vec::new(),
                angles: Vec::new(),
            }),
            heartbeat: Heartbeat::default(),
            recordings: B::Recordings::default(),
            first,
            last,
        };
        weights.check_adapters()?;
        Ok(decoder)
    }

    /// Returns the backend's recordings of passes.
    #[cfg(test)]
    pub(crate) fn recordings(&self) -> &B::Recordings {
        &self.recordings
    }

    /// Returns the heartbeat, which advances with each layer.
    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Whether the model computes logits.
    pub(crate) fn generates(&self) -> bool {
        self.output.is_some()
    }

    /// Returns the rule that selects one of two sets of rotary frequencies for a sequence. States
    /// that were computed with one set are useless with the other.
    pub(crate) fn switch(&self) -> Option<Switch> {
        self.switch
    }

    /// Creates the states of a new sequence.
    ///
    /// # Errors
    /// Fails if the device has no memory for them, or cannot store that type.
    pub(crate) fn states(&self, context: usize, kv_type: KvType) -> Result<Vec<B::State>> {
        let state = |(layer, (state, _)): (&Layer<B>, &(LayerState, _))| {
            layer.backend.state(StateShape { state: *state, context, kv_type })
        };
        self.layers.iter().zip(&self.states).map(state).collect()
    }

    /// Returns, for each layer with rotated keys, the rotation that moves keys back by so many
    /// positions.
    pub(crate) fn inverse_rotary(&self, positions: usize, long: bool) -> Vec<Option<InverseRotary>> {
        let angles = |rotary: &KeyRotary| {
            let table = &self.rotary_tables[rotary.table];
            let angles = table.frequencies[usize::from(long)].iter().map(|frequency| -(positions as f64) * frequency);
            let (sines, cosines) = angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip();
            InverseRotary { cosines, sines, layout: table.key.2, first: rotary.first }
        };
        self.states.iter().map(|(_, rotary)| rotary.as_ref().map(angles)).collect()
    }

    /// Returns how many of `tokens` one pass may append at most to a sequence of `length`.
    pub(crate) fn chunk(&self, length: usize, tokens: usize) -> usize {
        // Tokens that attend to later ones are computed in one pass.
        if self.causal { self.first.chunk(self.heads, length, tokens) } else { tokens }
    }

    /// Whether a text must be computed in one pass, because its tokens attend to later ones.
    pub(crate) fn sees_whole_texts(&self) -> bool {
        !self.causal
    }

    /// Appends tokens to sequences, all in one pass. `ids` are the tokens of all sequences, one
    /// sequence after the other.
    ///
    /// # Errors
    /// Fails if a token is not in the vocabulary, or there is no memory. The states are then valid
    /// only for the tokens from before the pass.
    pub(crate) fn forward(&self, ids: &[u32], sequences: &mut [Sequence<'_, B>]) -> Result<Stream<B>> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let Scratch { places, positions, long, angles } = &mut *scratch;
        places.clear();
        positions.clear();
        long.clear();
        for sequence in sequences.iter() {
            let span = sequence.span;
            positions.extend(span.position..span.end());
            let second = sequence.second.unwrap_or(usize::MAX);
            let place = |index| TokenPlace { position: span.position + index, of_second: index >= second };
            places.extend((0..span.tokens).map(place));
            long.extend(std::iter::repeat_n(sequence.long, span.tokens));
        }
        ensure!(positions.len() == ids.len(), "invariant: a sequence has all of its tokens");
        let inputs = &mut |angles: &mut Vec<B::Angles>| {
            angles.clear();
            for table in &self.rotary_tables {
                angles.push(self.first.angles(&AnglesOf {
                    frequencies: [&table.frequencies[0], &table.frequencies[1]],
                    positions,
                    long,
                    magnitude: table.key.0.magnitude,
                    layout: table.key.2,
                })?);
            }
            self.embedding.forward(&self.first, ids, places)
        };
        let layers = &mut |angles: &[B::Angles], mut stream: B::Act, sequences: &mut [Sequence<'_, B>]| {
            for (index, layer) in self.layers.iter().enumerate() {
                self.heartbeat.beat();
                stream = layer.forward(angles, stream, sequences, index, ids.len())?;
            }
            Ok(stream)
        };
        let stream = self.first.pass(&self.recordings, angles, sequences, PassParts { inputs, layers })?;
        Ok(Stream(self.last.received(stream)?))
    }

    /// Calls `each` with the logits after some tokens of a pass, `[vocabulary]`, in order.
    pub(crate) fn logits(
        &self,
        stream: &Stream<B>,
        tokens: &[usize],
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        for tokens in tokens.chunks(LOGITS) {
            let rows = self.last.select(&stream.0, tokens)?;
            let logits = self.project(&rows)?;
            self.last.read(&logits, 0..tokens.len(), each)?;
        }
        Ok(())
    }

    /// Whether the backend can find the best candidates of logits without copying the logits to the
    /// host.
    pub(crate) fn selects(&self) -> bool {
        self.last.selects()
    }

    /// Calls `each` for every entry of `wanted`, in any order, with its index and the logits after
    /// its token: the best candidates if there is a selection, else the row, `[vocabulary]`.
    pub(crate) fn best(
        &self,
        stream: &Stream<B>,
        wanted: &[(usize, Option<Selection>)],
        each: &mut dyn FnMut(usize, Logits<'_>) -> Result<()>,
    ) -> Result<()> {
        for (part, wanted) in wanted.chunks(LOGITS).enumerate() {
            let tokens: Vec<usize> = wanted.iter().map(|(token, _)| *token).collect();
            let logits = self.project(&self.last.select(&stream.0, &tokens)?)?;
            let (mut rows, mut selections) = (Vec::new(), Vec::new());
            for (row, (_, selection)) in wanted.iter().enumerate() {
                match selection {
                    Some(selection) => selections.push((row, selection)),
                    None => rows.push(row),
                }
            }
            if !selections.is_empty() {
                for (best, (row, _)) in self.last.best(&logits, &selections)?.into_iter().zip(&selections) {
                    each(part * LOGITS + row, Logits::Best(best))?;
                }
            }
            for row in rows {
                self.last.read(&logits, row..row + 1, &mut |logits| each(part * LOGITS + row, Logits::Row(logits)))?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the hidden states of some tokens of a pass after the final norm,
    /// `[hidden]`, in order.
    pub(crate) fn hidden(
        &self,
        stream: &Stream<B>,
        tokens: Range<usize>,
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let rows: Vec<usize> = tokens.collect();
        let own = self.last.select(&stream.0, &rows)?;
        match &self.norm {
            Some(norm) => self.last.read(&self.last.norm(norm, &own)?, 0..rows.len(), each),
            None => self.last.read(&own, 0..rows.len(), each),
        }
    }

    /// Computes the logits of rows of a stream.
    fn project(&self, rows: &B::Act) -> Result<B::Act> {
        let output = self.output.as_ref().context("the model computes no logits; it only embeds or scores texts")?;
        let [mut logits] = match &self.norm {
            Some(norm) => self.last.project([&output.projection], &self.last.norm(norm, rows)?)?,
            None => self.last.project([&output.projection], rows)?,
        };
        if let Some(scale) = output.scale {
            logits = self.last.map(logits, Map::Scale(scale))?;
        }
        match output.soft_cap {
            Some(cap) => self.last.map(logits, Map::SoftCap(cap)),
            None => Ok(logits),
        }
    }
}

/// The logits after a token, in the form that the caller requested.
pub(crate) enum Logits<'a> {
    /// All of them, `[vocabulary]`.
    Row(&'a [f32]),
    /// The best candidates.
    Best(Best),
}

/// A rotation that moves keys back by some positions.
#[derive(Debug)]
pub(crate) struct InverseRotary {
    pub(crate) cosines: Vec<f32>,
    pub(crate) sines: Vec<f32>,
    pub(crate) layout: HeadLayout,
    pub(crate) first: usize,
}

impl RotaryTable {
    /// Returns the rotary embedding of a layer, if it has one. Adds it to `rotary_tables` if none
    /// there is equal.
    fn of(weights: &Weights, mixer: &architectures::Mixer, rotary_tables: &mut Vec<Self>) -> Result<Option<KeyRotary>> {
        let (rope, head_dim, layout, first) = match mixer {
            architectures::Mixer::Attention(own) => {
                let Some(rope) = &own.rope else { return Ok(None) };
                (rope, own.head_dim, own.layout, 0)
            }
            architectures::Mixer::Latent(own) => (&own.rope, own.rope_dim, own.layout, own.rank as usize),
            _ => return Ok(None),
        };
        let key = (rope.clone(), head_dim, layout);
        if let Some(table) = rotary_tables.iter().position(|table| table.key == key) {
            return Ok(Some(KeyRotary { table, first }));
        }
        let frequencies = |long: bool| -> Result<Vec<f64>> {
            let mut frequencies = rope.frequencies(head_dim, long);
            if let Some(divisors) = &rope.divisors {
                let divisors = weights.numbers(divisors.tensor(long), &[frequencies.len()])?;
                frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
            }
            Ok(frequencies)
        };
        rotary_tables.push(Self { key, frequencies: [frequencies(false)?, frequencies(true)?] });
        Ok(Some(KeyRotary { table: rotary_tables.len() - 1, first }))
    }
}

impl<B: Backend> Layer<B> {
    fn forward(
        &self,
        angles: &[B::Angles],
        x: B::Act,
        sequences: &mut [Sequence<'_, B>],
        index: usize,
        tokens: usize,
    ) -> Result<B::Act> {
        let backend = &self.backend;
        let (pass, x) = (&Pass { backend, angles }, backend.received(x)?);
        let mixer = |x: &B::Act| self.mixer.forward(pass, x, sequences, index);
        let mixed = self.mixer_residual.made(backend, &x, mixer)?;
        let ffn = |x: &B::Act| self.ffn.forward(pass, x, tokens);
        if self.parallel {
            let made = self.ffn_residual.made(backend, &x, ffn)?;
            let x = self.mixer_residual.add(backend, x, &mixed)?;
            return self.ffn_residual.add(backend, x, &made);
        }
        let x = self.mixer_residual.add(backend, x, &mixed)?;
        let made = self.ffn_residual.made(backend, &x, ffn)?;
        self.ffn_residual.add(backend, x, &made)
    }
}
