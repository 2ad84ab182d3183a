//! Adapters in llama.cpp's GGUF format.

use architectures::{Family, HeadLayout, names};
use formats::Gguf;

use super::Adapter;
use super::pairs::{Pairs, factor, refused};
use crate::inventory::read_gguf_header;
use crate::{Error, NamedFile};

/// Key of the number that is divided by the rank to give the scale.
const ALPHA: &str = "adapter.lora.alpha";

pub(super) fn read(file: &NamedFile) -> Result<Adapter, Error> {
    read_gguf_header(file, 0, |gguf, _, found, _| {
        let architecture = check(gguf, file)?;
        if let Some(tensor) = gguf.tensors.iter().find(|tensor| tensor.ollama_mxfp4_at.is_some()) {
            return Err(refused(file, &format!("`{}` has a type that was removed from the format", tensor.name)));
        }
        let mut pairs = Pairs::new(file, false);
        for tensor in &found {
            let Some((weight, factor)) = factor(&tensor.name) else {
                let reason = format!("tensor `{}` is no factor of a weight; only low-rank adapters are", tensor.name);
                return Err(refused(file, &reason));
            };
            pairs.take(&module(architecture, weight), factor, tensor)?;
        }
        // Readers of the format treat a missing key as 0.
        let alpha = gguf.get(ALPHA).map_or(Some(0.0), |_| gguf.float(ALPHA));
        let alpha = alpha.ok_or_else(|| refused(file, "its `adapter.lora.alpha` is not a number"))?;
        Ok(Adapter {
            name: file.name.clone(),
            architecture: Some(architecture.to_owned()),
            layout: Some(layout(architecture)),
            modules: pairs
                .modules(|_, rank| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f64 }), |_, _| Ok(None))?,
        })
    })
}

/// Returns the architecture of the adapter, or an error if the adapter is of an unsupported kind.
fn check<'g>(gguf: &Gguf<'g>, file: &NamedFile) -> Result<&'g str, Error> {
    match (gguf.text("general.type"), gguf.text("adapter.type")) {
        (Some("adapter"), Some("lora")) => {}
        (Some("adapter"), kind) => {
            let kind = kind.unwrap_or("none");
            return Err(refused(file, &format!("its `adapter.type` is `{kind}`, expected `lora`")));
        }
        _ => return Err(refused(file, "its `general.type` is not `adapter`: it is a model, which FROM names")),
    }
    if gguf.get("adapter.alora.invocation_tokens").is_some() {
        return Err(refused(file, "it is to be used after certain tokens only (aLoRA), which is not supported"));
    }
    gguf.text("general.architecture").ok_or_else(|| refused(file, "the key `general.architecture` is missing"))
}

/// Returns the canonical name of a weight, without `.weight`.
fn module(architecture: &str, weight: &str) -> String {
    let canonical = names::canonical(architecture, weight);
    canonical.strip_suffix(".weight").map(str::to_owned).unwrap_or(canonical)
}

fn layout(architecture: &str) -> HeadLayout {
    Family::of_gguf(architecture).map_or(HeadLayout::Half, |family| family.gguf.layout)
}
