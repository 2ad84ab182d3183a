//! Fuzzes token tables with arbitrary bytes, and tables that are built from a `tokenizer.json`. The
//! lookups by id and by text agree with each other.
//!
//! An input that begins with `{` is a `tokenizer.json`; any other is taken as a table of this
//! build.
#![no_main]

use std::sync::Arc;

use lode_fuzz::assert_told;
use prompt::{Special, Tokenizer};
use vocabulary::TokenTable;
use vocabulary::token_table::VERSION;

/// The magic bytes of a table; the version of the build follows them.
const MAGIC: &[u8] = b"LODETOKS";
/// The most tokens that are checked; a lookup by text may probe every slot.
const MOST: u32 = 300;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if bytes.starts_with(b"{") {
        match TokenTable::of_tokenizer_json(bytes) {
            Ok(Some(table)) => check_made(table),
            Ok(None) => {}
            Err(error) => assert_told(&error),
        }
        return;
    }
    let head = [MAGIC, VERSION.as_bytes()].concat();
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(head.len()), 0);
    bytes[..head.len()].copy_from_slice(&head);
    assert!(TokenTable::is_whole(&bytes[..]).is_ok(), "memory can be read");
    match TokenTable::open(Arc::new(bytes)) {
        Ok(table) => check(&table),
        Err(error) => assert_told(&error),
    }
});

fn check(table: &TokenTable) {
    assert_eq!((table.ids(), table.is_empty()), (0..table.len(), table.len() == 0));
    assert!(table.get(table.len()).is_none() && table.kind(table.len()).is_none());
    for id in table.ids().take(MOST as usize) {
        let Some(token) = table.get(id) else { continue };
        assert_eq!((table.kind(id), table.length(id)), (Some(token.kind), token.text.len()));
        if let Some(found) = table.id(token.text) {
            // A damaged table may find an id for which it has no token.
            assert!(table.get(found).is_none_or(|other| other.text == token.text), "{id} {found}");
        }
        let merge = table.merge(id, id / 2);
        assert!(merge.is_none_or(|merge| merge.id < table.len()));
    }
    let _ = table.settings();
    match Tokenizer::from_table(table.clone()) {
        Ok(tokenizer) => {
            let ids = tokenizer.encode("ab <s> é", Special { add: true, parse: true }).unwrap_or_default();
            let _ = tokenizer.whole_text(&ids, true);
        }
        Err(error) => assert_told(&error),
    }
}

/// Checks a table that was built here: it has every token that it was built from.
fn check_made(bytes: Vec<u8>) {
    assert!(TokenTable::is_whole(&bytes[..]).expect("memory"), "it has the bytes that it was made with");
    let table = TokenTable::open(Arc::new(bytes)).expect("it is a table");
    let tokens: Vec<(u32, &str)> = table.ids().filter_map(|id| Some((id, table.get(id)?.text))).collect();
    assert_eq!(tokens.len(), table.texts(), "no text is there twice");
    for (id, text) in tokens {
        assert_eq!(table.id(text), Some(id), "{text}");
    }
    assert!(table.settings().is_ok());
}
