//! Tests of derivations without an encoder: a group that loses a tensor becomes a new blob of
//! copied arrays.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use content::{Observer, Unwatched};
use formats::Dtype;
use formats::safetensors::{Header, Member, canonical_header};
use manifests::Layer;

use super::*;
use crate::read_at::InMemory;
use crate::{BlobPlan, BlobSink, Policy, Quantization, ReadAt, Scheme, Sources, UserPolicy};

const GROUP: &str = "model.layers.0.mlp.experts";

/// Store in memory with remembered results.
#[derive(Default)]
struct Memory {
    blobs: Mutex<HashMap<Digest, Vec<u8>>>,
    notes: Mutex<HashMap<Digest, Digest>>,
    puts: AtomicU64,
}

impl Target for Memory {
    fn may_have(&self, _name: &str, _size: u64) -> bool {
        false
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, content::Error> {
        let blobs = self.blobs.lock().expect("nobody panicked");
        Ok(blobs.get(digest).is_some_and(|blob| blob.len() as u64 == size))
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        Ok(Box::new(MemorySink { memory: self, size, bytes: Vec::new() }))
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        self.notes.lock().expect("nobody panicked").get(source).copied()
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.notes.lock().expect("nobody panicked").insert(*source, *blob);
    }
}

struct MemorySink<'a> {
    memory: &'a Memory,
    size: u64,
    bytes: Vec<u8>,
}

impl BlobSink for MemorySink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), content::Error> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(Digest, bool), content::Error> {
        let Self { memory, size, bytes } = *self;
        assert_eq!(bytes.len() as u64, size, "as many bytes as were announced");
        memory.puts.fetch_add(1, Ordering::Relaxed);
        let digest = Digest::of(&bytes);
        Ok((digest, memory.blobs.lock().expect("nobody panicked").insert(digest, bytes).is_none()))
    }
}

/// Observer that cancels after a number of bytes.
struct Until {
    limit: u64,
    done: AtomicU64,
}

impl Observer for Until {
    fn status(&self, _status: String) {}

    fn bytes(&self, done: u64, _total: u64) {
        self.done.fetch_max(done, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        self.done.load(Ordering::Relaxed) <= self.limit
    }
}

/// Returns a group of two experts with a policy that drops one of them.
fn model() -> (SourceModel, Quantization) {
    let member = |number: u32| Member {
        name: format!("{GROUP}.{number}.up_proj.weight"),
        dtype: Dtype::F32,
        shape: vec![2, 2],
        size: 16,
    };
    let mut bytes = canonical_header(&[member(0), member(1)], &std::collections::BTreeMap::new());
    bytes.extend(0..32);
    let descriptor = Descriptor::of(media_types::TENSOR, &bytes);
    let layer = Layer::named(descriptor, GROUP);
    let digest = *layer.digest();
    let blob: Arc<dyn ReadAt> = Arc::new(InMemory(bytes));
    let open = move |wanted: &Digest| {
        if *wanted == digest { Ok(Arc::clone(&blob)) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    let model = SourceModel::stored(vec![layer], Box::new(open));
    let user = UserPolicy::parse("[[rule]]\nmatch = 'experts\\.0'\ntype = 'drop'").expect("a policy");
    let policy = Policy { scheme: Scheme::parse("int4").expect("a type"), user };
    let tensors = model.tensors().expect("its header can be read");
    let plan = Quantization::plan("", model.layers(), &tensors, &policy, Sources::Floats).expect("a plan");
    (model, plan)
}

fn derivations(plan: &Quantization) -> Vec<&Derivation> {
    let derived = plan.blobs.iter().filter_map(|blob| match blob {
        BlobPlan::Derive(derivation) => Some(derivation),
        BlobPlan::Keep(_) => None,
    });
    derived.collect()
}

#[test]
fn what_is_known_is_not_made_again() {
    let (model, plan) = model();
    let (derivations, target) = (derivations(&plan), Memory::default());
    let run = |reuse| {
        derive(&derivations, &model, &target, reuse, &ImportProgress::new(&Unwatched, u64::MAX))
            .expect("it can be derived")
    };
    let first = run(Reuse::Known);
    assert!(first[0].new);
    let bytes = target.blobs.lock().expect("nobody panicked")[&first[0].descriptor.digest].clone();
    let header = Header::parse(&bytes, bytes.len() as u64).expect("a safetensors blob");
    assert_eq!(header.tensors.len(), 1);
    assert_eq!(bytes[header.data_start as usize..], (16..32).collect::<Vec<u8>>());

    let again = run(Reuse::Known);
    assert_eq!((again[0].new, &again[0].descriptor), (false, &first[0].descriptor));
    assert_eq!(target.puts.load(Ordering::Relaxed), 1);
    let checked = run(Reuse::Check);
    assert_eq!((checked[0].new, target.puts.load(Ordering::Relaxed)), (false, 2));
    // A remembered result without its blob must not be reused.
    target.blobs.lock().expect("nobody panicked").clear();
    assert!(run(Reuse::Known)[0].new);
}

#[test]
fn another_result_than_the_remembered_one_is_an_error() {
    let (model, plan) = model();
    let (derivations, target) = (derivations(&plan), Memory::default());
    let key = derivations[0].key(&derivations[0].sources());
    let other = Digest::of(b"something else");
    target.remember(&key, &other);
    let error = derive(&derivations, &model, &target, Reuse::Check, &ImportProgress::new(&Unwatched, u64::MAX))
        .expect_err("it differs")
        .to_string();
    assert!(error.contains(&other.to_string()) && error.contains(GROUP), "{error}");
    assert_eq!(target.remembered(&key), Some(other), "what is in doubt stays");
}

#[test]
fn stops_when_nobody_wants_it_any_more() {
    let (model, plan) = model();
    let target = Memory::default();
    let until = Until { limit: 4, done: AtomicU64::new(0) };
    let result = derive(&derivations(&plan), &model, &target, Reuse::Known, &ImportProgress::new(&until, u64::MAX));
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert!(target.notes.lock().expect("nobody panicked").is_empty());
}
