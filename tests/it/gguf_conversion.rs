//! Conversions of metadata between GGUF and Hugging Face: headers equal those of the reference
//! writers, and a round trip preserves the model.

use std::path::Path;

use architectures::exchange::HeadOrder;
use architectures::{Architecture, Document, HeadLayout, Mixer, RopeScaling, TensorNames, describe};
use export::{GgufModel, HuggingFaceFiles, HuggingFaceModel, folder_documents, gguf_metadata};
use formats::gguf::{Endian, NewTensor, OwnedValue, write_header};
use formats::{Dtype, GgmlType, Gguf};
use serde_json::Value as Json;

use crate::support::{files, fixtures, json, list, models, name, read, skip};

#[test]
fn writes_headers_like_the_reference() {
    let Some(folder) = fixtures("gguf_conversion::writes_headers_like_the_reference", "gguf/meta") else { return };
    let mut compared = 0;
    for path in files(&folder, "gguf") {
        let bytes = read(&path);
        let gguf = Gguf::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", name(&path)));
        if (gguf.version, gguf.endian) != (3, Endian::Little) {
            continue;
        }
        let metadata: Vec<(String, OwnedValue)> =
            gguf.metadata.iter().map(|(key, value)| ((*key).to_owned(), OwnedValue::from(value))).collect();
        let tensor = |tensor: &formats::gguf::TensorInfo<'_>| NewTensor {
            name: tensor.name.to_owned(),
            kind: tensor.kind,
            dims: tensor.dims.clone(),
        };
        let tensors: Vec<NewTensor> = gguf.tensors.iter().map(tensor).collect();
        let header = write_header(&metadata, &tensors).unwrap_or_else(|e| panic!("{}: {e}", name(&path)));
        assert_eq!(header.bytes.len() as u64, gguf.data_start, "{}", name(&path));
        // A file without tensors may end before the padding.
        let kept = header.bytes.len().min(bytes.len());
        assert!(header.bytes[..kept] == bytes[..kept], "{}: other bytes", name(&path));
        compared += 1;
    }
    assert!(compared >= 18, "only {compared} files were compared");
}

#[test]
fn folders_come_back() {
    let Some(folder) = fixtures("gguf_conversion::folders_come_back", "hf") else { return };
    for (fixture, losses) in [
        ("llama", 0),
        ("llama-tied-rope3", 0),
        ("llama-spm", 2),
        ("gemma3_text", 0),
        ("qwen2", 1),
        ("qwen3", 1),
        ("gemma", 0),
        ("granite", 0),
        ("phi3", 0),
    ] {
        check_folder(fixture, &folder.join(fixture).join("model"), losses);
    }
}

/// Returns the canonical names of a folder's tensors.
fn names(folder: &Path) -> TensorNames {
    let headers = files(folder, "safetensors").into_iter().map(|path| {
        let bytes = read(&path);
        formats::safetensors::Header::parse(&bytes, bytes.len() as u64).expect("a header")
    });
    headers.flat_map(|header| header.tensors).map(|tensor| tensor.name).collect()
}

fn of_config(config: &[u8], names: &TensorNames) -> Architecture {
    describe(Document::Config(config), names).expect("a config")
}

fn of_gguf(gguf: &Gguf<'_>) -> Architecture {
    let names = gguf.tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
    describe(Document::Gguf(gguf), &names).expect("it is described")
}

/// Returns the architecture as a folder describes it: rotary halves and norms as in Hugging Face's
/// files, and float32 values in their shortest decimal form.
fn as_folder(mut architecture: Architecture, like: &Architecture) -> Architecture {
    let like = like.blueprint.norm.as_ref().expect("a norm before the output");
    let (offset, epsilon) = (like.offset, like.epsilon);
    let own = architecture.blueprint.norm.as_mut().expect("a norm before the output");
    (own.offset, own.epsilon) = (offset, epsilon);
    for layer in &mut architecture.blueprint.layers {
        let Mixer::Attention(attention) = &mut layer.mixer else { panic!("all layers attend") };
        attention.layout = HeadLayout::Half;
        let mut residuals = [&mut layer.mixer_residual, &mut layer.ffn_residual];
        for scale in residuals.iter_mut().filter_map(|residual| residual.scale.as_mut()) {
            *scale = (*scale as f32).to_string().parse().expect("a number");
        }
        let norms = residuals.into_iter().flat_map(|residual| [&mut residual.before, &mut residual.after]);
        for norm in norms.chain([&mut attention.query_norm, &mut attention.key_norm]).flatten() {
            (norm.offset, norm.epsilon) = (offset, epsilon);
        }
    }
    architecture
}

fn check_folder(fixture: &str, folder: &Path, losses: usize) {
    let document = |name: &str| read(&folder.join(name));
    let (config, names) = (document("config.json"), names(folder));
    let architecture = of_config(&config, &names);
    let tokenizer_config = json(&folder.join("tokenizer_config.json"));
    let template = tokenizer_config["chat_template"].as_str().map(|text| ("default".to_owned(), text.to_owned()));
    let templates: Vec<_> = template.into_iter().collect();
    let metadata = gguf_metadata(&HuggingFaceModel {
        architecture: &architecture,
        name: fixture,
        kind: Some(GgmlType::F32),
        config: &config,
        tokenizer: &document("tokenizer.json"),
        tokenizer_config: Some(&document("tokenizer_config.json")),
        generation_config: Some(&document("generation_config.json")),
        chat_templates: &templates,
    });
    let metadata = metadata.unwrap_or_else(|e| panic!("{fixture}: {e}"));
    assert_eq!(metadata.losses.len(), losses, "{fixture}: {:?}", metadata.losses);
    let divisors = metadata.extra_tensors.first().map(|tensor| &tensor.numbers[..]);
    let header = write_header(&metadata.keys, &new_tensors(&architecture, folder)).expect("a header");
    let gguf = Gguf::parse_header(&header.bytes).expect("it is read");

    let read = of_gguf(&gguf);
    let model = GgufModel { gguf: &gguf, architecture: &read, dtype: Dtype::F32, rope_divisors: divisors };
    let back = folder_documents(&model).unwrap_or_else(|e| panic!("{fixture}: {e}"));
    let returned = of_config(file(&back, "config.json"), &names);
    assert_eq!(returned.family.name, architecture.family.name, "{fixture}");
    let (mut expected, mut found) = (architecture.blueprint.clone(), returned.blueprint.clone());
    if fixture == "gemma3_text" {
        // The conversion folds the scale of Gemma's attention into the weights of a norm.
        for blueprint in [&mut expected, &mut found] {
            for layer in &mut blueprint.layers {
                let Mixer::Attention(attention) = &mut layer.mixer else { panic!("all layers attend") };
                attention.scale = 1.0;
            }
        }
    }
    assert_eq!(found, expected, "{fixture}");
    check_ends(fixture, &back, folder);
    if fixture != "llama-spm" {
        // The conversion changes the kind of the SentencePiece tokenizer of `llama-spm`.
        let returned: Json = serde_json::from_slice(file(&back, "tokenizer.json")).expect("JSON");
        let original = json(&folder.join("tokenizer.json"));
        assert_eq!(returned["added_tokens"], original["added_tokens"], "{fixture}");
        assert_eq!(returned["pre_tokenizer"].is_null(), fixture.starts_with("gemma"), "{fixture}");
        let merges = |json: &Json| list(&json["model"]["merges"]).len();
        assert!(merges(&returned) >= merges(&original), "{fixture}");
    }
}

/// GGUF files of each family become folders that describe the same model.
#[test]
fn files_of_every_family_become_folders() {
    let Some(folder) = fixtures("gguf_conversion::files_of_every_family_become_folders", "gguf/models") else { return };
    for fixture in ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text-pattern", "smollm3", "granite", "phi3"]
    {
        let bytes = read(&folder.join(fixture).join("model.gguf"));
        let gguf = Gguf::parse(&bytes).expect("a GGUF file");
        let architecture = of_gguf(&gguf);
        let model = GgufModel { gguf: &gguf, architecture: &architecture, dtype: Dtype::F32, rope_divisors: None };
        let made = folder_documents(&model).unwrap_or_else(|e| panic!("{fixture}: {e}"));
        let unsaid = made.losses.iter().find(|loss| loss.contains("config.json"));
        assert_eq!(unsaid, None, "{fixture}");
        let form = architecture.family.gguf.architecture;
        let canonical = |name: &str| architectures::names::canonical(form, name);
        let returned =
            of_config(file(&made, "config.json"), &gguf.tensors.iter().map(|tensor| canonical(tensor.name)).collect());
        assert_eq!(returned.blueprint, as_folder(architecture, &returned).blueprint, "{fixture}");
        let config: Json = serde_json::from_slice(file(&made, "config.json")).expect("JSON");
        // The biases of qwen2's attention are implied by its class, and not in the config.
        assert!(config["attention_bias"] != Json::Bool(true), "{fixture}: {config}");
    }
}

/// Properties that the other format cannot express are refused or reported.
#[test]
fn what_the_other_format_cannot_say_is_told() {
    let base =
        r#""hidden_size":64,"intermediate_size":128,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":320"#;
    let llama3 = r#""rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
        "original_max_position_embeddings":64}"#;
    for (config, says) in [
        (r#""model_type":"mistral","num_hidden_layers":2,"sliding_window":16"#.to_owned(), "sliding layers"),
        (r#""model_type":"smollm3","num_hidden_layers":2,"no_rope_layers":[0,1]"#.to_owned(), "every fourth"),
        (r#""model_type":"llama","num_hidden_layers":2,"hidden_act":"gelu""#.to_owned(), "means SiLU"),
        (format!(r#""model_type":"qwen2","num_hidden_layers":2,{llama3}"#), "Llama 3's RoPE scaling"),
    ] {
        let config = format!("{{{base},{config}}}");
        let error = of_config(config.as_bytes(), &TensorNames::default()).gguf_keys().expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    let fine = format!(r#"{{{base},"model_type":"mistral","num_hidden_layers":2,"sliding_window":null}}"#);
    assert!(of_config(fine.as_bytes(), &TensorNames::default()).gguf_keys().is_ok());

    let keys = |more: &[(&str, OwnedValue)]| {
        let number = |key: &str, number: u32| (format!("llama.{key}"), OwnedValue::from(number));
        let mut keys = vec![
            ("general.architecture".to_owned(), OwnedValue::from("llama")),
            number("block_count", 2),
            number("context_length", 64),
            number("embedding_length", 64),
            number("feed_forward_length", 64),
            number("attention.head_count", 4),
            number("vocab_size", 32),
        ];
        keys.extend(more.iter().map(|(key, value)| (format!("llama.{key}"), value.clone())));
        keys
    };
    for (more, says) in [
        (vec![("attention.sliding_window", OwnedValue::from(16u32))], "which layers slide"),
        (vec![("attention.scale", 0.5f32.into())], "how attention scores are scaled"),
        (vec![], ""),
    ] {
        let header = write_header(&keys(&more), &[]).expect("a header");
        let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
        let architecture = of_gguf(&gguf);
        let model = GgufModel { gguf: &gguf, architecture: &architecture, dtype: Dtype::F32, rope_divisors: None };
        let losses = folder_documents(&model).expect("documents").losses.join("; ");
        assert_eq!(losses.contains("cannot express"), !says.is_empty(), "{losses}");
        assert!(losses.contains(says), "{losses}");
    }
}

fn new_tensors(architecture: &Architecture, folder: &Path) -> Vec<NewTensor> {
    let mut new = Vec::new();
    for path in files(folder, "safetensors") {
        let bytes = read(&path);
        let header = formats::safetensors::Header::parse(&bytes, bytes.len() as u64).expect("a header");
        for tensor in header.tensors {
            let change = architecture.tensor_to_gguf(&tensor.name, tensor.shape.len()).expect("it has a name");
            let Some(change) = change else { continue };
            let rotated = change.rows != HeadOrder::Same;
            let interleaved = architecture.family.gguf.layout == HeadLayout::Interleaved;
            assert_eq!(rotated, interleaved && (change.name.contains("attn_q.") || change.name.contains("attn_k.")));
            assert_eq!(change.float32, tensor.shape.len() == 1, "{}", tensor.name);
            new.push(NewTensor {
                name: change.name,
                kind: GgmlType::F32,
                dims: tensor.shape.iter().rev().copied().collect(),
            });
        }
    }
    new
}

/// Asserts that the conversion preserves the tokens that end a generation.
fn check_ends(fixture: &str, back: &HuggingFaceFiles, folder: &Path) {
    let ends = |config: &Json| {
        let mut ends: Vec<u64> = match &config["eos_token_id"] {
            Json::Array(ids) => ids.iter().filter_map(Json::as_u64).collect(),
            single => single.as_u64().into_iter().collect(),
        };
        ends.sort_unstable();
        ends
    };
    let returned: Json = serde_json::from_slice(file(back, "generation_config.json")).expect("JSON");
    assert_eq!(ends(&returned), ends(&json(&folder.join("generation_config.json"))), "{fixture}");
}

fn file<'a>(files: &'a HuggingFaceFiles, name: &str) -> &'a [u8] {
    let found = files.files.iter().find(|(own, _)| own == name);
    &found.unwrap_or_else(|| panic!("there is no {name}")).1
}

#[test]
fn real_files_become_folders() {
    const TEST: &str = "gguf_conversion::real_files_become_folders";
    let file_of = |name: &str| Some(models()?.join(name)).filter(|path| path.is_file());
    for (name, tokens, merges) in
        [("smollm2-135m-q4_1.gguf", 49_152, 48_900), ("gemma3-270m-q4_k_m.gguf", 262_144, 513_511)]
    {
        let Some(path) = file_of(name) else {
            skip(TEST, &format!("there is no model {name}"));
            continue;
        };
        let bytes = read(&path);
        let gguf = Gguf::parse(&bytes).expect("a GGUF file");
        let architecture = of_gguf(&gguf);
        let model = GgufModel { gguf: &gguf, architecture: &architecture, dtype: Dtype::Bf16, rope_divisors: None };
        let folder = folder_documents(&model).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(folder.losses.is_empty(), "{name}: {:?}", folder.losses);
        let names = gguf.tensors.iter().map(|tensor| {
            let change = architecture.tensor_to_hugging_face(&architectures::names::canonical(
                architecture.family.gguf.architecture,
                tensor.name,
            ));
            change.expect("it is in the folder").name
        });
        let returned = of_config(file(&folder, "config.json"), &names.collect());
        let epsilon = returned.blueprint.epsilon();
        assert_eq!(epsilon.to_bits() == 1e-5f64.to_bits(), name.starts_with("smollm2"), "{epsilon}");
        let like = as_folder(architecture, &returned);
        assert_eq!(returned.blueprint, like.blueprint, "{name}");
        assert_eq!(returned.rope_scaling(), Some(RopeScaling::None));
        let tokenizer: Json = serde_json::from_slice(file(&folder, "tokenizer.json")).expect("JSON");
        assert_eq!(tokenizer["model"]["vocab"].as_object().map(serde_json::Map::len), Some(tokens), "{name}");
        assert_eq!(list(&tokenizer["model"]["merges"]).len(), merges, "{name}");
    }
}
