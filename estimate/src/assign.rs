//! Which layers go to which device.
//!
//! Layers are placed from the last to the first, on the device with the least memory first, so that the last layers and
//! the output are together. The smallest share of every device's memory that still places as many layers is looked for:
//! it spreads them evenly. That search computes with single precision; its rounding decides at the boundaries and is
//! part of the result.

use std::ops::Range;

use crate::amount::sum;

/// The search over the share of memory ends here.
const TOLERANCE: f32 = 1e-6;
/// The share of a device's memory that may be used where a number of layers is forced on it.
const FORCED_CAPACITY: f32 = 1000.0;

/// A device, and the memory of it that layers may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What the system calls it; for people.
    pub id: String,
    /// How it is talked to: `CUDA`, `ROCm`, `Metal`, `Vulkan`.
    pub library: String,
    /// Whether it shares the system's memory. Others are used first.
    pub integrated: bool,
    /// Bytes.
    pub free_memory: u64,
}

/// How many layers are wanted on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requested {
    /// As many as fit.
    #[default]
    Automatic,
    /// So many, even where they do not fit.
    Layers(usize),
}

/// How layers are to be assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// How many on devices.
    pub requested: Requested,
    /// Whether a load that leaves layers in system memory is of no use: then nothing is forced on a device.
    pub require_full: bool,
    /// Whether all devices are to be used, even where fewer would do.
    pub spread: bool,
    /// Devices up to this index are used from the start: they have a graph already.
    pub last_used: usize,
}

/// The layers of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index in the list of devices.
    pub device: usize,
    /// Its layers; may be none.
    pub layers: Range<usize>,
}

/// How many layers are assigned.
pub(super) fn count(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.layers.len()).sum()
}

/// A device within one assignment.
#[derive(Clone, Copy)]
struct Place {
    device: usize,
    integrated: bool,
    free: u64,
}

/// Assigns layers of those sizes, the output being the last, to devices of one library. Devices are to be sorted:
/// discrete ones first, then by free memory, the most first.
///
/// First all layers are tried. Where they do not all fit, the output is left out and the rest is tried again; that
/// result holds even where it has fewer layers.
pub fn assign_layers(layers: &[u64], devices: &[Device], ask: Ask) -> Vec<Share> {
    // Whoever overrides the choice has all devices treated alike.
    let alike = ask.spread || ask.requested != Requested::Automatic;
    let place = |(index, device): (usize, &Device)| Place {
        device: index,
        integrated: device.integrated && !alike,
        free: device.free_memory,
    };
    let places: Vec<Place> = devices.iter().enumerate().map(place).collect();
    let all = assign(layers, &places, ask);
    if count(&all) == layers.len() {
        return all;
    }
    assign(&layers[..layers.len() - 1], &places, ask)
}

/// On as few devices as will do, or on all of them.
fn assign(layers: &[u64], places: &[Place], ask: Ask) -> Vec<Share> {
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

/// The most even assignment of as many layers as possible: the last ones to discrete devices, what is left to
/// integrated ones.
fn best_fit(layers: &[u64], places: &[Place], requested: Option<usize>, force: bool) -> Vec<Share> {
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

/// Devices that are integrated and that are not, in the order in which the kinds are met.
fn kinds(places: &[Place]) -> Vec<Vec<Place>> {
    let Some(first) = places.first() else { return Vec::new() };
    let (like, unlike): (Vec<Place>, Vec<Place>) =
        places.iter().copied().partition(|place| place.integrated == first.integrated);
    [like, unlike].into_iter().filter(|group| !group.is_empty()).collect()
}

/// The smallest share of memory that places as many layers as all of it.
fn most_even(layers: &[u64], places: &[Place], requested: Option<usize>, force: bool) -> Vec<Share> {
    let mut high: f32 = if requested.is_some() && force { FORCED_CAPACITY } else { 1.0 };
    let mut low: f32 = 0.0;
    let mut best = greedy(layers, places, high, requested);
    let most = count(&best);
    while high - low > TOLERANCE {
        let middle = f32::midpoint(low, high);
        if middle <= low || middle >= high {
            // From 16 on neighbouring numbers are further apart than the tolerance: nothing is left between the ends.
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

/// That share of a device's memory, in single precision.
#[expect(clippy::cast_sign_loss, reason = "sizes and shares are not negative")]
fn room(place: Place, capacity: f32) -> u64 {
    (place.free as f32 * capacity) as u64
}

/// Fills devices from the last to the first with layers from the last to the first, and never goes back. A device that
/// was passed over is in the result without layers.
fn greedy(layers: &[u64], places: &[Place], capacity: f32, requested: Option<usize>) -> Vec<Share> {
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

/// Bytes of the layers of a share.
pub(super) fn bytes(layers: &[u64], share: &Share) -> u64 {
    sum(layers.get(share.layers.clone()).unwrap_or_default().iter().copied())
}
