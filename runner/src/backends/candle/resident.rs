//! Arrays of weights in the memory of a device, as they are stored. An array that several tensors
//! share is uploaded once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result};
use architectures::Rows;
use device::{Arrays, DeviceArray, DeviceWeight, GpuRuntime, Memory, RowBlocks};

use crate::failure;
use crate::holder_client::HolderClient;
use crate::mapped::{ArrayKey, MappedTensor};

/// The arrays on the device. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Resident {
    all: Arc<Mutex<HashMap<ArrayKey, Weak<Memory>>>>,
    /// The process that holds the arrays, if it is another one, and its name of the device.
    holder: Option<(HolderClient, String)>,
}

impl Resident {
    /// Uses arrays that another process holds.
    pub(super) fn held(holder: HolderClient, device: String) -> Self {
        Self { all: Arc::default(), holder: Some((holder, device)) }
    }

    /// Returns a matrix, or some rows of it; `None` if there are no kernels for its encoding. Adds
    /// the bytes that were uploaded or mapped to `taken`.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(super) fn weight(
        &self,
        machine: &GpuRuntime,
        tensor: &MappedTensor,
        rows: Option<Rows>,
        taken: &AtomicU64,
    ) -> Result<Option<DeviceWeight>> {
        let [own_rows, columns] = tensor.shape[..] else { return Ok(None) };
        if !DeviceWeight::is_known(tensor.encoding(), columns) {
            return Ok(None);
        }
        let part = match rows {
            None => RowBlocks::all(own_rows),
            Some(rows) => row_blocks(rows).context("row number exceeds 2^32")?,
        };
        let places = tensor.places();
        let arrays = Arrays {
            codes: self.array(machine, places.codes, taken)?,
            scales: match places.scales {
                Some((key, bytes, dtype)) => Some((self.array(machine, (key, bytes), taken)?, dtype)),
                None => None,
            },
            biases: places.biases.map(|biases| self.array(machine, biases, taken)).transpose()?,
            global_scale: places.global_scale,
        };
        Ok(Some(DeviceWeight::new(tensor.encoding(), [own_rows, columns], arrays, part)?))
    }

    fn array(&self, machine: &GpuRuntime, (key, bytes): (ArrayKey, &[u8]), taken: &AtomicU64) -> Result<DeviceArray> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let size = bytes.len();
        if let Some(memory) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(DeviceArray { memory, offset: 0, size });
        }
        let memory = if let Some((holder, device)) = &self.holder {
            holder.array(machine, device, key)?
        } else {
            let memory = machine.upload(bytes).context("not enough device memory for the model's weights");
            memory.map_err(|error| failure::out_of_memory(&error))?
        };
        taken.fetch_add(size as u64, Ordering::Relaxed);
        let memory = Arc::new(memory);
        all.insert(key, Arc::downgrade(&memory));
        Ok(DeviceArray { memory, offset: 0, size })
    }
}

fn row_blocks(rows: Rows) -> Option<RowBlocks> {
    let Rows { first, count, block, stride } = rows;
    let [first, count, block, stride] = [first, count, block, stride].map(|number| u32::try_from(number).ok());
    Some(RowBlocks { first: first?, count: count?, block: block?, stride: stride? })
}
