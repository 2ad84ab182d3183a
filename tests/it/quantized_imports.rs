//! Imports of quantized weights: the blobs contain the source's bytes, the catalogue finds the
//! weights, and the source files can be restored bit for bit.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use content::{Algorithm, Digest};
use formats::Dtype;
use formats::encoding::Role;
use formats::safetensors::{Header, Member, canonical_header};
use import::{BlobSink, Composed, Imported, OpenBlob, Origin, ReadAt, StoredPart, StoredTensor, Target};
use manifests::{Layer, ModelConfig, media_types};

use crate::canonical_blobs::without_golden;
use crate::support::{BufferSink, entries, fixtures, import_model, name, read};

/// An import target in memory.
#[derive(Clone, Debug, Default)]
struct Blobs(Arc<Mutex<HashMap<Digest, Vec<u8>>>>);

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let begin = usize::try_from(offset).map_err(io::Error::other)?;
        let part = self.0.get(begin..begin + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn name(&self) -> String {
        "bytes".to_owned()
    }
}

impl Blobs {
    fn get(&self, digest: &Digest) -> Vec<u8> {
        let blobs = self.0.lock().expect("nobody panicked with the blobs in hand");
        blobs.get(digest).expect("the blob was stored").clone()
    }

    fn opener(&self) -> Arc<OpenBlob> {
        let blobs = self.clone();
        Arc::new(move |digest: &Digest| Ok(Arc::new(Bytes(blobs.get(digest))) as Arc<dyn ReadAt>))
    }
}

impl Target for Blobs {
    fn may_have(&self, _name: &str, _size: u64) -> bool {
        false
    }

    fn has(&self, _digest: &Digest, _size: u64) -> Result<bool, content::Error> {
        Ok(false)
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        Ok(Box::new(BufferSink::new(size, |digest, bytes| {
            self.0.lock().expect("nobody panicked with the blobs in hand").insert(digest, bytes);
            true
        })))
    }
}

/// An imported model.
struct Model {
    blobs: Blobs,
    layers: Vec<Layer>,
    config: ModelConfig,
}

impl Model {
    /// Imports a folder, restores its files from the layers, and compares them.
    fn import(folder: &Path) -> Self {
        let blobs = Blobs::default();
        let Imported { layers, .. } =
            import_model(folder, &blobs).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let files = import::locate(folder).expect("the model is there");
        let config = import::describe(&import::inventory(&files).expect("its headers can be read"));
        let model = Self { blobs, layers, config };
        model.check_rebuilt(folder);
        model
    }

    fn check_rebuilt(&self, folder: &Path) {
        let origin = self.layers.iter().find(|layer| *layer.media_type() == media_types::ORIGIN).expect("an origin");
        let origin: Origin = serde_json::from_slice(&self.blobs.get(origin.digest())).expect("the document is JSON");
        for file in &origin.files {
            let composed = Composed::new(file, &self.layers, self.blobs.opener()).expect("the layers make the file");
            let rebuilt = import::digest_of(&composed, Algorithm::Sha256).expect("its blobs can be read");
            assert_eq!(rebuilt, Digest::of(&read(&folder.join(&file.name))), "`{}`", file.name);
        }
    }

    fn catalogue(&self) -> BTreeMap<String, StoredTensor> {
        let tensors = import::catalogue(&self.layers, &*self.blobs.opener()).expect("the blobs make weights");
        tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
    }

    fn bytes(&self, part: &StoredPart) -> Vec<u8> {
        let blob = self.blobs.get(&part.blob);
        let begin = usize::try_from(part.offset).expect("small");
        blob[begin..begin + usize::try_from(part.size).expect("small")].to_vec()
    }

    /// Returns the array names of a layer's blob in the order of their bytes, and its metadata.
    fn blob(&self, layer: &str) -> (Vec<String>, BTreeMap<String, String>) {
        let layer = self.layers.iter().find(|own| own.name() == Some(layer)).expect(layer);
        let blob = self.blobs.get(layer.digest());
        let header = Header::parse(&blob, blob.len() as u64).expect("a safetensors blob");
        (header.tensors.into_iter().map(|tensor| tensor.name).collect(), header.metadata)
    }

    /// Returns the name, encoding and logical shape of each tensor.
    fn facts(&self) -> Vec<(String, String, Vec<u64>)> {
        self.catalogue().into_values().map(|t| (t.name.clone(), t.encoding.to_string(), t.shape)).collect()
    }
}

/// Writes a model's folder with a config and these arrays, whose bytes all differ.
fn written(config: &str, arrays: &[(&str, Dtype, &[u64])]) -> tempfile::TempDir {
    let member = |(name, dtype, shape): &(&str, Dtype, &[u64])| Member {
        name: (*name).to_owned(),
        dtype: *dtype,
        shape: shape.to_vec(),
        size: dtype.byte_count(shape).expect("a size"),
    };
    let members: Vec<Member> = arrays.iter().map(member).collect();
    let mut bytes = canonical_header(&members, &BTreeMap::new());
    for (number, member) in members.iter().enumerate() {
        bytes.extend((0..member.size).map(|at| (at * 7 + number as u64 * 31 + 3).to_le_bytes()[0]));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("model.safetensors"), bytes).expect("written");
    fs::write(folder.path().join("config.json"), config).expect("written");
    folder
}

/// Returns the arrays of a safetensors file by name.
fn arrays(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = read(path);
    let header = Header::parse(&bytes, bytes.len() as u64).expect("a safetensors file");
    let data = &bytes[usize::try_from(header.data_start).expect("small")..];
    let range = |from: u64, to: u64| usize::try_from(from).expect("small")..usize::try_from(to).expect("small");
    header.tensors.iter().map(|t| (t.name.clone(), data[range(t.begin, t.end)].to_vec())).collect()
}

#[test]
fn mlx_blobs_have_the_bytes_of_their_source() {
    let Some(folder) = fixtures("quantized_imports::mlx_blobs_have_the_bytes_of_their_source", "mlx") else { return };
    let mut models = entries(&folder);
    models.retain(|model| model.is_dir() && !name(model).ends_with("bf16"));
    assert_eq!(models.len(), 8, "{models:?}");
    for model in models {
        check_mlx(&without_golden(&model), &name(&model));
    }
}

fn check_mlx(folder: &tempfile::TempDir, name: &str) {
    let model = Model::import(folder.path());
    let mut source = arrays(&folder.path().join("model.safetensors"));
    let mut quantized = 0;
    for tensor in model.catalogue().into_values() {
        let base = tensor.name.strip_suffix(".weight").expect("every tensor is a weight").to_owned();
        for part in &tensor.parts {
            let from = match part.role {
                Role::Scale => format!("{base}.scales"),
                Role::Bias => format!("{base}.biases"),
                _ => tensor.name.clone(),
            };
            let expected = source.remove(&from).unwrap_or_else(|| panic!("{name}: `{from}` is not in the source"));
            assert!(model.bytes(part) == expected, "{name}: the bytes of `{}` are not those of `{from}`", part.name);
        }
        quantized += usize::from(tensor.parts.len() > 1);
        if tensor.parts.len() > 1 {
            let (names, metadata) = model.blob(&tensor.name);
            let expected: Vec<&String> = tensor.parts.iter().map(|part| &part.name).collect();
            assert_eq!(names.iter().collect::<Vec<_>>(), expected, "{name}: order of the blob");
            assert_eq!(metadata.get("quant_type"), tensor.encoding.quant_type().as_ref(), "{name}: {}", tensor.name);
            assert_eq!(metadata.get("group_size"), Some(&tensor.encoding.group_size().to_string()), "{name}");
        }
    }
    assert!(source.is_empty(), "{name}: lost are {:?}", source.keys());
    assert!(quantized >= 14, "{name}: only {quantized} weights are quantized");
    let lode = model.config.lode.expect("Lode's own facts");
    assert_eq!(lode.source_format, "mlx", "{name}");
    // Embeddings, two layers and, unless it is tied, the head: the same count as for the model in
    // BF16.
    let tied = name.contains("tied");
    assert_eq!(lode.parameter_count, if tied { 82_240 } else { 90_432 }, "{name}");
    let expected = ["4bit", "8bit", "mixed", "mxfp4", "mxfp8", "nvfp4"].into_iter().find(|kind| name.contains(kind));
    let expected = expected.map(|kind| match kind {
        "8bit" => "int8",
        "4bit" | "mixed" => "int4",
        other => other,
    });
    assert_eq!(Some(model.config.file_type.as_str()), expected, "{name}");
}

#[test]
fn mlx_experts_share_a_blob_and_layers_keep_their_biases() {
    let config = r#"{"quantization":{"group_size":32,"bits":4,"layers.0.mlp.switch_mlp.b":{"mode":"mxfp8"}}}"#;
    let folder = written(
        config,
        &[
            ("layers.0.mlp.switch_mlp.a.bias", Dtype::Bf16, &[2, 4]),
            ("layers.0.mlp.switch_mlp.a.biases", Dtype::Bf16, &[2, 4, 2]),
            ("layers.0.mlp.switch_mlp.a.scales", Dtype::Bf16, &[2, 4, 2]),
            ("layers.0.mlp.switch_mlp.a.weight", Dtype::U32, &[2, 4, 8]),
            ("layers.0.mlp.switch_mlp.b.scales", Dtype::U8, &[2, 4, 1]),
            ("layers.0.mlp.switch_mlp.b.weight", Dtype::U32, &[2, 4, 8]),
            ("q_proj.bias", Dtype::Bf16, &[4]),
            ("q_proj.biases", Dtype::F16, &[4, 1]),
            ("q_proj.scales", Dtype::F16, &[4, 1]),
            ("q_proj.weight", Dtype::U32, &[4, 4]),
        ],
    );
    let model = Model::import(folder.path());
    let (names, metadata) = model.blob("layers.0.mlp.switch_mlp");
    let group = |name: &str| format!("layers.0.mlp.switch_mlp.{name}");
    let expected = ["a.bias", "a.weight", "a.weight.scale", "a.weight.bias", "b.weight", "b.weight.scale"];
    assert_eq!(names, expected.map(group));
    let label = |key: &str| metadata.get(&group(key)).map(String::as_str);
    assert_eq!(["a.weight.quant_type", "a.weight.group_size"].map(label), [Some("int4"), Some("32")]);
    assert_eq!(["b.weight.quant_type", "quant_type"].map(label), [Some("mxfp8"), None]);
    assert_eq!(model.blob("q_proj.weight").0, ["q_proj.weight", "q_proj.weight.scale", "q_proj.weight.bias"]);
    let fact = |name: &str, kind: &str, shape: &[u64]| (name.to_owned(), kind.to_owned(), shape.to_vec());
    assert_eq!(
        model.facts(),
        [
            fact(&group("a.bias"), "BF16", &[2, 4]),
            fact(&group("a.weight"), "int4", &[2, 4, 64]),
            fact(&group("b.weight"), "mxfp8", &[2, 4, 32]),
            fact("q_proj.bias", "BF16", &[4]),
            fact("q_proj.weight", "int4", &[4, 32]),
        ]
    );
}

#[test]
fn nvfp4_of_model_opt_becomes_a_combined_blob() {
    let folder = written(
        r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}}"#,
        &[
            ("a.input_scale", Dtype::F32, &[]),
            ("a.weight", Dtype::U8, &[4, 16]),
            ("a.weight_scale", Dtype::F8_E4M3, &[4, 2]),
            ("a.weight_scale_2", Dtype::F32, &[]),
        ],
    );
    let model = Model::import(folder.path());
    let weight = &model.catalogue()["a.weight"];
    assert_eq!((weight.dtype().as_str(), weight.shape.as_slice()), ("nvfp4", &[4, 32][..]));
    let source = arrays(&folder.path().join("model.safetensors"));
    let expected = [
        (Role::Weight, Dtype::U32, "a.weight"),
        (Role::Scale, Dtype::U8, "a.weight_scale"),
        (Role::GlobalScale, Dtype::F32, "a.weight_scale_2"),
    ];
    for (part, (role, dtype, from)) in weight.parts.iter().zip(expected) {
        assert_eq!((part.role, part.dtype), (role, dtype));
        assert_eq!(model.bytes(part), source[from], "{from}");
    }
    assert_eq!(model.config.file_type, "nvfp4");
    assert!(model.catalogue().contains_key("a.input_scale"), "what is not used is kept");
}

#[test]
fn fp8_stays_as_it_came_and_is_found() {
    let folder = written(
        r#"{"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized"}}"#,
        &[
            ("a.weight", Dtype::F8_E4M3, &[8, 16]),
            ("a.weight_scale", Dtype::Bf16, &[8, 1]),
            ("b.weight", Dtype::F8_E4M3, &[8, 16]),
            ("b.weight_scale", Dtype::F32, &[1]),
        ],
    );
    let model = Model::import(folder.path());
    let names: Vec<&str> = model.layers.iter().filter_map(Layer::name).take(4).collect();
    assert_eq!(names, ["a.weight", "a.weight_scale", "b.weight", "b.weight_scale"]);
    assert_eq!(model.blob("a.weight").1, BTreeMap::new(), "the blobs are those of any tensor");
    let fact = |name: &str, kind: &str| (name.to_owned(), kind.to_owned(), vec![8, 16]);
    assert_eq!(model.facts(), [fact("a.weight", "fp8_1x16"), fact("b.weight", "fp8_8x16")]);
    assert_eq!(model.config.lode.map(|lode| lode.parameter_count), Some(256));
}

#[test]
fn real_layouts_of_their_makers_are_found() {
    let test = "quantized_imports::real_layouts_of_their_makers_are_found";
    let Some(folder) = fixtures(test, "hf") else { return };
    let fp8 = Model::import(&folder.join("qwen3-fp8/model")).catalogue();
    let down = &fp8["model.layers.0.mlp.down_proj.weight"];
    assert_eq!((down.dtype().as_str(), down.shape.as_slice(), down.parts.len()), ("fp8_48x48", &[64, 128][..], 2));
    assert!(!fp8.contains_key("model.layers.0.mlp.down_proj.weight_scale_inv"), "it belongs to the weight");
    let gpt_oss = Model::import(&folder.join("gpt_oss-mxfp4/model")).catalogue();
    let up = &gpt_oss["model.layers.0.mlp.experts.gate_up_proj"];
    assert_eq!((up.dtype().as_str(), up.shape.as_slice(), up.parts.len()), ("mxfp4", &[4, 128, 64][..], 2));
}

#[test]
fn what_contradicts_its_config_is_refused() {
    let arrays =
        [("a.biases", Dtype::Bf16, &[4, 2][..]), ("a.scales", Dtype::Bf16, &[4, 2]), ("a.weight", Dtype::U32, &[4, 8])];
    for (quantization, says) in [
        (r#"{"group_size":64,"bits":4}"#, "`a.scales` is BF16 [4, 2], expected BF16 [4, 1]"),
        (r#"{"group_size":0,"bits":4}"#, "groups of 0"),
        (r#"{"group_size":32,"bits":1e30}"#, "`bits` in config.json is 1e+30"),
        (r#"{"group_size":32,"bits":4,"a":[]}"#, "the entry in config.json is []"),
        (r#"{"group_size":32,"bits":4,"a":false}"#, "not quantized"),
        ("[1]", "config.json does not state the encoding"),
    ] {
        let folder = written(&format!(r#"{{"quantization":{quantization}}}"#), &arrays);
        let error = import_model(folder.path(), &Blobs::default()).expect_err(says).to_string();
        assert!(error.contains("`a.weight` is quantized by MLX") && error.contains(says), "`{error}`: no `{says}`");
    }
}

#[test]
fn what_cannot_be_computed_with_is_kept_and_named() {
    let folder = written(
        r#"{"quantization_config":{"quant_method":"hqq","weight_quant_params":{"nbits":4}}}"#,
        &[("a.W_q", Dtype::U8, &[4, 16]), ("a.scale", Dtype::F16, &[8, 1]), ("a.zero", Dtype::F16, &[8, 1])],
    );
    let tensors: Vec<StoredTensor> = Model::import(folder.path()).catalogue().into_values().collect();
    assert_eq!(tensors.len(), 3, "nothing says how they belong together");
    let reason = import::obstacle(&tensors, &|name| name == "a.weight", None).expect("it cannot be computed with");
    assert!(reason.contains("HQQ (`a.W_q`)"), "{reason}");
}
