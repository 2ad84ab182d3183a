//! The GGUF reader on a corpus: valid files are read like the reference, invalid ones are refused,
//! and the lists here decide the cases that the format leaves open.

use std::collections::BTreeSet;
use std::path::Path;

use content::Digest;
use formats::gguf::{Array, Endian, TensorInfo, Value, ValueType};
use formats::{Error, GgmlType, Gguf};
use serde_json::Value as Json;

use crate::support::{files, fixtures, json, list, name, numbers, object, read};

/// Ambiguous files that the reader accepts.
const ACCEPTED: [&str; 23] = [
    "alignment_1.gguf",
    "alignment_2.gguf",
    "alignment_2_20_zero_tensors.gguf",
    "alignment_4.gguf",
    "array_nested_17.gguf",
    "big_endian_v2.gguf",
    "dim_zero.gguf",
    "gap_before_first_tensor.gguf",
    "gap_between_tensors.gguf",
    "key_nul.gguf",
    "key_upper_case.gguf",
    "no_architecture.gguf",
    "no_final_padding.gguf",
    "offsets_out_of_order.gguf",
    "padding_not_zero.gguf",
    "q8_1.gguf",
    "string_array_not_utf8.gguf",
    "string_value_not_utf8.gguf",
    "tensor_name_64.gguf",
    "tensor_name_empty.gguf",
    "tensor_name_hostile.gguf",
    "tensor_name_nul.gguf",
    "trailing_bytes.gguf",
];

/// Ambiguous files that the reader refuses.
const REFUSED: [&str; 2] = ["kv_count_reinterpreted.gguf", "tensor_count_reinterpreted.gguf"];

/// Parts of the error messages for some of the invalid files.
const SAYS: [(&str, &str); 19] = [
    ("alignment_24.gguf", "general.alignment is 24"),
    ("array_nested_bomb.gguf", "nested more than 32 deep"),
    ("bool_2.gguf", "a bool is 2"),
    ("duplicate_key.gguf", "duplicate"),
    ("duplicate_tensor.gguf", "duplicate"),
    ("empty.gguf", "0 bytes"),
    ("key_empty.gguf", "a key is empty"),
    ("key_too_long.gguf", "65536 bytes"),
    ("key_utf8_invalid.gguf", "not UTF-8"),
    ("magic_ggjt.gguf", "`ggjt`"),
    ("n_dims_5.gguf", "5 dimensions"),
    ("offset_misaligned.gguf", "offset 36 is not a multiple of 32"),
    ("overlap_same.gguf", "overlaps"),
    ("shape_not_blocks_q4_0.gguf", "multiple of 32"),
    ("tensor_name_too_long.gguf", "65 bytes"),
    ("tensor_type_4.gguf", "type 4 was removed"),
    ("tensor_type_99.gguf", "type 99 is not known"),
    ("value_type_13.gguf", "value type 13"),
    ("version_1.gguf", "version 1 is not supported"),
];

#[test]
fn reads_good_files() {
    let Some(folder) = fixtures("gguf_corpus::reads_good_files", "gguf/meta") else { return };
    let files = files(&folder, "gguf");
    assert!(files.len() >= 25, "only {} files were found", files.len());
    for path in files {
        check_good(&path, &json(&path.with_extension("json")));
    }
}

fn check_good(path: &Path, expect: &Json) {
    let file = name(path);
    let bytes = read(path);
    let gguf = Gguf::parse(&bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
    let endian = match gguf.endian {
        Endian::Little => "little",
        Endian::Big => "big",
    };
    assert_eq!(Some(u64::from(gguf.version)), expect["version"].as_u64(), "{file}: version");
    assert_eq!(Some(endian), expect["endian"].as_str(), "{file}: byte order");
    assert_eq!(Some(gguf.alignment), expect["alignment"].as_u64(), "{file}: alignment");
    assert_eq!(Some(gguf.data_start), expect["data_offset"].as_u64(), "{file}: beginning of the data");
    let keys = list(&expect["kv"]);
    assert_eq!(gguf.metadata.len(), keys.len(), "{file}: number of keys");
    for ((key, value), facts) in gguf.metadata.iter().zip(keys) {
        assert_eq!(Some(*key), facts["key"].as_str(), "{file}: keys in their order");
        let kind = facts["type"].as_str().expect("a type");
        assert!(same(value, kind, &facts["value"]), "{file}: `{key}` is {value:?}, expected {facts}");
    }
    let tensors = list(&expect["tensors"]);
    assert_eq!(gguf.tensors.len(), tensors.len(), "{file}: number of tensors");
    for (tensor, facts) in gguf.tensors.iter().zip(tensors) {
        assert_eq!(Some(tensor.name), facts["name"].as_str(), "{file}: tensors in their order");
        assert_eq!(Some(tensor.kind.name()), facts["type"].as_str(), "{file}: type of `{}`", tensor.name);
        assert_eq!(Some(tensor.offset), facts["offset"].as_u64(), "{file}: offset of `{}`", tensor.name);
        check_tensor(tensor, facts, &bytes, gguf.data_start, &file);
    }
    let header = Gguf::parse_header(&bytes).expect("the header was read before");
    assert_eq!(header.tensors, gguf.tensors, "{file}: from the header alone");
}

/// Checks the facts that `meta` and `types` give in the same form.
fn check_tensor(tensor: &TensorInfo<'_>, facts: &Json, file: &[u8], data_start: u64, path: &str) {
    let name = tensor.name;
    assert_eq!(Some(u64::from(tensor.kind.id())), facts["type_id"].as_u64(), "{path}: type of `{name}`");
    assert_eq!(tensor.dims, numbers(&facts["dims"]), "{path}: dimensions of `{name}`");
    assert_eq!(Some(tensor.size), facts["nbytes"].as_u64(), "{path}: size of `{name}`");
    let begin = (data_start + tensor.offset) as usize;
    let bytes = &file[begin..begin + tensor.size as usize];
    assert_eq!(Some(Digest::of(bytes).hex().as_str()), facts["sha256"].as_str(), "{path}: bytes of `{name}`");
}

/// Whether a value equals that of the reference. Floats are compared by their bits.
fn same(value: &Value<'_>, kind: &str, expect: &Json) -> bool {
    match (kind, value) {
        ("UINT8", Value::U8(n)) => expect.as_u64() == Some(u64::from(*n)),
        ("UINT16", Value::U16(n)) => expect.as_u64() == Some(u64::from(*n)),
        ("UINT32", Value::U32(n)) => expect.as_u64() == Some(u64::from(*n)),
        ("UINT64", Value::U64(n)) => expect.as_u64() == Some(*n),
        ("INT8", Value::I8(n)) => expect.as_i64() == Some(i64::from(*n)),
        ("INT16", Value::I16(n)) => expect.as_i64() == Some(i64::from(*n)),
        ("INT32", Value::I32(n)) => expect.as_i64() == Some(i64::from(*n)),
        ("INT64", Value::I64(n)) => expect.as_i64() == Some(*n),
        ("FLOAT32", Value::F32(x)) => bits(expect) == u64::from(x.to_bits()),
        ("FLOAT64", Value::F64(x)) => bits(expect) == x.to_bits(),
        ("BOOL", Value::Bool(flag)) => expect.as_bool() == Some(*flag),
        ("STRING", Value::String(text)) => expect.as_str().map(str::as_bytes) == Some(*text),
        ("ARRAY", Value::Array(array)) => same_items(array, expect),
        _ => false,
    }
}

fn bits(float: &Json) -> u64 {
    let digits = float["bits"].as_str().and_then(|bits| bits.strip_prefix("0x")).expect("bits in hex");
    u64::from_str_radix(digits, 16).expect("bits in hex")
}

fn same_items(array: &Array<'_>, expect: &Json) -> bool {
    let kind = type_name(array.kind());
    let items = list(&expect["items"]);
    let found: Vec<Value<'_>> = array.iter().collect();
    expect["item_type"].as_str() == Some(kind)
        && array.len() == items.len() as u64
        && found.len() == items.len()
        && found.iter().zip(items).all(|(item, expect)| same(item, kind, expect))
}

fn type_name(kind: ValueType) -> &'static str {
    match kind {
        ValueType::U8 => "UINT8",
        ValueType::I8 => "INT8",
        ValueType::U16 => "UINT16",
        ValueType::I16 => "INT16",
        ValueType::U32 => "UINT32",
        ValueType::I32 => "INT32",
        ValueType::F32 => "FLOAT32",
        ValueType::Bool => "BOOL",
        ValueType::String => "STRING",
        ValueType::Array => "ARRAY",
        ValueType::U64 => "UINT64",
        ValueType::I64 => "INT64",
        ValueType::F64 => "FLOAT64",
    }
}

#[test]
fn reads_every_tensor_type() {
    let Some(folder) = fixtures("gguf_corpus::reads_every_tensor_type", "gguf/types") else { return };
    let manifest = json(&folder.join("manifest.json"));
    let types = object(&manifest["types"]);
    for (kind, facts) in types {
        let bytes = read(&folder.join(format!("{kind}.gguf")));
        let gguf = Gguf::parse(&bytes).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let [tensor] = gguf.tensors.as_slice() else { panic!("{kind}: {} tensors", gguf.tensors.len()) };
        assert_eq!((tensor.name, tensor.kind.name()), ("weight", kind.as_str()));
        assert_eq!(Some(tensor.kind.block_elements()), facts["block_elements"].as_u64(), "{kind}: elements in a block");
        assert_eq!(Some(tensor.kind.block_bytes()), facts["block_bytes"].as_u64(), "{kind}: bytes in a block");
        assert_eq!(Some(gguf.data_start + tensor.offset), facts["data_offset"].as_u64(), "{kind}: beginning");
        assert_eq!(tensor.shape(), numbers(&manifest["shape_rows_by_columns"]), "{kind}: shape");
        check_tensor(tensor, facts, &bytes, gguf.data_start, kind);
    }
    let covered: BTreeSet<&str> = types.keys().map(String::as_str).collect();
    // No model uses `Q8_1`, so the corpus has no file with it.
    let known: BTreeSet<&str> = GgmlType::ALL.iter().map(|kind| kind.name()).filter(|name| *name != "Q8_1").collect();
    assert_eq!(covered, known, "types without a file, or files of unknown types");
}

#[test]
fn refuses_bad_files() {
    let Some(folder) = fixtures("gguf_corpus::refuses_bad_files", "gguf/bad") else { return };
    let reasons = json(&folder.join("reasons.json"));
    let files = files(&folder, "gguf");
    assert_eq!(files.len(), object(&reasons).len());
    let mut accepted = Vec::new();
    for path in &files {
        match Gguf::parse(&read(path)) {
            Ok(_) => accepted.push(format!("{}: {}", name(path), reasons[name(path).as_str()])),
            Err(error) => assert!(names_something(&error), "{}: {error}", name(path)),
        }
    }
    assert!(accepted.is_empty(), "bad files were accepted: {accepted:#?}");
    for (file, says) in SAYS {
        let error = Gguf::parse(&read(&folder.join(file))).expect_err(file).to_string();
        assert!(error.contains(says), "{file}: `{error}` should say `{says}`");
    }
}

fn names_something(error: &Error) -> bool {
    let (Error::Malformed { format, reason, .. } | Error::Truncated { format, reason, .. }) = error else {
        return false;
    };
    *format == "GGUF" && !reason.trim().is_empty()
}

#[test]
fn refuses_cut_files() {
    /// Larger files have no further structure, and cutting them at every byte takes long.
    const LONGEST: usize = 8192;
    let Some(folder) = fixtures("gguf_corpus::refuses_cut_files", "gguf/meta") else { return };
    for path in files(&folder, "gguf") {
        let bytes = read(&path);
        if bytes.len() > LONGEST {
            continue;
        }
        let gguf = Gguf::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", name(&path)));
        let last = gguf.tensors.iter().map(|tensor| tensor.offset + tensor.size).max();
        for end in 0..bytes.len() {
            let cut = Gguf::parse(&bytes[..end]);
            // The padding at the end of the file may be missing.
            if last.is_some_and(|last| (end as u64) < gguf.data_start + last) {
                let named = cut.is_err_and(|error| names_something(&error));
                assert!(named, "{} cut at byte {end} was accepted", name(&path));
            }
        }
    }
}

#[test]
fn decides_what_the_format_leaves_open() {
    let test = "gguf_corpus::decides_what_the_format_leaves_open";
    let Some(folder) = fixtures(test, "gguf/ambiguous") else { return };
    let there: BTreeSet<String> = files(&folder, "gguf").iter().map(|path| name(path)).collect();
    let decided: BTreeSet<String> = ACCEPTED.iter().chain(&REFUSED).map(|file| (*file).to_owned()).collect();
    assert_eq!(there, decided, "files without a decision, or decisions without a file");
    for file in ACCEPTED {
        let parsed = Gguf::parse(&read(&folder.join(file))).map(|gguf| gguf.version);
        assert!(parsed.is_ok(), "{file} was refused: {parsed:?}");
    }
    for file in REFUSED {
        let error = Gguf::parse(&read(&folder.join(file))).expect_err(file);
        assert!(names_something(&error), "{file}: {error}");
    }
}

#[test]
fn keeps_what_the_format_leaves_open() {
    let test = "gguf_corpus::keeps_what_the_format_leaves_open";
    let Some(folder) = fixtures(test, "gguf/ambiguous") else { return };
    let check = |file: &str, holds: fn(&Gguf<'_>) -> bool| {
        let bytes = read(&folder.join(file));
        let gguf = Gguf::parse(&bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(holds(&gguf), "{file}: {gguf:?}");
    };
    check("alignment_1.gguf", |gguf| gguf.alignment == 1);
    check("alignment_2.gguf", |gguf| gguf.alignment == 2);
    check("alignment_4.gguf", |gguf| gguf.alignment == 4);
    check("alignment_2_20_zero_tensors.gguf", |gguf| gguf.alignment == 1 << 20 && gguf.tensors.is_empty());
    check("big_endian_v2.gguf", |gguf| (gguf.version, gguf.endian) == (2, Endian::Big));
    check("dim_zero.gguf", |gguf| gguf.tensors.iter().any(|tensor| tensor.size == 0));
    check("key_nul.gguf", |gguf| gguf.metadata.iter().any(|(key, _)| key.contains('\0')));
    check("no_architecture.gguf", |gguf| gguf.text("general.architecture").is_none());
    check("q8_1.gguf", |gguf| gguf.tensors.iter().all(|tensor| (tensor.kind, tensor.size % 36) == (GgmlType::Q8_1, 0)));
    check("string_value_not_utf8.gguf", |gguf| {
        gguf.metadata.iter().any(|(_, value)| value.as_bytes().is_some() && value.as_str().is_none())
    });
    check("string_array_not_utf8.gguf", |gguf| {
        let tokens = gguf.array("tokenizer.ggml.tokens");
        tokens.is_some_and(|tokens| tokens.iter().any(|item| item.as_bytes().is_some() && item.as_str().is_none()))
    });
    check("tensor_name_64.gguf", |gguf| gguf.tensors.iter().any(|tensor| tensor.name.len() == 64));
    check("tensor_name_empty.gguf", |gguf| gguf.tensors.iter().any(|tensor| tensor.name.is_empty()));
    check("tensor_name_hostile.gguf", |gguf| {
        let names = ["../../escape", "/etc/absolute", "C:\\windows", "a/b", "con", "..", "new\nline", "$(id)", "'; --"];
        gguf.tensors.iter().map(|tensor| tensor.name).eq(names)
    });
    check("tensor_name_nul.gguf", |gguf| gguf.tensors.iter().map(|tensor| tensor.name).eq(["a", "a\0b"]));
}
