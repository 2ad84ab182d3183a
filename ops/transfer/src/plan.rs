//! Memory plans for models that are not in the store. Only manifests, documents and headers are
//! read from the registry.

use std::sync::Arc;

use content::Descriptor;
use content::operation::{Result, Unclassified};
use import::ReadAt;
use library::{Error, Presence, RangeReader, Subject, Windows};
use manifests::ModelRef;

use crate::hosts::Hosts;
use crate::hub::HubReference;
use crate::remote_blob::remote_blob;
use crate::resolve::{check_names, resolve};

/// Reads the facts about a model from its registry.
///
/// # Errors
/// The registry fails, or the name is not a model that can be planned.
pub async fn subject_at_registry(hosts: &Hosts, name: &ModelRef) -> Result<Subject> {
    if HubReference::parse(&name.to_string())?.is_some() {
        return Err(Error::CannotPlan("a hub has no manifest of it; pull it first".to_owned()).into());
    }
    let (remote, _) = hosts.remote(name)?;
    let (_, manifest) = resolve(&remote, name).await?;
    check_names(&manifest, name)?;
    // Requests run until this is dropped, for any reason.
    let presence = Presence::new();
    let (windows, requests, name) = (Windows::for_workers(), presence.requests(), name.clone());
    let work = move || {
        let open = |layer: &str, blob: &Descriptor| {
            let source = remote_blob(&remote, layer, blob);
            Arc::new(RangeReader::new(source, requests.clone(), windows.clone())) as Arc<dyn ReadAt>
        };
        Subject::elsewhere(&name, &manifest, &open)
    };
    tokio::task::spawn_blocking(work).await.internal()?
}
