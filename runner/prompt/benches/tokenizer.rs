//! Benchmarks of the time until a vocabulary of 262,144 tokens is ready: from an existing token
//! table, and from the document without a table.
//!
//! `LODE_BENCH_TOKENIZER` can name a GGUF file or a `tokenizer.json` to be measured too.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use formats::Gguf;
use lode_runner_prompt::{Special, Tokenizer};
use vocabulary::{PieceKind, TokenTable, Vocabulary, VocabularyEntry, VocabularyKind};

const TOKENS: usize = 262_144;
/// Number of added tokens, as in Gemma 3.
const ADDED: usize = 6_400;

/// Creates a byte-level BPE vocabulary: the 95 printable ASCII characters, words of two, three and
/// four of them, and added tokens.
fn synthetic() -> Vocabulary {
    let mut texts: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
    let single = texts.len();
    let mut merges = Vec::new();
    let mut first = 0;
    'all: loop {
        let last = texts.len();
        for left in first..last {
            for right in 0..single {
                if texts.len() == TOKENS - ADDED {
                    break 'all;
                }
                merges.push(format!("{} {}", texts[left], texts[right]));
                texts.push(format!("{}{}", texts[left], texts[right]));
            }
        }
        first = last;
    }
    let piece = |text, kind| VocabularyEntry { text, score: 0.0, kind };
    let mut pieces: Vec<VocabularyEntry> = texts.into_iter().map(|text| piece(text, PieceKind::Normal)).collect();
    pieces.extend((0..ADDED).map(|n| piece(format!("<unused{n}>"), PieceKind::Control)));
    let kind = VocabularyKind::ByteLevel { pre_tokenizer: "llama-bpe".to_owned(), merges };
    Vocabulary::new(kind, pieces)
}

fn table(bytes: &Arc<Vec<u8>>) -> Tokenizer {
    Tokenizer::from_table(TokenTable::open(bytes.clone()).expect("a table")).expect("a tokenizer")
}

fn ready(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ready");
    group.sample_size(10);
    let vocabulary = synthetic();
    let bytes = Arc::new(TokenTable::of_vocabulary(vocabulary.clone()).expect("a table"));
    group.bench_function("262144 tokens, table", |bencher| bencher.iter(|| black_box(table(&bytes))));
    group.bench_function("262144 tokens, checksum", |bencher| {
        bencher.iter(|| assert!(TokenTable::is_whole(&bytes[..]).expect("memory")));
    });
    group.bench_function("262144 tokens, vocabulary", |bencher| {
        bencher.iter(|| black_box(Tokenizer::from_vocabulary(vocabulary.clone()).expect("a tokenizer")));
    });
    if let Some(path) = std::env::var_os("LODE_BENCH_TOKENIZER") {
        let raw = std::fs::read(&path).expect("a document");
        let own = |raw: &[u8]| match Path::new(&path).extension() {
            Some(extension) if extension == "gguf" => {
                let gguf = Gguf::parse_header(raw).expect("a header");
                let vocabulary = Vocabulary::read(&gguf).expect("it is read").expect("a vocabulary");
                TokenTable::of_vocabulary(vocabulary).expect("a table")
            }
            _ => TokenTable::of_tokenizer_json(raw).expect("it is read").expect("plain BPE"),
        };
        let bytes = Arc::new(own(&raw));
        group.bench_function("given, table", |bencher| bencher.iter(|| black_box(table(&bytes))));
        group.bench_function("given, checksum", |bencher| {
            bencher.iter(|| assert!(TokenTable::is_whole(&bytes[..]).expect("memory")));
        });
        group.bench_function("given, document", |bencher| bencher.iter(|| black_box(table(&Arc::new(own(&raw))))));
    }
    group.finish();
}

fn encode(criterion: &mut Criterion) {
    let tokenizer = Tokenizer::from_vocabulary(synthetic()).expect("a tokenizer");
    let text = "The quick brown fox jumps over the lazy dog, 1234 times. ".repeat(200);
    let special = Special { add: true, parse: true };
    criterion.bench_function("encode 11,400 bytes", |bencher| {
        bencher.iter(|| black_box(tokenizer.encode(&text, special).expect("tokens")));
    });
}

criterion_group!(benches, ready, encode);
criterion_main!(benches);
