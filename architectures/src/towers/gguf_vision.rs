//! Parts of towers in GGUF files, which have the same names in all of them.

use std::collections::HashMap;

use formats::Gguf;

use super::bounded;
use crate::blueprint::check::MAX_LAYERS;
use crate::blueprint::{
    Activation, ClassRow, Ffn, Gated, HeadLayout, Layer, Mixer, Norm, NormKind, NormedPart, PatchOrder, PatchPositions,
    PictureFilter, PictureInput, PictureResize, PictureText, Plain, Projection, Projector, ProjectorLayer, Residual,
    SquareFit, Tensor, Tower,
};
use crate::dense::{attention, clamps, layer_count, layer_norm, projection, unweighted_norm};
use crate::gguf_keys::{Keys, fail};
use crate::plain::one_by_one;
use crate::rope::{Rope, RopeAxes};
use crate::{Error, TensorNames};

/// The positions of patches.
pub(super) const POSITIONS: &str = "v.position_embd.weight";

/// True if the tensor belongs to a tower for pictures. Sounds have a tower of their own, and the
/// embedding of a token is that of the model.
pub(super) fn is_of_tower(name: &str) -> bool {
    let is_other = name.starts_with("mm.a.") || name.starts_with("v.token_embd.");
    (name.starts_with("v.") || name.starts_with("mm.")) && !is_other
}

/// The file in which a tower lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    /// A projector file, as llama.cpp's converter writes it.
    Projector,
    /// The model's own file, as Ollama's converter wrote it.
    Model,
}

/// A tower in a GGUF file, besides its projector.
pub(super) struct Vision<'a> {
    /// Keys of the tower.
    pub(super) keys: Keys<'a>,
    /// Header of the model.
    pub(super) model: &'a Gguf<'a>,
    pub(super) names: &'a TensorNames,
    pub(super) file: FileKind,
    /// Dimensions of the tensors of the file, the innermost first.
    pub(super) shapes: HashMap<&'a str, &'a [u64]>,
    /// Width of the decoder.
    pub(super) decoder: u64,
    /// Width of the tower.
    pub(super) hidden: u64,
    pub(super) heads: u64,
    pub(super) epsilon: f64,
    /// Pixels of a patch's side.
    pub(super) patch: u64,
    /// Pixels of each side of the square that the tower was made for.
    pub(super) side: u64,
    pub(super) activation: Activation,
}

/// Differences between the layers of towers.
pub(super) struct LayerForm {
    pub(super) norm: NormKind,
    pub(super) rope: Option<Rope>,
    /// Rotary embedding of the elements behind those of the first one.
    pub(super) second_rope: Option<Rope>,
    pub(super) layout: HeadLayout,
    /// Factor of attention scores; `None` for that of the size of heads.
    pub(super) scale: Option<f64>,
    /// Activation of networks; `None` for that of the file.
    pub(super) activation: Option<Activation>,
    /// Whether values are normalized.
    pub(super) norms_values: bool,
    /// Whether projections may have bounds.
    pub(super) has_clamps: bool,
}

impl LayerForm {
    /// Returns a form with norms of this kind and no positions of its own.
    pub(super) fn new(norm: NormKind) -> Self {
        let layout = HeadLayout::Half;
        Self {
            norm,
            rope: None,
            second_rope: None,
            layout,
            scale: None,
            activation: None,
            norms_values: false,
            has_clamps: false,
        }
    }

    /// Returns the form with a rotary embedding.
    pub(super) fn rotated(self, rope: Rope) -> Self {
        Self { rope: Some(rope), ..self }
    }
}

impl Vision<'_> {
    /// Returns the elements of a head, a multiple of `unit`.
    fn head_dim(&self, unit: u64) -> Result<u64, Error> {
        let dim = self.hidden.checked_div(self.heads).unwrap_or(0);
        if dim == 0 || !dim.is_multiple_of(unit) || dim.saturating_mul(self.heads) != self.hidden {
            let (hidden, heads) = (self.hidden, self.heads);
            return Err(fail(format!(
                "a tower of width {hidden} has {heads} heads, expected heads whose size is a multiple of {unit}"
            )));
        }
        Ok(dim)
    }

    /// Returns a tower without positions, a class, a norm, windows and deep projectors. The decoder
    /// reads its rows like those of text, which see only rows before them.
    pub(super) fn tower(
        &self,
        input: PictureInput,
        layers: Vec<Layer>,
        projector: Projector,
        text: PictureText,
    ) -> Tower {
        Tower {
            input,
            hidden: self.hidden,
            patches: self.patches(),
            positions: None,
            class: None,
            norm: None,
            layers,
            projector,
            windows: None,
            deep: Vec::new(),
            line_end: None,
            is_bidirectional: false,
            text,
        }
    }

    /// Returns the projections of patches: one for each frame of a video.
    pub(super) fn patches(&self) -> Vec<Projection> {
        let first = projection(self.names, "v.patch_embd");
        let mut second = first.clone();
        "v.patch_embd.weight.1".clone_into(&mut second.weight.name);
        second.bias = None;
        let has_second = self.names.has(&second.weight.name);
        std::iter::once(first).chain(has_second.then_some(second)).collect()
    }

    /// Returns a norm that the tower needs.
    pub(super) fn norm(&self, kind: NormKind, module: &str) -> Norm {
        Norm { kind, ..layer_norm(self.names, module, self.epsilon) }
    }

    /// Returns a norm; `None` if the file does not have it.
    pub(super) fn norm_if_any(&self, kind: NormKind, module: &str) -> Option<Norm> {
        self.names.has(&format!("{module}.weight")).then(|| self.norm(kind, module))
    }

    /// Returns the layers.
    pub(super) fn layers(&self, form: &LayerForm) -> Result<Vec<Layer>, Error> {
        let head_dim = self.head_dim(if form.rope.is_some() { 4 } else { 1 })?;
        // Converters have written other numbers, so that the width is that of the tensors.
        self.keys.name("feed_forward_length");
        let count = layer_count(self.keys.required("block_count")?)?;
        Ok((0..count).map(|index| self.layer(index, form, head_dim)).collect())
    }

    fn layer(&self, index: usize, form: &LayerForm, head_dim: u64) -> Layer {
        let own = |module: &str| {
            let module = format!("v.blk.{index}.{module}");
            let clamps = form.has_clamps.then(|| clamps(self.names, &module)).flatten();
            Projection { clamps, ..projection(self.names, &module) }
        };
        let residual = |before: &str, after: &str, factors: &str| {
            let factors = format!("v.blk.{index}.{factors}.weight");
            let factors = self.names.has(&factors).then(|| Norm::factors(Tensor::named(factors)));
            Residual {
                before: Some(self.norm(form.norm, &format!("v.blk.{index}.{before}"))),
                after: self.norm_if_any(form.norm, &format!("v.blk.{index}.{after}")).or(factors),
                ..Residual::default()
            }
        };
        let [query, key, value] = if self.names.has(&format!("v.blk.{index}.attn_qkv.weight")) {
            one_by_one(&own("attn_qkv"), [self.heads, self.heads, head_dim])
        } else {
            ["attn_q", "attn_k", "attn_v"].map(own)
        };
        let mut mixer = attention(self.heads, head_dim, [query, key, value, own("attn_out")]);
        (mixer.rope, mixer.second_rope, mixer.layout) = (form.rope.clone(), form.second_rope.clone(), form.layout);
        mixer.scale = form.scale.unwrap_or(mixer.scale);
        let norm_of_heads = |module: &str| self.norm_if_any(form.norm, &format!("v.blk.{index}.{module}"));
        (mixer.query_norm, mixer.key_norm) = (norm_of_heads("attn_q_norm"), norm_of_heads("attn_k_norm"));
        let normed = self.shapes.get(format!("v.blk.{index}.attn_q_norm.weight").as_str());
        if normed.is_some_and(|dims| **dims != [head_dim]) {
            mixer.normed = NormedPart::Width;
        }
        mixer.value_norm = form.norms_values.then(|| unweighted_norm(self.epsilon));
        let [up, down] =
            if self.has_exchanged_network(index) { ["ffn_down", "ffn_up"] } else { ["ffn_up", "ffn_down"] };
        let activation = form.activation.unwrap_or(self.activation);
        let width = self.outputs(&format!("v.blk.{index}.{up}.weight"));
        let ffn = if self.names.has(&format!("v.blk.{index}.ffn_gate.weight")) {
            Ffn::Gated(Box::new(Gated::new(width, activation, [own("ffn_gate"), own(up), own(down)])))
        } else {
            Ffn::Plain(Box::new(Plain { width, activation, curve: None, up: own(up), down: own(down) }))
        };
        Layer::new(
            (Mixer::Attention(Box::new(mixer)), residual("ln1", "attn_post_norm", "ls1")),
            (ffn, residual("ln2", "ffn_post_norm", "ls2")),
        )
    }

    /// True if the names of the two projections of a network are exchanged, as in older files.
    fn has_exchanged_network(&self, index: usize) -> bool {
        let down = self.outputs(&format!("v.blk.{index}.ffn_down.weight"));
        down != self.hidden && down > 0
    }

    /// Returns a rotary embedding without scaling, for angles by row and column.
    pub(super) fn rope(&self, axes: RopeAxes) -> Result<Rope, Error> {
        Ok(Rope { axes: Some(axes), ..Rope::plain(self.keys.float("rope.freq_base")?.unwrap_or(10_000.0)) })
    }

    /// Returns the positions of a square picture.
    pub(super) fn positions(&self, fit: SquareFit) -> PatchPositions {
        let side = self.side.checked_div(self.patch).unwrap_or(0);
        PatchPositions::Square { table: Tensor::named(POSITIONS), side, fit }
    }

    /// Returns the positions of a square picture, before which there is that of the class.
    pub(super) fn positions_behind_class(&self) -> PatchPositions {
        let side = self.side.checked_div(self.patch).unwrap_or(0);
        let table = Tensor::rows(POSITIONS, 1, side.saturating_mul(side));
        PatchPositions::Square { table, side, fit: SquareFit::Corners }
    }

    /// Returns the row of the class.
    pub(super) fn class() -> ClassRow {
        ClassRow { row: Tensor::named("v.class_embd"), position: Tensor::rows(POSITIONS, 0, 1) }
    }

    /// Returns the number of elements of the rows that a projection makes; 0 if the file does not
    /// have it.
    pub(super) fn width_of(&self, projection: &Projection) -> u64 {
        let axis = usize::from(!projection.weight.view.transposed);
        self.shapes.get(projection.weight.name.as_str()).and_then(|dims| dims.get(axis)).copied().unwrap_or(0)
    }

    /// Returns the number of outputs of a projection; 0 if the file does not have it.
    pub(super) fn outputs(&self, name: &str) -> u64 {
        // The first dimension is the input.
        self.shapes.get(name).and_then(|dims| dims.get(1)).copied().unwrap_or(0)
    }

    /// Returns the steps from a picture to patches of one frame, in blocks of `block` patches.
    pub(super) fn input(
        &self,
        resize: PictureResize,
        filter: PictureFilter,
        block: u64,
    ) -> Result<PictureInput, Error> {
        let input = PictureInput {
            resize,
            filter,
            scale: 1.0 / 255.0,
            mean: self.channels("image_mean")?,
            deviation: self.channels("image_std")?,
            patch: self.patch,
            block,
            frames: 1,
            order: PatchOrder::Channels,
        };
        Ok(bounded(input))
    }

    /// Reads a list of whole numbers.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<u64>>, Error> {
        let name = self.keys.name(key);
        let Some(list) = self.keys.gguf.array(&name) else { return Ok(None) };
        let numbers: Option<Vec<u64>> = list.iter().take(MAX_LAYERS as usize + 1).map(|item| item.as_u64()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() <= MAX_LAYERS as usize);
        numbers.map(Some).ok_or_else(|| fail(format!("`{name}` is no list of at most {MAX_LAYERS} whole numbers")))
    }

    fn channels(&self, key: &str) -> Result<[f64; 3], Error> {
        let name = self.keys.name(key);
        let list = self.keys.gguf.array(&name).ok_or_else(|| fail(format!("`{name}` is missing")))?;
        let numbers: Option<Vec<f64>> = list.iter().take(4).map(|item| item.as_f64()).collect();
        let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
        numbers.ok_or_else(|| fail(format!("`{name}` has {} values, expected three numbers", list.len())))
    }

    /// Returns the layers of a projector with these modules and widths, and an activation between
    /// them.
    pub(super) fn perceptron(
        &self,
        [first, second]: [&str; 2],
        width: u64,
        activation: Activation,
    ) -> Vec<ProjectorLayer> {
        let layer = |module: &str, width: u64, activation: Option<Activation>| ProjectorLayer {
            width,
            projection: projection(self.names, module),
            activation,
        };
        vec![layer(first, width, Some(activation)), layer(second, self.decoder, None)]
    }
}
