//! Asks for the weights of a model before they are needed, in the order that layers need them.
//!
//! Mapped pages are read when somebody touches them, and how far the system reads ahead of that is not ours to say. So a thread
//! asks for one blob after the other, while documents are parsed and layers are computed. What is in memory already costs
//! next to nothing.

use std::collections::HashSet;
use std::sync::Arc;

use memmap2::Advice;

use crate::mapped::{Blob, Blobs};

/// Begins; nobody needs to wait for it.
pub(crate) fn begin(tensors: &[protocol::Tensor], blobs: &Blobs) {
    let order: Vec<Arc<Blob>> = order(tensors).into_iter().filter_map(|place| blobs.get(place).ok().cloned()).collect();
    let ask = move || {
        for blob in order {
            if let Blob::Mapped(bytes) = &*blob
                && let Err(error) = bytes.advise(Advice::WillNeed)
            {
                return tracing::debug!(%error, "weights are not read ahead");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(ask) {
        tracing::debug!(%error, "weights are not read ahead");
    }
}

/// The places of blobs by layers; what is of no layer is last, for the output needs all of it and the input a few rows.
fn order(tensors: &[protocol::Tensor]) -> Vec<usize> {
    let mut tensors: Vec<(u32, usize)> =
        tensors.iter().map(|tensor| (layer(&tensor.name).unwrap_or(u32::MAX), tensor.weight.blob)).collect();
    tensors.sort_by_key(|(layer, _)| *layer);
    let mut seen = HashSet::new();
    tensors.into_iter().map(|(_, place)| place).filter(|place| seen.insert(*place)).collect()
}

/// The first number in a name: `model.layers.12.mlp.experts.3.up_proj.weight` is of layer 12.
fn layer(name: &str) -> Option<u32> {
    name.split('.').find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use protocol::{Array, Tensor};

    use super::*;

    #[test]
    fn layers_are_in_their_order_and_the_rest_is_last() {
        let tensor = |name: &str, blob| {
            let weight = Array { blob, offset: 0, size: 2, dtype: "F16".to_owned() };
            let name = name.to_owned();
            Tensor {
                name,
                dtype: "F16".to_owned(),
                group: 0,
                shape: vec![1],
                weight,
                scale: None,
                bias: None,
                global_scale: None,
            }
        };
        let tensors = [
            tensor("model.embed_tokens.weight", 0),
            tensor("model.layers.10.mlp.up_proj.weight", 1),
            tensor("model.layers.2.mlp.experts.17.up_proj.weight", 2),
            tensor("model.layers.2.mlp.experts.18.up_proj.weight", 2),
            tensor("model.norm.weight", 3),
        ];
        assert_eq!(order(&tensors), [2, 1, 0, 3]);
    }
}
