//! Reads the weights of a model before they are needed, in the order of layers.
//!
//! Mapped pages are read when they are first accessed, and the kernel decides how far it reads
//! ahead of that. So a thread requests one array after the other, while documents are parsed and
//! layers are computed. This costs next to nothing for pages that are already in memory. Experts
//! are left out, so that unused ones are not read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use architectures::Blueprint;
use memmap2::Advice;
use protocol::{Array, BlobPart};

use crate::mapped::{Blob, Blobs};

/// The thread that requests arrays. It ends when all are requested, or when this value is dropped.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts the thread; the caller need not wait for it.
    pub(crate) fn begin(blueprint: &Blueprint, tensors: &[&protocol::Tensor], blobs: &Blobs) -> Self {
        // A blob that does not exist is reported when its tensor is mapped.
        let part =
            |array: &Array| Some((blobs.get(array.blob).ok()?.clone(), array.offset as usize, array.size as usize));
        let parts: Vec<_> = arrays(blueprint, tensors).into_iter().filter_map(part).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let ask = move || {
            for (blob, offset, size) in parts {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                if let Blob::Mapped(bytes) = &*blob
                    && let Err(error) = bytes.advise_range(Advice::WillNeed, offset, size)
                {
                    return tracing::warn!(%error, "weights are not read ahead");
                }
            }
        };
        let thread = Builder::new().name("read-ahead".to_owned()).spawn(ask);
        let thread = thread.inspect_err(|error| tracing::warn!(%error, "weights are not read ahead")).ok();
        Self { is_over, thread }
    }

    /// Waits until all arrays are requested.
    #[cfg(test)]
    pub(crate) fn wait(mut self) {
        self.thread.take().expect("a thread").join().expect("it ends");
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread itself has logged its panic.
            let _ = thread.join();
        }
    }
}

/// Returns the arrays that every token needs, in the order of layers.
fn arrays<'a>(blueprint: &Blueprint, tensors: &[&'a protocol::Tensor]) -> Vec<&'a Array> {
    let by_name: HashMap<&str, &protocol::Tensor> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), *tensor)).collect();
    let named = blueprint.read_by_every_token().filter_map(|name| by_name.get(name));
    named.flat_map(|tensor| arrays_of(tensor)).collect()
}

/// Returns the arrays of a tensor.
pub(crate) fn arrays_of(tensor: &protocol::Tensor) -> impl Iterator<Item = &Array> {
    std::iter::once(&tensor.weight).chain(&tensor.scale).chain(&tensor.bias)
}

/// Returns the matrices that a decoder multiplies by, including experts, each with its layer. They
/// are in the order in which the decoder loads them: by layer, then the matrices that belong to no
/// layer.
pub(crate) fn loaded<'a>(
    blueprint: &Blueprint,
    tensors: &'a [protocol::Tensor],
) -> Vec<(Option<usize>, &'a protocol::Tensor)> {
    let reads = blueprint.reads();
    let tables: HashSet<&str> = blueprint.row_tables().map(|table| table.name.as_str()).collect();
    let every_token: HashMap<&str, usize> =
        blueprint.read_by_every_token().enumerate().map(|(at, name)| (name, at)).collect();
    let is_loaded = |tensor: &&protocol::Tensor| {
        let is_table = || tables.contains(tensor.name.as_str());
        let is_read = every_token.contains_key(tensor.name.as_str()) || (reads.has(&tensor.name) && !is_table());
        is_read && tensor.shape.len() > 1
    };
    // The tower is loaded behind everything else, on the device of the last layer.
    let of_tower: HashSet<&str> = blueprint.read_by_tower().collect();
    let layer = |name: &str| if of_tower.contains(name) { None } else { layer_of(name) };
    let mut all: Vec<_> = tensors.iter().filter(is_loaded).map(|tensor| (layer(&tensor.name), tensor)).collect();
    // Experts come last in their layer.
    all.sort_by_key(|(layer, tensor)| {
        (layer.unwrap_or(usize::MAX), every_token.get(tensor.name.as_str()).copied().unwrap_or(usize::MAX))
    });
    all
}

/// Returns the places of a tensor's arrays.
pub(crate) fn parts_of(tensor: &protocol::Tensor) -> impl Iterator<Item = BlobPart> {
    arrays_of(tensor).map(|array| BlobPart { blob: array.blob, offset: array.offset, size: array.size })
}

/// Returns the number of the layer in a tensor's name.
fn layer_of(name: &str) -> Option<usize> {
    name.split('.').find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Fixture, folder};

    #[test]
    fn layers_are_in_their_order_and_experts_are_left_out() {
        let Some(hf) = folder() else { return };
        let fixture = Fixture::read(&hf, "qwen2_moe").expect("it is read");
        let tensors: Vec<_> = fixture.plan.tensors.iter().collect();
        let named: Vec<&str> = arrays(&fixture.blueprint, &tensors)
            .into_iter()
            .filter_map(|array| fixture.plan.tensors.iter().find(|tensor| tensor.weight == *array))
            .map(|tensor| tensor.name.as_str())
            .collect();
        let layer = |name: &&str| layer_of(name).unwrap_or(usize::MAX);
        assert!(named.is_sorted_by_key(layer), "{named:?}");
        let has = |part: &str| named.iter().any(|name| name.contains(part));
        assert!(has("layers.1.self_attn.q_proj") && has("shared_expert.") && has("mlp.gate.weight"), "{named:?}");
        assert!(has("lm_head") && !has(".experts.") && !has("embed_tokens"), "{named:?}");
    }

    #[test]
    fn experts_are_loaded_with_their_layers_and_tables_are_not() {
        let Some(hf) = folder() else { return };
        for (name, has_experts, is_tied) in [("qwen2_moe", true, false), ("gemma3_text", false, true)] {
            let fixture = Fixture::read(&hf, name).expect("it is read");
            let all = loaded(&fixture.blueprint, &fixture.plan.tensors);
            let layers: Vec<usize> = all.iter().map(|(layer, _)| layer.unwrap_or(usize::MAX)).collect();
            assert!(layers.is_sorted() && layers.contains(&0) && layers.contains(&usize::MAX), "{name}: {layers:?}");
            let has = |part: &str| all.iter().any(|(_, tensor)| tensor.name.contains(part));
            assert_eq!((has(".experts."), has("embed_tokens")), (has_experts, is_tied), "{name}");
            assert!(!has("norm") && has("down_proj"), "{name}");
            let first = all.iter().position(|(_, tensor)| tensor.name.contains("layers.1.mlp.experts."));
            let gate = all.iter().position(|(_, tensor)| tensor.name.contains("layers.1.mlp.gate.weight"));
            assert!(!has_experts || gate < first, "{name}");
        }
    }
}
