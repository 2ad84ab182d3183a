//! Fuzzes the tar reader with arbitrary bytes: no panic, no endless loop, and no path that leaves
//! the target folder.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut tar = archive::Reader::new(bytes);
    while let Ok(Some(entry)) = tar.next() {
        assert!(!entry.path.starts_with('/') && entry.path.split('/').all(|part| part != ".."));
        let _ = std::io::copy(&mut tar, &mut std::io::sink());
    }
});
