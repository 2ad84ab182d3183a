//! Adapters of experts: with each format of adapters and each layout of experts, the logits equal
//! those of merged weights.

use std::path::Path;

use formats::GgmlType;
use formats::gguf::{NewTensor, OwnedValue, write_header};
use serde_json::json;

use super::made::{self, Matrix, Tensors, folder_of, plain, random, save};
use super::{adapted, distance, logits};
use crate::server::Server;
use crate::support::fixtures;

/// Sizes of the fixture `hf/qwen3_moe`.
const LAYERS: usize = 3;
const EXPERTS: usize = 8;
const HIDDEN: usize = 64;
const WIDTH: usize = 32;

const RANK: usize = 3;
const ALPHA: f64 = 9.0;

/// `down` and `up` for the two parameters of an expert: `gate_up_proj`, whose first rows are those
/// of the gate, and `down_proj`.
type Factors = [(Matrix, Matrix); 2];

const PARAMETERS: [&str; 2] = ["gate_up_proj", "down_proj"];
/// The projections: name, index of the parameter that contains it, first row and number of rows.
const PROJECTIONS: [(&str, usize, usize, usize); 3] =
    [("gate_proj", 0, 0, WIDTH), ("up_proj", 0, WIDTH, WIDTH), ("down_proj", 1, 0, HIDDEN)];

fn factors() -> Vec<Vec<Factors>> {
    let mut state = 1;
    let mut expert = || {
        [(HIDDEN, 2 * WIDTH), (WIDTH, HIDDEN)]
            .map(|(input, output)| (random(RANK, input, &mut state), random(output, RANK, &mut state)))
    };
    (0..LAYERS).map(|_| (0..EXPERTS).map(|_| expert()).collect()).collect()
}

/// Returns the factors of one projection.
fn of_projection(expert: &Factors, (_, parameter, first, count): (&str, usize, usize, usize)) -> (Matrix, Matrix) {
    let (down, up) = &expert[parameter];
    (down.clone(), Matrix(count, RANK, up.2[first * RANK..][..count * RANK].to_vec()))
}

/// Stacks matrices along a new first dimension. Returns the shape and the elements.
fn stack<'m>(matrices: impl Iterator<Item = &'m Matrix>) -> (Vec<u64>, Vec<f32>) {
    let all: Vec<&Matrix> = matrices.collect();
    let shape = [all.len(), all[0].0, all[0].1].map(|size| size as u64);
    (shape.to_vec(), all.iter().flat_map(|matrix| matrix.2.iter().copied()).collect())
}

/// Saves the adapter as PEFT does for modules of experts.
fn peft_modules(all: &[Vec<Factors>], folder: &Path) {
    let mut tensors = Tensors::new();
    for (layer, experts) in all.iter().enumerate() {
        for (number, expert) in experts.iter().enumerate() {
            for projection in PROJECTIONS {
                let (down, up) = of_projection(expert, projection);
                let module = format!("base_model.model.model.layers.{layer}.mlp.experts.{number}.{}", projection.0);
                tensors.insert(format!("{module}.lora_A.weight"), plain(&down));
                tensors.insert(format!("{module}.lora_B.weight"), plain(&up));
            }
        }
    }
    save(folder, &tensors, &json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}));
}

/// Saves the adapter as PEFT does for the expert parameters of transformers 5. Before version 0.19,
/// PEFT swaps the two dimensions of each parameter.
fn peft_parameters(all: &[Vec<Factors>], folder: &Path, version: &str) {
    let is_old = version < "0.19";
    let mut tensors = Tensors::new();
    for (layer, experts) in all.iter().enumerate() {
        for (parameter, wrapped) in [(0, ".base_layer"), (1, "")] {
            let factors = |expert: &Factors| {
                let (down, up) = &expert[parameter];
                if is_old { (up.transposed(), down.transposed()) } else { (down.clone(), up.clone()) }
            };
            let (downs, ups): (Vec<Matrix>, Vec<Matrix>) = experts.iter().map(factors).unzip();
            let (shape, down) = stack(downs.iter());
            let rows = ups[0].0;
            let mut up = vec![0.0; rows * RANK * EXPERTS];
            for (number, own) in ups.iter().enumerate() {
                for (at, element) in own.2.iter().enumerate() {
                    let (row, rank) = (at / RANK, at % RANK);
                    up[row * RANK * EXPERTS + rank * EXPERTS + number] = *element;
                }
            }
            let joined = (RANK * EXPERTS) as u64;
            let module = format!("base_model.model.model.layers.{layer}.mlp.experts{wrapped}");
            tensors.insert(format!("{module}.lora_A.weight"), (vec![joined, shape[2]], down));
            tensors.insert(format!("{module}.lora_B.weight"), (vec![rows as u64, joined], up));
        }
    }
    let targets = PARAMETERS.map(|parameter| format!("mlp.experts.{parameter}"));
    // `rank_pattern` overrides `r`.
    let config = json!({
        "peft_type": "LORA", "peft_version": version, "r": 64, "rank_pattern": {".*experts.*": RANK}, "lora_alpha": ALPHA,
        "target_parameters": targets,
    });
    save(folder, &tensors, &config);
}

/// Saves the adapter as mlx-lm does for stacked experts.
fn mlx(all: &[Vec<Factors>], folder: &Path) {
    let mut tensors = Tensors::new();
    for (layer, experts) in all.iter().enumerate() {
        for projection in PROJECTIONS {
            let (down, up): (Vec<Matrix>, Vec<Matrix>) =
                experts.iter().map(|own| of_projection(own, projection)).unzip();
            let module = format!("model.layers.{layer}.mlp.switch_mlp.{}", projection.0);
            tensors.insert(format!("{module}.lora_a"), stack(down.iter()));
            tensors.insert(format!("{module}.lora_b"), stack(up.iter()));
        }
    }
    let scale = ALPHA / RANK as f64;
    save(folder, &tensors, &json!({"fine_tune_type": "lora", "lora_parameters": {"rank": RANK, "scale": scale}}));
}

/// Writes the adapter as llama.cpp's converter does for stacked experts.
fn gguf(all: &[Vec<Factors>], file: &Path) {
    let mut tensors = Tensors::new();
    for (layer, experts) in all.iter().enumerate() {
        for projection in PROJECTIONS {
            let (down, up): (Vec<Matrix>, Vec<Matrix>) =
                experts.iter().map(|own| of_projection(own, projection)).unzip();
            let weight = format!("blk.{layer}.ffn_{}_exps.weight", projection.0.trim_end_matches("_proj"));
            tensors.insert(format!("{weight}.lora_a"), stack(down.iter()));
            tensors.insert(format!("{weight}.lora_b"), stack(up.iter()));
        }
    }
    let text = |text: &str| OwnedValue::from(text);
    let metadata = [
        ("general.architecture".to_owned(), text("qwen3moe")),
        ("general.type".to_owned(), text("adapter")),
        ("adapter.type".to_owned(), text("lora")),
        ("adapter.lora.alpha".to_owned(), OwnedValue::from(ALPHA as f32)),
    ];
    let new = |(name, (shape, _)): (&String, &(Vec<u64>, Vec<f32>))| NewTensor {
        name: name.clone(),
        kind: GgmlType::F32,
        dims: shape.iter().rev().copied().collect(),
    };
    let header = write_header(&metadata, &tensors.iter().map(new).collect::<Vec<_>>()).expect("a header");
    let mut bytes = header.bytes;
    let data = bytes.len();
    for (place, (_, numbers)) in header.places.iter().zip(tensors.values()) {
        bytes.resize(data + usize::try_from(place.offset).expect("small"), 0);
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }
    bytes.resize(data + usize::try_from(header.data_size).expect("small"), 0);
    std::fs::write(file, bytes).expect("a file");
}

fn merged(weights: &Tensors, all: &[Vec<Factors>]) -> Tensors {
    let mut merged = weights.clone();
    for (layer, experts) in all.iter().enumerate() {
        for (number, expert) in experts.iter().enumerate() {
            for projection in PROJECTIONS {
                let (down, up) = of_projection(expert, projection);
                let weight = format!("model.layers.{layer}.mlp.experts.{number}.{}.weight", projection.0);
                made::merge(&mut merged.get_mut(&weight).expect("an expert").1, &down, &up, ALPHA / RANK as f64);
            }
        }
    }
    merged
}

/// Returns the same weights with the experts fused as transformers 5 saves them.
fn fused(weights: &Tensors) -> Tensors {
    let mut fused = weights.clone();
    for layer in 0..LAYERS {
        let module = format!("model.layers.{layer}.mlp.experts");
        let [mut gates, mut downs] = [Vec::new(), Vec::new()];
        for number in 0..EXPERTS {
            let [gate, up, down] = PROJECTIONS.map(|(projection, ..)| {
                fused.remove(&format!("{module}.{number}.{projection}.weight")).expect("an expert").1
            });
            gates.extend(gate.into_iter().chain(up));
            downs.extend(down);
        }
        let shape = |rows: usize, columns: usize| [EXPERTS, rows, columns].map(|size| size as u64).to_vec();
        fused.insert(format!("{module}.gate_up_proj"), (shape(2 * WIDTH, HIDDEN), gates));
        fused.insert(format!("{module}.down_proj"), (shape(HIDDEN, WIDTH), downs));
    }
    fused
}

#[tokio::test]
async fn adapters_of_experts_compute_what_merged_ones_do() {
    const TEST: &str = "adapters::experts::adapters_of_experts_compute_what_merged_ones_do";
    let (Some(hf), Some(ggufs)) = (fixtures(TEST, "hf"), fixtures(TEST, "gguf/models")) else { return };
    let model = hf.join("qwen3_moe/model");
    let server = Server::start(&[("LODE_REFERENCE", "1"), ("LODE_MAX_LOADED_MODELS", "1")]).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let all = factors();
    let names = ["modules", "parameters", "old parameters", "mlx", "lora.gguf"];
    let forms = names.map(|name| place.path().join(name));
    peft_modules(&all, &forms[0]);
    peft_parameters(&all, &forms[1], "0.19.1");
    peft_parameters(&all, &forms[2], "0.18.1");
    mlx(&all, &forms[3]);
    gguf(&all, &forms[4]);

    let weights = made::weights_of(&model);
    server.create("merged", &folder_of(&model, &merged(&weights, &all), place.path().join("merged"))).await;
    server.create("each", &model).await;
    server.create("fused", &folder_of(&model, &fused(&weights), place.path().join("fused"))).await;
    server.create("stacked", &ggufs.join("qwen3_moe/model.gguf")).await;
    let expected = logits(&server, "merged").await;
    for base in ["each", "fused", "stacked"] {
        let without = logits(&server, base).await;
        assert!(distance(&without, &expected) > 0.5, "the adapter changes next to nothing");
        for (form, adapter) in names.iter().zip(&forms) {
            adapted(&server, "adapted", base, &[adapter]);
            let found = distance(&logits(&server, "adapted").await, &expected);
            assert!(found < 1e-3, "{form} on {base}: logits differ by {found}");
        }
    }
}
