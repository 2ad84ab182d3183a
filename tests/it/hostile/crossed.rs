//! Every request of a pull combined with every wrong response: hundreds of pulls by one daemon,
//! many at a time.
//!
//! Afterwards either the error names the fault's place, or the model is complete. A failed model
//! has no tag. The daemon has not panicked, has used little memory, and has not connected to the
//! canary. Every blob matches its digest.
//!
//! A normal run tries a sample of the cases without waiting. `LODE_CAMPAIGN=1` tries all, and
//! `LODE_CAMPAIGN_CASE=TEXT` those whose names (`tensor/closed-in-mid-body`) contain the text.

mod answers;
mod faults;
mod lies;
mod outcome;
mod server;
mod subjects;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use content::Digest;
use futures_util::{StreamExt as _, stream};
use manifests::Manifest;
use serde_json::json;
use tokio::time::timeout;

use crate::server::Server;
use crate::stored;
use crate::support::{entries, read, say, skip};

use answers::Script;
use faults::Fault;
use lies::Lie;
use outcome::{Expect, Outcome};
use server::{CrossedServer, Stage};
use subjects::{Base, Subject};
use table::Row;

/// The number of concurrent pulls; pulls that retry spend most of their time waiting.
const AT_ONCE: usize = 16;
/// The number of cases in the sample.
const SAMPLE: usize = 60;
/// The time limit of a pull.
const LIMIT: Duration = Duration::from_mins(1);
/// The time after which the client leaves a pull that would continue.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a pull may keep connections open after its client has left.
const LINGERS: Duration = Duration::from_secs(10);
/// The limit of the daemon's memory beyond its initial peak, in KiB.
const MEMORY: u64 = 256 << 10;

/// A combination of a requested resource and a wrong response.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: u16,
    subject: (Subject, &'static str),
    wrong: Wrong,
    /// The name of the fault or lie.
    way: &'static str,
    expect: Expect,
}

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Answer(Fault),
    Document(Lie),
}

impl Case {
    fn name(&self) -> String {
        format!("{}/{}", self.subject.1, self.way)
    }

    /// Whether the client retries without waiting.
    fn is_quick(&self) -> bool {
        match self.wrong {
            Wrong::Answer(fault) => fault.is_quick(self.subject.0),
            Wrong::Document(_) => true,
        }
    }

    fn is_from_afar(&self) -> bool {
        matches!(self.wrong, Wrong::Answer(fault) if fault.is_from_afar())
    }
}

/// Returns every combination that makes sense.
fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for subject in Subject::ALL {
        let answers = Fault::ALL.map(|(fault, way)| (Wrong::Answer(fault), way, fault.expect(subject.0)));
        let documents = Lie::ALL.map(|(lie, way)| (Wrong::Document(lie), way, lie.expect(subject.0)));
        for (wrong, way, expect) in answers.into_iter().chain(documents) {
            if let Some(expect) = expect {
                let number = u16::try_from(cases.len() + 1).expect("some hundreds");
                cases.push(Case { number, subject, wrong, way, expect });
            }
        }
    }
    cases
}

/// Returns the cases of this run.
fn chosen(all: Vec<Case>) -> Vec<Case> {
    if let Some(text) = std::env::var("LODE_CAMPAIGN_CASE").ok().filter(|text| !text.is_empty()) {
        let named: Vec<Case> = all.into_iter().filter(|case| case.name().contains(&text)).collect();
        assert!(!named.is_empty(), "LODE_CAMPAIGN_CASE: no case is called `{text}`");
        return named;
    }
    if std::env::var_os("LODE_CAMPAIGN").is_some() {
        let mut cases = all;
        // Slow cases start first, so that the run does not end with waiting for them.
        cases.sort_by_key(Case::is_quick);
        return cases;
    }
    let quick: Vec<Case> = all.into_iter().filter(Case::is_quick).collect();
    (0..SAMPLE).map(|number| quick[number * quick.len() / SAMPLE]).collect()
}

#[tokio::test]
async fn everything_is_answered_in_every_wrong_way() {
    let cases = all();
    assert!(cases.len() >= 400, "only {} cases", cases.len());
    let server = CrossedServer::start();
    let mut cases = chosen(cases);
    if server.far.is_none() {
        cases.retain(|case| !case.is_from_afar());
        skip("hostile::crossed, what leads nearer", "this machine has no address but loopback");
    }
    let campaign = Campaign::start(server).await;
    let begin = Instant::now();
    let tried = stream::iter(&cases).map(|case| campaign.tried(case));
    let rows: Vec<Row> = tried.buffer_unordered(AT_ONCE).collect().await;
    say(&table::printed(&rows));
    say(&format!("{} cases in {:.0?}; the daemon had {} KiB more", rows.len(), begin.elapsed(), campaign.grown()));
    // Reads and hashes every blob.
    stored::blobs(&campaign.target.home());
    let home = campaign.target.home();
    let escaped: Vec<PathBuf> =
        home.ancestors().map(|folder| folder.join("escaped")).filter(|path| path.exists()).collect();
    assert!(escaped.is_empty(), "a layer's name led out of the store: {escaped:?}");
    let failed: Vec<&String> = rows.iter().filter_map(|row| row.result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), rows.len());
}

/// The daemon that pulls, and the server that it pulls from.
struct Campaign {
    server: CrossedServer,
    base: Base,
    target: Server,
    /// The daemon's peak memory before the cases, in KiB.
    before: Option<u64>,
}

impl Campaign {
    async fn start(server: CrossedServer) -> Self {
        let base = Base::new().await;
        let hub = format!("http://{}", server.far.unwrap_or(server.near));
        let direct = format!("127.0.0.1,{}", server.storage.ip());
        let environment = [
            ("HF_ENDPOINT", hub.as_str()),
            ("LODE_STALL_TIMEOUT", "2s"),
            ("LODE_LOG", "warn"),
            ("NO_PROXY", direct.as_str()),
            ("no_proxy", direct.as_str()),
        ];
        let target = Server::start(&environment).await;
        // Resets the recorded peak.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", target.pid()), "5");
        let before = peak(target.pid());
        Self { server, base, target, before }
    }

    /// Returns by how many KiB the daemon's peak memory has grown, or 0 if the system does not
    /// report it.
    fn grown(&self) -> u64 {
        peak(self.target.pid()).zip(self.before).map_or(0, |(now, before)| now.saturating_sub(before))
    }

    async fn tried(&self, case: &Case) -> Row {
        let begin = Instant::now();
        let result = self.check(case).await.map_err(|reason| format!("{}: {reason}", case.name()));
        Row { way: case.way, result, took: begin.elapsed() }
    }

    async fn check(&self, case: &Case) -> Result<Outcome, String> {
        let key = format!("case{:04}", case.number);
        let (subject, fault, lie) = match case.wrong {
            Wrong::Answer(fault) => (case.subject.0, Some(fault), None),
            Wrong::Document(lie) => (case.subject.0, None, Some(lie)),
        };
        let model = self.base.model(subject, case.number, lie);
        let address = match self.server.far.filter(|_| case.is_from_afar()) {
            Some(far) => far.to_string(),
            None => self.server.near.to_string(),
        };
        let repository =
            if subject.is_hub() { format!("hf.co/crossed/{key}") } else { format!("{address}/crossed/{key}") };
        let digest = model.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        let asked = json!({"model": format!("{repository}{digest}"), "insecure": case.is_from_afar()});
        let script = Arc::new(Script::new(&self.server, &key, subject, fault, model));
        let played = Arc::clone(&script);
        let stage = self.server.stage(&key, Box::new(move |asked| played.play(asked)));

        let limit = if case.expect == Expect::Outlasts { PATIENCE } else { LIMIT };
        let pulled = timeout(limit, self.target.transfer("/api/pull", &asked)).await;
        let outcome = match &pulled {
            Ok(Ok(_)) => {
                whole(&self.target.home(), &repository)?;
                Outcome::Recovered
            }
            Ok(Err(error)) => {
                let ip = self.server.far.unwrap_or(self.server.near).ip().to_string();
                let words = [address.as_str(), &ip, &key].into_iter().chain(subject.nouns().iter().copied());
                says(error, words)?;
                Outcome::Refused
            }
            Err(_) => {
                left(&stage).await?;
                Outcome::Left
            }
        };
        if !case.expect.allows(outcome) {
            return Err(format!("{outcome:?} where {:?} was expected: {pulled:?}", case.expect));
        }
        if fault == Some(Fault::TooManyForADay) && script.turns() > 1 {
            return Err(format!("it was asked {} times in {PATIENCE:?}, not once in a while", script.turns()));
        }
        self.unharmed(&repository, outcome)
    }

    /// Checks the conditions that hold after every case.
    fn unharmed(&self, repository: &str, outcome: Outcome) -> Result<Outcome, String> {
        let tags = tags(&self.target.home(), repository);
        if outcome != Outcome::Recovered && !tags.is_empty() {
            return Err(format!("what was not pulled is called {tags:?}"));
        }
        if self.target.log().contains("panicked") {
            return Err(format!("the daemon panicked: {}", self.target.log()));
        }
        if self.grown() > MEMORY {
            return Err(format!("the daemon has had {} KiB more than before, {MEMORY} are allowed", self.grown()));
        }
        match self.server.knocks() {
            0 => Ok(outcome),
            knocks => Err(format!("somebody knocked {knocks} times where nobody may be led")),
        }
    }
}

/// Returns the peak resident memory of a process in KiB, or `None` if the system does not report
/// it.
fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Returns the tag files of a repository.
fn tags(home: &Path, repository: &str) -> Vec<PathBuf> {
    let folder = home.join("tags").join(repository);
    if folder.is_dir() { entries(&folder) } else { Vec::new() }
}

/// Checks that the model is complete, and that each of its blobs matches its digest.
fn whole(home: &Path, repository: &str) -> Result<(), String> {
    let tags = tags(home, repository);
    let [tag] = tags.as_slice() else { return Err(format!("it was pulled, and is called {tags:?}")) };
    // Parses the manifest as the daemon does: ignored fields may be nested arbitrarily deep.
    let digest = String::from_utf8(read(tag)).map_err(|error| error.to_string())?.trim().to_owned();
    let manifest = Manifest::parse(&stored::blob(home, &digest)).map_err(|error| error.to_string())?;
    let layers = manifest.layers().iter().map(|layer| &layer.descriptor);
    for blob in layers.chain([manifest.config()]) {
        let digest = blob.digest.to_string();
        let bytes = std::fs::read(stored::path(home, &digest)).map_err(|error| format!("blob {digest}: {error}"))?;
        if bytes.len() as u64 != blob.size || Digest::of(&bytes) != blob.digest {
            return Err(format!("blob {digest} of {} bytes is here with {} other ones", blob.size, bytes.len()));
        }
    }
    Ok(())
}

/// Checks that an error names the place of the fault or the faulty thing.
fn says<'a>(error: &str, mut words: impl Iterator<Item = &'a str>) -> Result<(), String> {
    if words.any(|word| error.contains(word)) {
        return Ok(());
    }
    Err(format!("the error names neither the place nor the thing: {error:?}"))
}

/// Waits until no request is in progress.
async fn left(stage: &Stage) -> Result<(), String> {
    let begin = Instant::now();
    while stage.open() > 0 {
        if begin.elapsed() > LINGERS {
            return Err(format!("the client left, and {} connections are open after {LINGERS:?}", stage.open()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
