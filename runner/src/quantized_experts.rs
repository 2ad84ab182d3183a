//! Compares experts in fewer bits with the same experts in float: how close logits stay, both with
//! the quantized model's choice of experts and with the float model's.

use std::sync::Arc;

use anyhow::Result;
use formats::codec::{self, Encoded, EncodingTarget};
use formats::{Dtype, Encoding, GgmlType};
use protocol::Array;

use crate::decoder::{Decoder, LayerBackends};
use crate::fixtures::{Fixture, cache, cpu, folder, logits, median_cosine, numbers};
use crate::layers::experts::tape;
use crate::mapped::Blobs;
use crate::weights::Weights;

/// Loads the fixture with its experts in another encoding.
fn quantized(fixture: &Fixture, encoding: Encoding, at: &std::path::Path) -> Result<Decoder> {
    let weights = Weights::map(&fixture.plan, &fixture.blobs)?;
    let mut plan = fixture.plan.clone();
    let mut bytes = Vec::new();
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.name.contains(".experts.")) {
        let shape: Vec<usize> = tensor.shape.iter().map(|size| *size as usize).collect();
        let numbers = weights.numbers(&architectures::Tensor::named(&tensor.name), &shape)?;
        let target = EncodingTarget { encoding, float: Dtype::F16, global_scale: None };
        let mut encoded = Encoded::default();
        codec::encode(&numbers, shape[1], target, &mut encoded);
        let mut put = |data: &[u8], dtype: &str| {
            let offset = bytes.len() as u64;
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            Array { blob: 0, offset, size: data.len() as u64, dtype: dtype.to_owned() }
        };
        let codes = if matches!(encoding, Encoding::Affine { .. }) { "U32" } else { "U8" };
        tensor.weight = put(&encoded.data, codes);
        if !encoded.scale.is_empty() {
            (tensor.scale, tensor.bias) = (Some(put(&encoded.scale, "F16")), Some(put(&encoded.bias, "F16")));
        }
        tensor.dtype = encoding.quant_type().unwrap_or_default();
        tensor.group = if let Encoding::Affine { group, .. } = encoding { u64::from(group) } else { 0 };
        tensor.weight.blob = usize::MAX;
    }
    std::fs::write(at, &bytes)?;
    // All other tensors stay in their files; the new blob comes last.
    let mut files = fixture.files()?;
    files.push(at.to_owned());
    let place = files.len() - 1;
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.weight.blob == usize::MAX) {
        let arrays = [Some(&mut tensor.weight), tensor.scale.as_mut(), tensor.bias.as_mut()];
        arrays.into_iter().flatten().for_each(|array| array.blob = place);
    }
    Decoder::load(&LayerBackends::from(&cpu()), &Weights::map(&plan, &Blobs::of_files(&files)?)?, &fixture.blueprint)
}

#[test]
#[expect(clippy::print_stdout, reason = "the numbers are what one wants to see")]
fn experts_in_few_bits_stay_close() -> Result<()> {
    let Some(hf) = folder() else { return Ok(()) };
    let place = tempfile::tempdir()?;
    for name in ["qwen3_moe", "mixtral", "olmoe", "deepseek_v3"] {
        let fixture = Fixture::read(&hf, name)?;
        let ids = numbers(&fixture.facts()?["sequences"]["s100"]["input_ids"]);
        let float = fixture.decoder(&cpu())?;
        let (expected, choices) = tape::record(|| logits(&float, &mut cache(&float)?, &ids));
        let expected = expected?;
        for (label, encoding) in
            [("q8_0", Encoding::Blocks(GgmlType::Q8_0)), ("int4", Encoding::Affine { bits: 4, group: 32 })]
        {
            let decoder = Arc::new(quantized(&fixture, encoding, &place.path().join(format!("{name}-{label}")))?);
            let free = logits(&decoder, &mut cache(&decoder)?, &ids)?;
            let routed = tape::play(choices.clone(), || logits(&decoder, &mut cache(&decoder)?, &ids))?;
            let width = expected.len() / ids.len();
            let [free, routed] = [free, routed].map(|found| median_cosine(&found, &expected, width));
            println!("{name}, experts in {label}: median cosine {free:.5}, with float routing {routed:.5}");
            assert!(label != "q8_0" || routed > 0.99, "{name}: {routed}");
            assert!(routed > 0.9, "{name} {label}: {routed}");
        }
    }
    Ok(())
}
