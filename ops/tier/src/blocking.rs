//! Work of the store on threads for blocking work.

use content::Error;
use library::Library;

/// Runs work that blocks on the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    library: &Library,
    work: impl FnOnce(&Library) -> Result<T, store::Error> + Send + 'static,
) -> Result<T, Error> {
    let library = library.clone();
    let done = tokio::task::spawn_blocking(move || work(&library)).await;
    Ok(done.map_err(|e| Error::Other(Box::new(e)))??)
}
