//! Asks for the weights of a model before they are needed, in the order of layers.
//!
//! Mapped pages are read when somebody touches them, and how far the system reads ahead of that is not ours to say. So a thread
//! asks for one array after the other, while documents are parsed and layers are computed. What is in memory already costs
//! next to nothing. Experts are left out: those that nobody chooses are not read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use architectures::Blueprint;
use memmap2::Advice;
use protocol::Array;

use crate::mapped::{Blob, Blobs};

/// The thread that asks. It ends when all is asked for, or with this.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Begins; nobody needs to wait for it.
    pub(crate) fn begin(blueprint: &Blueprint, tensors: &[protocol::Tensor], blobs: &Blobs) -> Self {
        // A place that no blob has is somebody else's to report.
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

    /// Waits until all is asked for.
    #[cfg(test)]
    pub(crate) fn wait(mut self) {
        self.thread.take().expect("a thread").join().expect("it ends");
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it is written by the thread itself.
            let _ = thread.join();
        }
    }
}

/// The arrays that every token needs, in the order of layers.
fn arrays<'a>(blueprint: &Blueprint, tensors: &'a [protocol::Tensor]) -> Vec<&'a Array> {
    let by_name: HashMap<&str, &protocol::Tensor> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let named = blueprint.read_by_every_token().filter_map(|name| by_name.get(name));
    named.flat_map(|tensor| std::iter::once(&tensor.weight).chain(&tensor.scale).chain(&tensor.bias)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Fixture, folder};

    #[test]
    fn layers_are_in_their_order_and_experts_are_left_out() {
        let Some(hf) = folder() else { return };
        let fixture = Fixture::read(&hf, "qwen2_moe").expect("it is read");
        let named: Vec<&str> = arrays(&fixture.blueprint, &fixture.plan.tensors)
            .into_iter()
            .filter_map(|array| fixture.plan.tensors.iter().find(|tensor| tensor.weight == *array))
            .map(|tensor| tensor.name.as_str())
            .collect();
        let layer = |name: &&str| name.split('.').find_map(|word| word.parse::<usize>().ok()).unwrap_or(usize::MAX);
        assert!(named.is_sorted_by_key(layer), "{named:?}");
        let has = |part: &str| named.iter().any(|name| name.contains(part));
        assert!(has("layers.1.self_attn.q_proj") && has("shared_expert.") && has("mlp.gate.weight"), "{named:?}");
        assert!(has("lm_head") && !has(".experts.") && !has("embed_tokens"), "{named:?}");
    }
}
