//! The devices of a load plan, opened as backends of the layers.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kernels::pool::Pool;
use protocol::{DeviceLayers, LoadRequest};

use crate::backends::candle::Candle;
use crate::backends::cpu::Cpu;
use crate::decoder::{DeviceBackend, LayerBackends};
use crate::device::{self, Opened, Opening};
use crate::failure;
use crate::holder_client::HolderClient;
use crate::load_resources::LoadResources;

/// The backends of a model, and their description for users.
pub(crate) struct LayerDevices {
    pub(crate) backends: LayerBackends,
    /// See [`protocol::LoadReply::device_note`].
    pub(crate) note: String,
    /// Devices that have weights.
    pub(crate) devices: Vec<Candle>,
    /// For each layer, whether its weights and states are on a device. The last entry stands for
    /// the final norm and the output projection.
    pub(crate) on_devices: Vec<bool>,
}

/// Opens the devices of a plan for a model of so many layers.
///
/// # Errors
/// Fails if a device is not available, or the plan names layers that do not exist.
pub(crate) fn open(
    request: &LoadRequest,
    layers: usize,
    machine: &LoadResources,
    holder: Option<&HolderClient>,
) -> Result<LayerDevices> {
    if request.layers.is_empty() {
        return whole(request, layers, machine);
    }
    let assigned = assigned(&request.layers, layers)?;
    let mut names: Vec<Option<&str>> = Vec::new();
    for name in &assigned {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    let (mut backends, mut notes, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for name in &names {
        let count = assigned[..layers].iter().filter(|own| *own == name).count();
        let Some(name) = name else {
            notes.push(("cpu".to_owned(), String::new(), count));
            backends.push(DeviceBackend::Cpu(cpu(machine, request)?));
            continue;
        };
        let Opened { device, note } = device::open(name).map_err(|error| failure::unsupported(&error))?;
        notes.push(((*name).to_owned(), note, count));
        let candle = Candle::of(device, request.reference)?;
        let candle = match holder.cloned() {
            Some(holder) => candle.with_holder(holder),
            None => candle,
        };
        devices.push(candle.clone());
        backends.push(DeviceBackend::Candle(Box::new(candle)));
    }
    let on_devices = assigned.iter().map(Option::is_some).collect();
    let backend_of = |name: Option<&str>| names.iter().position(|own| *own == name);
    let of_layers = assigned.iter().copied().map(backend_of).collect::<Option<Vec<_>>>();
    let of_layers = of_layers.context("invariant: each name is among all names")?;
    let backends = LayerBackends::assigned(&backends, &of_layers);
    Ok(LayerDevices { backends, note: told(&notes, layers), devices, on_devices })
}

/// Describes devices for users: each with its note, and its number of layers.
fn told(notes: &[(String, String, usize)], layers: usize) -> String {
    match notes {
        [(_, note, _)] => note.clone(),
        several => {
            let one = |(name, note, count): &(String, String, usize)| {
                let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
                format!("{count} of {layers} layers on {name}{note}")
            };
            several.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Opens the device of a plan for all layers.
fn whole(request: &LoadRequest, layers: usize, machine: &LoadResources) -> Result<LayerDevices> {
    let Opened { device, note } = device::open(&request.device).map_err(|error| failure::unsupported(&error))?;
    let note = if request.device_note.is_empty() { note } else { request.device_note.clone() };
    let is_cpu = matches!(device, Opening::Candle(candle_core::Device::Cpu));
    if is_cpu && !request.reference {
        let backends = LayerBackends::from(&cpu(machine, request)?);
        return Ok(LayerDevices { backends, note, devices: Vec::new(), on_devices: vec![false; layers + 1] });
    }
    let candle = Candle::of(device, request.reference)?;
    let devices = if is_cpu { Vec::new() } else { vec![candle.clone()] };
    Ok(LayerDevices { backends: LayerBackends::from(&candle), note, devices, on_devices: vec![!is_cpu; layers + 1] })
}

fn cpu(machine: &LoadResources, request: &LoadRequest) -> Result<Cpu> {
    let pool = Pool::new(machine.threads).context("cannot start the compute threads")?;
    Ok(Cpu::new(Arc::new(pool), machine.instructions).deterministic(request.deterministic))
}

/// Returns the device of each layer, and last of the final norm and the output projection; `None`
/// is the CPU.
///
/// # Errors
/// Fails if the shares name layers that do not exist, a layer twice, or a device twice.
pub(crate) fn assigned(shares: &[DeviceLayers], layers: usize) -> Result<Vec<Option<&str>>> {
    let mut assigned = vec![None; layers + 1];
    for DeviceLayers { device, first, count } in shares {
        // Memory plans count the recorded passes of a device once.
        ensure!(!assigned.contains(&Some(device.as_str())), "the load plan has the device `{device}` twice");
        let end = first.checked_add(*count).filter(|end| *end <= assigned.len() as u64);
        let end = end.with_context(|| format!("the load plan has {count} layers from {first} on, of {layers}"))?;
        for layer in &mut assigned[*first as usize..end as usize] {
            ensure!(layer.is_none(), "the load plan has a layer on two devices");
            *layer = Some(device.as_str());
        }
    }
    Ok(assigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(device: &str, first: u64, count: u64) -> DeviceLayers {
        DeviceLayers { device: device.to_owned(), first, count }
    }

    #[test]
    fn layers_without_a_device_are_the_cpu_s() {
        let shares = [share("cuda:1", 3, 2), share("cuda:0", 1, 2)];
        let found = assigned(&shares, 4).expect("they fit");
        assert_eq!(found, [None, Some("cuda:0"), Some("cuda:0"), Some("cuda:1"), Some("cuda:1")]);
        for wrong in [
            vec![share("a", 4, 2)],
            vec![share("a", u64::MAX, 2)],
            vec![share("a", 0, 2), share("b", 1, 1)],
            vec![share("a", 0, 1), share("a", 2, 1)],
        ] {
            assert!(assigned(&wrong, 4).is_err(), "{wrong:?}");
        }
    }
}
