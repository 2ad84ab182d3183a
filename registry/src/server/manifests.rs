//! Manifests: `HEAD`, `GET`, `PUT`, `DELETE`, and the list of referrers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use content::{Descriptor, Digest, Hasher};
use futures_util::{StreamExt, TryStreamExt};
use manifests::{Document, MAX_MANIFEST, media_types};
use serde_json::json;

use super::lists::{linked, next, page};
use super::refusal::ErrorReply;
use super::storage::{Lookup, NewManifest, NewTag, Reference, Removal, Repository, Storage, TagChange};
use super::uploads::{value, with_namespace};
use super::{Completeness, DIGEST, RecordedPulls, RepositoryRule, Server, blobs, route, rules, usage};
use crate::ErrorCode;

/// The subject of a pushed manifest. It tells the client that the server maintains the list of
/// referrers.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
/// A tag that the manifest got besides the one in the path.
const TAG: HeaderName = HeaderName::from_static("oci-tag");
/// The filters that were applied to a list of referrers.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");
/// Maximum number of tags in one request.
const MAX_TAGS: usize = 100;
/// Number of blobs of a manifest that are looked up at a time.
const LOOKUPS: usize = 32;
/// Maximum number of referrers in a response.
const MAX_REFERRERS: usize = 1000;
/// Number of manifests that are read at a time.
const READS: usize = 16;
/// Layers that a registry need not have: clients fetch them from another place.
const NOT_DISTRIBUTABLE: [&str; 2] =
    ["application/vnd.oci.image.layer.nondistributable.", "application/vnd.docker.image.rootfs.foreign."];

/// `HEAD` and `GET`.
pub(super) async fn get<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    at: &Reference,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ErrorReply> {
    let unknown = || ErrorReply::new(ErrorCode::ManifestUnknown, format!("manifest `{at}` is not in `{repository}`"));
    let digest = server.storage.manifest(repository, at).await?.ok_or_else(unknown)?;
    let tag = format!("\"{digest}\"");
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let headers = [(DIGEST, value(&digest.to_string())), (header::ETAG, value(&tag))];
    let record = async {
        if method == Method::GET {
            record_pull(server, repository, &digest).await;
        }
    };
    if blobs::names_tag(known, &tag) {
        record.await;
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let (found, ()) = tokio::join!(read(server, repository, &digest), record);
    let (raw, document) = found?.ok_or_else(unknown)?;
    let content = [
        (header::CONTENT_TYPE, value(document.media_type().as_str())),
        (header::CONTENT_LENGTH, value(&raw.len().to_string())),
    ];
    let body = if method == Method::HEAD { Body::empty() } else { Body::from(raw) };
    Ok((headers, content, body).into_response())
}

/// Records a pull for retention. A client whose pull cannot be recorded gets the manifest.
async fn record_pull<S: Storage>(server: &Server<S>, repository: &Repository, digest: &Digest) {
    let is_recorded = server.recorded_pulls == RecordedPulls::All
        || server.options.rules.of(&repository.name).is_some_and(RepositoryRule::counts_pulls);
    if is_recorded && let Err(error) = server.storage.record_pull(repository, digest).await {
        tracing::warn!(%repository, "a pull was not recorded for retention: {error}");
    }
}

async fn read<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    digest: &Digest,
) -> Result<Option<(Bytes, Document)>, ErrorReply> {
    let Some(raw) = server.storage.read_manifest(repository, digest).await? else { return Ok(None) };
    let document = Document::parse(&raw).map_err(|e| content::Error::Other(Box::new(e)))?;
    Ok(Some((raw, document)))
}

/// `PUT`.
pub(super) async fn put<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    at: &Reference,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ErrorReply> {
    let raw = axum::body::to_bytes(body, MAX_MANIFEST).await.map_err(|error| {
        if !error.to_string().contains("length limit") {
            return ErrorReply::new(ErrorCode::SizeInvalid, format!("the body broke off: {error}; push it again"));
        }
        let message = format!("a manifest has {MAX_MANIFEST} bytes at most; put its parts into fewer layers");
        ErrorReply::with_status(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::SizeInvalid, message)
    })?;
    let digest = digest(at, uri, &raw)?;
    let document = Document::parse(&raw).map_err(|e| ErrorReply::new(ErrorCode::ManifestInvalid, e.to_string()))?;
    check_type(headers, &document)?;
    let tags = tags(at, uri)?;
    let asked: Vec<String> = route::query(uri, "tag").collect();
    let subject = document.subject().map(|subject| subject.digest);
    let required = required_blobs(&document);
    let tags = server.options.rules.new_tags(&repository.name, tags);
    store(server, repository, NewManifest { digest, raw, document, required, tags }).await?;
    let location = with_namespace(repository, format!("/v2/{}/manifests/{digest}", repository.name));
    let headers = [(header::LOCATION, value(&location)), (DIGEST, value(&digest.to_string()))];
    let mut response = (StatusCode::CREATED, headers).into_response();
    if let Some(subject) = subject {
        response.headers_mut().insert(SUBJECT, value(&subject.to_string()));
    }
    for tag in asked {
        response.headers_mut().append(TAG, value(&tag));
    }
    Ok(response)
}

/// The digest that the client will use for the manifest: the one in the path or query, which is
/// checked, or else the SHA-256 digest.
fn digest(at: &Reference, uri: &Uri, raw: &[u8]) -> Result<Digest, ErrorReply> {
    let given = match at {
        Reference::Digest(digest) => Some(*digest),
        Reference::Tag(_) => {
            route::query(uri, "digest").next().map(|text| super::uploads::digest(&text)).transpose()?
        }
    };
    let Some(given) = given else { return Ok(Digest::of(raw)) };
    let mut hasher = Hasher::new(given.algorithm());
    hasher.update(raw);
    let actual = hasher.finish();
    if actual == given {
        return Ok(given);
    }
    Err(ErrorReply::new(ErrorCode::DigestInvalid, format!("the manifest's digest is `{actual}`, not `{given}`")))
}

fn tags(at: &Reference, uri: &Uri) -> Result<Vec<String>, ErrorReply> {
    let mut tags = Vec::new();
    if let Reference::Tag(tag) = at {
        tags.push(tag.clone());
    }
    for text in route::query(uri, "tag") {
        match Reference::parse(&text) {
            Ok(Reference::Tag(tag)) => tags.push(tag),
            _ => return Err(ErrorReply::new(ErrorCode::ManifestInvalid, "a query parameter `tag` is not a tag")),
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(ErrorReply::new(ErrorCode::ManifestInvalid, format!("a request gives {MAX_TAGS} tags at most")));
    }
    Ok(tags)
}

/// Checks that the `Content-Type` matches the manifest.
fn check_type(headers: &HeaderMap, document: &Document) -> Result<(), ErrorReply> {
    let Some(given) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return Ok(()) };
    let given = given.split(';').next().unwrap_or_default().trim();
    let actual = document.media_type().as_str();
    // Clients without knowledge of the type send these.
    if given == actual || matches!(given, "" | "application/json" | "application/octet-stream") {
        return Ok(());
    }
    Err(ErrorReply::new(ErrorCode::ManifestInvalid, format!("`Content-Type` is `{given}`, the manifest is `{actual}`")))
}

/// The blobs that must exist before a manifest: config and layers. The manifests of an index are
/// not required, because an index may be copied for one platform only.
pub fn required_blobs(document: &Document) -> Vec<Descriptor> {
    let Document::Manifest(manifest) = document else { return Vec::new() };
    let layers = manifest.layers().iter().filter(|layer| {
        let kind = layer.media_type().as_str();
        !NOT_DISTRIBUTABLE.iter().any(|prefix| kind.starts_with(prefix))
    });
    layers.map(|layer| &layer.descriptor).chain([manifest.config()]).cloned().collect()
}

/// Announces a manifest, checks its blobs, and stores it.
async fn store<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    manifest: NewManifest,
) -> Result<(), ErrorReply> {
    // The storage checks tags again when it sets them. A push that is refused here changes nothing.
    for tag in manifest.tags.iter().filter(|tag| tag.change == TagChange::Forbidden) {
        ensure_same(server, repository, tag, &manifest.digest).await?;
    }
    if let Some(quota) = server.options.rules.of(&repository.name).and_then(|rule| rule.max_bytes) {
        usage::ensure_within(&server.storage, &server.known_sizes, repository, &manifest.document, quota).await?;
    }
    let blobs: BTreeSet<Digest> = manifest.required.iter().map(|blob| blob.digest).collect();
    let blobs: Vec<Digest> = blobs.into_iter().collect();
    let announced = server.storage.announce(repository, &blobs).await?;
    let stored = store_announced(server, repository, manifest, &announced).await;
    if let Err(error) = server.storage.withdraw(announced).await {
        tracing::warn!("an announced manifest keeps its blobs for now: {error}");
    }
    stored
}

/// Checks that a tag that may not change is new, or names the manifest already.
async fn ensure_same<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    tag: &NewTag,
    manifest: &Digest,
) -> Result<(), ErrorReply> {
    // An upstream's tag of the same name does not matter.
    let own = Repository { mirrored: true, ..repository.clone() };
    match server.storage.manifest(&own, &Reference::Tag(tag.name.clone())).await? {
        Some(digest) if digest != *manifest => Err(content::Error::TagExists { tag: tag.name.clone(), digest }.into()),
        _ => Ok(()),
    }
}

async fn store_announced<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    mut manifest: NewManifest,
    announced: &S::Announcement,
) -> Result<(), ErrorReply> {
    manifest.required = present(server, repository, manifest.required).await?;
    server.storage.put_manifest(repository, manifest, announced).await.map_err(|error| match error {
        content::Error::BlobNotFound(blob) => absent(repository, &blob),
        other => other.into(),
    })
}

/// The required blobs that exist. A missing one is an error, unless incomplete images are accepted.
async fn present<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    mut required: Vec<Descriptor>,
) -> Result<Vec<Descriptor>, ErrorReply> {
    let mut lacking = HashSet::new();
    let blobs: BTreeSet<Digest> = required.iter().map(|blob| blob.digest).collect();
    let lookups = futures_util::stream::iter(blobs)
        .map(|digest| async move {
            let found = server.storage.blob(repository, &digest, Lookup::Promise).await;
            found.map(|found| (digest, found))
        })
        .buffered(LOOKUPS);
    let found: BTreeMap<Digest, Option<Descriptor>> = lookups.try_collect().await?;
    for Descriptor { digest, size, .. } in &required {
        match found.get(digest).and_then(Option::as_ref) {
            None if server.options.completeness == Completeness::Sparse => drop(lacking.insert(*digest)),
            None => return Err(absent(repository, digest)),
            // A client that pulls the manifest would fail.
            Some(actual) if actual.size != *size => {
                let message =
                    format!("the manifest says that blob `{digest}` has {size} bytes; it has {}", actual.size);
                return Err(ErrorReply::new(ErrorCode::ManifestInvalid, message));
            }
            Some(_) => {}
        }
    }
    required.retain(|blob| !lacking.contains(&blob.digest));
    Ok(required)
}

fn absent(repository: &Repository, blob: &Digest) -> ErrorReply {
    let message = format!("blob `{blob}` is not in `{repository}`; send it before its manifest");
    ErrorReply::new(ErrorCode::ManifestBlobUnknown, message).detail(&json!({"digest": blob.to_string()}))
}

/// `DELETE`.
pub(super) async fn delete<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    at: &Reference,
) -> Result<Response, ErrorReply> {
    ensure_removable(server, repository, at).await?;
    match server.storage.remove_manifest(repository, at).await? {
        Removal::Done => Ok(StatusCode::ACCEPTED.into_response()),
        Removal::NotThere => {
            Err(ErrorReply::new(ErrorCode::ManifestUnknown, format!("manifest `{at}` is not in `{repository}`")))
        }
        Removal::Pinned | Removal::Referenced(_) | Removal::Announced => {
            let message = format!("`{at}` of `{repository}` is pinned; run `lode unpin` first");
            Err(ErrorReply::new(ErrorCode::Denied, message))
        }
    }
}

/// Checks that no tag is removed that may not change.
async fn ensure_removable<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    at: &Reference,
) -> Result<(), ErrorReply> {
    let Some(rule) = server.options.rules.of(&repository.name).filter(|rule| !rule.immutable_tags.is_empty()) else {
        return Ok(());
    };
    let digest = match at {
        Reference::Tag(tag) if rule.is_immutable(tag) => return Err(rules::immutable(repository, tag)),
        Reference::Tag(_) => return Ok(()),
        Reference::Digest(digest) => digest,
    };
    let tags = server.storage.listed_tags(repository).await?;
    match tags.iter().find(|tag| tag.digest == *digest && rule.is_immutable(&tag.name)) {
        Some(tag) => Err(rules::immutable(repository, &tag.name)),
        None => Ok(()),
    }
}

/// `GET referrers/DIGEST`: an index of the manifests about a digest. It is empty if there are none,
/// or if the digest is unknown.
pub(super) async fn referrers<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    subject: &Digest,
    uri: &Uri,
) -> Result<Response, ErrorReply> {
    let filter = route::query(uri, "artifactType").next().filter(|kind| !kind.is_empty());
    let page = page(uri, MAX_REFERRERS)?;
    let listed = server.storage.referrers(repository, subject, &page).await?;
    let mut entries = Vec::new();
    let mut reads = futures_util::stream::iter(listed.entries.clone())
        .map(|digest| async move { Ok::<_, ErrorReply>((digest, read(server, repository, &digest).await?)) })
        .buffered(READS);
    while let Some((digest, manifest)) = reads.try_next().await? {
        // It may have been deleted meanwhile.
        let Some((raw, document)) = manifest else { continue };
        let kind = document.artifact_type();
        if filter.as_deref().is_some_and(|filter| kind != Some(filter)) {
            continue;
        }
        let mut entry = json!({
            "mediaType": document.media_type().as_str(),
            "digest": digest.to_string(),
            "size": raw.len(),
        });
        if let Some(kind) = kind {
            entry["artifactType"] = kind.into();
        }
        if !document.annotations().is_empty() {
            entry["annotations"] = json!(document.annotations());
        }
        entries.push(entry);
    }
    let index = json!({"schemaVersion": 2, "mediaType": media_types::INDEX.as_str(), "manifests": entries});
    let path = with_namespace(repository, format!("/v2/{}/referrers/{subject}", repository.name));
    let path = filter
        .as_ref()
        .map_or(path.clone(), |kind| format!("{path}{}artifactType={}", separator(&path), escaped(kind)));
    let body = ([(header::CONTENT_TYPE, value(media_types::INDEX.as_str()))], index.to_string());
    let mut response = linked(&path, next(&listed, &page, Digest::hex), body);
    if filter.is_some() {
        response.headers_mut().insert(FILTERS, value("artifactType"));
    }
    Ok(response)
}

/// The character before the next parameter of a query.
fn separator(path: &str) -> char {
    if path.contains('?') { '&' } else { '?' }
}

/// Escapes a media type for a query: `+` would be read as a blank.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
