//! Assignment of layers to devices: applies the exact estimate to the free memory of the devices,
//! and writes the result into the load plan.

use content::operation::{Result, Unclassified};
use estimate::exact::{self, Cache, Exact};
use estimate::{Device, Machine, Requested, System, Weights};
use protocol::{ContextRequest, DeviceChoice, DeviceLayers, Reserved, Survey, SurveyedDevice};

use crate::error::Error;
use crate::library::Library;
use crate::load_plan::ModelLoad;
use crate::model::Model;
use crate::plan::{AssumedDevices, Subject};

/// Assumed fragmentation: one of this many bytes of arrays is lost to gaps in slabs.
const LOST: u64 = 32;

/// Input of an assignment: the devices and the wishes of the request and the user.
#[derive(Clone, Debug)]
pub struct DeviceRoom {
    /// Free memory of the devices, and the bytes of the model that are already there.
    pub survey: Survey,
    /// Choice of the request.
    pub choice: DeviceChoice,
    /// Settings of the user.
    pub assumed: AssumedDevices,
    /// True if the load must use the available memory, because no further models will be unloaded.
    pub is_last: bool,
}

/// Assigns the layers of a load plan to devices. Returns `false` if the devices have no room for
/// all layers and more memory can still be freed (`is_last` is false).
///
/// # Errors
/// The request names a device that does not exist, or the model cannot be planned.
pub fn assign_layers(
    library: &Library,
    model: &Model,
    cache: ContextRequest,
    room: &DeviceRoom,
    plan: &mut ModelLoad,
) -> Result<bool> {
    let devices = wanted(&room.survey.devices, room.choice.device)?;
    // Without a device, the runner reports the reason itself.
    let (Some(described), false) = (model.parsed_facts.known(), devices.is_empty()) else { return Ok(true) };
    let cache = Cache { context: cache.context, slots: cache.slots, kv_type: cache.kv_type };
    let weights = Subject::of(library, model)?.weights();
    let decoder = described.decoder();
    let plan_on =
        |devices: &[&SurveyedDevice]| exact::load(&decoder, &weights, &cache, &machine(devices, room, &weights));
    let (devices, exact) = match best(&devices, room) {
        // Prefers the device that already holds most of the model, if it has room for the rest.
        Some(one) if devices.len() > 1 => match plan_on(&[one]).internal()? {
            exact if is_whole(&exact) => (vec![one], exact),
            _ => (devices.clone(), plan_on(&devices).internal()?),
        },
        _ => (devices.clone(), plan_on(&devices).internal()?),
    };
    let is_whole = is_whole(&exact);
    if !is_whole && room.choice.layers.is_none() && !room.is_last {
        return Ok(false);
    }
    let parts = DeviceParts::of(&exact, &devices);
    tracing::info!(
        model = model.name,
        layers = exact.layout.assigned(),
        of = exact.total_layers,
        on_devices = exact.device_size(),
        devices = ?devices.iter().map(|own| (&own.device.name, own.device.free, own.shared)).collect::<Vec<_>>(),
        "assigned layers to devices"
    );
    if parts.layers.is_empty() {
        let names: Vec<_> =
            devices.iter().map(|own| format!("{} ({})", own.device.name, own.device.description)).collect();
        let why = if room.choice.layers == Some(0) {
            "no layers on GPUs were requested"
        } else {
            "none has room for a layer"
        };
        "cpu".clone_into(&mut plan.request.device);
        plan.request.device_note = format!("available devices: {}; {why}", names.join(", "));
    } else {
        plan.request.layers = parts.layers;
        plan.reserved = Some(parts.reserved);
    }
    Ok(true)
}

fn is_whole(exact: &Exact) -> bool {
    exact.layout.assigned() >= exact.total_layers
}

/// Returns the device that holds most of the model, if neither the request nor the user constrains
/// the choice.
fn best<'a>(devices: &[&'a SurveyedDevice], room: &DeviceRoom) -> Option<&'a SurveyedDevice> {
    let is_ours = room.choice.layers.is_none() && !room.assumed.spread;
    devices.iter().copied().filter(|own| is_ours && own.there > 0).max_by_key(|own| own.there)
}

/// Returns all devices, or only the requested one.
fn wanted(devices: &[SurveyedDevice], only: Option<u64>) -> Result<Vec<&SurveyedDevice>> {
    let Some(index) = only else { return Ok(devices.iter().collect()) };
    let found: Vec<_> = devices.iter().filter(|own| own.index == index).collect();
    if found.is_empty() && !devices.is_empty() {
        let names: Vec<_> = devices.iter().map(|own| own.device.name.as_str()).collect();
        return Err(Error::CannotPlan(format!("`main_gpu` is {index}, available devices: {}", names.join(", "))).into());
    }
    Ok(found)
}

/// Describes the machine for the estimate. If the whole model goes to one device, arrays that other
/// sessions share need no further memory there. A part of the free memory is subtracted for
/// fragmentation.
fn machine(devices: &[&SurveyedDevice], room: &DeviceRoom, weights: &Weights) -> Machine {
    let all = weights.blocks.iter().chain([&weights.output, &weights.token_embedding]).flatten();
    let lost = all.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)) / LOST;
    let shared = |own: &SurveyedDevice| if devices.len() == 1 { own.shared } else { 0 };
    let device = |own: &&SurveyedDevice| Device {
        id: own.device.name.clone(),
        library: "CUDA".to_owned(),
        integrated: false,
        free_memory: own.device.free.map_or(0, |free| free - lost.min(free)).saturating_add(shared(own)),
    };
    Machine {
        devices: devices.iter().map(device).collect(),
        // The scheduler limits the system's memory.
        system: System { total_memory: u64::MAX, free_memory: u64::MAX, ..System::default() },
        requested: room
            .choice
            .layers
            .map_or(Requested::Automatic, |layers| Requested::Layers(usize::try_from(layers).unwrap_or(usize::MAX))),
        spread: room.assumed.spread,
        overhead: room.assumed.overhead,
        ..Machine::default()
    }
}

/// The part of a load plan that results from an estimate.
struct DeviceParts {
    layers: Vec<DeviceLayers>,
    reserved: Vec<Reserved>,
}

impl DeviceParts {
    fn of(exact: &Exact, devices: &[&SurveyedDevice]) -> Self {
        let used = exact.layout.shares.iter().filter(|share| !share.layers.is_empty());
        let name = |index: usize| devices[index].device.name.clone();
        let layers = used.clone().map(|share| DeviceLayers {
            device: name(share.device),
            first: share.layers.start as u64,
            count: share.layers.len() as u64,
        });
        let reserved = used.map(|share| {
            let own = &exact.devices[share.device];
            let there = devices[share.device].there;
            Reserved {
                device: name(share.device),
                own: own.cache.saturating_add(own.graph),
                weights: own.weights.saturating_sub(there),
            }
        });
        Self { layers: layers.collect(), reserved: reserved.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(index: u64, free: u64, shared: u64) -> SurveyedDevice {
        let device = protocol::Device {
            name: format!("gpu:{index}"),
            description: "a GPU".to_owned(),
            free: Some(free),
            total: Some(free),
        };
        SurveyedDevice { device, index, shared, there: shared }
    }

    #[test]
    fn a_device_that_is_wanted_is_the_only_one() {
        let all = [surveyed(0, 1, 0), surveyed(2, 2, 0)];
        assert_eq!(wanted(&all, None).expect("all").len(), 2);
        assert_eq!(wanted(&all, Some(2)).expect("it is there")[0].device.name, "gpu:2");
        assert!(wanted(&all, Some(1)).expect_err("there is none").to_string().contains("main_gpu"));
        assert!(wanted(&[], Some(1)).expect("nothing to choose from").is_empty());
    }

    #[test]
    fn what_others_use_of_the_model_takes_no_room() {
        let (first, second) = (surveyed(0, 10, 5), surveyed(1, 7, 0));
        let room = DeviceRoom {
            survey: Survey::default(),
            choice: DeviceChoice { layers: Some(3), device: None },
            assumed: AssumedDevices { overhead: 4, ..AssumedDevices::default() },
            is_last: true,
        };
        let weights = Weights { blocks: vec![Some(32)], output_norm: None, output: None, token_embedding: None };
        let free = |devices: &[&SurveyedDevice]| -> Vec<u64> {
            machine(devices, &room, &weights).devices.iter().map(|own| own.free_memory).collect()
        };
        assert_eq!((free(&[&first]), free(&[&first, &second])), (vec![14], vec![9, 6]));
        let machine = machine(&[&first, &second], &room, &weights);
        assert_eq!((machine.requested, machine.overhead), (Requested::Layers(3), 4));
        let automatic = DeviceRoom { choice: DeviceChoice::default(), ..room.clone() };
        let found = best(&[&second, &first], &automatic).map(|own| own.device.name.as_str());
        assert_eq!((found, best(&[&second, &first], &room).is_none()), (Some("gpu:0"), true));
    }
}
