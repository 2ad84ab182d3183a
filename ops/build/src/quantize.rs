//! Models quantized from others, or from files that are not imported first.
//!
//! ```text
//! find the source ──▶ plan ──▶ look up or derive each blob ──▶ draft of the new model
//! ```
//!
//! What was derived once is found again by its key, whichever model asks. An attempt that breaks off leaves the blobs that
//! were complete under a lease; the next one finds them.

mod leased;
mod start;

use anyhow::Result;
use import::{BlobPlan, Decision, Derivation, Derived, Policy, Quantization, Reason, Reuse, Sources, TensorRow};
use library::{Library, Observer};
use manifests::Layer;

use crate::draft::Draft;
use crate::source::Source;
use crate::target::{ImportProgress, StoreTarget, ensure_space};

pub(crate) use leased::Leased;
use start::Start;

/// How tensors are to be encoded.
#[derive(Clone, Debug)]
pub struct QuantizeSpec {
    /// Which tensor gets which encoding.
    pub policy: Policy,
    /// Which tensors may be encoded again.
    pub sources: Sources,
    /// Whether what was derived before is taken as it is.
    pub reuse: Reuse,
}

/// What a quantization would do. Writes nothing.
///
/// # Errors
/// The source cannot be read, or the policy does not fit it.
pub fn plan_quantization(library: &Library, source: &Source, spec: &QuantizeSpec) -> Result<Quantization> {
    let (source, _) = source.clone().without_adapters()?;
    Start::find(library, &source)?.plan(spec)
}

/// Quantizes. What is derived is in the store when this returns; the model has no name yet. `key` is the name it will
/// have.
pub(crate) fn quantized(
    library: &Library,
    source: &Source,
    spec: &QuantizeSpec,
    key: &str,
    observer: &dyn Observer,
) -> Result<Draft> {
    let start = Start::find(library, source)?;
    let quantization = start.plan(spec)?;
    if let Some(note) = start.note() {
        observer.status(format!("note: {note}"));
    }
    report(&quantization, spec, observer);
    let derivations: Vec<&Derivation> = quantization.blobs.iter().filter_map(derivation).collect();
    let total = quantization.derived_bytes().saturating_add(start.kept_bytes(&quantization));
    ensure_space(library, total)?;
    let progress = ImportProgress::new(observer, total);
    let leased = Leased::new(library, StoreTarget::deriving(library), key)?;
    let work = || {
        let others = start.keep(library, &quantization, &progress)?;
        let derived = import::derive(&derivations, &start.model, &leased, spec.reuse, &progress)?;
        Ok((others, derived))
    };
    let (others, derived) = leased.while_working(work)?;
    observer.bytes(total, total);
    let mut draft = Draft {
        layers: Vec::new(),
        config: quantization.describe(start.config, &spec.policy.scheme),
        base: start.base,
        annotations: std::collections::BTreeMap::new(),
        parameters: start.parameters,
        files: std::collections::BTreeMap::new(),
        new: others.new,
        shared: others.shared,
    };
    draft.take_tensors(&quantization, derived, others.tensors);
    draft.layers.extend(others.documents);
    Ok(draft)
}

/// Says what is going to happen, and what people may not have expected.
fn report(quantization: &Quantization, spec: &QuantizeSpec, observer: &dyn Observer) {
    for rule in &quantization.unused_rules {
        observer.status(format!("no tensor meets the policy's {rule}"));
    }
    for row in quantization.tensors.iter().filter(|row| row.decision == Decision::Drop) {
        observer.status(format!("leaving out {}: the policy drops it", row.name));
    }
    let misaligned = |row: &&TensorRow| row.decision == Decision::Keep(Reason::Misaligned);
    let (misaligned, totals) = (quantization.tensors.iter().filter(misaligned).count(), quantization.totals());
    if misaligned > 0 {
        observer
            .status(format!("{misaligned} tensors keep their precision: their rows are not whole groups or blocks"));
    }
    let name = spec.policy.scheme.name();
    observer.status(format!("quantizing {} of {} tensors to {name}", totals.encoded, quantization.tensors.len()));
}

fn derivation(blob: &BlobPlan) -> Option<&Derivation> {
    match blob {
        BlobPlan::Derive(derivation) => Some(derivation),
        BlobPlan::Keep(_) => None,
    }
}

impl Draft {
    /// The layers with tensors, in the order of the source's. `kept` are those that are not derived, in their order.
    fn take_tensors(&mut self, quantization: &Quantization, derived: Vec<Derived>, kept: Vec<Layer>) {
        let (mut derived, mut kept) = (derived.into_iter(), kept.into_iter());
        for blob in &quantization.blobs {
            match blob {
                BlobPlan::Keep(_) => self.layers.extend(kept.next()),
                BlobPlan::Derive(derivation) => {
                    let Some(Derived { descriptor, new }) = derived.next() else { continue };
                    let (blobs, bytes) = if new { &mut self.new } else { &mut self.shared };
                    *blobs += 1;
                    *bytes += descriptor.size;
                    self.layers.push(Layer::named(descriptor, &derivation.name));
                }
            }
        }
    }
}
