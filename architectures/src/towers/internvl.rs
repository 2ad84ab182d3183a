//! The tower of `InternVL` 2.5 to 3.5 as transformers saves it (`InternViT`, arXiv 2312.14238): a
//! row for the class, factors behind both parts of a layer, and tiles. The rows of squares of
//! patches are joined and projected.

use super::{FoundTower, Source};
use crate::blueprint::{
    Activation, BlockJoin, ClassRow, Ffn, Layer, Mixer, Norm, NormKind, NormedPart, PatchPositions, PictureText, Plain,
    Projector, Residual, SquareFit, Tensor, Tower,
};
use crate::config_json::fail;
use crate::dense::{attention, layer_count, layer_norm, projection};
use crate::{Error, TensorNames};

const ROOTS: [&str; 2] = ["vision_tower.", "model.vision_tower."];
/// Constants of norms that configs do not have: of the projector, and of queries and keys.
const PROJECTOR_EPSILON: f64 = 1e-5;
const HEADS_EPSILON: f64 = 1e-6;
const MARK: &str = "<IMG_CONTEXT>";

pub(super) fn read(source: Source<'_>) -> Result<FoundTower, Error> {
    let Source { whole, tower, names, .. } = source;
    let root = source.prefix(&ROOTS, "embeddings.patch_embeddings.projection.weight")?;
    if whole.value("vision_feature_layer").is_some_and(|layer| layer.as_i64() != Some(-1)) {
        return Err(fail("`vision_feature_layer` is not -1, expected the rows of the last layer"));
    }
    if let Some(other) = whole.text("vision_feature_select_strategy").filter(|own| *own != "default") {
        return Err(fail(format!("`vision_feature_select_strategy` is `{other}`, expected `default`")));
    }
    // They are for training.
    for key in ["use_mask_token", "layer_scale_init_value", "projection_dropout", "initializer_factor", "dropout"] {
        tower.value(key);
    }
    let sizes = VitSizes::of(source)?;
    let number = |key: &str, usual: u64| Ok::<_, Error>(tower.number_or_same(key)?.unwrap_or(usual));
    let patch = number("patch_size", 14)?;
    let side = number("image_size", 448)?.checked_div(patch).unwrap_or(0);
    if tower.flag("use_absolute_position_embeddings")? == Some(false) {
        return Err(fail("`use_absolute_position_embeddings` is false, expected learned positions"));
    }
    let mut input = source.input_of_square([side, patch])?;
    input.block = block(source)?;
    let table = format!("{root}embeddings.position_embeddings");
    if tower.flag("use_mean_pooling")? == Some(false) {
        return Err(fail("`use_mean_pooling` is false, expected a tower without a norm behind its last layer"));
    }
    let depth = layer_count(number("num_hidden_layers", 24)?)?;
    let tower = Tower {
        input,
        hidden: sizes.hidden,
        patches: vec![projection(names, &format!("{root}embeddings.patch_embeddings.projection"))],
        positions: Some(PatchPositions::Square {
            table: Tensor::rows(&table, 1, side.saturating_mul(side)),
            side,
            fit: SquareFit::Corners,
        }),
        class: Some(ClassRow {
            row: Tensor::named(format!("{root}embeddings.cls_token")),
            position: Tensor::rows(table, 0, 1),
        }),
        norm: None,
        layers: (0..depth).map(|index| sizes.layer(names, &format!("{root}encoder.layer.{index}"))).collect(),
        windows: None,
        projector: projector(source, if root == ROOTS[0] { "" } else { "model." })?,
        deep: Vec::new(),
        line_end: None,
        is_bidirectional: false,
        text: text(),
    };
    Ok(FoundTower::new(tower, None))
}

pub(super) fn text() -> PictureText {
    PictureText {
        mark: MARK.to_owned(),
        framed: format!("{MARK}\n"),
        before: "<img>".to_owned(),
        token: MARK.to_owned(),
        after: "</img>".to_owned(),
        ..PictureText::default()
    }
}

/// Returns the patches of each side of the squares that are joined.
fn block(source: Source<'_>) -> Result<u64, Error> {
    let ratio = source.whole.float("downsample_ratio")?.unwrap_or(0.5);
    let block = [1_u32, 2, 4, 8].into_iter().find(|block| (ratio * f64::from(*block) - 1.0).abs() < 1e-6);
    block.map(u64::from).ok_or_else(|| fail(format!("`downsample_ratio` is {ratio}, expected 1, 1/2, 1/4 or 1/8")))
}

fn projector(source: Source<'_>, before: &str) -> Result<Projector, Error> {
    let root = format!("{before}multi_modal_projector.");
    Ok(Projector {
        joined_norm: Some(layer_norm(source.names, &format!("{root}layer_norm"), PROJECTOR_EPSILON)),
        ..Projector::new(BlockJoin::Rows, source.perceptron(&root, source.hidden)?)
    })
}

/// Numbers of all layers.
struct VitSizes {
    hidden: u64,
    width: u64,
    heads: u64,
    activation: Activation,
    norm: NormKind,
    has_norms_of_heads: bool,
    epsilon: f64,
}

impl VitSizes {
    fn of(source: Source<'_>) -> Result<Self, Error> {
        let tower = source.tower;
        let hidden = tower.unsigned("hidden_size")?.unwrap_or(1024);
        let heads = tower.unsigned("num_attention_heads")?.unwrap_or(16);
        if heads == 0 || !hidden.is_multiple_of(heads) {
            return Err(fail(format!("a tower of width {hidden} has {heads} heads, expected a divisor of the width")));
        }
        source.check_channels()?;
        Ok(Self {
            hidden,
            width: tower.unsigned("intermediate_size")?.unwrap_or(4096),
            heads,
            activation: tower.activation("hidden_act", Activation::Gelu)?,
            norm: match tower.text("norm_type") {
                None | Some("layer_norm") => NormKind::Layer,
                Some("rms_norm") => NormKind::Rms,
                Some(other) => {
                    return Err(fail(format!("`norm_type` is `{other}`, expected `layer_norm` or `rms_norm`")));
                }
            },
            has_norms_of_heads: tower.flag("use_qk_norm")?.unwrap_or(false),
            epsilon: tower.float("layer_norm_eps")?.unwrap_or(1e-6),
        })
    }

    fn layer(&self, names: &TensorNames, prefix: &str) -> Layer {
        let own = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let norm = |module: &str, kind: NormKind, epsilon: f64| Norm {
            kind,
            ..layer_norm(names, &format!("{prefix}.{module}"), epsilon)
        };
        let residual = |before: &str, factors: &str| Residual {
            before: Some(norm(before, self.norm, self.epsilon)),
            after: Some(Norm::factors(Tensor::named(format!("{prefix}.{factors}")))),
            ..Residual::default()
        };
        let modules = ["q_proj", "k_proj", "v_proj", "projection_layer"];
        let modules = modules.map(|module| own(&format!("attention.{module}")));
        let mut mixer = attention(self.heads, self.hidden / self.heads, modules);
        if self.has_norms_of_heads {
            let norm = |module: &str| Some(norm(module, NormKind::Rms, HEADS_EPSILON));
            (mixer.query_norm, mixer.key_norm) = (norm("attention.q_norm"), norm("attention.k_norm"));
            mixer.normed = NormedPart::Width;
        }
        let ffn = Plain {
            width: self.width,
            activation: self.activation,
            curve: None,
            up: own("mlp.fc1"),
            down: own("mlp.fc2"),
        };
        Layer::new(
            (Mixer::Attention(Box::new(mixer)), residual("layernorm_before", "lambda_1")),
            (Ffn::Plain(Box::new(ffn)), residual("layernorm_after", "lambda_2")),
        )
    }
}
