//! Fuzzes the reader of models in tar archives with arbitrary bytes: no panic, and every member
//! lies inside the archive and has a path inside the model.
#![no_main]

use std::io;
use std::sync::Arc;

use import::ReadAt;

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = usize::try_from(offset).ok().and_then(|begin| Some(begin..begin.checked_add(buffer.len())?));
        let part = end.and_then(|range| self.0.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn name(&self) -> String {
        "fuzz.tar".to_owned()
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let archive: Arc<dyn ReadAt> = Arc::new(Bytes(bytes.to_vec()));
    for file in import::members(&archive).unwrap_or_default() {
        assert_eq!(import::relative_name(&file.name).ok(), Some(file.name.clone()));
        let mut content = vec![0; usize::try_from(file.source.size()).expect("inside of the archive")];
        file.source.read_exact_at(&mut content, 0).expect("inside of the archive");
    }
});
