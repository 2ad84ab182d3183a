//! Tests which weights of a model are read: `mincore` counts the pages of its file that are in
//! memory after a pass.
#![expect(unsafe_code, reason = "asking for the pages of a mapping")]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::{Document, TensorNames, describe};
use kernels::instructions::Instructions;
use kernels::pool::Pool;
use memmap2::Mmap;
use protocol::{Array, KvType, LoadRequest};
use serde_json::json;

use crate::backends::cpu::Cpu;
use crate::cache::{CacheShape, SlotCache};
use crate::decoder::{Decoder, LayerBackends};
use crate::mapped::Blobs;
use crate::read_ahead::ReadAhead;
use crate::weights::Weights;

const HIDDEN: u64 = 1024;
const WIDTH: u64 = 2048;
const EXPERTS: u64 = 1536;
/// The experts that every token chooses: their bias is above all scores.
const CHOSEN: [u64; 2] = [5, 900];
const PAGE: usize = 4096;

/// Tensors one after the other in a sparse file.
#[derive(Default)]
struct Sparse {
    tensors: Vec<protocol::Tensor>,
    end: u64,
}

impl Sparse {
    /// Adds a tensor of float32; returns its range of bytes.
    fn add(&mut self, name: impl Into<String>, shape: &[u64]) -> Range<u64> {
        let size = 4 * shape.iter().product::<u64>();
        // No two tensors share a page.
        let offset = self.end.next_multiple_of(PAGE as u64);
        self.end = offset + size;
        let weight = Array { blob: 0, offset, size, dtype: "F32".to_owned() };
        self.tensors.push(protocol::Tensor {
            name: name.into(),
            dtype: "F32".to_owned(),
            group: 0,
            shape: shape.to_vec(),
            weight,
            scale: None,
            bias: None,
            global_scale: None,
        });
        offset..self.end
    }
}

/// Adds a model of one layer whose experts are larger than the memory of most machines. Returns the
/// ranges of the router's bias and of each expert's tensors.
fn model(sparse: &mut Sparse) -> (Range<u64>, Vec<Vec<Range<u64>>>) {
    sparse.add("model.embed_tokens.weight", &[8, HIDDEN]);
    sparse.add("lm_head.weight", &[8, HIDDEN]);
    let layer = |name: &str| format!("model.layers.0.{name}");
    for (name, shape) in [
        ("input_layernorm.weight", &[HIDDEN][..]),
        ("post_attention_layernorm.weight", &[HIDDEN]),
        ("self_attn.q_proj.weight", &[128, HIDDEN]),
        ("self_attn.k_proj.weight", &[128, HIDDEN]),
        ("self_attn.v_proj.weight", &[128, HIDDEN]),
        ("self_attn.o_proj.weight", &[HIDDEN, 128]),
        ("block_sparse_moe.gate.weight", &[EXPERTS, HIDDEN]),
    ] {
        sparse.add(layer(name), shape);
    }
    sparse.add("model.norm.weight", &[HIDDEN]);
    let bias = sparse.add(layer("block_sparse_moe.e_score_correction_bias"), &[EXPERTS]);
    // A gap that is wider than the kernel's read-ahead.
    sparse.end += 64 << 20;
    let expert = |sparse: &mut Sparse, index: u64| {
        let own = |part: &str| layer(&format!("block_sparse_moe.experts.{index}.{part}.weight"));
        vec![
            sparse.add(own("w1"), &[WIDTH, HIDDEN]),
            sparse.add(own("w2"), &[HIDDEN, WIDTH]),
            sparse.add(own("w3"), &[WIDTH, HIDDEN]),
        ]
    };
    let experts = (0..EXPERTS).map(|index| expert(sparse, index)).collect();
    (bias, experts)
}

fn config() -> String {
    json!({
        "model_type": "minimax_m2", "vocab_size": 8, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
        "max_position_embeddings": 64, "use_qk_norm": false, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    })
    .to_string()
}

/// Returns for each page of a mapping whether it is in memory.
fn resident(map: &Mmap) -> Result<Vec<bool>> {
    let mut pages = vec![0u8; map.len().div_ceil(PAGE)];
    // SAFETY: the mapping has `map.len()` bytes, and there is a byte for each of its pages.
    let status = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    ensure!(status == 0, "mincore: {}", std::io::Error::last_os_error());
    Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
}

/// A model whose experts exceed memory runs with the memory of the experts that tokens are routed
/// to.
#[test]
#[expect(clippy::too_many_lines, reason = "one test from the file to its pages")]
fn only_the_experts_that_are_chosen_are_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    let mut sparse = Sparse::default();
    let (bias, experts) = model(&mut sparse);
    let file = File::create(&path)?;
    // The file is all zeros, and takes no space on the disk.
    if let Err(error) = file.set_len(sparse.end) {
        crate::fixtures::skipped(&format!("residency: a file of {} bytes cannot be made here: {error}", sparse.end));
        return Ok(());
    }
    for chosen in CHOSEN {
        file.write_all_at(&100f32.to_le_bytes(), bias.start + 4 * chosen)?;
    }
    let names: TensorNames = sparse.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let blueprint = describe(Document::Config(config().as_bytes()), &names)?.blueprint;
    let plan = LoadRequest {
        version: protocol::VERSION,
        model: "sparse".to_owned(),
        device: "cpu".to_owned(),
        device_note: String::new(),
        layers: Vec::new(),
        is_held: false,
        context: 64,
        slots: 1,
        kv_type: KvType::F32,
        reference: false,
        deterministic: false,
        blueprint: serde_json::to_value(&blueprint)?,
        blobs: Vec::new(),
        tensors: sparse.tensors,
        adapters: Vec::new(),
        documents: Vec::new(),
        token_table: None,
        template: None,
    };
    let blobs = Blobs::of_files(std::slice::from_ref(&path))?;
    let weights = Weights::map(&plan, &blobs)?;
    let cpu = Cpu::new(Arc::new(Pool::new(2)?), Instructions::best());
    let decoder = Arc::new(Decoder::load(&LayerBackends::from(&cpu), &weights, &blueprint)?);
    ReadAhead::begin(&blueprint, &plan.tensors.iter().collect::<Vec<_>>(), &blobs).wait();
    // SAFETY: no process writes to the file any more.
    let map = unsafe { Mmap::map(&File::open(&path)?) }?;
    let in_memory = |pages: &[bool], place: &Range<u64>| {
        let own = &pages[place.start as usize / PAGE..(place.end as usize).div_ceil(PAGE)];
        (own.iter().filter(|page| **page).count(), own.len())
    };
    let before = resident(&map)?;
    let loaded: usize = experts.iter().flatten().map(|place| in_memory(&before, place).0).sum();
    assert_eq!(loaded, 0, "a load reads no expert");
    let cache = SlotCache::new(CacheShape { context: 64, kv_type: KvType::F32 }, &decoder)?;
    let tokens = [1, 2, 3];
    decoder.forward(&tokens, &[cache.sequence(0, tokens.len())], &[])?;
    let after = resident(&map)?;
    let (mut used, mut others) = (0, 0);
    for (index, places) in (0..).zip(&experts) {
        let of = places.iter().map(|place| in_memory(&after, place));
        let (here, all) = of.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        if CHOSEN.contains(&index) {
            // The system may drop a few clean pages in the meantime.
            assert!(here + all / 100 >= all, "expert {index} was used: {here} of {all} pages are in memory");
            used += all;
        } else {
            others += here;
        }
    }
    // The kernel reads ahead of accessed pages, some MiB at most; one page in a thousand would be
    // 36 MiB.
    let all = map.len() / PAGE;
    ensure!(
        used > 0 && others < all / 200,
        "{used} pages of experts were used, {others} of others are in memory, of {all}"
    );
    ensure!(map.len() as u64 > 32 << 30, "the experts are no larger than memory");
    drop(map);
    std::fs::metadata(&path).context("the file is still there")?;
    Ok(())
}
