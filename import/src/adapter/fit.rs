//! Finds the weights of a model to which an adapter is added.

use std::collections::HashMap;

use architectures::{Adaptable, AdaptedName, Blueprint, Family, Matrices, Projection, Rows, Tensor};

use super::{AdaptedModule, Adapter, FactorOwner};
use crate::{Error, StoredTensor};

/// Ending of the experts' gate and up projections if they are fused into one tensor.
const FUSED_EXPERTS: &str = ".experts.gate_up_proj";
/// Endings of the same projections if they are separate, in the order of
/// [`Family::rows_of_fused_experts`].
const PARTS_OF_EXPERTS: [&str; 2] = [".experts.gate_proj", ".experts.up_proj"];
/// Ending of the projection from latents to keys and values, if it is one tensor.
const FUSED_HEADS: &str = ".kv_b_proj";
/// Endings of the same projection if keys and values are separate stacks: in GGUF files, and by
/// MLX.
const PARTS_OF_HEADS: [[&str; 2]; 2] = [[".k_b_proj", ".v_b_proj"], [".embed_q", ".unembed_out"]];

/// Projections of a model by the module names that adapters use.
#[derive(Clone, Debug, Default)]
pub struct ProjectionIndex<'a> {
    by_module: HashMap<String, Vec<ProjectionSlot<'a>>>,
    family: Option<&'a Family>,
}

/// Projection, or stack of the experts' projections of a layer, that is a module or a part of one.
#[derive(Clone, Debug)]
struct ProjectionSlot<'a> {
    target: AdapterTarget<'a>,
    input: u64,
    /// Output size of the module.
    output: u64,
    /// Rows of the module's output that belong to this projection; `None` means all.
    rows: Option<Rows>,
    /// Whether transformers stores the experts' parameter as `[experts, input, output]`.
    is_input_first: bool,
}

#[derive(Clone, Debug)]
enum AdapterTarget<'a> {
    One(Tensor),
    /// The projections of several experts or heads.
    Many(&'a Matrices, u64),
}

/// Weight of the model with the module of an adapter that is added to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted<'m> {
    /// Weight, as the blueprint names it.
    pub weight: Tensor,
    /// Module of the adapter.
    pub module: &'m AdaptedModule,
    /// Expert whose factors apply, if the module has factors of several experts.
    pub expert: Option<u64>,
    /// Rows of `up` that apply to the weight; `None` means all.
    pub rows: Option<Rows>,
    /// True if the tensors are exchanged: the first is the transpose of `up`, the second the
    /// transpose of `down`.
    pub is_swapped: bool,
}

impl<'a> ProjectionIndex<'a> {
    /// Collects the projections of a model with these tensors.
    pub fn of(family: &'a Family, blueprint: &'a Blueprint, tensors: &[StoredTensor]) -> Self {
        let shapes = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
        let mut places = Self { by_module: HashMap::new(), family: Some(family) };
        for adaptable in blueprint.adaptable() {
            match adaptable {
                Adaptable::One(projection) => {
                    let target = AdapterTarget::One(projection.weight.clone());
                    places.take(&shapes, &projection.module, &projection.weight, &target);
                }
                // Each matrix is a range of rows of one tensor.
                Adaptable::Many(matrices @ Matrices::Blocks(_), count) => {
                    for weight in (0..count).map(|index| matrices.projection(index).weight) {
                        let module = module_of(&weight.name).to_owned();
                        places.take(&shapes, &module, &weight, &AdapterTarget::One(weight.clone()));
                    }
                }
                Adaptable::Many(matrices, count) => {
                    let first = matrices.projection(0);
                    let module = own_name(family, &first);
                    places.take(&shapes, &module, &first.weight, &AdapterTarget::Many(matrices, count));
                }
            }
        }
        places
    }

    /// Adds a projection under its module name. If it is a range of rows of a tensor, adds it under
    /// the tensor's name too.
    fn take(&mut self, shapes: &HashMap<&str, &[u64]>, module: &str, weight: &Tensor, target: &AdapterTarget<'a>) {
        let Some([stored, input]) = shapes.get(weight.name.as_str()).and_then(|shape| matrix(weight, shape)) else {
            return;
        };
        let whole = module_of(&weight.name);
        let is_input_first = weight.view.transposed || self.family.is_some_and(Family::has_alternating_experts);
        let place = |output, rows| ProjectionSlot { target: target.clone(), input, output, rows, is_input_first };
        match weight.view.rows {
            None => self.add(module, place(stored, None)),
            Some(rows) => {
                // If a part has the same module name as the whole tensor, the name means the whole
                // tensor.
                if whole != module {
                    self.add(module, place(rows.count, None));
                }
                self.add(whole, place(stored, Some(rows)));
            }
        }
    }

    fn add(&mut self, module: &str, place: ProjectionSlot<'a>) {
        self.by_module.entry(AdaptedName::parse(module).module).or_default().push(place);
    }

    /// Adds a whole matrix of shape `[output, input]`.
    pub fn add_matrix(&mut self, module: &str, [output, input]: [u64; 2]) {
        let target = AdapterTarget::One(Tensor::named(format!("{module}.weight")));
        self.add(module, ProjectionSlot { target, input, output, rows: None, is_input_first: false });
    }

    /// Returns the projections that are the module or parts of it.
    fn get(&self, module: &str) -> Vec<ProjectionSlot<'a>> {
        if let Some(found) = self.by_module.get(module) {
            return found.clone();
        }
        if let Some(layer) = module.strip_suffix(FUSED_EXPERTS) {
            return self.parts_of_experts(layer);
        }
        module.strip_suffix(FUSED_HEADS).map(|layer| self.parts_of_heads(layer)).unwrap_or_default()
    }

    /// Returns the only projection of a part that is stored separately.
    fn part(&self, layer: &str, part: &str) -> Option<&ProjectionSlot<'a>> {
        let [place] = self.by_module.get(&format!("{layer}{part}"))?.as_slice() else { return None };
        Some(place).filter(|place| place.rows.is_none())
    }

    fn parts_of_experts(&self, layer: &str) -> Vec<ProjectionSlot<'a>> {
        let [gate, up] = PARTS_OF_EXPERTS.map(|part| self.part(layer, part));
        let (Some(family), Some(gate), Some(up)) = (self.family, gate, up) else { return Vec::new() };
        let part = |(place, which): (&ProjectionSlot<'a>, u64)| ProjectionSlot {
            output: place.output.saturating_mul(2),
            rows: Some(family.rows_of_fused_experts(which, place.output)),
            ..place.clone()
        };
        [(gate, 0), (up, 1)].map(part).to_vec()
    }

    /// Returns the projections of all heads. In the fused tensor, each head has the rows of keys
    /// first, then the rows of values.
    fn parts_of_heads(&self, layer: &str) -> Vec<ProjectionSlot<'a>> {
        let both = |parts: [&str; 2]| Some((self.part(layer, parts[0])?, self.part(layer, parts[1])?));
        let Some((keys, values)) = PARTS_OF_HEADS.into_iter().find_map(both) else { return Vec::new() };
        let stride = keys.output.saturating_add(values.output);
        let mut heads = Vec::new();
        for (part, first) in [(keys, 0), (values, keys.output)] {
            let AdapterTarget::Many(matrices, count) = &part.target else { return Vec::new() };
            heads.extend((0..*count).map(|head| ProjectionSlot {
                target: AdapterTarget::One(matrices.projection(head).weight),
                input: part.input,
                output: stride.saturating_mul(*count),
                is_input_first: false,
                rows: Some(Rows::run(head.saturating_mul(stride).saturating_add(first), part.output)),
            }));
        }
        heads
    }
}

/// Returns `[output, input]` of the matrix that a view selects from a tensor of this shape, with
/// all rows; `None` if it is not a matrix.
fn matrix(weight: &Tensor, shape: &[u64]) -> Option<[u64; 2]> {
    let shape = if weight.view.item.is_some() { shape.get(1..)? } else { shape };
    match *shape {
        [one, two] if weight.view.transposed => Some([two, one]),
        [one, two] => Some([one, two]),
        // Files store a gate of one row as a vector.
        [columns] => Some([1, columns]),
        _ => None,
    }
}

/// Returns the module name of one part of a fused expert projection, if the parts are stored
/// separately. The blueprint may name the module after the fused tensor.
fn own_name(family: &Family, projection: &Projection) -> String {
    let name = AdaptedName::parse(&projection.module).module;
    let Some((layer, rows)) = name.strip_suffix(FUSED_EXPERTS).zip(projection.weight.view.rows) else { return name };
    let part = (0..).zip(PARTS_OF_EXPERTS).find(|(which, _)| family.rows_of_fused_experts(*which, rows.count) == rows);
    part.map(|(_, part)| format!("{layer}{part}")).unwrap_or(name)
}

fn module_of(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

impl Adapter {
    /// Returns the weights of a model to which the adapter is added. `architecture` is the model's,
    /// as GGUF names it, if known.
    ///
    /// # Errors
    /// [`Error::Source`] if the adapter was made for another architecture, or a projection is
    /// missing or has another shape.
    pub fn fit(&self, places: &ProjectionIndex<'_>, architecture: Option<&str>) -> Result<Vec<Fitted<'_>>, Error> {
        let refuse = |reason: String| Error::Source(format!("the adapter `{}` does not fit: {reason}", self.name));
        if let (Some(own), Some(here)) = (self.architecture.as_deref(), architecture)
            && own != here
        {
            return Err(refuse(format!(
                "it was made for the architecture {own}, but the model has the architecture {here}"
            )));
        }
        let mut fitted = Vec::new();
        for module in &self.modules {
            fitted.extend(module.fit(places).map_err(refuse)?);
        }
        Ok(fitted)
    }
}

impl AdaptedModule {
    fn fit(&self, places: &ProjectionIndex<'_>) -> Result<Vec<Fitted<'_>>, String> {
        let name = &self.name;
        let AdaptedName { module, expert } = AdaptedName::parse(name);
        let places = places.get(&module);
        if places.is_empty() {
            return Err(format!("the model has no `{name}`; expected an adapter of this model or of its base"));
        }
        let (rank, (input, output)) = (self.rank(), self.sizes());
        if rank > input.max(output) {
            return Err(format!("its `{name}` has the rank {rank}, more than the matrix has rows or columns"));
        }
        let mut fitted = Vec::new();
        for place in places {
            let is_swapped = match (self.owner, (place.output, place.input)) {
                (FactorOwner::Joined { is_old, .. }, own) if own == (input, output) && own == (output, input) => {
                    is_old && !place.is_input_first
                }
                (FactorOwner::Joined { .. }, own) if own == (input, output) => true,
                _ => false,
            };
            if !is_swapped && (place.output, place.input) != (output, input) {
                let ProjectionSlot { output: own_output, input: own_input, .. } = place;
                return Err(format!(
                    "its `{name}` is [{output}, {input}], that of the model [{own_output}, {own_input}]"
                ));
            }
            let weights = self.weights(&place.target, expert)?;
            fitted.extend(weights.into_iter().map(|(weight, expert)| Fitted {
                weight,
                module: self,
                expert,
                rows: place.rows,
                is_swapped,
            }));
        }
        Ok(fitted)
    }

    /// Returns the weights of a target, each with the expert whose factors apply. `expert` comes
    /// from the module's name.
    fn weights(&self, target: &AdapterTarget<'_>, expert: Option<u64>) -> Result<Vec<(Tensor, Option<u64>)>, String> {
        let name = &self.name;
        let weight = |matrices: &Matrices, index| matrices.projection(index).weight;
        match (target, expert, self.experts()) {
            (AdapterTarget::One(weight), None, None) => Ok(vec![(weight.clone(), None)]),
            (AdapterTarget::One(_), ..) => {
                Err(format!("its `{name}` has factors for experts, but the model has a single projection there"))
            }
            (AdapterTarget::Many(matrices, count), Some(index), None) if index < *count => {
                Ok(vec![(weight(matrices, index), None)])
            }
            (AdapterTarget::Many(_, count), Some(_), None) => {
                Err(format!("the model has no `{name}`, it has {count} experts in that layer"))
            }
            (AdapterTarget::Many(matrices, count), None, Some(own)) if own == *count => {
                Ok((0..own).map(|index| (weight(matrices, index), Some(index))).collect())
            }
            (AdapterTarget::Many(_, count), _, own) => {
                let found = own.map_or("one matrix".to_owned(), |own| format!("{own} experts"));
                Err(format!("its `{name}` has factors for {found}, the model has {count} experts"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use architectures::HeadLayout;
    use content::Digest;
    use formats::Dtype;
    use formats::encoding::{Encoding, Role};

    use super::*;
    use crate::StoredPart;

    fn tensor(shape: &[u64]) -> StoredTensor {
        let part = StoredPart {
            role: Role::Weight,
            name: "x".to_owned(),
            blob: Digest::of(b""),
            offset: 0,
            size: 0,
            dtype: Dtype::F32,
            shape: shape.to_vec(),
        };
        let (name, stored_name) = ("x".to_owned(), "x".to_owned());
        StoredTensor {
            name,
            stored_name,
            encoding: Encoding::Plain(Dtype::F32),
            shape: shape.to_vec(),
            parts: vec![part],
        }
    }

    /// Returns an adapter with one module.
    fn adapter(name: &str, owner: FactorOwner, down: &[u64], up: &[u64]) -> Adapter {
        let (down, up) = (tensor(down), tensor(up));
        let module = AdaptedModule { name: name.to_owned(), down, up, transposed: false, owner, scale: 1.0 };
        Adapter { name: "a".to_owned(), architecture: None, layout: Some(HeadLayout::Half), modules: vec![module] }
    }

    /// Returns the matrices of four experts, as stacks: gates and ups of `[8, 16]`, downs of
    /// `[16, 8]`.
    fn experts() -> [Matrices; 3] {
        ["gate_proj", "up_proj", "down_proj"].map(|own| {
            let module = format!("model.layers.0.mlp.experts.{own}");
            let weight = Tensor::named(format!("{module}.weight"));
            Matrices::Items(architectures::Projection { module, weight, bias: None, clamps: None })
        })
    }

    fn places(experts: &[Matrices; 3]) -> ProjectionIndex<'_> {
        let mut places = ProjectionIndex { family: Family::of_gguf("qwen3moe"), ..ProjectionIndex::default() };
        for (matrices, [output, input]) in experts.iter().zip([[8, 16], [8, 16], [16, 8]]) {
            let module = matrices.projection(0).module;
            places.add(
                &module,
                ProjectionSlot {
                    target: AdapterTarget::Many(matrices, 4),
                    input,
                    output,
                    rows: None,
                    is_input_first: false,
                },
            );
        }
        places.add_matrix("model.layers.0.self_attn.q_proj", [16, 16]);
        places
    }

    #[test]
    fn factors_of_experts_go_to_each() {
        let experts = experts();
        let places = places(&experts);
        let joined = FactorOwner::Joined { experts: 4, is_old: false };
        let fused = adapter("model.layers.0.mlp.experts.gate_up_proj", joined, &[8, 16], &[16, 8]);
        let fitted = fused.fit(&places, None).expect("it fits");
        let found: Vec<_> = fitted
            .iter()
            .map(|own| (own.weight.name.contains("gate"), own.weight.view.item, own.expert, own.rows))
            .collect();
        let expected = |is_gate: bool, first| {
            (0..4).map(move |index| (is_gate, Some(index), Some(index), Some(Rows::run(first, 8))))
        };
        assert_eq!(found, expected(true, 0).chain(expected(false, 8)).collect::<Vec<_>>());
        let one = adapter("model.layers.0.mlp.experts.2.w2", FactorOwner::Projection, &[2, 8], &[16, 2]);
        let fitted = one.fit(&places, None).expect("it fits");
        assert_eq!((fitted.len(), fitted[0].weight.view.item, fitted[0].expert), (1, Some(2), None));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let experts = experts();
        let places = places(&experts);
        let up = "model.layers.0.mlp.experts.up_proj";
        for (adapter, says) in [
            (adapter("x.q_proj", FactorOwner::Projection, &[2, 16], &[16, 2]), "has no `x.q_proj`"),
            (adapter(up, FactorOwner::Stack, &[3, 2, 16], &[3, 8, 2]), "has factors for 3 experts, the model has 4"),
            (adapter(up, FactorOwner::Projection, &[2, 16], &[8, 2]), "has factors for one matrix"),
            (adapter(up, FactorOwner::Stack, &[4, 2, 8], &[4, 16, 2]), "is [16, 8], that of the model [8, 16]"),
            (
                adapter("model.layers.0.mlp.experts.4.up_proj", FactorOwner::Projection, &[2, 16], &[8, 2]),
                "it has 4 experts",
            ),
            (
                adapter("model.layers.0.self_attn.q_proj", FactorOwner::Stack, &[4, 2, 16], &[4, 16, 2]),
                "single projection there",
            ),
            (adapter(up, FactorOwner::Stack, &[4, 17, 16], &[4, 8, 17]), "has the rank 17"),
        ] {
            let error = adapter.fit(&places, None).expect_err(says).to_string();
            assert!(error.contains(says), "`{error}` should say `{says}`");
        }
    }
}
