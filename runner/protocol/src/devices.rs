//! The devices that a runner can compute on, as `lode-runner --devices=json` prints them.

use serde::{Deserialize, Serialize};

/// The devices that this build of the runner finds on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// Devices that work, in the order in which `auto` prefers them; the CPU is the last.
    pub usable: Vec<Device>,
    /// Devices, or kinds of devices, that do not work.
    pub unusable: Vec<UnusableDevice>,
}

/// A device that works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// As load plans name it: `cpu`, `cuda:0`, `metal`.
    pub name: String,
    /// Description of the device, for messages to the user.
    pub description: String,
    /// Free bytes of the device's own memory; `None` if it has no memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Total bytes of the device's own memory; `None` if it has no memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// A device, or a kind of devices, that does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableDevice {
    /// Name of the device or of the kind: `cuda`, `cuda:1`, `metal`.
    pub name: String,
    /// Why it does not work, and what the user can do about it.
    pub reason: String,
}

/// Where a request wants the layers of a model. The default accepts any placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Number of layers on devices, counted from the last; the output layer counts as one.
    pub layers: Option<u64>,
    /// The only device to use, by its number.
    pub device: Option<u64>,
}

impl DeviceChoice {
    /// True if a model that was loaded with the choice `loaded` serves this one.
    pub fn is_met_by(self, loaded: Self) -> bool {
        self == Self::default() || self == loaded
    }
}
