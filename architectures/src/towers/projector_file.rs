//! The projector file (`mmproj`) of a folder's tower: its keys, and the names and changes of its
//! tensors.
//!
//! Source: `conversion/` of llama.cpp.

use formats::gguf::OwnedValue;

use crate::blueprint::{
    Activation, Attention, Ffn, Layer, Mixer, Norm, NormKind, PatchOrder, PatchPositions, PictureFilter, PictureInput,
    PictureResize, Projection, Projector, Rows, Tensor, Tower,
};
use crate::exchange::{HeadOrder, NumberChange, TensorChange};
use crate::family::Architecture;
use crate::rope::RopeAxes;
use crate::{Error, HeadLayout};

/// A projector file to be written.
#[derive(Clone, Debug, Default)]
pub struct ProjectorFile {
    /// Keys, in order.
    pub keys: Vec<(String, OwnedValue)>,
    /// Tensors, in order.
    pub tensors: Vec<ProjectorTensor>,
    /// Architecture of the model's file, if it is not that of a model without a tower.
    pub architecture: Option<&'static str>,
    /// Sections of the rotary embedding, which the model's file needs.
    pub sections: Option<[u64; 3]>,
    /// Text of the token whose embedding the file has: it is between the lines of a picture.
    pub line_end: Option<String>,
    /// Number of projectors whose rows are added behind layers of the decoder, which the model's
    /// file needs.
    pub deep: u64,
    /// Settings that such files do not have, one sentence each.
    pub losses: Vec<String>,
}

/// A tensor of a projector file.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectorTensor {
    /// Canonical name of the stored tensor.
    pub source: String,
    /// Rows of it, if the new tensor has a part of them.
    pub rows: Option<Rows>,
    /// Name and changes.
    pub change: TensorChange,
    /// Change of the projection of patches.
    pub patches: Option<PatchChange>,
}

/// Change of a projection of patches to `[hidden, channel, row, column]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchChange {
    /// Pixels of a patch's side.
    pub side: u64,
    /// Number of frames of the stored projection.
    pub frames: u64,
    /// The frame that is written.
    pub frame: u64,
}

/// Names and settings of a kind of projector.
struct ProjectorForm {
    kind: &'static str,
    /// Values of `model_type` of folders.
    models: &'static [&'static str],
    /// Architectures of the models' files by that of a model without a tower.
    architectures: &'static [(&'static str, &'static str)],
    norm: &'static str,
    joined_norm: &'static str,
    layers: &'static [&'static str],
    /// Key of the number of patches of a block's side.
    block: &'static str,
    /// Whether queries, keys and values are one tensor.
    joins_heads: bool,
    /// Filter of the resize, which readers of such files take.
    filter: PictureFilter,
}

const FORMS: [ProjectorForm; 7] = [
    ProjectorForm {
        kind: "gemma3",
        models: &["gemma3"],
        architectures: &[],
        norm: "v.post_ln",
        joined_norm: "mm.soft_emb_norm",
        layers: &["mm.input_projection"],
        block: "projector.scale_factor",
        joins_heads: false,
        filter: PictureFilter::Bilinear,
    },
    ProjectorForm {
        kind: "idefics3",
        models: &["idefics3", "smolvlm"],
        architectures: &[],
        norm: "v.post_ln",
        joined_norm: "",
        layers: &["mm.model.fc"],
        block: "projector.scale_factor",
        joins_heads: false,
        filter: PictureFilter::Lanczos,
    },
    ProjectorForm {
        kind: "internvl",
        models: &["internvl"],
        architectures: &[],
        norm: "",
        joined_norm: "mm.model.mlp.0",
        layers: &["mm.model.mlp.1", "mm.model.mlp.3"],
        block: "projector.scale_factor",
        joins_heads: false,
        filter: PictureFilter::Bicubic,
    },
    ProjectorForm {
        kind: "mlp",
        models: &["llava", "llava_next"],
        architectures: &[],
        norm: "",
        joined_norm: "",
        layers: &["mm.0", "mm.2"],
        block: "",
        joins_heads: false,
        filter: PictureFilter::Bicubic,
    },
    ProjectorForm {
        kind: "pixtral",
        models: &["mistral3"],
        architectures: &[],
        norm: "mm.input_norm",
        joined_norm: "",
        layers: &["mm.patch_merger", "mm.1", "mm.2"],
        block: "spatial_merge_size",
        joins_heads: false,
        filter: PictureFilter::Bicubic,
    },
    ProjectorForm {
        kind: "qwen2vl_merger",
        models: &["qwen2_vl"],
        architectures: &[("qwen2", "qwen2vl")],
        norm: "v.post_ln",
        joined_norm: "",
        layers: &["mm.0", "mm.2"],
        block: "spatial_merge_size",
        joins_heads: false,
        filter: PictureFilter::Bicubic,
    },
    ProjectorForm {
        kind: "qwen3vl_merger",
        models: &["qwen3_vl"],
        architectures: &[("qwen3", "qwen3vl")],
        norm: "v.post_ln",
        joined_norm: "",
        layers: &["mm.0", "mm.2"],
        block: "spatial_merge_size",
        joins_heads: true,
        filter: PictureFilter::Bicubic,
    },
];

/// Qwen2.5-VL differs from Qwen2-VL in its kind and its windows.
const QWEN2_5: (&str, &str) = ("qwen2_5_vl", "qwen2.5vl_merger");

/// Pixels of a picture's side that files name if pictures have no fixed size.
const USUAL_SIDE: u64 = 560;

fn fail(reason: impl Into<String>) -> Error {
    Error::new("projector file to be written", reason)
}

impl Architecture {
    /// Returns the projector file of a folder's tower; `model` is the `model_type` of its config.
    ///
    /// # Errors
    /// The model sees no pictures, or projector files cannot express its tower.
    pub fn projector_file(&self, model: &str) -> Result<ProjectorFile, Error> {
        let tower = self.blueprint.tower().ok_or_else(|| fail("the model sees no pictures"))?;
        let (is_2_5, of) = if model == QWEN2_5.0 { (true, "qwen2_vl") } else { (false, model) };
        let names = FORMS.iter().find(|names| names.models.contains(&of)).ok_or_else(|| {
            let known: Vec<&str> = FORMS.iter().flat_map(|names| names.models).copied().collect();
            fail(format!("files for the tower of `{model}` cannot be written, expected one of {}", known.join(", ")))
        })?;
        let mut file = ProjectorFile::default();
        file.add_keys(tower, names, self.blueprint.hidden)?;
        if is_2_5 {
            file.set("clip.projector_type", QWEN2_5.1.into());
        }
        file.add_tower(tower, names)?;
        file.architecture =
            names.architectures.iter().find(|(own, _)| *own == self.family.gguf.architecture).map(|(_, other)| *other);
        file.sections = self.blueprint.attentions().find_map(|own| match own.rope.as_ref()?.axes? {
            RopeAxes::Interleaved(sections) | RopeAxes::Runs(sections) => Some(sections),
            _ => None,
        });
        file.deep = tower.deep.len() as u64;
        file.line_end = Some(tower.text.between_lines.clone()).filter(|text| !text.is_empty());
        Ok(file)
    }
}

impl ProjectorFile {
    fn set(&mut self, key: &str, value: OwnedValue) {
        match self.keys.iter_mut().find(|(own, _)| own == key) {
            Some((_, own)) => *own = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    fn number(&mut self, key: &str, number: u64) {
        self.set(&format!("clip.vision.{key}"), u32::try_from(number).unwrap_or(u32::MAX).into());
    }

    fn add_keys(&mut self, tower: &Tower, names: &ProjectorForm, decoder: u64) -> Result<(), Error> {
        self.set("general.architecture", "clip".into());
        self.set("general.type", "mmproj".into());
        self.set("clip.has_vision_encoder", true.into());
        self.set("clip.projector_type", names.kind.into());
        let attention = tower.layers.first().and_then(|layer| match &layer.mixer {
            Mixer::Attention(own) => Some(own),
            _ => None,
        });
        let (Some(attention), Some(first)) = (attention, tower.layers.first()) else {
            return Err(fail("the tower has no layers"));
        };
        let (width, activation) = match &first.ffn {
            Ffn::Plain(own) => (own.width, own.activation),
            Ffn::Gated(own) => (own.width, own.activation),
            _ => return Err(fail("the networks of the tower have experts")),
        };
        match activation {
            Activation::Gelu | Activation::GeluTanh => {
                // Readers take it for the exact form for InternVL, and for the other one elsewhere.
                if (activation == Activation::Gelu) != (names.kind == "internvl") {
                    self.losses
                        .push(format!("projector files do not express the form of the activation {activation:?}"));
                }
                self.set("clip.use_gelu", true.into());
            }
            Activation::Silu => self.set("clip.use_silu", true.into()),
            Activation::GeluQuick => {}
            other => return Err(fail(format!("the activation {other:?} of the tower has no key"))),
        }
        self.number("projection_dim", decoder);
        self.number("image_size", side_of(tower));
        self.number("patch_size", tower.input.patch);
        self.number("embedding_length", tower.hidden);
        self.number("feed_forward_length", width);
        self.number("block_count", tower.layers.len() as u64);
        self.number("attention.head_count", attention.heads);
        let epsilon = first.mixer_residual.before.as_ref().map_or(1e-6, |norm| norm.epsilon);
        self.set("clip.vision.attention.layer_norm_epsilon", (epsilon as f32).into());
        if names.block.is_empty() {
            // Without it, llama.cpp leaves out the last layer.
            let layer = i32::try_from(tower.layers.len()).unwrap_or(i32::MAX);
            self.set("clip.vision.feature_layer", OwnedValue::integers([layer]));
        } else {
            self.number(names.block, tower.input.block);
        }
        self.add_picture_keys(&tower.input, names);
        if let Some(windows) = &tower.windows {
            let every = windows.whole.first().map_or(0, |layer| layer + 1);
            let expected = (1..=tower.layers.len() as u64).filter(|layer| every > 0 && layer.is_multiple_of(every));
            if !expected.map(|layer| layer - 1).eq(windows.whole.iter().copied()) {
                return Err(fail("the layers in which all patches see each other have no constant distance"));
            }
            self.number("n_wa_pattern", every);
            self.number("window_size", windows.side * tower.input.block * tower.input.patch);
        }
        if !tower.deep.is_empty() {
            let layers = 0..tower.layers.len() as u64;
            let is_deep = layers.map(|layer| tower.deep.iter().any(|deep| deep.layer == layer));
            self.set("clip.vision.is_deepstack_layers", OwnedValue::flags(is_deep));
        }
        Ok(())
    }

    /// Adds the keys of the steps from a picture to patches.
    fn add_picture_keys(&mut self, input: &PictureInput, names: &ProjectorForm) {
        let is_usual = match input.resize {
            PictureResize::Cropped { shorter, width, height } => [width, height] == [shorter; 2],
            PictureResize::Fixed { .. } | PictureResize::Square { .. } => names.kind == "gemma3",
            _ => true,
        };
        if !is_usual || input.filter != names.filter {
            self.losses.push("projector files do not express how this model resizes or cuts pictures".to_owned());
        }
        self.set("clip.vision.image_mean", OwnedValue::floats(input.mean.map(|mean| mean as f32)));
        self.set("clip.vision.image_std", OwnedValue::floats(input.deviation.map(|own| own as f32)));
        match input.resize {
            PictureResize::Area { least, most, .. } => {
                self.number("image_min_pixels", least);
                self.number("image_max_pixels", most);
            }
            PictureResize::Padded { tile, grids } => {
                let grids = grids.iter().take_while(|grid| **grid != [0, 0]);
                let sides = grids.flat_map(|[columns, rows]| [rows, columns]).map(|count| u64::from(*count) * tile);
                let sides = sides.map(|side| i32::try_from(side).unwrap_or(i32::MAX));
                self.set("clip.vision.image_grid_pinpoints", OwnedValue::integers(sides));
                self.set("clip.vision.mm_patch_merge_type", "spatial_unpad".into());
            }
            PictureResize::Tiles { longest, .. } => self.number("preproc_image_size", longest),
            PictureResize::Arranged { least, most, .. } => {
                self.number("preproc_min_tiles", least);
                self.number("preproc_max_tiles", most);
            }
            _ => {}
        }
    }

    fn add_tower(&mut self, tower: &Tower, names: &ProjectorForm) -> Result<(), Error> {
        let [patches] = tower.patches.as_slice() else {
            return Err(fail("the tower has several projections of patches"));
        };
        if tower.input.order == PatchOrder::Pixels {
            return Err(fail("the channels of patches are not outermost"));
        }
        for frame in 0..tower.input.frames {
            let name =
                if frame == 0 { "v.patch_embd.weight".to_owned() } else { format!("v.patch_embd.weight.{frame}") };
            self.tensors.push(ProjectorTensor {
                source: patches.weight.name.clone(),
                rows: None,
                change: change(name, true),
                patches: Some(PatchChange { side: tower.input.patch, frames: tower.input.frames, frame }),
            });
        }
        if let Some(bias) = &patches.bias {
            self.add(bias, "v.patch_embd.bias", true);
        }
        match &tower.positions {
            // The row of the class is in the same tensor.
            Some(PatchPositions::Square { table, .. }) => {
                self.add(&Tensor::named(&table.name), "v.position_embd.weight", true);
            }
            Some(PatchPositions::Axes { .. }) => return Err(fail("positions of columns and lines have no name")),
            None => {}
        }
        if let Some(class) = &tower.class {
            self.add(&class.row, "v.class_embd", true);
        }
        if let Some(line_end) = &tower.line_end {
            self.add(line_end, "model.image_newline", true);
        }
        self.norm(tower.norm.as_ref(), "v.pre_ln");
        for (index, layer) in tower.layers.iter().enumerate() {
            self.layer(&format!("v.blk.{index}"), layer, names.joins_heads)?;
        }
        self.projector(&tower.projector, names)?;
        for deep in &tower.deep {
            let own = |module: &str| format!("v.deepstack.{}.{module}", deep.layer);
            self.norm(deep.projector.joined_norm.as_ref(), &own("norm"));
            for (layer, module) in deep.projector.layers.iter().zip(["fc1", "fc2"]) {
                self.projection(&layer.projection, &own(module), HeadOrder::Same);
            }
        }
        Ok(())
    }

    fn projector(&mut self, own: &Projector, names: &ProjectorForm) -> Result<(), Error> {
        self.norm(own.norm.as_ref().filter(|norm| norm.weight.is_some()), names.norm);
        self.norm(own.joined_norm.as_ref().filter(|norm| norm.weight.is_some()), names.joined_norm);
        if own.layers.len() != names.layers.len() {
            return Err(fail(format!(
                "the projector has {} layers, expected {}",
                own.layers.len(),
                names.layers.len()
            )));
        }
        for (layer, module) in own.layers.iter().zip(names.layers) {
            self.projection(&layer.projection, module, HeadOrder::Same);
        }
        Ok(())
    }

    fn layer(&mut self, prefix: &str, layer: &Layer, joins_heads: bool) -> Result<(), Error> {
        let own = |module: &str| format!("{prefix}.{module}");
        let Mixer::Attention(attention) = &layer.mixer else {
            return Err(fail("a layer of the tower has no attention"));
        };
        self.residual(
            [&layer.mixer_residual.before, &layer.mixer_residual.after],
            [own("ln1"), own("attn_post_norm"), own("ls1")],
        );
        if joins_heads && attention.query.weight.name == attention.value.weight.name {
            self.joined(attention, &own);
        } else {
            self.attention(attention, &own)?;
        }
        self.residual(
            [&layer.ffn_residual.before, &layer.ffn_residual.after],
            [own("ln2"), own("ffn_post_norm"), own("ls2")],
        );
        match &layer.ffn {
            Ffn::Plain(network) => {
                self.projection(&network.up, &own("ffn_up"), HeadOrder::Same);
                self.projection(&network.down, &own("ffn_down"), HeadOrder::Same);
            }
            Ffn::Gated(network) => {
                self.projection(&network.gate, &own("ffn_gate"), HeadOrder::Same);
                self.projection(&network.up, &own("ffn_up"), HeadOrder::Same);
                self.projection(&network.down, &own("ffn_down"), HeadOrder::Same);
            }
            _ => return Err(fail("a layer of the tower has experts")),
        }
        Ok(())
    }

    fn attention(&mut self, attention: &Attention, own: &dyn Fn(&str) -> String) -> Result<(), Error> {
        // Pixtral's rows are in llama.cpp's order.
        let axes = attention.rope.as_ref().and_then(|rope| rope.axes);
        let order = match (axes, attention.layout) {
            (Some(RopeAxes::Alternating), HeadLayout::Half) => {
                HeadOrder::between(HeadLayout::Half, HeadLayout::Interleaved, attention.head_dim)
            }
            (_, HeadLayout::Half) => HeadOrder::Same,
            _ => return Err(fail("the rows of heads are not in halves")),
        };
        self.projection(&attention.query, &own("attn_q"), order);
        self.projection(&attention.key, &own("attn_k"), order);
        self.projection(&attention.value, &own("attn_v"), HeadOrder::Same);
        self.projection(&attention.output, &own("attn_out"), HeadOrder::Same);
        self.norm(attention.query_norm.as_ref(), &own("attn_q_norm"));
        self.norm(attention.key_norm.as_ref(), &own("attn_k_norm"));
        Ok(())
    }

    /// Adds queries, keys and values that are stored in one tensor, which files have as it is.
    fn joined(&mut self, attention: &Attention, own: &dyn Fn(&str) -> String) {
        let whole = |tensor: &Tensor| Tensor::named(&tensor.name);
        let query = Projection {
            weight: whole(&attention.query.weight),
            bias: attention.query.bias.as_ref().map(whole),
            ..attention.query.clone()
        };
        self.projection(&query, &own("attn_qkv"), HeadOrder::Same);
        self.projection(&attention.output, &own("attn_out"), HeadOrder::Same);
    }

    fn residual(&mut self, [before, after]: [&Option<Norm>; 2], [own_before, own_after, factors]: [String; 3]) {
        self.norm(before.as_ref(), &own_before);
        let is_factors = after.as_ref().is_some_and(|norm| norm.kind == NormKind::Factors);
        self.norm(after.as_ref(), if is_factors { &factors } else { &own_after });
    }

    fn norm(&mut self, norm: Option<&Norm>, module: &str) {
        let Some(norm) = norm else { return };
        if let Some(weight) = &norm.weight {
            let numbers = (norm.offset != 0.0).then_some(NumberChange { add: norm.offset, multiply: 1.0 });
            let change = TensorChange { numbers, ..change(format!("{module}.weight"), true) };
            self.tensors.push(ProjectorTensor {
                source: weight.name.clone(),
                rows: weight.view.rows,
                change,
                patches: None,
            });
        }
        if let Some(bias) = &norm.bias {
            self.add(bias, &format!("{module}.bias"), true);
        }
    }

    fn projection(&mut self, own: &Projection, module: &str, rows: HeadOrder) {
        let mut add = |tensor: &Tensor, name: String, float32: bool| {
            let change = TensorChange { rows, ..change(name, float32) };
            self.tensors.push(ProjectorTensor {
                source: tensor.name.clone(),
                rows: tensor.view.rows,
                change,
                patches: None,
            });
        };
        add(&own.weight, format!("{module}.weight"), false);
        if let Some(bias) = &own.bias {
            add(bias, format!("{module}.bias"), true);
        }
    }

    fn add(&mut self, tensor: &Tensor, name: &str, float32: bool) {
        let change = change(name.to_owned(), float32);
        self.tensors.push(ProjectorTensor {
            source: tensor.name.clone(),
            rows: tensor.view.rows,
            change,
            patches: None,
        });
    }
}

fn change(name: String, float32: bool) -> TensorChange {
    TensorChange { name, rows: HeadOrder::Same, numbers: None, float32 }
}

/// Returns the pixels of each side of the square that a tower was made for, or of the largest
/// picture.
fn side_of(tower: &Tower) -> u64 {
    match (&tower.positions, tower.input.resize) {
        (Some(PatchPositions::Square { side, .. }), _) => side.saturating_mul(tower.input.patch),
        (_, PictureResize::Longest { longest, .. }) => longest,
        _ => USUAL_SIDE,
    }
}
