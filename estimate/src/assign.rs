//! Assigns layers to devices.
//!
//! Layers are placed from the last to the first, on the device with the least memory first, so that
//! the last layers and the output are together. A binary search finds the smallest share of every
//! device's memory that still places as many layers, which spreads them evenly. The search uses
//! single precision; its rounding decides at the boundaries and is part of the result.

use std::ops::Range;

use crate::amount::sum;

/// The search over the share of memory ends at an interval of this width.
const TOLERANCE: f32 = 1e-6;
/// The upper bound of the share of a device's memory when a number of layers is forced on it.
const FORCED_CAPACITY: f32 = 1000.0;

/// A device and its memory that is available for layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The identifier that the system gives the device; for display.
    pub id: String,
    /// The interface that drives the device: `CUDA`, `ROCm`, `Metal`, `Vulkan`.
    pub library: String,
    /// Whether it shares the system's memory. Discrete devices are used first.
    pub integrated: bool,
    /// Free memory in bytes.
    pub free_memory: u64,
}

/// The number of layers that the caller requests on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requested {
    /// As many as fit.
    #[default]
    Automatic,
    /// At most this number, even if they do not fit.
    Layers(usize),
}

/// Options of an assignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The number of layers on devices.
    pub requested: Requested,
    /// Whether a load that leaves layers in system memory is useless. If true, no layer is forced
    /// on a device.
    pub require_full: bool,
    /// Whether to use all devices, even if fewer would suffice.
    pub spread: bool,
    /// The last device that is used from the start: devices up to this index have a graph already.
    pub last_used: usize,
}

/// The layers that are assigned to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index in the list of devices.
    pub device: usize,
    /// Its layers; possibly none.
    pub layers: Range<usize>,
}

/// Returns the number of assigned layers.
pub(super) fn count(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.layers.len()).sum()
}

/// A device during one assignment.
#[derive(Clone, Copy)]
struct DeviceLoad {
    device: usize,
    integrated: bool,
    free: u64,
}

/// Assigns layers of these sizes (the output is the last) to the devices of one library. The caller
/// sorts the devices: discrete ones first, then by free memory in descending order.
///
/// The first attempt places all layers. If they do not all fit, the second attempt leaves out the
/// output. The second result holds even if it has fewer layers than the first.
pub fn assign_layers(layers: &[u64], devices: &[Device], ask: Ask) -> Vec<Share> {
    // A caller that overrides the automatic choice gets no preference for discrete devices.
    let alike = ask.spread || ask.requested != Requested::Automatic;
    let place = |(index, device): (usize, &Device)| DeviceLoad {
        device: index,
        integrated: device.integrated && !alike,
        free: device.free_memory,
    };
    let places: Vec<DeviceLoad> = devices.iter().enumerate().map(place).collect();
    let all = assign(layers, &places, ask);
    if count(&all) == layers.len() {
        return all;
    }
    assign(&layers[..layers.len() - 1], &places, ask)
}

/// Assigns layers to as few devices as possible, or to all of them if `ask.spread` is set.
fn assign(layers: &[u64], places: &[DeviceLoad], ask: Ask) -> Vec<Share> {
    let requested = match ask.requested {
        Requested::Automatic => None,
        Requested::Layers(requested) => Some(requested.min(layers.len())),
    };
    if ask.spread {
        return best_fit(layers, places, requested, !ask.require_full);
    }
    let mut shares = Vec::new();
    for last in ask.last_used..places.len() {
        let force = last + 1 == places.len() && !ask.require_full;
        shares = best_fit(layers, &places[..=last], requested, force);
        let placed = count(&shares);
        if placed == layers.len() || Some(placed) == requested {
            break;
        }
    }
    shares
}

/// Returns the most even assignment of as many layers as possible. Discrete devices get the last
/// layers; integrated devices get the remaining ones.
fn best_fit(layers: &[u64], places: &[DeviceLoad], requested: Option<usize>, force: bool) -> Vec<Share> {
    let (mut layers, mut requested) = (layers, requested);
    let mut shares = Vec::new();
    for group in kinds(places) {
        let mut best = most_even(layers, &group, requested, force);
        let placed = count(&best);
        layers = &layers[..layers.len() - placed];
        requested = requested.map(|requested| requested - placed);
        best.append(&mut shares);
        shares = best;
    }
    shares
}

/// Groups places into integrated and discrete ones, in the order in which the kinds first occur.
fn kinds(places: &[DeviceLoad]) -> Vec<Vec<DeviceLoad>> {
    let Some(first) = places.first() else { return Vec::new() };
    let (like, unlike): (Vec<DeviceLoad>, Vec<DeviceLoad>) =
        places.iter().copied().partition(|place| place.integrated == first.integrated);
    [like, unlike].into_iter().filter(|group| !group.is_empty()).collect()
}

/// Finds the smallest share of memory that places as many layers as the full memory does.
fn most_even(layers: &[u64], places: &[DeviceLoad], requested: Option<usize>, force: bool) -> Vec<Share> {
    let mut high: f32 = if requested.is_some() && force { FORCED_CAPACITY } else { 1.0 };
    let mut low: f32 = 0.0;
    let mut best = greedy(layers, places, high, requested);
    let most = count(&best);
    while high - low > TOLERANCE {
        let middle = f32::midpoint(low, high);
        if middle <= low || middle >= high {
            // From 16 on, neighbouring numbers are further apart than the tolerance, so no number
            // lies between the bounds.
            break;
        }
        let shares = greedy(layers, places, middle, requested);
        if count(&shares) == most {
            high = middle;
            best = shares;
        } else {
            low = middle;
        }
    }
    best
}

/// Returns the share `capacity` of a device's memory, computed in single precision.
#[expect(clippy::cast_sign_loss, reason = "sizes and shares are not negative")]
fn room(place: DeviceLoad, capacity: f32) -> u64 {
    (place.free as f32 * capacity) as u64
}

/// Fills devices from the last to the first with layers from the last to the first, without
/// backtracking. A skipped device is in the result without layers.
fn greedy(layers: &[u64], places: &[DeviceLoad], capacity: f32, requested: Option<usize>) -> Vec<Share> {
    let fewest = layers.len() - requested.unwrap_or(layers.len()).min(layers.len());
    let mut shares = Vec::new();
    let mut next = layers.len();
    for place in places.iter().rev() {
        let mut space = room(*place, capacity);
        let end = next;
        while next > fewest && layers[next - 1] <= space {
            next -= 1;
            space -= layers[next];
        }
        shares.push(Share { device: place.device, layers: next..end });
        if next == fewest {
            break;
        }
    }
    shares.reverse();
    shares
}

/// Returns the bytes of the layers of a share.
pub(super) fn bytes(layers: &[u64], share: &Share) -> u64 {
    sum(layers.get(share.layers.clone()).unwrap_or_default().iter().copied())
}
