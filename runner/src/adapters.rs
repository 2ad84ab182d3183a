//! Low-rank factors (LoRA) that adapters add to projections, read from mapped blobs.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, anyhow, bail, ensure};
use architectures::exchange::HeadOrder;
use architectures::{HeadLayout, Rows, Tensor};
use formats::codec;
use protocol::{ExpertOf, LowRank};

use crate::mapped::{self, MappedTensor, Mapper};

/// The factors of all adapters, by the weight that they are added to.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    factors: HashMap<WeightKey, Vec<Factors>>,
    /// Weights whose factors a layer has requested.
    used: RefCell<HashSet<WeightKey>>,
}

/// Key of a weight: the name of its tensor, the item of the stack, and the first of its rows.
type WeightKey = (String, Option<u64>, Option<u64>);

/// The factors of one adapter for one projection: it adds `scale · up(down(x))`.
#[derive(Debug)]
pub(crate) struct Factors {
    /// Name of the projection in the adapter's files.
    pub(crate) module: String,
    pub(crate) down: Factor,
    pub(crate) up: Factor,
    pub(crate) scale: f64,
    /// The rows of `up` that belong to the projection; `None` means all rows.
    pub(crate) rows: Option<Rows>,
    /// The layout of heads in the rows of `up`, if RoPE is applied to these heads. `None` means the
    /// layout of the weight.
    pub(crate) layout: Option<HeadLayout>,
}

/// A factor: a stored array, and how its matrix is obtained from it.
#[derive(Debug)]
pub(crate) struct Factor {
    stored: MappedTensor,
    transposed: bool,
    /// `[expert, experts]` if only the columns of one expert are used: column `r · experts + e`
    /// belongs to expert `e`.
    columns: Option<[usize; 2]>,
}

fn key(weight: &Tensor) -> WeightKey {
    (weight.name.clone(), weight.view.item, weight.view.rows.map(|rows| rows.first))
}

impl Adapters {
    pub(crate) fn map(plan: &[LowRank], mapper: Mapper<'_>) -> Result<Self> {
        let mut all: HashMap<WeightKey, Vec<Factors>> = HashMap::new();
        for adapter in plan {
            let module = &adapter.module;
            let (weight, factors) =
                factors(adapter, mapper).with_context(|| format!("reading the adapter's factors for `{module}`"))?;
            all.entry(key(&weight)).or_default().push(factors);
        }
        Ok(Self { factors: all, used: RefCell::default() })
    }

    /// Returns the factors for the projection with this weight, and marks them as used.
    pub(crate) fn of(&self, weight: &Tensor) -> &[Factors] {
        if self.factors.is_empty() {
            return &[];
        }
        let key = key(weight);
        let Some(factors) = self.factors.get(&key) else { return &[] };
        self.used.borrow_mut().insert(key);
        factors
    }

    /// Checks that no factors are left out silently.
    ///
    /// # Errors
    /// Fails if no layer has requested the factors of some weight.
    pub(crate) fn check_used(&self) -> Result<()> {
        let used = self.used.borrow();
        let unused = self.factors.iter().filter(|(weight, _)| !used.contains(*weight));
        match unused.flat_map(|(_, factors)| factors).map(|factors| &factors.module).min() {
            Some(module) => bail!(
                "an adapter changes `{module}`, but no layer of this model uses that projection; remove the adapter"
            ),
            None => Ok(()),
        }
    }

    /// Returns all mapped tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &MappedTensor> {
        self.factors.values().flatten().flat_map(|factors| [&factors.down.stored, &factors.up.stored])
    }
}

/// Reads the factors of one adapter for one weight; returns the weight and the factors.
fn factors(plan: &LowRank, mapper: Mapper<'_>) -> Result<(Tensor, Factors)> {
    let weight = serde_json::from_value(plan.weight.clone()).context("its weight cannot be read")?;
    let rows = plan.rows.clone().map(serde_json::from_value::<Rows>).transpose().context("its rows cannot be read")?;
    let is_whole = |rows: Rows| rows.block > 0 && rows.count.is_multiple_of(rows.block);
    ensure!(rows.is_none_or(is_whole), "its `rows` are {rows:?}, expected whole blocks");
    let layout =
        |name: &String| HeadLayout::parse(name).with_context(|| format!("the layout `{name}` of heads is not known"));
    let layout = plan.layout.as_ref().map(layout).transpose()?;
    let [down, up] = match plan.expert {
        None => [map(&plan.down, mapper)?, map(&plan.up, mapper)?].map(|stored| Factor::of(stored, plan.transposed)),
        Some(ExpertOf { index, joined: None, .. }) => {
            let item = |plan| map_item(plan, index, mapper);
            [item(&plan.down)?, item(&plan.up)?].map(|stored| Factor::of(stored, false))
        }
        Some(ExpertOf { index, joined: Some(experts), is_swapped }) => {
            let (down, up) = (map(&plan.down, mapper)?, map(&plan.up, mapper)?);
            ensure!(index < experts, "it is of expert {index} of {experts}");
            let rank = down.shape[0] as u64 / experts;
            ensure!(
                up.shape[1] as u64 == rank * experts,
                "`down` has the rank {rank} for each of {experts} experts, `up` has {} columns",
                up.shape[1]
            );
            let down = down.rows(index * rank, rank).map_err(|reason| anyhow!("its rows: {reason}"))?;
            let columns = Some([index as usize, experts as usize]);
            let [down, up] = [Factor::of(down, is_swapped), Factor { columns, ..Factor::of(up, is_swapped) }];
            if is_swapped { [up, down] } else { [down, up] }
        }
    };
    Ok((weight, Factors { module: plan.module.clone(), down, up, scale: plan.scale, rows, layout }))
}

fn map(plan: &protocol::Tensor, mapper: Mapper<'_>) -> Result<MappedTensor> {
    matrix(plan, any(plan, mapper)?)
}

fn map_item(plan: &protocol::Tensor, index: u64, mapper: Mapper<'_>) -> Result<MappedTensor> {
    let item = any(plan, mapper)?.item(index).map_err(|reason| anyhow!("tensor `{}`: {reason}", plan.name))?;
    matrix(plan, item)
}

fn any(plan: &protocol::Tensor, mapper: Mapper<'_>) -> Result<MappedTensor> {
    let encoding = mapped::encoding(plan).filter(|encoding| codec::can_decode(*encoding));
    let encoding =
        encoding.with_context(|| format!("tensor `{}` has a type that is not supported for weights", plan.name))?;
    mapper.tensor(plan, encoding)
}

fn matrix(plan: &protocol::Tensor, tensor: MappedTensor) -> Result<MappedTensor> {
    let name = &plan.name;
    ensure!(tensor.shape.len() == 2, "tensor `{name}` has the shape {:?}, expected a matrix", tensor.shape);
    Ok(tensor)
}

impl Factor {
    fn of(stored: MappedTensor, transposed: bool) -> Self {
        Self { stored, transposed, columns: None }
    }

    /// Returns the stored matrix if it can be used unchanged, with its rows in this order.
    pub(crate) fn mapped(&self, rows: HeadOrder) -> Option<&MappedTensor> {
        let is_stored = !self.transposed && self.columns.is_none();
        (is_stored && rows == HeadOrder::Same).then_some(&self.stored)
    }

    /// Returns the numbers of rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        let [rows, columns] = [self.stored.shape[0], self.stored.shape[1]];
        let columns = columns / self.columns.map_or(1, |[_, experts]| experts);
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    /// Returns the matrix as float32 numbers in private memory, with its rows in another order.
    /// Factors are small.
    pub(crate) fn expanded(&self, order: HeadOrder) -> Vec<f32> {
        self.rows((0..self.shape().0 as u64).map(|row| order.source(row) as usize))
    }

    /// Returns the `wanted` rows of the matrix, in this order, as float32 numbers.
    pub(crate) fn rows(&self, wanted: impl Iterator<Item = usize>) -> Vec<f32> {
        let (rows, columns) = self.shape();
        // Only the columns of this expert are decoded: each expert requests its own.
        let stored = match self.columns {
            Some([first, step]) => self.stored.columns(first, step),
            None => self.stored.numbers(),
        };
        let element = |row: usize, column: usize| {
            stored[if self.transposed { column * rows + row } else { row * columns + column }]
        };
        wanted.flat_map(|row| (0..columns).map(move |column| element(row, column))).collect()
    }
}
