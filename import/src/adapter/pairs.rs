//! Collects the two factors of each module by their names.

use std::collections::BTreeMap;

use formats::codec;

use super::{AdaptedModule, EMBEDDING, FactorOwner};
use crate::{Error, NamedFile, SourceTensor, StoredTensor};

/// Kind of a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    Down,
    Up,
}

/// Splits a tensor name in the style of llama.cpp and mlx-lm into the weight's name and the kind of
/// factor.
pub(super) fn factor(name: &str) -> Option<(&str, Factor)> {
    let down = name.strip_suffix(".lora_a").map(|weight| (weight, Factor::Down));
    down.or_else(|| name.strip_suffix(".lora_b").map(|weight| (weight, Factor::Up)))
}

/// Factors of one file, by module.
pub(super) struct Pairs<'a> {
    file: &'a NamedFile,
    /// Whether the factors are stored transposed.
    transposed: bool,
    found: BTreeMap<String, [Option<StoredTensor>; 2]>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(file: &'a NamedFile, transposed: bool) -> Self {
        Self { file, transposed, found: BTreeMap::new() }
    }

    /// Adds a factor.
    pub(super) fn take(&mut self, module: &str, factor: Factor, tensor: &SourceTensor) -> Result<(), Error> {
        if module == EMBEDDING {
            return Err(refused(
                self.file,
                "it changes the token embedding, which is not supported; merge it into the weights",
            ));
        }
        let stored = StoredTensor::in_file(tensor.name.clone(), &*self.file.source, tensor)?;
        if !matches!(stored.shape.len(), 2 | 3) || stored.shape.contains(&0) {
            let (name, shape) = (&stored.name, &stored.shape);
            let expected = "expected a matrix, or one for each expert";
            return Err(refused(self.file, &format!("tensor `{name}` has the shape {shape:?}, {expected}")));
        }
        if !codec::can_decode(stored.encoding) {
            let (name, encoding) = (&stored.name, stored.encoding);
            return Err(refused(self.file, &format!("tensor `{name}` is of type {encoding}, which weights cannot be")));
        }
        let place = &mut self.found.entry(module.to_owned()).or_default()[factor as usize];
        if place.replace(stored).is_some() {
            return Err(refused(self.file, &format!("there are two tensors for one factor of `{module}`")));
        }
        Ok(())
    }

    /// Returns the names of the modules, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.found.keys().map(String::as_str)
    }

    /// Pairs the factors of each module. `scale` returns the scale of a module from its name and
    /// rank. `joined` gets the name and the rows of `down`; it returns the owner if the two
    /// matrices hold factors of several experts.
    pub(super) fn modules(
        self,
        scale: impl Fn(&str, u64) -> Result<f64, Error>,
        joined: impl Fn(&str, u64) -> Result<Option<FactorOwner>, Error>,
    ) -> Result<Vec<AdaptedModule>, Error> {
        if self.found.is_empty() {
            return Err(refused(self.file, "it has no low-rank factors"));
        }
        let (file, is_transposed) = (self.file, self.transposed);
        let module = |(name, factors): (String, [Option<StoredTensor>; 2])| {
            let [Some(down), Some(up)] = factors else {
                return Err(refused(file, &format!("one of the two factors of `{name}` is missing")));
            };
            let (rank, other, owner) = match (&down.shape[..], &up.shape[..]) {
                ([_, rank], [other, _]) if is_transposed => (*rank, *other, FactorOwner::Projection),
                ([rows, _], [_, other]) => match joined(&name, *rows)? {
                    None => (*rows, *other, FactorOwner::Projection),
                    Some(owner) => (*rows, *other, owner),
                },
                ([experts, rank, _], [others, _, other]) if experts == others => (*rank, *other, FactorOwner::Stack),
                (down, up) => {
                    let shapes = format!("the shapes {down:?} and {up:?}");
                    return Err(refused(
                        file,
                        &format!("the factors of `{name}` have {shapes}, which do not go together"),
                    ));
                }
            };
            if rank != other {
                return Err(refused(file, &format!("the factors of `{name}` have the ranks {rank} and {other}")));
            }
            let transposed = is_transposed && owner == FactorOwner::Projection;
            let mut module = AdaptedModule { name, down, up, transposed, owner, scale: 1.0 };
            module.scale = scale(&module.name, module.rank())?;
            if !module.scale.is_finite() {
                let AdaptedModule { name, scale, .. } = &module;
                return Err(refused(file, &format!("the scale of `{name}` is {scale}, expected a finite number")));
            }
            Ok(module)
        };
        self.found.into_iter().map(module).collect()
    }
}

/// Returns the error for a file that is not a supported adapter.
pub(super) fn refused(file: &NamedFile, reason: &str) -> Error {
    Error::Source(format!("the adapter `{}` cannot be used: {reason}", file.name))
}
