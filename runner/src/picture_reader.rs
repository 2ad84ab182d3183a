//! The pictures of prompts: their sizes, their ids, and the rows that the tower has computed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, ensure};
use architectures::{PictureInput, Tower};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pictures::{PictureLimits, PictureParts, decode, picture_parts};
use prompt::Tokenizer;
use protocol::limits::{ENCODED_PICTURES, PICTURES};
use sha2::{Digest, Sha256};

use crate::decoder::Decoder;
use crate::picture_rows::{EncodedPicture, FIRST_ROW, PictureGrid, PictureRows};
use crate::text::picture_text::PictureText;

/// Number of pictures whose ids are remembered. The prefixes of others are computed again.
const REMEMBERED: usize = 1 << 14;

/// Largest number of bytes of resized pictures that a prompt keeps until the tower takes them.
/// Other pictures are decoded again.
const RESIZED: usize = 16 << 20;

/// Reads the pictures of prompts.
#[derive(Debug)]
pub(crate) struct PictureReader {
    input: PictureInput,
    joins_tiles: bool,
    pub(crate) text: PictureText,
    known: Mutex<KnownPictures>,
    /// Locked while a picture is decoded: one after the other, which bounds the memory.
    decoding: Mutex<()>,
}

/// A picture by its file and its isolation domain.
type Key = [u8; 32];

#[derive(Debug)]
struct KnownPictures {
    /// Id of the first row of the next picture.
    next: u32,
    /// How often the ids began anew.
    epoch: u32,
    grids: HashMap<Key, PictureGrid>,
    /// Least recently used first.
    encoded: Vec<(Key, Arc<EncodedPicture>)>,
}

/// A picture of a prompt.
#[derive(Debug)]
pub(crate) struct PromptPicture {
    pub(crate) grid: PictureGrid,
    key: Key,
    /// The parts of the resized picture; `None` if it was read before, or would take too much
    /// memory.
    parts: Option<PictureParts>,
}

impl PictureReader {
    /// # Errors
    /// The tokenizer has no token for pictures; the text is the reason.
    pub(crate) fn new(tower: &Tower, tokenizer: &Tokenizer) -> Result<Self, String> {
        let known = KnownPictures { next: FIRST_ROW, epoch: 0, grids: HashMap::new(), encoded: Vec::new() };
        Ok(Self {
            input: tower.input.clone(),
            joins_tiles: tower.line_end.is_some(),
            text: PictureText::new(&tower.text, tokenizer)?,
            known: Mutex::new(known),
            decoding: Mutex::default(),
        })
    }

    /// Reads the pictures of a prompt, which are base64. Pictures of different domains never share
    /// computed rows. Returns the domain in which the prompt may share computed prefixes, too.
    ///
    /// # Errors
    /// There are too many pictures, or one of them is not a picture.
    pub(crate) fn read(&self, files: &[String], domain: &str) -> Result<(Vec<PromptPicture>, String)> {
        let count = files.len();
        ensure!(count <= PICTURES, "the prompt has {count} pictures, expected at most {PICTURES}");
        let epoch = self.known().epoch;
        let (mut pictures, mut bytes) = (Vec::with_capacity(files.len()), 0);
        for (index, file) in files.iter().enumerate() {
            let mut picture = self.picture(file, domain).map_err(|error| {
                if count > 1 { error.context(format!("picture {} of {count}", index + 1)) } else { error }
            })?;
            bytes += picture.parts.as_ref().map_or(0, PictureParts::bytes);
            if bytes > RESIZED {
                picture.parts = None;
            }
            pictures.push(picture);
        }
        if self.known().epoch != epoch {
            // The first ids are of the last epoch.
            return self.read(files, domain);
        }
        // Ids of an earlier epoch stand for other pictures.
        Ok((pictures, if epoch == 0 { domain.to_owned() } else { format!("{domain}\0{epoch}") }))
    }

    fn picture(&self, file: &str, domain: &str) -> Result<PromptPicture> {
        let key = Sha256::new().chain_update(domain).chain_update([0]).chain_update(file).finalize().into();
        let known = self.known().grids.get(&key).copied();
        if let Some(grid) = known {
            return Ok(PromptPicture { grid, key, parts: None });
        }
        let parts = self.parts(file)?;
        let grid = PictureGrid::of(&parts, &self.input, self.joins_tiles);
        let grid = self.known().place(key, grid);
        Ok(PromptPicture { grid, key, parts: Some(parts) })
    }

    /// Decodes and resizes a picture.
    fn parts(&self, file: &str) -> Result<PictureParts> {
        let limits = PictureLimits::default();
        // Some clients write base64 with line breaks.
        let most = limits.bytes.div_ceil(3) * 4;
        let clean: String = file.chars().filter(|letter| !letter.is_ascii_whitespace()).take(most + 1).collect();
        ensure!(clean.len() <= most, "the picture has more than {} bytes", limits.bytes);
        let bytes = BASE64_STANDARD.decode(clean).map_err(|error| anyhow!("the picture is not base64: {error}"))?;
        let _one = self.decoding.lock().unwrap_or_else(PoisonError::into_inner);
        let picture = decode(&bytes, limits)?;
        Ok(picture_parts(&picture, &self.input)?)
    }

    /// Returns the rows of a picture, and whether the tower computed them now. `file` is the
    /// picture as base64.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(crate) fn rows(
        &self,
        picture: &mut PromptPicture,
        file: &str,
        decoder: &Decoder,
    ) -> Result<(PictureRows, bool)> {
        let (grid, known) = (picture.grid, self.known().encoded(picture.key));
        if let Some(encoded) = known {
            return Ok((PictureRows { grid, encoded }, false));
        }
        let parts = match picture.parts.take() {
            Some(parts) => parts,
            None => self.parts(file)?,
        };
        let encoded = Arc::new(decoder.encode(&parts, &self.input)?);
        self.known().keep(picture.key, &encoded);
        Ok((PictureRows { grid, encoded }, true))
    }

    fn known(&self) -> MutexGuard<'_, KnownPictures> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownPictures {
    /// Gives ids to the rows of a picture, unless another request has done so.
    fn place(&mut self, key: Key, new: PictureGrid) -> PictureGrid {
        if let Some(grid) = self.grids.get(&key) {
            return *grid;
        }
        // One id stays free, so that the ids of two pictures are not consecutive.
        let count = u32::try_from(new.count() + 1).unwrap_or(u32::MAX - FIRST_ROW);
        if self.next.checked_add(count).is_none() {
            (self.next, self.epoch) = (FIRST_ROW, self.epoch.wrapping_add(1).max(1));
            self.grids.clear();
        }
        if self.grids.len() >= REMEMBERED {
            self.grids.clear();
        }
        let grid = PictureGrid { first: self.next, ..new };
        self.next += count;
        self.grids.insert(key, grid);
        grid
    }

    fn encoded(&mut self, key: Key) -> Option<Arc<EncodedPicture>> {
        let at = self.encoded.iter().position(|(own, _)| *own == key)?;
        let found = self.encoded.remove(at);
        self.encoded.push(found);
        self.encoded.last().map(|(_, encoded)| encoded.clone())
    }

    /// Keeps the rows of a picture, and drops the least recently used ones beyond the limit.
    fn keep(&mut self, key: Key, encoded: &Arc<EncodedPicture>) {
        if encoded.bytes() > ENCODED_PICTURES {
            return;
        }
        self.encoded.push((key, encoded.clone()));
        let mut bytes: usize = self.encoded.iter().map(|(_, encoded)| encoded.bytes()).sum();
        while bytes > ENCODED_PICTURES {
            bytes -= self.encoded.remove(0).1.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(next: u32) -> KnownPictures {
        KnownPictures { next, epoch: 0, grids: HashMap::new(), encoded: Vec::new() }
    }

    fn grid(columns: usize, lines: usize) -> PictureGrid {
        PictureGrid::whole(FIRST_ROW, columns, lines)
    }

    #[test]
    fn ids_of_pictures_are_apart() {
        let mut known = known(FIRST_ROW);
        let (first, second) = (known.place([1; 32], grid(3, 2)), known.place([2; 32], grid(1, 1)));
        assert_eq!((first.first, second.first), (FIRST_ROW, FIRST_ROW + 7));
        assert_eq!(known.place([1; 32], grid(3, 2)), first, "the same picture");
    }

    #[test]
    fn ids_begin_anew_in_another_epoch() {
        let mut known = known(u32::MAX - 5);
        assert_eq!(known.place([1; 32], grid(2, 2)).first, u32::MAX - 5);
        let next = known.place([2; 32], grid(2, 2));
        assert_eq!((next.first, known.epoch), (FIRST_ROW, 1));
        assert!(!known.grids.contains_key(&[1; 32]), "its ids may stand for another picture now");
    }

    #[test]
    fn kept_rows_are_bounded() {
        let mut known = known(FIRST_ROW);
        let rows = |bytes: usize| Arc::new(EncodedPicture { rows: vec![0.0; bytes / 4], deep: Vec::new() });
        for key in 0..5 {
            known.keep([key; 32], &rows(ENCODED_PICTURES / 4));
            known.encoded([0; 32]);
        }
        let kept: Vec<u8> = known.encoded.iter().map(|(key, _)| key[0]).collect();
        assert_eq!(kept, [2, 3, 4, 0], "the least recently used one is dropped");
        known.keep([9; 32], &rows(ENCODED_PICTURES + 4));
        assert_eq!(known.encoded.len(), 4, "one that is too large is not kept, and drops no other");
    }
}
