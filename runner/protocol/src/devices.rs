//! The devices that a runner could compute on: what `lode-runner --devices=json` prints.

use serde::{Deserialize, Serialize};

/// What this build of the runner finds on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// Devices that work, the ones that `auto` prefers first; the CPU is the last.
    pub usable: Vec<Device>,
    /// Devices, or kinds of them, that do not.
    pub unusable: Vec<UnusableDevice>,
}

/// A device that works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// As load plans name it: `cpu`, `cuda:0`, `metal`.
    pub name: String,
    /// What people call it.
    pub description: String,
    /// Bytes of its memory that are free, where it has memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// All bytes of its memory, where it has memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// A device, or a kind of them, that does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableDevice {
    /// `cuda`, `cuda:1`, `metal`.
    pub name: String,
    /// Why, and what to do about it.
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
