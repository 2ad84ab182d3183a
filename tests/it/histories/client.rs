//! A client that runs one random operation after the other.

use content::Digest;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::json;

use super::campaign::{Campaign, REPOSITORIES, SHARED, Source, TAGS, names};
use super::kind::Kind;
use super::model::{Effect, Place};
use super::request::{Answer, ask};

/// The media type of the manifests that Lode writes.
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// A client with its random generator.
pub(super) struct Client<'a> {
    campaign: &'a Campaign,
    random: StdRng,
}

impl<'a> Client<'a> {
    pub(super) fn new(campaign: &'a Campaign, random: StdRng) -> Self {
        Self { campaign, random }
    }

    /// Runs so many operations.
    pub(super) async fn run(mut self, operations: u64) {
        let campaign = self.campaign;
        for _ in 0..operations {
            let kind = Kind::draw(&mut self.random);
            // While this lock is held, no check runs and no restarted daemon replaces a killed one.
            let address = campaign.address.read().await;
            match kind {
                Kind::Create => {
                    let (name, source) = (self.own_name(), self.source());
                    self.create(&address, &name, source).await;
                }
                Kind::Copy => self.copy(&address).await,
                Kind::Remove => self.remove(&address).await,
                Kind::Push => self.push(&address).await,
                Kind::Pull => self.pull(&address).await,
                Kind::Upload => self.upload(&address).await,
                Kind::Put => self.put(&address).await,
                Kind::Collect => self.collect(&address).await,
                Kind::Prune => self.prune(&address).await,
                Kind::Look => self.look(&address).await,
                Kind::Generate => self.generate(&address).await,
            }
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.random_range(0..of.len())]
    }

    /// Returns a name for a created model.
    fn own_name(&mut self) -> String {
        format!("{}:{}", self.pick(&REPOSITORIES), self.pick(&TAGS))
    }

    /// Returns such a name, or that of a model that may have been pulled.
    fn any_name(&mut self) -> String {
        let pulled = SHARED.iter().map(|shared| self.campaign.pulled(shared));
        let mut all: Vec<String> = names().into_iter().chain(pulled).collect();
        all.swap_remove(self.random.random_range(0..all.len()))
    }

    fn source(&mut self) -> &'a Source {
        let campaign: &'a Campaign = self.campaign;
        &campaign.sources[self.random.random_range(0..campaign.sources.len())]
    }

    /// Creates a model, or moves an existing name to it.
    pub(super) async fn create(&self, address: &str, name: &str, source: &Source) {
        let begun = self.campaign.begin();
        let body = json!({"model": name, "path": source.path, "stream": false});
        let answer = self.campaign.post(address, "/api/create", &body).await;
        let write = (Place::here(name), Effect::Set(source.digest.clone()));
        self.campaign.end(Kind::Create, begun, &answer, Some(write));
    }

    async fn copy(&mut self, address: &str) {
        let (source, destination) = (self.any_name(), self.own_name());
        let begun = self.campaign.begin();
        let body = json!({"source": source, "destination": destination});
        let answer = self.campaign.post(address, "/api/copy", &body).await;
        if matches!(answer, Answer::Refused { status: 404, .. }) {
            self.campaign.read(begun, Place::here(&source), None);
        }
        let write = (Place::here(&destination), Effect::Copy(Place::here(&source)));
        self.campaign.end(Kind::Copy, begun, &answer, Some(write));
    }

    async fn remove(&mut self, address: &str) {
        let name = self.any_name();
        let begun = self.campaign.begin();
        let request = self.campaign.http.delete(format!("http://{address}/api/delete")).json(&json!({"model": name}));
        let answer = ask(request).await;
        if matches!(answer, Answer::Refused { status: 404, .. }) {
            self.campaign.read(begun, Place::here(&name), None);
        }
        self.campaign.end(Kind::Remove, begun, &answer, Some((Place::here(&name), Effect::Remove)));
    }

    /// Pushes a model to the peer. The peer survives, so a request may reach it after the sending
    /// daemon's death.
    async fn push(&mut self, address: &str) {
        let (source, shared) = (self.any_name(), self.pick(&SHARED));
        let begun = self.campaign.begin();
        let body = json!({"model": source, "destination": self.campaign.pulled(shared), "stream": false});
        let answer = self.campaign.post(address, "/api/push", &body).await;
        let write = (Place::peer(shared), Effect::Copy(Place::here(&source)));
        self.campaign.end(Kind::Push, begun, &answer, Some(write));
    }

    async fn pull(&mut self, address: &str) {
        let shared = self.pick(&SHARED);
        let name = self.campaign.pulled(shared);
        let begun = self.campaign.begin();
        let answer = self.campaign.post(address, "/api/pull", &json!({"model": name, "stream": false})).await;
        let write = (Place::here(&name), Effect::Copy(Place::peer(shared)));
        self.campaign.end(Kind::Pull, begun, &answer, Some(write));
    }

    /// The peer pushes a model to the daemon. The peer retries a dead daemon for long, so the
    /// client does not wait for it then.
    async fn upload(&mut self, address: &str) {
        let (source, name) = (self.source(), self.own_name());
        let begun = self.campaign.begin();
        let destination = format!("{address}/library/{name}");
        let body = json!({"model": source.name, "destination": destination, "stream": false});
        let mut answer = tokio::select! {
            answer = self.campaign.post(&self.campaign.peer.address, "/api/push", &body) => answer,
            () = self.campaign.until_death(begun) => Answer::Lost("the daemon died".to_owned()),
        };
        // The peer cannot know the outcome either.
        if matches!(answer, Answer::Refused { .. }) && self.campaign.has_died(begun) {
            answer = Answer::Lost("the peer does not know".to_owned());
        }
        let write = (Place::here(&name), Effect::Set(source.digest.clone()));
        self.campaign.end(Kind::Upload, begun, &answer, Some(write));
    }

    /// Reads a manifest and puts it under another tag of its repository, which has its blobs.
    async fn put(&mut self, address: &str) {
        let (repository, from, to) = (self.pick(&REPOSITORIES), self.pick(&TAGS), self.pick(&TAGS));
        let url = |tag: &str| format!("http://{address}/v2/library/{repository}/manifests/{tag}");
        let place = |tag: &str| Place::here(&format!("{repository}:{tag}"));
        let begun = self.campaign.begin();
        let answer = ask(self.campaign.http.get(url(from))).await;
        // A 404 with another code means that the tag was moved and the earlier version removed
        // meanwhile.
        if matches!(&answer, Answer::Refused { text, .. } if text.contains("MANIFEST_UNKNOWN")) {
            self.campaign.read(begun, place(from), None);
        }
        let manifest = match answer {
            Answer::Done(manifest) => manifest,
            other => return self.campaign.end(Kind::Put, begun, &other, None),
        };
        let digest = Digest::of(&manifest).to_string();
        self.campaign.read(begun, place(from), Some(digest.clone()));
        if self.campaign.has_died(begun) {
            // The daemon that would receive it is dead.
            return;
        }
        let begun = self.campaign.begin();
        let request = self.campaign.http.put(url(to)).header("content-type", MANIFEST_TYPE).body(manifest);
        let answer = ask(request).await;
        self.campaign.end(Kind::Put, begun, &answer, Some((place(to), Effect::Set(digest))));
    }

    async fn collect(&self, address: &str) {
        let begun = self.campaign.begin();
        let answer = self.campaign.post(address, "/api/lode/gc", &json!({})).await;
        if answer.document().is_some_and(|done| !done["put_off"].is_null()) {
            self.campaign.put_off();
        }
        self.campaign.end(Kind::Collect, begun, &answer, None);
    }

    async fn prune(&self, address: &str) {
        let begun = self.campaign.begin();
        let answer = self.campaign.post(address, "/api/lode/prune", &json!({})).await;
        if answer.document().is_some_and(|done| !done["collected"]["put_off"].is_null()) {
            self.campaign.put_off();
        }
        self.campaign.end(Kind::Prune, begun, &answer, None);
    }

    /// Checks the store while other clients change it; none of their changes may look like damage.
    async fn look(&self, address: &str) {
        let begun = self.campaign.begin();
        let answer = self.campaign.post(address, "/api/lode/fsck", &json!({})).await;
        if let Some(last) = answer.last_line() {
            assert_eq!(last["report"]["problems"], json!([]), "damage, while others work: {last}");
        }
        self.campaign.end(Kind::Look, begun, &answer, None);
    }

    async fn generate(&mut self, address: &str) {
        let name = self.any_name();
        let begun = self.campaign.begin();
        let answer = self.campaign.generate(address, &name).await;
        self.campaign.end(Kind::Generate, begun, &answer, None);
    }
}
