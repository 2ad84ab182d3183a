//! Derives the blobs of a quantization plan: streamed, several blobs at a time, and only if the
//! result is not known already.
//!
//! Memory is bounded by the buffers of the conversions, one per worker, regardless of the size of a
//! tensor. If a derivation is interrupted, finished blobs are remembered and the next derivation
//! reuses them.

use content::{Descriptor, Digest};
use manifests::media_types;

use crate::workers::in_parallel;
use crate::write::LayerOutput;
use crate::{Conversion, Derivation, DerivedTensor, Error, ImportProgress, SourceModel, Target, TensorSource};

/// Number of blobs that are derived at a time per core: about half of the time is spent on waiting
/// for the disk.
const WORKERS_PER_CORE: usize = 4;
/// Largest number of blobs that are derived at a time: encoders split large tensors between cores
/// themselves.
const WORKERS: usize = 16;

/// Use of remembered results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Remembered results are reused.
    #[default]
    Known,
    /// Everything is computed again and must equal the remembered results.
    Check,
}

/// Blob that was derived or reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Descriptor of the blob.
    pub descriptor: Descriptor,
    /// Whether the bytes were new to the store.
    pub new: bool,
}

/// Derives all blobs and returns the results in the order of the derivations.
///
/// # Errors
/// A source cannot be read, the target refuses a blob, the caller cancelled, or with
/// [`Reuse::Check`] a result differs from the remembered one.
pub fn derive(
    derivations: &[&Derivation],
    model: &SourceModel,
    target: &dyn Target,
    reuse: Reuse,
    progress: &ImportProgress<'_>,
) -> Result<Vec<Derived>, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let deriver = Deriver { model, target, reuse, progress };
    let workers = (cores * WORKERS_PER_CORE).min(WORKERS);
    in_parallel(derivations.len(), workers, || (), |(), position| deriver.blob(derivations[position]))
}

struct Deriver<'a> {
    model: &'a SourceModel,
    target: &'a dyn Target,
    reuse: Reuse,
    progress: &'a ImportProgress<'a>,
}

impl Deriver<'_> {
    fn blob(&self, derivation: &Derivation) -> Result<Derived, Error> {
        let sources = derivation.sources();
        let sources: Vec<Digest> =
            sources.iter().map(|source| self.model.digest(source)).collect::<Result<_, Error>>()?;
        let key = derivation.key(&sources);
        let known = self.target.remembered(&key);
        if self.reuse == Reuse::Known
            && let Some(digest) = known
            && self.has(derivation, &digest)?
        {
            self.progress.advance(derivation.size())?;
            return self.finish(derivation, digest, false);
        }
        let (digest, new) = self.put(derivation)?;
        if let Some(known) = known.filter(|known| self.reuse == Reuse::Check && *known != digest) {
            let name = &derivation.name;
            return Err(Error::Source(format!(
                "`{name}` was made again and is `{digest}`, but `{known}` is remembered: one of them was made by other \
                 code or damaged; run `lode fsck`, and report this where it finds nothing"
            )));
        }
        self.target.remember(&key, &digest);
        self.finish(derivation, digest, new)
    }

    fn has(&self, derivation: &Derivation, digest: &Digest) -> Result<bool, Error> {
        let has = self.target.has(digest, derivation.size());
        has.map_err(|source| Error::target(&derivation.name, source))
    }

    fn put(&self, derivation: &Derivation) -> Result<(Digest, bool), Error> {
        let tensors = derivation.tensors.iter().map(|tensor| self.conversion(tensor));
        let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
        let mut output = LayerOutput::begin(self.target, &derivation.name, derivation.size())?;
        let mut emit = |bytes: &[u8]| {
            output.append(bytes)?;
            self.progress.advance(bytes.len() as u64)
        };
        emit(derivation.header())?;
        tensors.iter().try_for_each(|tensor| tensor.write(&mut emit))?;
        output.commit()
    }

    fn conversion(&self, tensor: &DerivedTensor) -> Result<Conversion, Error> {
        let source = TensorSource::of(&tensor.source, self.model.open())?;
        Ok(if tensor.encoding == tensor.source.encoding {
            Conversion::copy(source)
        } else {
            Conversion::to(source, tensor.encoding)
        })
    }

    fn finish(&self, derivation: &Derivation, digest: Digest, new: bool) -> Result<Derived, Error> {
        let descriptor = Descriptor { media_type: media_types::TENSOR, digest, size: derivation.size() };
        self.progress.complete(&derivation.name, &descriptor)?;
        Ok(Derived { descriptor, new })
    }
}

#[cfg(test)]
mod tests;
