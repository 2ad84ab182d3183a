//! From a machine's devices to an assignment: what is taken off each device, which library is used, and whether the rest
//! fits into system memory.

use crate::Unfit;
use crate::amount::sum;
use crate::assign::{self, Ask, Device, Requested, Share, assign_layers};

/// Kept free on every device.
const MINIMUM: u64 = 457 << 20;
/// Kept free on devices of the library [`METAL`].
const METAL_MINIMUM: u64 = 512 << 20;
/// The library whose devices have another minimum.
pub(super) const METAL: &str = "Metal";

/// What the system does when memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// What fits neither into memory nor into swap fails.
    #[default]
    FixedSwap,
    /// macOS: swap grows as it is needed, and devices use the system's memory.
    GrowingSwap,
}

/// The memory of the system. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// All of it.
    pub total_memory: u64,
    /// What is free.
    pub free_memory: u64,
    /// Free swap.
    pub free_swap: u64,
    /// What happens when both run out.
    pub platform: Platform,
}

/// What a device has beside layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// So many bytes of a compute graph.
    Graph(u64),
    /// The process that loads the model does not know the device: nothing can be put there.
    Unknown,
}

/// What is to be laid out. Devices are in the order in which they were found.
#[derive(Clone, Debug)]
pub struct LayoutRequest<'a> {
    /// Bytes of each layer with its KV cache; the output is the last.
    pub layers: &'a [u64],
    /// The devices with all their free memory.
    pub devices: &'a [Device],
    /// What each of them has already.
    pub fixed: &'a [Fixed],
    /// How many layers on devices.
    pub requested: Requested,
    /// Whether all layers must be on devices and the rest in free memory.
    pub require_full: bool,
    /// Whether all devices of a library are to be used.
    pub spread: bool,
    /// Bytes that are kept free on every device beside the minimum.
    pub overhead: u64,
    /// The part of every device's free memory that is kept free after allocations have failed.
    pub backoff: f32,
    /// Bytes that are in system memory whatever is on devices.
    pub system_bytes: u64,
    /// The system's memory.
    pub system: System,
}

/// Where layers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The devices with their layers; a device may be there without any.
    pub shares: Vec<Share>,
    /// What later layouts of the same load are to ask for: nothing on devices where this one was too large for them.
    pub requested: Requested,
}

impl Layout {
    /// How many layers are on devices.
    pub fn assigned(&self) -> usize {
        assign::count(&self.shares)
    }
}

/// Lays a model out. A model never spans libraries: the one that takes most layers gets it.
pub fn layout(request: &LayoutRequest<'_>) -> Result<Layout, Unfit> {
    let mut shares: Vec<Share> = Vec::new();
    for library in libraries(request.devices) {
        let indexes: Vec<usize> = sorted(request.devices, library);
        let found = assign_to_library(request, &indexes);
        if assign::count(&found) > assign::count(&shares) {
            shares = found;
        }
    }
    verify(request, shares)
}

/// The libraries, in the order in which their devices are sorted.
fn libraries(devices: &[Device]) -> Vec<&str> {
    let mut order: Vec<&Device> = devices.iter().collect();
    order.sort_by_key(|device| (device.integrated, std::cmp::Reverse(device.free_memory)));
    let mut libraries = Vec::new();
    for device in order {
        if !libraries.contains(&device.library.as_str()) {
            libraries.push(device.library.as_str());
        }
    }
    libraries
}

/// Indexes of the devices of a library: discrete ones first, then by free memory, the most first.
fn sorted(devices: &[Device], library: &str) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..devices.len()).filter(|&index| devices[index].library == library).collect();
    indexes.sort_by_key(|&index| (devices[index].integrated, std::cmp::Reverse(devices[index].free_memory)));
    indexes
}

fn assign_to_library(request: &LayoutRequest<'_>, indexes: &[usize]) -> Vec<Share> {
    let fixed = |index: usize| request.fixed.get(index).copied().unwrap_or(Fixed::Unknown);
    let usable = |&index: &usize| {
        let device = &request.devices[index];
        Device { free_memory: usable(device, fixed(index), request), ..device.clone() }
    };
    let devices: Vec<Device> = indexes.iter().map(usable).collect();
    let has_graph = |&index: &usize| matches!(fixed(index), Fixed::Graph(bytes) if bytes > 0);
    let ask = Ask {
        requested: request.requested,
        require_full: request.require_full,
        spread: request.spread,
        // A device that has a graph is used on, so that a second layout does not have fewer devices than the first.
        last_used: indexes.iter().rposition(has_graph).unwrap_or(0),
    };
    let mut shares = assign_layers(request.layers, &devices, ask);
    for share in &mut shares {
        share.device = indexes[share.device];
    }
    shares
}

/// What layers may have of a device's free memory.
#[expect(clippy::cast_sign_loss, reason = "a part of a size is not negative")]
fn usable(device: &Device, fixed: Fixed, request: &LayoutRequest<'_>) -> u64 {
    let Fixed::Graph(graph) = fixed else { return 0 };
    let minimum = if device.library == METAL { METAL_MINIMUM } else { MINIMUM };
    let backoff = (device.free_memory as f32 * request.backoff) as u64;
    device.free_memory.saturating_sub(sum([backoff, minimum, request.overhead, graph]))
}

/// Whether what is not on devices fits into system memory.
fn verify(request: &LayoutRequest<'_>, shares: Vec<Share>) -> Result<Layout, Unfit> {
    let assigned = assign::count(&shares);
    let layers = request.layers.len();
    let on_devices = sum(shares.iter().map(|share| assign::bytes(request.layers, share)));
    let off_devices = sum(request.layers.iter().copied()).saturating_sub(on_devices);
    let needed = sum([request.system_bytes, off_devices]);
    let system = request.system;
    if request.require_full {
        let fewer = match request.requested {
            Requested::Automatic => true,
            Requested::Layers(requested) => assigned < requested,
        };
        if !request.devices.is_empty() && assigned < layers && fewer {
            return Err(Unfit::RequiresFull { assigned, layers });
        }
        if needed > system.free_memory {
            return Err(Unfit::RequiresFullSystemMemory { needed, free: system.free_memory });
        }
    }
    let mut requested = request.requested;
    match system.platform {
        Platform::FixedSwap => {
            let available = sum([system.free_memory, system.free_swap]);
            if needed > available {
                return Err(Unfit::SystemMemory { needed, available });
            }
        }
        Platform::GrowingSwap => {
            let graph = |share: &Share| match request.fixed.get(share.device) {
                Some(Fixed::Graph(bytes)) => *bytes,
                _ => 0,
            };
            // Devices that take all of the system's memory can lock it up.
            if sum(shares.iter().map(graph).chain([on_devices])) > system.total_memory {
                requested = Requested::Layers(0);
            }
        }
    }
    Ok(Layout { shares, requested })
}
