//! Tests of concurrent uploads in the orders of tasks that `shuttle` chooses. Clients disconnect at
//! any moment, others query uploads, and a task closes idle ones. The storage is in memory. Like
//! the storage on disk, it has one holder per ingest, and completes an operation after its caller
//! is dropped.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Memory, Provider};
use futures_util::future::{Either, join_all, select};
use futures_util::stream;
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};

use super::access::Access;
use super::storage::{
    BlobStorage, BlobStream, Listed, ListedManifest, ListedTag, Lookup, ManifestStorage, NewManifest, Page, Pulls,
    Reference, Removal, Repository, RepositoryUpkeep,
};
use super::{Server, ServerOptions, handle, windows};

/// The blob, in pieces.
const PIECES: [&str; 3] = ["a blob ", "in three ", "pieces"];

/// One repository in memory.
#[derive(Clone, Debug, Default)]
struct Shelf {
    content: Memory,
    /// Ingests that were started and have not ended.
    begun: Arc<Mutex<BTreeSet<IngestId>>>,
}

#[derive(Debug)]
struct Writing {
    ingest: <Memory as Ingester>::Ingest,
    id: IngestId,
    begun: Arc<Mutex<BTreeSet<IngestId>>>,
}

impl Shelf {
    /// Opens an ingest in a task that cannot be cancelled, like a system call.
    async fn open(&self, id: &IngestId) -> Result<Writing, Error> {
        let (own, id) = (self.clone(), id.clone());
        let opened = spawn(async move {
            yield_now().await;
            let ingest = own.content.ingest(&id, Expected::Unknown).await?;
            yield_now().await;
            own.begun.lock().expect("nobody panicked").insert(id.clone());
            Ok(Writing { ingest, id, begun: own.begun })
        });
        opened.await.expect("nobody stops it")
    }
}

impl Ingest for Writing {
    fn offset(&self) -> u64 {
        self.ingest.offset()
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        yield_now().await;
        self.ingest.write(bytes).await?;
        yield_now().await;
        Ok(())
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        self.ingest.expect(expected).await
    }

    async fn commit(self) -> Result<(Digest, u64), Error> {
        yield_now().await;
        self.begun.lock().expect("nobody panicked").remove(&self.id);
        self.ingest.commit().await
    }

    async fn cancel(self) -> Result<(), Error> {
        yield_now().await;
        self.begun.lock().expect("nobody panicked").remove(&self.id);
        self.ingest.cancel().await
    }
}

impl Provider for Shelf {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.content.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        self.content.read(blob, range).await
    }
}

impl Ingester for Shelf {
    type Ingest = Writing;

    async fn ingest(&self, id: &IngestId, _: Expected) -> Result<Writing, Error> {
        self.open(id).await
    }
}

impl BlobStorage for Shelf {
    async fn stream(&self, _: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        windows(self, blob, range, ()).await
    }

    async fn blob(&self, _: &Repository, digest: &Digest, _: Lookup) -> Result<Option<Descriptor>, Error> {
        self.content.stat(digest).await
    }

    async fn mount(&self, _: Option<&Repository>, _: &Repository, _: &Digest) -> Result<bool, Error> {
        Ok(false)
    }

    async fn remove_blob(&self, _: &Repository, _: &Digest) -> Result<Removal, Error> {
        Ok(Removal::NotThere)
    }

    async fn resume(&self, id: &IngestId) -> Result<Option<Writing>, Error> {
        yield_now().await;
        let is_begun = self.begun.lock().expect("nobody panicked").contains(id);
        if is_begun { self.open(id).await.map(Some) } else { Ok(None) }
    }

    async fn finish(&self, _: &Repository, mut upload: Writing, expected: Expected) -> Result<(Digest, u64), Error> {
        upload.expect(expected).await?;
        // A disk that fails now and then; the received bytes stay.
        if thread_rng().gen_ratio(1, 2) {
            yield_now().await;
            return Err(Error::Other("the disk failed".into()));
        }
        upload.commit().await
    }
}

/// There are no manifests.
impl ManifestStorage for Shelf {
    type Announcement = ();

    async fn announce(&self, _: &Repository, _: &[Digest]) -> Result<(), Error> {
        Ok(())
    }

    async fn withdraw(&self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    async fn record_pull(&self, _: &Repository, _: &Digest) -> Result<(), Error> {
        Ok(())
    }

    async fn read_manifest(&self, _: &Repository, _: &Digest) -> Result<Option<Bytes>, Error> {
        Ok(None)
    }

    async fn manifest(&self, _: &Repository, _: &Reference) -> Result<Option<Digest>, Error> {
        Ok(None)
    }

    async fn put_manifest(&self, _: &Repository, manifest: NewManifest, (): &()) -> Result<(), Error> {
        Err(Error::BlobNotFound(manifest.digest))
    }

    async fn remove_manifest(&self, _: &Repository, _: &Reference) -> Result<Removal, Error> {
        Ok(Removal::NotThere)
    }

    async fn referrers(&self, _: &Repository, _: &Digest, _: &Page) -> Result<Listed<Digest>, Error> {
        Ok(Listed { entries: Vec::new(), has_more: false })
    }

    async fn tags(&self, _: &Repository, _: &Page) -> Result<Option<Listed<String>>, Error> {
        Ok(None)
    }

    async fn repositories(&self, _: &Page) -> Result<Listed<String>, Error> {
        Ok(Listed { entries: Vec::new(), has_more: false })
    }
}

impl RepositoryUpkeep for Shelf {
    async fn pulls(&self, _: &Repository, now: SystemTime) -> Result<Pulls, Error> {
        Ok(Pulls { since: now, last: HashMap::new() })
    }

    async fn listed_tags(&self, _: &Repository) -> Result<Vec<ListedTag>, Error> {
        Ok(Vec::new())
    }

    async fn listed_manifests(&self, _: &Repository) -> Result<Vec<ListedManifest>, Error> {
        Ok(Vec::new())
    }

    async fn remove_tag(&self, _: &Repository, _: &ListedTag) -> Result<Removal, Error> {
        Ok(Removal::NotThere)
    }

    async fn remove_untagged(&self, _: &Repository, _: &ListedManifest) -> Result<Removal, Error> {
        Ok(Removal::NotThere)
    }
}

/// A client of the server.
#[derive(Clone)]
struct Client(Arc<Server<Shelf>>);

impl Client {
    async fn send(&self, method: Method, path: &str, body: Body) -> Response {
        let request = Request::builder().method(method).uri(path).body(body).expect("a request");
        handle(State(self.0.clone()), request).await
    }

    /// Begins an upload and returns its path.
    async fn begin(&self) -> String {
        let answer = self.send(Method::POST, "/v2/r/blobs/uploads/", Body::empty()).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        let location = answer.headers().get(header::LOCATION).expect("a place");
        location.to_str().expect("a text").to_owned()
    }

    /// Sends pieces, and may disconnect before the response; returns `None` in this case.
    async fn send_and_leave(&self, method: Method, path: &str, pieces: &[&'static str]) -> Option<Response> {
        let gone = Arc::new(AtomicBool::new(false));
        let request = pin!(self.send(method, path, slowly(pieces, gone.clone())));
        let patience = thread_rng().gen_range(0..24);
        let answer = match select(request, pin!(pause(patience))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        };
        gone.store(true, Ordering::SeqCst);
        answer
    }

    /// The number of pieces that were received; `None` if there is no such upload. Any other
    /// response fails the test.
    async fn pieces_there(&self, path: &str) -> Option<usize> {
        let answer = self.send(Method::GET, path, Body::empty()).await;
        if answer.status() == StatusCode::NOT_FOUND {
            return None;
        }
        assert_eq!(answer.status(), StatusCode::NO_CONTENT, "an upload that others use");
        let range = answer.headers().get(header::RANGE).expect("a range").to_str().expect("a text");
        let last: usize = range.strip_prefix("0-").and_then(|last| last.parse().ok()).expect("0-LAST");
        let ends: Vec<usize> = (0..=PIECES.len()).map(|count| PIECES[..count].concat().len()).collect();
        // `0-0` also stands for zero bytes.
        let bytes = if last == 0 { 0 } else { last + 1 };
        Some(ends.iter().position(|end| *end == bytes).expect("whole pieces"))
    }
}

/// A body that arrives in pieces, and breaks off after its client has disconnected.
fn slowly(pieces: &[&'static str], gone: Arc<AtomicBool>) -> Body {
    let pieces = pieces.to_vec().into_iter();
    Body::from_stream(stream::unfold((pieces, gone), async |(mut pieces, gone)| {
        yield_now().await;
        if gone.load(Ordering::SeqCst) {
            return Some((Err(std::io::Error::other("the client has gone")), (Vec::new().into_iter(), gone)));
        }
        let piece = pieces.next()?;
        Some((Ok(Bytes::from_static(piece.as_bytes())), (pieces, gone)))
    }))
}

async fn pause(times: usize) {
    for _ in 0..times {
        yield_now().await;
    }
}

fn digest() -> Digest {
    Digest::of(PIECES.concat().as_bytes())
}

/// Uploads the blob like a client with a broken connection: it queries the offset and resumes
/// there.
async fn upload(client: Client, path: String) {
    loop {
        let Some(there) = client.pieces_there(&path).await else {
            let blob = client.0.storage.stat(&digest()).await.expect("a look");
            assert_eq!(
                blob,
                Some(Descriptor::blob(digest(), PIECES.concat().len() as u64)),
                "the upload has gone, and there is no blob"
            );
            return;
        };
        let (method, path, pieces) = if there < PIECES.len() {
            (Method::PATCH, path.clone(), &PIECES[there..=there])
        } else {
            (Method::PUT, format!("{path}?digest={}", digest()), &PIECES[..0])
        };
        if let Some(answer) = client.send_and_leave(method.clone(), &path, pieces).await {
            let may_fail = method == Method::PUT && answer.status() == StatusCode::INTERNAL_SERVER_ERROR;
            assert!(may_fail || answer.status().is_success(), "{}", answer.status());
        }
    }
}

/// Begins an upload and cancels it, perhaps more than once.
async fn give_up(client: Client) {
    let path = client.begin().await;
    let _ = client.send_and_leave(Method::PATCH, &path, &PIECES[..2]).await;
    while client.pieces_there(&path).await.is_some() {
        let _ = client.send_and_leave(Method::DELETE, &path, &[]).await;
    }
}

/// Sends the whole blob in one request, and may disconnect.
async fn upload_whole(client: Client) {
    let path = format!("/v2/r/blobs/uploads/?digest={}", digest());
    let answer = client.send_and_leave(Method::POST, &path, &PIECES).await;
    let expected = [StatusCode::CREATED, StatusCode::INTERNAL_SERVER_ERROR];
    assert!(answer.is_none_or(|answer| expected.contains(&answer.status())));
}

async fn ask(client: Client, path: String) {
    for _ in 0..12 {
        let _ = client.pieces_there(&path).await;
    }
}

async fn close_what_rests(client: Client) {
    for _ in 0..4 {
        client.0.close_idle_uploads();
        yield_now().await;
    }
}

fn clients_come_in_any_order() {
    block_on(async {
        let server = Server::new(Shelf::default(), Access::open(), ServerOptions::default());
        let client = Client(server);
        let path = client.begin().await;
        let all = [
            spawn(upload(client.clone(), path.clone())),
            spawn(ask(client.clone(), path)),
            spawn(give_up(client.clone())),
            spawn(upload_whole(client.clone())),
            spawn(close_what_rests(client.clone())),
        ];
        for ended in join_all(all).await {
            ended.expect("no panic");
        }
        // Wait for the operations of clients that have disconnected.
        while Arc::strong_count(&client.0) > 1 {
            yield_now().await;
        }
        let shelf = &client.0.storage;
        assert!(shelf.begun.lock().expect("nobody panicked").is_empty(), "an upload is left");
        assert!(client.0.sessions.is_empty(), "an upload is known, or counted, that has ended");
    });
}

#[test]
fn uploads_are_in_nobody_s_way() {
    let asked = std::env::var("LODE_CAMPAIGN_SCHEDULES").ok().and_then(|text| text.parse().ok());
    let orders = asked.unwrap_or(200);
    shuttle::check_random(clients_come_in_any_order, orders);
    shuttle::check_pct(clients_come_in_any_order, orders, 4);
}
