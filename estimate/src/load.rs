//! Ollama's estimate of a load: the device of each layer, and the memory in each place. `exact` has
//! Lode's own.

use crate::amount::sum;
use crate::assign::{Device, Requested};
use crate::graph::graph_size;
use crate::layout::{Fixed, Layout, LayoutRequest, METAL, System, layout};
use crate::model::{Model, Weights};
use crate::{Request, Unfit};

/// A machine and the options of its use.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The devices in the order of discovery, with all of their free memory.
    pub devices: Vec<Device>,
    /// The system's memory.
    pub system: System,
    /// The requested number of layers on devices.
    pub requested: Requested,
    /// Whether all layers must be on devices, and everything else in free memory.
    pub require_full: bool,
    /// Whether to use all devices of a library.
    pub spread: bool,
    /// Bytes that are kept free on every device in addition to the minimum.
    pub overhead: u64,
}

/// The model to load and the machine.
#[derive(Clone, Copy, Debug)]
pub struct EstimateRequest<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its weights by layer. Blocks beyond the number in the metadata do not count; missing ones
    /// count as empty.
    pub weights: &'a Weights,
    /// Bytes of an image projector. They are subtracted from the first discrete device, or from the
    /// first device if none is discrete.
    pub projector: u64,
    /// The settings of the load.
    pub request: &'a Request,
    /// The machine.
    pub machine: &'a Machine,
}

/// The memory use of one device or of the system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Number of layers, including the output.
    pub layers: usize,
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub cache: u64,
    /// Compute graph. A device without layers has one if an earlier round used the device.
    pub graph: u64,
}

impl DeviceUse {
    /// Returns the sum of weights, cache and graph.
    pub fn size(&self) -> u64 {
        sum([self.weights, self.cache, self.graph])
    }
}

/// The placement of a model and the memory that it takes in each place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of the KV cache of each block.
    pub kv: Vec<u64>,
    /// The size of the first block with its cache, in bytes. Layers may not use this much of each
    /// device. It is not part of any total.
    pub reserve: u64,
    /// Bytes of the graph if some layers are not on devices; a guess for architectures without a
    /// formula. On Metal, the same as `graph_full`.
    pub graph_partial: u64,
    /// Bytes of the graph if all layers are on devices; a guess for architectures without a
    /// formula.
    pub graph_full: u64,
    /// The devices and their layers.
    pub layout: Layout,
    /// Number of layers, including the output.
    pub total_layers: usize,
    /// The use of each device, in the order of the machine's devices.
    pub devices: Vec<DeviceUse>,
    /// The part that stays in system memory.
    pub system: DeviceUse,
}

impl Estimate {
    /// Returns the bytes on devices.
    pub fn device_size(&self) -> u64 {
        sum(self.devices.iter().map(DeviceUse::size))
    }

    /// Returns the bytes on devices and in system memory.
    pub fn total_size(&self) -> u64 {
        sum([self.device_size(), self.system.size()])
    }
}

/// The bytes of each layer; the output is last.
pub(super) struct Layers {
    weights: Vec<u64>,
    cache: Vec<u64>,
}

impl Layers {
    /// Combines weights and cache sizes by layer. A block without tensors in the file gets no
    /// cache.
    pub(super) fn of(weights: &Weights, kv: &[u64]) -> Self {
        let block = |index: usize| weights.blocks.get(index).copied().flatten();
        let cache = |(index, &bytes): (usize, &u64)| if block(index).is_some() { bytes } else { 0 };
        Self {
            weights: (0..kv.len()).map(|index| block(index).unwrap_or(0)).chain([weights.output_layer()]).collect(),
            cache: kv.iter().enumerate().map(cache).chain([0]).collect(),
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.weights.iter().zip(&self.cache).map(|(weights, cache)| weights.saturating_add(*cache)).collect()
    }
}

/// Estimates a load: the placement, or the reason why the model does not fit.
pub fn ollama_estimate(load: EstimateRequest<'_>) -> Result<Estimate, Unfit> {
    let EstimateRequest { weights, machine, .. } = load;
    let mut graph = graph_size(load.model, load.request)?;
    if machine.devices.first().is_some_and(|device| device.library == METAL) {
        graph.assumed_partial = graph.assumed_full;
    }
    let first_block = weights.blocks.first().copied().flatten();
    let reserve = first_block.map_or(0, |bytes| sum([bytes, graph.kv.first().copied().unwrap_or(0)]));
    let devices = less_reserve(&machine.devices, reserve, load.projector);
    let layers = Layers::of(weights, &graph.kv);
    let (layout, mut graphs) = settle(&layers, &devices, machine, graph.assumed_partial.max(graph.assumed_full), 0)?;
    let total_layers = layers.weights.len();
    let final_graph = if layout.assigned() >= total_layers { graph.assumed_full } else { graph.assumed_partial };
    for share in &layout.shares {
        graphs[share.device] = final_graph;
    }
    let (devices, system) = uses(&layers, &layout, &graphs);
    Ok(Estimate {
        kv: graph.kv,
        reserve,
        graph_partial: graph.assumed_partial,
        graph_full: graph.assumed_full,
        layout,
        total_layers,
        devices,
        system,
    })
}

/// Returns the devices with the reserve for the first block and the projector subtracted.
fn less_reserve(devices: &[Device], reserve: u64, projector: u64) -> Vec<Device> {
    let mut devices = devices.to_vec();
    for device in &mut devices {
        device.free_memory = device.free_memory.saturating_sub(reserve);
    }
    let discrete = devices.iter().position(|device| !device.integrated).unwrap_or(0);
    if let Some(device) = devices.get_mut(discrete) {
        device.free_memory = device.free_memory.saturating_sub(projector);
    }
    devices
}

/// Repeats the layout until it uses no more devices than the round before. The first round has no
/// graph on any device; each later round has a graph on every device that a layout has used.
///
/// The last layout holds. A device that lost its layers in a later round keeps its graph in the
/// result. `system_bytes` are in system memory independent of the placement.
pub(super) fn settle(
    layers: &Layers,
    devices: &[Device],
    machine: &Machine,
    graph: u64,
    system_bytes: u64,
) -> Result<(Layout, Vec<u64>), Unfit> {
    let sizes = layers.sizes();
    let mut graphs = vec![0; devices.len()];
    let mut requested = machine.requested;
    let mut used = 0;
    loop {
        let fixed: Vec<Fixed> = graphs.iter().copied().map(Fixed::Graph).collect();
        let found = layout(&LayoutRequest {
            layers: &sizes,
            devices,
            fixed: &fixed,
            requested,
            require_full: machine.require_full,
            spread: machine.spread,
            overhead: machine.overhead,
            backoff: 0.0,
            system_bytes,
            system: machine.system,
        })?;
        if found.shares.len() <= used {
            return Ok((found, graphs));
        }
        used = found.shares.len();
        requested = found.requested;
        for share in &found.shares {
            graphs[share.device] = graph;
        }
    }
}

/// Sums the use of each device and of the system, which holds the remaining layers.
pub(super) fn uses(layers: &Layers, layout: &Layout, graphs: &[u64]) -> (Vec<DeviceUse>, DeviceUse) {
    let mut devices: Vec<DeviceUse> = graphs.iter().map(|&graph| DeviceUse { graph, ..DeviceUse::default() }).collect();
    let mut on_device = vec![None; layers.weights.len()];
    for share in &layout.shares {
        for layer in share.layers.clone() {
            on_device[layer] = Some(share.device);
        }
    }
    let mut system = DeviceUse::default();
    for (layer, device) in on_device.into_iter().enumerate() {
        let holder = device.map_or(&mut system, |device| &mut devices[device]);
        holder.layers += 1;
        holder.weights = sum([holder.weights, layers.weights[layer]]);
        holder.cache = sum([holder.cache, layers.cache[layer]]);
    }
    (devices, system)
}
