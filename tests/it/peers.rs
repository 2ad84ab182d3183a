//! Operations on a daemon for tests of pulls and pushes, and the configuration of its registries.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Server;
use crate::stored;
use crate::support::{list, until};

/// The host of short model names.
pub(crate) const DEFAULT_HOST: &str = "registry.ollama.ai";

/// Writes registry settings into a store that is about to be opened.
pub(crate) fn registries(home: &Path, toml: &str) {
    std::fs::write(home.join("registries.toml"), toml).expect("a file in the store's folder");
}

/// Writes the credentials `me:secret` for a registry into a store that is about to be opened.
pub(crate) fn password(home: &Path, host: &str) {
    let text = json!({"auths": {host: {"auth": "bWU6c2VjcmV0"}}}).to_string();
    std::fs::write(home.join("auth.json"), text).expect("a file in the store's folder");
}

impl Server {
    /// Posts a request. Returns the lines of the stream, or the error that ends or replaces the
    /// stream.
    pub(crate) async fn transfer(&self, path: &str, body: &Value) -> Result<Vec<Value>, String> {
        let text = self.post(path, body).await.text().await.expect("a whole answer");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        let last = lines.last().expect("at least a line");
        if let Some(error) = last["error"].as_str() {
            return Err(error.to_owned());
        }
        assert_eq!(last["status"], "success", "{path} {body}: {text}");
        Ok(lines)
    }

    /// Returns all jobs.
    pub(crate) async fn jobs(&self) -> Vec<Value> {
        let answer = self.http.get(self.url("/api/lode/jobs")).send().await.expect("the daemon answers");
        list(&answer.json::<Value>().await.expect("JSON")["jobs"]).to_vec()
    }

    /// Waits until no job runs.
    pub(crate) async fn jobs_end(&self) {
        until("no job runs", async || self.jobs().await.iter().all(|job| job["state"] != "running")).await;
    }

    /// Pulls a model, or returns the error.
    pub(crate) async fn try_pull(&self, name: &str) -> Result<Vec<Value>, String> {
        self.transfer("/api/pull", &json!({"model": name})).await
    }

    pub(crate) async fn pull(&self, name: &str) -> Vec<Value> {
        self.try_pull(name).await.unwrap_or_else(|e| panic!("pull {name}: {e}"))
    }

    /// Pushes a model, or returns the error.
    pub(crate) async fn try_push(&self, name: &str, destination: &str) -> Result<Vec<Value>, String> {
        self.transfer("/api/push", &json!({"model": name, "destination": destination})).await
    }

    pub(crate) async fn push(&self, name: &str, destination: &str) -> Vec<Value> {
        self.try_push(name, destination).await.unwrap_or_else(|e| panic!("push {name} to {destination}: {e}"))
    }

    /// Returns the names of all models.
    pub(crate) async fn names(&self) -> Vec<String> {
        let answer = self.http.get(self.url("/api/tags")).send().await.expect("the daemon answers");
        let tags: Value = answer.json().await.expect("JSON");
        list(&tags["models"]).iter().map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Removes a model. Returns whether it existed.
    pub(crate) async fn remove(&self, name: &str) -> bool {
        let request = self.http.request(Method::DELETE, self.url("/api/delete")).json(&json!({"model": name}));
        let answer = request.send().await.expect("the daemon answers");
        let status = answer.status().as_u16();
        assert!([200, 404].contains(&status), "delete {name}: {}", answer.text().await.unwrap_or_default());
        status == 200
    }

    /// Returns the model's greedy output: 8 tokens with their text.
    pub(crate) async fn says(&self, model: &str) -> Value {
        self.says_perhaps(model).await.unwrap_or_else(|| panic!("{model} cannot be run"))
    }

    /// Returns the model's greedy output, or `None` if the model cannot be run.
    pub(crate) async fn says_perhaps(&self, model: &str) -> Option<Value> {
        let options = json!({"temperature": 0, "num_predict": 8});
        let request = json!({"model": model, "prompt": "Hello", "raw": true, "stream": false, "options": options});
        let (status, mut answer) = self.call("/api/generate", &request).await;
        let fields = ["response", "context", "eval_count", "prompt_eval_count"];
        (status == 200).then(|| Value::Array(fields.map(|field| answer[field].take()).to_vec()))
    }
}

/// Asserts that two daemons have the same model: the same manifest, blobs that match their digests,
/// and the same output.
pub(crate) async fn assert_same(left: (&Server, &str), right: (&Server, &str)) {
    let of = |server: &Server, name: &str| {
        let (repository, tag) = name.rsplit_once(':').expect("a whole name");
        let manifest = stored::manifest(&server.home(), repository, tag);
        let here = stored::blobs(&server.home());
        for (digest, size) in manifest.blobs() {
            assert_eq!(here.get(&digest), Some(&size), "{digest} of {name}");
        }
        manifest.digest
    };
    assert_eq!(of(left.0, left.1), of(right.0, right.1), "{} and {}", left.1, right.1);
    assert_eq!(left.0.says(left.1).await, right.0.says(right.1).await, "{} and {}", left.1, right.1);
}
