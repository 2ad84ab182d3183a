//! Turns a machine's devices into an assignment: subtracts reserves from each device, chooses the
//! library, and checks that the rest fits into system memory.

use crate::Unfit;
use crate::amount::sum;
use crate::assign::{self, Ask, Device, Requested, Share, assign_layers};

/// Bytes that are kept free on every device.
const MINIMUM: u64 = 457 << 20;
/// Bytes that are kept free on devices of the library [`METAL`].
const METAL_MINIMUM: u64 = 512 << 20;
/// The library whose devices have their own minimum.
pub(super) const METAL: &str = "Metal";

/// The behaviour of the system when memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// An allocation that fits into neither memory nor swap fails.
    #[default]
    FixedSwap,
    /// macOS: swap grows on demand, and devices use the system's memory.
    GrowingSwap,
}

/// The memory of the system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// Total memory.
    pub total_memory: u64,
    /// Free memory.
    pub free_memory: u64,
    /// Free swap.
    pub free_swap: u64,
    /// The behaviour when both run out.
    pub platform: Platform,
}

/// The memory that a device needs in addition to layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// A compute graph of this many bytes.
    Graph(u64),
    /// The process that loads the model does not know the device, so no layer can be placed there.
    Unknown,
}

/// The input of [`layout()`]. Devices are in the order of discovery.
#[derive(Clone, Debug)]
pub struct LayoutRequest<'a> {
    /// Bytes of each layer including its KV cache; the output is last.
    pub layers: &'a [u64],
    /// The devices, with the free memory that layers may use.
    pub devices: &'a [Device],
    /// The fixed memory of each device.
    pub fixed: &'a [Fixed],
    /// The requested number of layers on devices.
    pub requested: Requested,
    /// Whether all layers must be on devices, and everything else in free memory.
    pub require_full: bool,
    /// Whether to use all devices of a library.
    pub spread: bool,
    /// Bytes that are kept free on every device in addition to the minimum.
    pub overhead: u64,
    /// The fraction of every device's free memory that is kept free after failed allocations.
    pub backoff: f32,
    /// Bytes that are in system memory independent of the placement.
    pub system_bytes: u64,
    /// The system's memory.
    pub system: System,
}

/// The placement of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The devices and their layers; a device may be listed without layers.
    pub shares: Vec<Share>,
    /// The request for later layouts of the same load. It is `Layers(0)` if this layout exceeds the
    /// system's memory on a platform with growing swap.
    pub requested: Requested,
}

impl Layout {
    /// Returns the number of layers on devices.
    pub fn assigned(&self) -> usize {
        assign::count(&self.shares)
    }
}

/// Computes the layout of a model. A model never spans libraries: the library that takes the most
/// layers wins.
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

/// Returns the libraries in the order of their sorted devices.
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

/// Returns the indexes of a library's devices: discrete ones first, then by free memory in
/// descending order.
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
        // A device that already has a graph stays in use, so that a second layout has at least as
        // many devices as the first.
        last_used: indexes.iter().rposition(has_graph).unwrap_or(0),
    };
    let mut shares = assign_layers(request.layers, &devices, ask);
    for share in &mut shares {
        share.device = indexes[share.device];
    }
    shares
}

/// Returns the bytes of a device's free memory that layers may use.
#[expect(clippy::cast_sign_loss, reason = "a part of a size is not negative")]
fn usable(device: &Device, fixed: Fixed, request: &LayoutRequest<'_>) -> u64 {
    let Fixed::Graph(graph) = fixed else { return 0 };
    let minimum = if device.library == METAL { METAL_MINIMUM } else { MINIMUM };
    let backoff = (device.free_memory as f32 * request.backoff) as u64;
    device.free_memory.saturating_sub(sum([backoff, minimum, request.overhead, graph]))
}

/// Checks that everything that is not on devices fits into system memory.
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
            // Devices that take all of the system's memory can freeze the system.
            if sum(shares.iter().map(graph).chain([on_devices])) > system.total_memory {
                requested = Requested::Layers(0);
            }
        }
    }
    Ok(Layout { shares, requested })
}
