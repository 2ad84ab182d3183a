//! Quantization of stored models, and of files without importing them first.
//!
//! ```text
//! find the source ──▶ plan ──▶ look up or derive each blob ──▶ draft of the new model
//! ```
//!
//! Derived blobs are found again by their keys, whichever model needs them. An attempt that breaks
//! off leaves its complete blobs under a lease, where the next attempt finds them.

mod leased;
mod start;

use content::operation::Result;
use content::{Amount, Observer};
use import::{
    BlobPlan, Decision, Derivation, Derived, ImportProgress, Policy, Quantization, Reason, Reuse, Sources, TensorRow,
};
use library::Library;
use manifests::Layer;
use store::Guard;

use crate::draft::Draft;
use crate::source::Source;
use crate::target::{StoreTarget, ensure_space};

pub(crate) use leased::Leased;
use start::Start;

/// How to encode tensors.
#[derive(Clone, Debug)]
pub struct QuantizeSpec {
    /// The encoding of each tensor.
    pub policy: Policy,
    /// Which tensors may be encoded again.
    pub sources: Sources,
    /// Whether blobs that were derived before are reused.
    pub reuse: Reuse,
}

/// Plans a quantization. Writes nothing. The guard keeps the source while it is read.
///
/// # Errors
/// The source cannot be read, or the policy does not fit it.
pub fn plan_quantization(
    library: &Library,
    guard: &Guard,
    source: &Source,
    spec: &QuantizeSpec,
) -> Result<Quantization> {
    let (source, _) = source.clone().without_adapters()?;
    Start::find(library, guard, &source)?.plan(spec)
}

/// Quantizes a model. When this returns, all derived blobs are in the store, and the model has no
/// name yet. `key` is its future name.
pub(crate) fn quantized(
    library: &Library,
    guard: &Guard,
    (source, spec): (&Source, &QuantizeSpec),
    key: &str,
    observer: &dyn Observer,
) -> Result<Draft> {
    let start = Start::find(library, guard, source)?;
    let quantization = start.plan(spec)?;
    if let Some(note) = start.note() {
        observer.status(format!("note: {note}"));
    }
    report(&quantization, spec, observer);
    let derivations: Vec<&Derivation> = quantization.blobs.iter().filter_map(derivation).collect();
    let total = quantization.derived_bytes().saturating_add(start.kept_bytes(&quantization));
    ensure_space(library, total)?;
    let progress = ImportProgress::new(observer, total);
    let leased = Leased::new(library, StoreTarget::deriving(library, guard), key)?;
    let work = || {
        let others = start.keep(library, guard, &quantization, &progress)?;
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

/// Reports what the quantization does, with notes about tensors that users may not expect.
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
    /// Adds the tensor layers in the order of the source. `kept` are the layers that are not
    /// derived, in order.
    fn take_tensors(&mut self, quantization: &Quantization, derived: Vec<Derived>, kept: Vec<Layer>) {
        let (mut derived, mut kept) = (derived.into_iter(), kept.into_iter());
        for blob in &quantization.blobs {
            match blob {
                BlobPlan::Keep(_) => self.layers.extend(kept.next()),
                BlobPlan::Derive(derivation) => {
                    let Some(Derived { descriptor, new }) = derived.next() else { continue };
                    let amount = if new { &mut self.new } else { &mut self.shared };
                    *amount += Amount::of_blob(descriptor.size);
                    self.layers.push(Layer::named(descriptor, &derivation.name));
                }
            }
        }
    }
}
