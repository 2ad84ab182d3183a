//! Exports: files of an imported model come out bit for bit, and no export leaves a partial result.

mod conversions;
mod hostile;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::maintenance::{done, fails, files, run};
use crate::server::Server;
use crate::support::{self, entries, fixtures, models, name, read, skip, tiny_model};

/// Files of the folder `ambiguous` that the import refuses.
const REFUSED: [&str; 5] = [
    "big_endian_v2.gguf",
    "tensor_name_empty.gguf",
    "kv_count_reinterpreted.gguf",
    "tensor_count_reinterpreted.gguf",
    "README.md",
];

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// Returns the digests of all files below a folder, by relative path.
pub(super) fn digests(folder: &Path) -> BTreeMap<String, Digest> {
    let below = |path: &PathBuf| path.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
    files(folder).iter().map(|path| (below(path), Digest::of(&read(path)))).collect()
}

/// Exports a model and compares the printed digests to the written files.
pub(crate) fn exported(server: &Server, model: &str, to: &Path, arguments: &[&str]) -> BTreeMap<String, Digest> {
    let out = done(server, &[&["export", model, "--to", text(to)], arguments].concat());
    let line = |line: &str| {
        let (hex, name) = line.split_once("  ").expect("a digest and a name");
        (name.to_owned(), format!("sha256:{hex}").parse().expect("a digest"))
    };
    let printed: BTreeMap<String, Digest> = out.lines().map(line).collect();
    let there = if to.is_dir() { digests(to) } else { BTreeMap::from([(name(to), Digest::of(&read(to)))]) };
    assert_eq!(printed, there, "what was printed is not what is at `{}`", to.display());
    printed
}

/// Copies only those files of a folder that belong to the model.
pub(super) fn copied(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in entries(model).into_iter().filter(|path| path.is_file() && name(path) != "golden.safetensors") {
        std::fs::copy(&path, folder.path().join(name(&path))).expect("a copy");
    }
    folder
}

/// Imports, exports, and compares every file, twice: the second export checks the digests that the
/// first one recorded.
async fn round_trip(server: &Server, path: &Path) {
    server.create("m", path).await;
    let expect: BTreeMap<String, Digest> = import::locate(path)
        .expect("the model is there")
        .iter()
        .map(|file| {
            let digest = import::digest_of(&*file.source, content::Algorithm::Sha256).expect("it can be read");
            (file.name.clone(), digest)
        })
        .collect();
    for time in ["first", "second"] {
        let to = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(exported(server, "m", to.path(), &[]), expect, "{} the {time} time", path.display());
    }
}

#[tokio::test]
async fn gguf_files_come_out_as_they_went_in() {
    let Some(folder) = fixtures("export::gguf_files_come_out_as_they_went_in", "gguf") else { return };
    let server = Server::start(&[]).await;
    for file in ["mixed_types", "dims_1_to_4", "align_4096", "v2", "minimal", "zero_keys", "zero_tensors"] {
        round_trip(&server, &folder.join("meta").join(file).with_extension("gguf")).await;
    }
    round_trip(&server, &folder.join("meta/split-00001-of-00002.gguf")).await;
    for part in ["ambiguous", "types"] {
        for path in support::files(&folder.join(part), "gguf") {
            if !REFUSED.contains(&name(&path).as_str()) {
                round_trip(&server, &path).await;
            }
        }
    }
}

#[tokio::test]
async fn hugging_face_folders_come_out_as_they_went_in() {
    let Some(folder) = fixtures("export::hugging_face_folders_come_out_as_they_went_in", "hf") else { return };
    let server = Server::start(&[]).await;
    let models: Vec<PathBuf> =
        entries(&folder).into_iter().map(|path| path.join("model")).filter(|path| path.is_dir()).collect();
    assert!(models.len() > 20, "{} models", models.len());
    for model in models {
        round_trip(&server, &model).await;
    }
}

#[tokio::test]
async fn mlx_folders_come_out_as_they_went_in() {
    let Some(folder) = fixtures("export::mlx_folders_come_out_as_they_went_in", "mlx") else { return };
    let server = Server::start(&[]).await;
    let models: Vec<PathBuf> = entries(&folder).into_iter().filter(|path| name(path).ends_with("bf16")).collect();
    assert!(!models.is_empty());
    for model in models {
        round_trip(&server, copied(&model).path()).await;
    }
}

#[tokio::test]
async fn real_models_come_out_as_they_went_in() {
    let test = "export::real_models_come_out_as_they_went_in";
    let files = models().map(|folder| support::files(&folder, "gguf")).unwrap_or_default();
    if files.is_empty() {
        skip(test, "there are no real models; scripts/fetch-model gets them, LODE_TEST_MODELS says where they are");
        return;
    }
    let server = Server::start(&[]).await;
    for path in files {
        round_trip(&server, &path).await;
    }
}

#[tokio::test]
async fn the_place_decides_about_names() {
    let server = Server::start(&[]).await;
    server.create("folder", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = |name: &str| place.path().join(name);
    let expect = digests(&tiny_model());
    assert_eq!(exported(&server, "folder", &to("new"), &[]), expect);
    assert_eq!(exported(&server, "folder", &to("slash/"), &[]), expect);
    std::fs::create_dir(to("old")).expect("a folder");
    std::fs::write(to("old/mine.txt"), "mine").expect("a file");
    done(&server, &["export", "folder", "--to", text(&to("old"))]);
    assert_eq!(digests(&to("old")).len(), expect.len() + 1, "what else is there stays");

    // Existing files are replaced only with `--force`.
    let config = to("old/config.json");
    std::fs::write(&config, "{}").expect("a file");
    fails(&server, &["export", "folder", "--to", text(&to("old"))], "--force");
    assert_eq!(read(&config), b"{}");
    done(&server, &["export", "folder", "--to", text(&to("old")), "--force"]);
    assert_eq!(Digest::of(&read(&config)), expect["config.json"]);

    std::fs::write(to("file"), "a file").expect("a file");
    fails(&server, &["export", "folder", "--to", text(&to("file"))], "--force");
    fails(&server, &["export", "folder", "--to", text(&to("file")), "--force"], "name a folder");
    assert_eq!(read(&to("file")), b"a file");
    fails(&server, &["export", "folder", "--to", text(&to("no/such/place"))], "make it first");
    fails(&server, &["export", "nope", "--to", text(&to("x"))], "not found");
    assert!(!to("x").exists());
    assert_eq!(hidden(place.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_single_file_may_be_named() {
    let Some(folder) = fixtures("export::a_single_file_may_be_named", "gguf/meta") else { return };
    let server = Server::start(&[]).await;
    let source = folder.join("mixed_types.gguf");
    server.create("single", &source).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let digest = Digest::of(&read(&source));
    let to = place.path().join("other.gguf");
    let named = |name: &str| BTreeMap::from([(name.to_owned(), digest)]);
    assert_eq!(exported(&server, "single", &to, &[]), named("other.gguf"));
    fails(&server, &["export", "single", "--to", text(&to)], "--force");
    std::fs::write(&to, "short").expect("a file");
    assert_eq!(exported(&server, "single", &to, &["--force"]), named("other.gguf"));
    let folder = place.path().join("folder/");
    assert_eq!(exported(&server, "single", &folder, &[]), named("mixed_types.gguf"));
    assert_eq!(hidden(place.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn exports_go_side_by_side() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let expect = digests(&tiny_model());
    std::thread::scope(|scope| {
        for number in 0..6 {
            let to = place.path().join(number.to_string());
            let (server, expect) = (&server, &expect);
            scope.spawn(move || assert_eq!(exported(server, "m", &to, &[]), *expect));
        }
    });
    // Two exports to the same place: the second is refused, or starts after the first has
    // completed.
    let to = place.path().join("same");
    let both: Vec<bool> = std::thread::scope(|scope| {
        let export = || run(&server, &["export", "m", "--to", text(&to)]).success;
        let threads = [scope.spawn(export), scope.spawn(export)];
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(both.iter().filter(|done| **done).count(), 1);
    assert_eq!(digests(&to), expect);
    assert_eq!(hidden(place.path()), Vec::<PathBuf>::new());
}

/// Returns the hidden remains of unfinished exports in a folder.
pub(super) fn hidden(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| name(path).starts_with('.')).collect()
}
