//! Fuzzes unigram vocabularies with any character map, and WordPiece, over any text: no panic, and
//! every id belongs to a token.
#![no_main]

use prompt::{Special, Tokenizer};
use vocabulary::{VocabularyEntry, PieceKind, Vocabulary, VocabularyKind};

libfuzzer_sys::fuzz_target!(|input: (Vec<u8>, String)| {
    let (character_map, text) = input;
    let piece = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: -1.0, kind };
    let mut pieces = vec![
        piece("<unk>", PieceKind::Unknown),
        piece("<s>", PieceKind::Control),
        piece("<x>", PieceKind::UserDefined),
    ];
    pieces.extend(["\u{2581}", "a", "b", "ab", "\u{2581}a", "é", "ba"].map(|text| piece(text, PieceKind::Normal)));
    let kinds = [
        VocabularyKind::Unigram { character_map, merge_spaces: true },
        VocabularyKind::WordPiece { lowercase: true, strip_accents: true },
        VocabularyKind::SentencePiece,
    ];
    for kind in kinds {
        let vocabulary = Vocabulary { unknown: Some(0), add_space_prefix: true, ..Vocabulary::new(kind, pieces.clone()) };
        let Ok(tokenizer) = Tokenizer::from_vocabulary(vocabulary) else { continue };
        let Ok(ids) = tokenizer.encode(&text, Special { add: true, parse: true }) else { continue };
        assert!(ids.iter().all(|id| (*id as usize) < pieces.len()));
        let form = tokenizer.pair_form().expect("a form");
        let [first, second] = form.left([ids.len(), text.len()], 64);
        let pair = form.join(&ids[..first], &vec![0; second]);
        assert!(pair.tokens.len() <= 64.max(form.len()) && pair.second.is_none_or(|place| place <= pair.tokens.len()));
        let _ = tokenizer.whole_text(&ids, true);
    }
});
