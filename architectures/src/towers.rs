//! Readers of towers: from the documents of a folder, or the headers of GGUF files, to the part of
//! the blueprint that sees pictures.

mod embedded;
mod gemma3;
mod gemma4;
mod gguf;
mod gguf_vision;
mod idefics3;
mod internvl;
mod lfm2_vl;
mod llava;
mod pixtral;
mod projector_file;
mod projectors;
mod qwen2_vl;
mod qwen3_vl;
mod siglip;
mod tile_projectors;

pub use projector_file::{PatchChange, ProjectorFile, ProjectorTensor};

use formats::Gguf;
use serde_json::{Map, Value};

use crate::blueprint::check::MOST_ROWS;
use crate::blueprint::{Activation, Blueprint, PictureResize, Pictures, ProjectorLayer, Tower};
use crate::config_json::{self, Config};
use crate::dense::projection;
use crate::keys_read::KeysRead;
use crate::picture_settings::picture_input;
use crate::rope::RopeAxes;
use crate::{Architecture, Error, PictureInput, TensorNames, names};

/// Documents with the settings of a folder's pictures, the first one that applies first.
pub const PICTURE_DOCUMENTS: [&str; 2] = ["processor_config.json", "preprocessor_config.json"];

/// Tower, and the axes of the decoder's rotary embedding if its tokens have several positions.
struct FoundTower {
    tower: Tower,
    axes: Option<RopeAxes>,
    /// Whether the rows of a picture see each other in layers with a window only.
    is_bidirectional_in_windows: bool,
}

impl FoundTower {
    /// Creates a value for a decoder whose layers treat pictures in the same way.
    fn new(tower: Tower, axes: Option<RopeAxes>) -> Self {
        Self { tower, axes, is_bidirectional_in_windows: false }
    }
}

/// The sources of a tower.
#[derive(Clone, Copy)]
struct Source<'a> {
    /// Config of the whole model.
    whole: Config<'a>,
    /// Config of the tower.
    tower: Config<'a>,
    names: &'a TensorNames,
    /// Width of the decoder.
    hidden: u64,
    /// Contents of the [documents](PICTURE_DOCUMENTS) that there are.
    settings: &'a [Vec<u8>],
}

type ReadTower = fn(Source<'_>) -> Result<FoundTower, Error>;

/// Readers by `model_type` of the whole model.
const READERS: [(&str, ReadTower); 15] = [
    ("gemma3", gemma3::read),
    ("gemma4", gemma4::read),
    ("idefics3", idefics3::read),
    ("internvl", internvl::read),
    ("lfm2_vl", lfm2_vl::read),
    ("llava", llava::read),
    ("llava_next", llava::read),
    ("mistral3", pixtral::read),
    ("qwen2_vl", qwen2_vl::read),
    ("qwen2_5_vl", qwen2_vl::read),
    ("qwen3_vl", qwen3_vl::read),
    ("qwen3_vl_moe", qwen3_vl::read),
    ("qwen3_5", qwen3_vl::read),
    ("qwen3_5_moe", qwen3_vl::read),
    ("smolvlm", idefics3::read),
];

impl Architecture {
    /// Adds the tower of a folder. `config` is its `config.json`, `settings` are the contents of
    /// the [documents](PICTURE_DOCUMENTS) that it has, and `names` are the names of the model's
    /// tensors. A model whose tower cannot be run says why in its blueprint; it still generates
    /// text.
    #[must_use]
    pub fn with_pictures(self, config: &[u8], settings: &[Vec<u8>], names: &TensorNames) -> Self {
        let Ok(Value::Object(map)) = serde_json::from_slice(&formats::json::tolerant(config)) else { return self };
        let read = KeysRead::default();
        if !map.contains_key("vision_config") {
            return self;
        }
        let whole = Config::new(&map, &read);
        let names = names.map(names::of_folder);
        let found = read_tower((whole, &read), &names, self.blueprint.hidden, settings);
        self.with_tower(found, &names)
    }

    /// Adds the tower of a GGUF file. `model` is the header of the model, `projector` is the header
    /// of its projector file if it has one, and `names` are the names of the tensors of both. A
    /// model whose tower cannot be run says why in its blueprint; it still generates text.
    #[must_use]
    pub fn with_projector(self, model: &Gguf<'_>, projector: Option<&Gguf<'_>>, names: &TensorNames) -> Self {
        let architecture = model.text("general.architecture").unwrap_or_default();
        let names = names.map(|name| names::canonical(architecture, name));
        let found = gguf::read(model, projector, &names, self.blueprint.hidden);
        self.with_tower(found, &names)
    }

    fn with_tower(mut self, found: Result<Option<FoundTower>, Error>, names: &TensorNames) -> Self {
        let found = match found {
            Ok(None) => return self,
            Ok(Some(found)) => found,
            Err(error) => {
                self.blueprint.pictures = Some(Pictures::Unsupported(error.to_string()));
                return self;
            }
        };
        let mut with_tower = self.blueprint.clone();
        with_tower.pictures = Some(Pictures::Supported(Box::new(found.tower)));
        for attention in with_tower.attentions_mut() {
            attention.has_causal_pictures = found.is_bidirectional_in_windows && attention.window.is_none();
            if let Some(rope) = &mut attention.rope {
                rope.axes = found.axes;
            }
        }
        let checked = with_tower.check().and_then(|blueprint| {
            if let Some(name) = blueprint.read_by_tower().find(|name| !names.has(name)) {
                return Err(format!("the tensor `{name}` of the tower is missing"));
            }
            match unread(&blueprint, &self.blueprint, names) {
                None => Ok(blueprint),
                Some(name) => {
                    Err(format!("the tower has the tensor `{name}`, which is not known for towers of its kind"))
                }
            }
        });
        match checked {
            Ok(blueprint) => self.blueprint = blueprint,
            Err(reason) => self.blueprint.pictures = Some(Pictures::Unsupported(reason)),
        }
        self
    }
}

impl Config<'_> {
    /// Returns the base of a tower's rotary embedding, whose angles are by row and column; `usual`
    /// if the config omits it.
    fn theta_of_tower(self, usual: f64) -> Result<f64, Error> {
        let Some(own) = self.object("rope_parameters")? else {
            return Ok(self.float("rope_theta")?.unwrap_or(usual));
        };
        match own.text("rope_type") {
            None | Some("axial" | "default") => Ok(own.float("rope_theta")?.unwrap_or(usual)),
            Some(other) => {
                Err(config_json::fail(format!("the rotary embedding of the tower is `{other}`, expected `axial`")))
            }
        }
    }
}

/// Returns a tensor in a layer of the tower, or of a tower in a GGUF file, that the tower does not
/// read. `with_tower` is the blueprint with the tower, `decoder` the one without.
fn unread<'n>(with_tower: &Blueprint, decoder: &Blueprint, names: &'n TensorNames) -> Option<&'n str> {
    let (all, of_decoder) = (with_tower.reads(), decoder.reads());
    // Files of Ollama have the bounds of projections again in one tensor.
    let has_bounds = names.iter().any(|name| name.ends_with(".input_min"));
    let is_computed = |name: &str| {
        name.ends_with(".inv_freq") || name.ends_with(".position_ids") || (name == "v.clamp_data" && has_bounds)
    };
    let is_of_tower =
        |name: &str| gguf_vision::is_of_tower(name) || (all.has_layer_of(name) && !of_decoder.has_layer_of(name));
    names.iter().find(|name| is_of_tower(name) && !all.has(name) && !is_computed(name))
}

/// Returns the tower; `None` if the model was made for text only.
fn read_tower(
    (whole, keys): (Config<'_>, &KeysRead),
    names: &TensorNames,
    hidden: u64,
    settings: &[Vec<u8>],
) -> Result<Option<FoundTower>, Error> {
    let Some(tower) = whole.object("vision_config")? else { return Ok(None) };
    let kind = whole.text("model_type").unwrap_or_default();
    let Some((_, read)) = READERS.iter().find(|(own, _)| *own == kind) else {
        let known: Vec<&str> = READERS.iter().map(|(own, _)| *own).collect();
        let known = known.join(", ");
        return Err(config_json::fail(format!("the tower of `{kind}` cannot be run yet, expected one of {known}")));
    };
    tower.text("model_type");
    let found = read(Source { whole, tower, names, hidden, settings })?;
    match keys.unread(kind, tower.map()).as_slice() {
        [] => Ok(Some(found)),
        [key, ..] => Err(config_json::fail(format!("`{key}` of the tower is not known, and may change what it sees"))),
    }
}

/// Bounds the pixels of a picture. Larger pictures shrink further than in transformers; llama.cpp
/// has the same bound.
fn bounded(mut input: PictureInput) -> PictureInput {
    if let PictureResize::Area { multiple, least, most } = input.resize {
        let bound = MOST_ROWS.saturating_mul(multiple).saturating_mul(multiple);
        input.resize = PictureResize::Area { multiple, least: least.min(bound), most: most.min(bound) };
    }
    input
}

impl Source<'_> {
    /// Returns the prefix of the tower's tensors among the possible ones: the first one below which
    /// there is the tensor `own`.
    fn prefix(&self, possible: &[&'static str], own: &str) -> Result<&'static str, Error> {
        let found = possible.iter().find(|prefix| self.names.has(&format!("{prefix}{own}")));
        found.copied().ok_or_else(|| {
            let name = format!("{}{own}", possible.first().unwrap_or(&""));
            config_json::fail(format!("there is a `vision_config`, but no tensor `{name}`"))
        })
    }

    /// Checks that pictures have three channels.
    fn check_channels(&self) -> Result<(), Error> {
        match self.tower.unsigned("num_channels")?.filter(|channels| *channels != 3) {
            None => Ok(()),
            Some(channels) => Err(config_json::fail(format!("`num_channels` of the tower is {channels}, expected 3"))),
        }
    }

    /// Returns two layers of a projector, `linear_1` and `linear_2` of the module `root`, with the
    /// activation of the key `projector_hidden_act` between them. The first one makes rows of
    /// `width` elements.
    fn perceptron(&self, root: &str, width: u64) -> Result<Vec<ProjectorLayer>, Error> {
        let activation = self.whole.activation("projector_hidden_act", Activation::Gelu)?;
        let layer = |module: &str, width: u64, activation: Option<Activation>| ProjectorLayer {
            width,
            projection: projection(self.names, &format!("{root}{module}")),
            activation,
        };
        Ok(vec![layer("linear_1", width, Some(activation)), layer("linear_2", self.hidden, None)])
    }

    /// Returns the steps from a picture of one size to patches, after checking that the tower was
    /// made for `side` patches of each side.
    fn input_of_square(&self, [side, patch]: [u64; 2]) -> Result<PictureInput, Error> {
        let input = self.input(patch)?;
        let [width, height] = match input.resize {
            PictureResize::Fixed { width, height }
            | PictureResize::Cropped { width, height, .. }
            | PictureResize::Arranged { width, height, .. } => [width, height],
            PictureResize::Tiles { tile, .. } | PictureResize::Padded { tile, .. } => [tile; 2],
            PictureResize::Square { side, .. } => [side; 2],
            other => return Err(config_json::fail(format!("the tower takes squares, the processor makes {other:?}"))),
        };
        if [width, height].iter().all(|pixels| pixels.checked_div(input.patch) == Some(side)) {
            return Ok(input);
        }
        Err(config_json::fail(format!(
            "the tower takes {side} patches of each side of a picture, the processor makes pictures of {width} x {height} \
             pixels and patches of {}",
            input.patch
        )))
    }

    /// Returns the steps from a picture to patches. `patch` is the number of pixels of a patch's
    /// side.
    fn input(&self, patch: u64) -> Result<PictureInput, Error> {
        let has_processor = |raw: &&Vec<u8>| {
            let map: Result<Map<String, Value>, _> = serde_json::from_slice(&formats::json::tolerant(raw));
            map.is_ok_and(|map| map.contains_key("image_processor") || map.contains_key("image_processor_type"))
        };
        // Processors of other inputs have such documents, too.
        let found = self.settings.iter().find(has_processor).or(self.settings.first());
        let raw = found.ok_or_else(|| {
            let names = PICTURE_DOCUMENTS.join("` nor `");
            config_json::fail(format!("there is neither `{names}`, which say how pictures are resized"))
        })?;
        Ok(bounded(picture_input(raw, patch)?))
    }
}
