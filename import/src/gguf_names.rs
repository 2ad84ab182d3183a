//! Facts that programs write into the names of GGUF files.

/// Words of the names of projectors, the preferred one first.
const PROJECTOR_TYPES: [&str; 5] = ["f16", "fp16", "bf16", "f32", "q8_0"];

/// Whether the path is that of a GGUF file with weights. Projectors, importance matrices and later
/// files of a split are not.
pub fn is_model_gguf(path: &str) -> bool {
    let file = file_name(path);
    let Some(stem) = file.strip_suffix(".gguf") else { return false };
    let first = numbered(path).is_none_or(|(_, number)| number == "00001");
    first && projector_rank(path).is_none() && !is_importance_matrix(stem)
}

/// Returns the rank of a projector (`mmproj`) among those of a model: 16 bits come before other
/// types. `None` for a file that is no projector.
pub fn projector_rank(path: &str) -> Option<usize> {
    let name = file_name(path);
    let stem = name.strip_suffix(".gguf").filter(|stem| stem.contains("mmproj"))?;
    let has = |kind: &&str| stem.split(['-', '.', ' ']).any(|word| word == *kind);
    Some(PROJECTOR_TYPES.iter().position(has).unwrap_or(PROJECTOR_TYPES.len()))
}

/// Returns the path of a GGUF file without the extension and without the number in a split.
pub fn gguf_stem(path: &str) -> &str {
    match numbered(path) {
        Some((base, _)) => base,
        None => path.get(..path.len().saturating_sub(".gguf".len())).unwrap_or(path),
    }
}

/// Whether a word in lower case is a tensor type: `q4_k_m`, `iq2_xxs`, `bf16`.
pub fn is_tensor_type(word: &str) -> bool {
    let digits = ["iq", "tq", "q"].into_iter().find_map(|prefix| word.strip_prefix(prefix));
    digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || matches!(word, "f16" | "fp16" | "bf16" | "f32" | "mxfp4")
}

/// The name of a file without its folders, in lower case.
fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase()
}

/// Whether the file is an importance matrix: `imatrix` is a word of the name, as in `model-imatrix`
/// and `imatrix_unsloth`. A model that was quantized with one (`model-Q4_K_M-imat`) is not.
fn is_importance_matrix(stem: &str) -> bool {
    let has = |is_it: fn(&str) -> bool| stem.split(['-', '_', '.', ' ']).any(is_it);
    stem.starts_with("imatrix") || (has(|word| word == "imatrix") && !has(is_tensor_type))
}

/// Splits the name of a file of a split: the part before the number, and the number.
fn numbered(path: &str) -> Option<(&str, &str)> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((base, number))
}
