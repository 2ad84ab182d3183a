//! What adapters add to projections, mapped.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use architectures::HeadLayout;
use architectures::exchange::HeadOrder;
use formats::codec;
use protocol::LowRank;

use crate::mapped::{self, MappedTensor, Mapper};

/// The factors of all adapters by module.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    factors: HashMap<String, Vec<Factors>>,
    /// Modules that a layer has asked for.
    used: RefCell<HashSet<String>>,
}

/// The factors of an adapter for one projection.
#[derive(Debug)]
pub(crate) struct Factors {
    pub(crate) down: Factor,
    pub(crate) up: Factor,
    pub(crate) scale: f64,
    /// How the rows of `up` lie, where they are those of heads that are rotated.
    pub(crate) layout: HeadLayout,
}

/// A factor, and how its matrix comes of what is stored.
#[derive(Debug)]
pub(crate) struct Factor {
    stored: MappedTensor,
    transposed: bool,
}

impl Adapters {
    pub(crate) fn map(plan: &[LowRank], mapper: Mapper<'_>) -> Result<Self> {
        let mut all: HashMap<String, Vec<Factors>> = HashMap::new();
        for adapter in plan {
            let module = &adapter.module;
            let layout = HeadLayout::parse(&adapter.layout)
                .with_context(|| format!("the adapter of `{module}` has a layout of heads that is not known"))?;
            let factor = |tensor, mapper: Mapper<'_>| {
                Ok::<_, anyhow::Error>(Factor { stored: map(tensor, mapper)?, transposed: adapter.transposed })
            };
            let (down, up) = (factor(&adapter.down, mapper)?, factor(&adapter.up, mapper)?);
            let factors = Factors { down, up, scale: adapter.scale, layout };
            all.entry(module.clone()).or_default().push(factors);
        }
        Ok(Self { factors: all, used: RefCell::default() })
    }

    /// What is added to a projection.
    pub(crate) fn of(&self, module: &str) -> &[Factors] {
        let Some(factors) = self.factors.get(module) else { return &[] };
        self.used.borrow_mut().insert(module.to_owned());
        factors
    }

    /// Sees to it that nothing is left out in silence.
    ///
    /// # Errors
    /// A module that no layer has asked for.
    pub(crate) fn check_used(&self) -> Result<()> {
        let used = self.used.borrow();
        let unused = self.factors.keys().filter(|module| !used.contains(*module)).min();
        match unused {
            Some(module) => bail!("an adapter changes `{module}`, which this model is not computed with"),
            None => Ok(()),
        }
    }

    /// Everything that is mapped.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &MappedTensor> {
        self.factors.values().flatten().flat_map(|factors| [&factors.down.stored, &factors.up.stored])
    }
}

fn map(plan: &protocol::Tensor, mapper: Mapper<'_>) -> Result<MappedTensor> {
    let name = &plan.name;
    let encoding = mapped::encoding(plan).filter(|encoding| codec::can_decode(*encoding));
    let encoding = encoding.with_context(|| format!("tensor `{name}` is of a type that weights cannot be"))?;
    let tensor = mapper.tensor(plan, encoding)?;
    ensure!(tensor.shape.len() == 2, "tensor `{name}` has the shape {:?}, expected a matrix", tensor.shape);
    Ok(tensor)
}

impl Factor {
    /// The matrix as it is stored, where nothing has to be done to it.
    pub(crate) fn mapped(&self, rows: HeadOrder) -> Option<&MappedTensor> {
        (!self.transposed && rows == HeadOrder::Same).then_some(&self.stored)
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        let [rows, columns] = [self.stored.shape[0], self.stored.shape[1]];
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    /// The matrix as float32 numbers of this process, its rows in another order. Factors are small.
    pub(crate) fn expanded(&self, order: HeadOrder) -> Vec<f32> {
        self.rows((0..self.shape().0 as u64).map(|row| order.source(row) as usize))
    }

    /// Some rows of the matrix, in this order, as float32 numbers.
    pub(crate) fn rows(&self, wanted: impl Iterator<Item = usize>) -> Vec<f32> {
        let stored = self.stored.numbers();
        let (rows, columns) = self.shape();
        let element = |row: usize, column: usize| {
            stored[if self.transposed { column * rows + row } else { row * columns + column }]
        };
        wanted.flat_map(|row| (0..columns).map(move |column| element(row, column))).collect()
    }
}
