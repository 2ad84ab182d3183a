//! The safetensors reader on a corpus: valid files are read like the reference, invalid ones are
//! refused, and the list here decides the cases that the format leaves open.

use std::collections::BTreeMap;
use std::path::Path;

use content::Digest;
use formats::Error;
use formats::safetensors::{Header, TensorInfo};
use serde_json::Value as Json;

use crate::support::{files, fixtures, json, name, numbers, object, read};

/// Ambiguous files: the names of their tensors in the order of the data, or `None` if the reader
/// refuses them.
const DECISIONS: [(&str, Option<&[&str]>); 10] = [
    ("bool_2.safetensors", Some(&["a"])),
    ("extra_field.safetensors", Some(&["a"])),
    ("f4_last_dim_odd.safetensors", Some(&["a"])),
    ("metadata_duplicate_key.safetensors", None),
    ("metadata_null.safetensors", Some(&["a"])),
    ("name_empty.safetensors", Some(&[""])),
    (
        "name_hostile.safetensors",
        Some(&["../../escape", "/etc/absolute", "C:\\windows", "a/b", "con", "..", "new\nline"]),
    ),
    ("name_nul.safetensors", Some(&["a\0b"])),
    ("newline_padding.safetensors", Some(&["a"])),
    ("offset_negative_zero.safetensors", None),
];

/// Parts of the error messages for some of the invalid files.
const SAYS: [(&str, &str); 12] = [
    ("array_header.safetensors", "`{`"),
    ("duplicate_tensor.safetensors", "duplicate"),
    ("duplicate_tensor_escaped.safetensors", "duplicate"),
    ("dtype_unknown.safetensors", "unknown dtype `Q4_0`"),
    ("empty.safetensors", "0 bytes"),
    ("header_len_100mb_plus_1.safetensors", "100000001"),
    ("header_len_plus_one.safetensors", "cut"),
    ("missing_shape.safetensors", "shape"),
    ("offsets_gap.safetensors", "no gaps"),
    ("offsets_overlap.safetensors", "no overlaps"),
    ("shape_overflow.safetensors", "overflows"),
    ("trailing_byte.safetensors", "belong to no tensor"),
];

#[test]
fn reads_good_files() {
    let Some(folder) = fixtures("safetensors_corpus::reads_good_files", "safetensors/good") else { return };
    let expected = json(&folder.join("expected.json"));
    let files = files(&folder, "safetensors");
    assert_eq!(files.len(), object(&expected).len());
    for path in files {
        check_good(&path, &expected[name(&path).as_str()]);
    }
}

fn check_good(path: &Path, expect: &Json) {
    let file = name(path);
    let bytes = read(path);
    let size = bytes.len() as u64;
    let header = Header::parse(&bytes, size).unwrap_or_else(|e| panic!("{file}: {e}"));
    assert_eq!(Some(header.data_start), expect["data_offset"].as_u64(), "{file}: beginning of the data");
    assert_eq!(Some(header.data_start - 8), expect["header_len"].as_u64(), "{file}: length of the header");
    let metadata: Option<BTreeMap<String, String>> =
        serde_json::from_value(expect["metadata"].clone()).expect("metadata is null or an object of strings");
    assert_eq!(header.metadata, metadata.unwrap_or_default(), "{file}: metadata");
    let tensors = object(&expect["tensors"]);
    assert_eq!(header.tensors.len(), tensors.len(), "{file}: number of tensors");
    let data = &bytes[header.data_start as usize..];
    for (tensor, facts) in tensors {
        let found = header.tensor(tensor).unwrap_or_else(|| panic!("{file}: there is no tensor `{tensor}`"));
        check_tensor(found, facts, data, &file);
    }
    // A reader that does not map the file needs only the header.
    let first = *bytes.first_chunk::<8>().expect("eight bytes");
    let length = Header::length(first, size).expect("the length was read before");
    assert_eq!(Header::parse(&bytes[..8 + length as usize], size), Ok(header), "{file}: from the header alone");
}

fn check_tensor(tensor: &TensorInfo, facts: &Json, data: &[u8], file: &str) {
    let name = &tensor.name;
    assert_eq!(Some(tensor.dtype.name()), facts["dtype"].as_str(), "{file}: dtype of `{name}`");
    assert_eq!(tensor.shape, numbers(&facts["shape"]), "{file}: shape of `{name}`");
    assert_eq!(numbers(&facts["data_offsets"]), [tensor.begin, tensor.end], "{file}: offsets of `{name}`");
    let bytes = &data[tensor.begin as usize..tensor.end as usize];
    assert_eq!(Some(Digest::of(bytes).hex().as_str()), facts["sha256"].as_str(), "{file}: bytes of `{name}`");
}

#[test]
fn refuses_bad_files() {
    let Some(folder) = fixtures("safetensors_corpus::refuses_bad_files", "safetensors/bad") else { return };
    let reasons = json(&folder.join("reasons.json"));
    let files = files(&folder, "safetensors");
    assert_eq!(files.len(), object(&reasons).len());
    let mut accepted = Vec::new();
    for path in &files {
        let bytes = read(path);
        match Header::parse(&bytes, bytes.len() as u64) {
            Ok(_) => accepted.push(format!("{}: {}", name(path), reasons[name(path).as_str()])),
            Err(error) => assert!(names_something(&error), "{}: {error}", name(path)),
        }
    }
    assert!(accepted.is_empty(), "bad files were accepted: {accepted:#?}");
    for (file, says) in SAYS {
        let bytes = read(&folder.join(file));
        let error = Header::parse(&bytes, bytes.len() as u64).expect_err(file);
        assert!(error.to_string().contains(says), "{file}: `{error}` should say `{says}`");
    }
}

fn names_something(error: &Error) -> bool {
    matches!(error, Error::Malformed { format: "safetensors", reason, .. } if !reason.trim().is_empty())
}

#[test]
fn refuses_cut_files() {
    /// Larger files have no further structure, and cutting them at every byte takes long.
    const LONGEST: usize = 4096;
    let Some(folder) = fixtures("safetensors_corpus::refuses_cut_files", "safetensors/good") else { return };
    for path in files(&folder, "safetensors") {
        let bytes = read(&path);
        for end in 0..bytes.len().min(LONGEST) {
            let named = Header::parse(&bytes[..end], end as u64).is_err_and(|error| names_something(&error));
            assert!(named, "{} cut at byte {end} was accepted", name(&path));
        }
    }
}

#[test]
fn decides_what_the_format_leaves_open() {
    let test = "safetensors_corpus::decides_what_the_format_leaves_open";
    let Some(folder) = fixtures(test, "safetensors/ambiguous") else { return };
    let there: Vec<String> = files(&folder, "safetensors").iter().map(|path| name(path)).collect();
    let decided: Vec<&str> = DECISIONS.iter().map(|(file, _)| *file).collect();
    assert_eq!(there, decided, "files without a decision, or decisions without a file");
    for (file, decision) in DECISIONS {
        let bytes = read(&folder.join(file));
        match (Header::parse(&bytes, bytes.len() as u64), decision) {
            (Ok(header), Some(names)) => {
                let found: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
                assert_eq!(found, names, "{file}");
                assert_eq!(header.metadata, BTreeMap::new(), "{file}");
            }
            (Err(error), None) => assert!(names_something(&error), "{file}: {error}"),
            (Ok(_), None) => panic!("{file} was accepted"),
            (Err(error), Some(_)) => panic!("{file} was refused: {error}"),
        }
    }
}
