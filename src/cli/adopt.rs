//! `lode adopt`: models of other programs and files become models of the store, whose tensors stay
//! where they are.

mod found;
mod gguf_caches;
mod gguf_files;
mod hugging_face;
mod ollama;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use api::ollama::TagsResponse;
use clap::{Args, ValueEnum};
use content::text::size;
use manifests::ModelRef;
use serde_json::json;

use super::client::Client;
use super::text::{plain, table};
use super::{Format, create};
use crate::config::{Config, ToolFolders};
use found::{FoundFiles, FoundModel, Tool};

/// Arguments of `lode adopt`.
#[derive(Debug, Args)]
pub(super) struct AdoptArguments {
    /// A file or folder, or `ollama`, `huggingface`, `lmstudio` or `llama.cpp`. Without it, the
    /// models of all these programs are listed
    source: Option<String>,
    /// Adopt only these models of the program, as `lode adopt` lists them
    models: Vec<String>,
    /// Name of the new model, if there is one
    #[arg(long, requires = "source")]
    name: Option<String>,
    /// Do not adopt the projector for pictures (`mmproj`) beside a GGUF file
    #[arg(long)]
    no_projector: bool,
    /// Only list the models
    #[arg(long)]
    dry_run: bool,
    /// Output format of the list
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A model with facts that decide whether it is adopted.
struct ComparedModel {
    model: FoundModel,
    /// Whether the store has a model of that name.
    is_known: bool,
    /// Another model in the list, or a model before it, with the same file.
    same_as: Option<String>,
}

impl ComparedModel {
    fn state(&self) -> String {
        match (&self.model.files, self.is_known, &self.same_as) {
            (Err(problem), ..) => format!("cannot be adopted: {problem}"),
            (Ok(_), true, _) => "in the store".to_owned(),
            (Ok(_), false, Some(other)) => format!("same weights as {other}"),
            (Ok(_), false, None) => String::new(),
        }
    }
}

pub(super) async fn run(config: &Config, arguments: &AdoptArguments) -> Result<()> {
    let found = match arguments.source.as_deref() {
        None => of_tools(&Tool::ALL),
        Some(source) => match tool(source) {
            Some(tool) => of_tools(&[tool]),
            None => at_path(Path::new(source), arguments)?,
        },
    };
    let mut found = renamed(chosen(found, &arguments.models)?, arguments.name.as_deref())?;
    if arguments.no_projector {
        found.iter_mut().for_each(FoundModel::leave_out_projector);
    }
    let client = Client::connect(config).await?;
    let candidates = compared(found, &client).await?;
    if arguments.dry_run || arguments.source.is_none() {
        return show(&candidates, arguments.format);
    }
    // A model that the user names is adopted even if the store has one of that name.
    let is_named = !arguments.models.is_empty() || tool(arguments.source.as_deref().unwrap_or_default()).is_none();
    if candidates.is_empty() {
        eprintln!("nothing to adopt: no model was found");
        return Ok(());
    }
    let wanted: Vec<ComparedModel> =
        candidates.into_iter().filter(|candidate| is_named || !candidate.is_known).collect();
    if wanted.is_empty() {
        eprintln!("nothing to adopt: the store has a model for each name that was found");
    }
    adopt_all(config, &client, wanted).await
}

/// Returns the program of that name. A path with a slash is never one.
fn tool(source: &str) -> Option<Tool> {
    Tool::from_str(source, true).ok()
}

fn of_tools(tools: &[Tool]) -> Vec<FoundModel> {
    let folders = ToolFolders::read();
    let of_tool = |tool: &Tool| -> Vec<FoundModel> {
        let folders = match tool {
            Tool::Ollama => &folders.ollama,
            Tool::HuggingFace => &folders.hugging_face,
            Tool::LmStudio => &folders.lm_studio,
            Tool::LlamaCpp => &folders.llama_cpp,
        };
        let find = |folder: &PathBuf| match tool {
            Tool::Ollama => ollama::models(folder),
            Tool::HuggingFace => hugging_face::models(folder),
            Tool::LmStudio => gguf_caches::lm_studio(folder),
            Tool::LlamaCpp => gguf_caches::llama_cpp(folder),
        };
        for folder in folders {
            tell_if_unreadable(folder);
        }
        folders.iter().flat_map(find).collect()
    };
    tools.iter().flat_map(of_tool).collect()
}

/// Warns of a folder of a program that this user cannot list: its models are missing in the list.
fn tell_if_unreadable(folder: &Path) {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("note: the models in `{}` are not listed: {error}", folder.display());
        }
        _ => {}
    }
}

/// Finds the models at a path that the user named.
fn at_path(path: &Path, arguments: &AdoptArguments) -> Result<Vec<FoundModel>> {
    let missing = || {
        let tools = Tool::ALL.map(Tool::name).join(", ");
        format!("cannot find `{}`; expected a file, a folder, or one of {tools}", path.display())
    };
    let path = std::path::absolute(path).with_context(missing)?;
    let is_folder = std::fs::metadata(&path).with_context(missing)?.is_dir();
    let name = found::file_name(&path);
    if !is_folder {
        let beside = path.parent().map(found::entries).unwrap_or_default();
        let named = gguf_files::own_name(gguf_files::stem(name));
        return Ok(vec![gguf_files::model(&path, &beside, None, named)]);
    }
    if let Some(repository) = hugging_face::repository(&path) {
        let parent = path.parent().unwrap_or(&path);
        let all = hugging_face::models(parent).into_iter();
        let own = format!("hf.co/{repository}");
        let is_own = |model: &FoundModel| {
            model.name.parse::<ModelRef>().is_ok_and(|name| format!("{}/{}", name.host(), name.repository()) == own)
        };
        return Ok(all.filter(is_own).collect());
    }
    let mut found: Vec<FoundModel> =
        hugging_face::safetensors(&path, gguf_files::part(name), None).into_iter().collect();
    found.extend(gguf_files::in_folder(&path, None, gguf_files::own_name));
    ensure!(!found.is_empty(), "`{}` has no GGUF file and no safetensors model", path.display());
    ensure!(
        arguments.name.is_none() || found.len() == 1 || !arguments.models.is_empty(),
        "`{}` has {} models; give `--name` with one of them, which `--dry-run` lists",
        path.display(),
        found.len()
    );
    Ok(found)
}

/// Returns the models with these names; all of them if no name is given.
fn chosen(found: Vec<FoundModel>, names: &[String]) -> Result<Vec<FoundModel>> {
    if names.is_empty() {
        return Ok(found);
    }
    let mut chosen = Vec::new();
    for name in names {
        let wanted = name.parse::<ModelRef>()?.to_string();
        let model = found.iter().find(|model| model.name.eq_ignore_ascii_case(&wanted));
        let known = || found.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
        let model = model.with_context(|| match known() {
            none if none.is_empty() => format!("no model `{wanted}` was found there: there are none"),
            known => format!("no model `{wanted}` was found there; there are {known}"),
        })?;
        chosen.push(model.clone());
    }
    Ok(chosen)
}

fn renamed(mut found: Vec<FoundModel>, name: Option<&str>) -> Result<Vec<FoundModel>> {
    let Some(name) = name else { return Ok(found) };
    let [model] = &mut found[..] else {
        bail!("--name is for one model, {} were found; name the one to adopt", found.len());
    };
    model.name = name.parse::<ModelRef>()?.to_string();
    Ok(found)
}

/// Compares the models to each other and to the store.
async fn compared(found: Vec<FoundModel>, client: &Client) -> Result<Vec<ComparedModel>> {
    let tags: TagsResponse = client.get("/api/tags").await?;
    let names: HashSet<String> = tags.models.into_iter().map(|model| model.name.to_lowercase()).collect();
    let mut by_digest: HashMap<String, String> = HashMap::new();
    let mut by_name: HashMap<String, PathBuf> = HashMap::new();
    let candidate = |mut model: FoundModel| {
        if model.files.is_ok() {
            match by_name.get(&model.name.to_lowercase()) {
                Some(first) => {
                    model.files = Err(format!("`{}` has the same name; adopt its file with --name", first.display()));
                }
                None => drop(by_name.insert(model.name.to_lowercase(), model.path.clone())),
            }
        }
        let same_as = model.digest.as_ref().and_then(|digest| {
            let first = by_digest.entry(digest.clone()).or_insert_with(|| model.name.clone());
            (*first != model.name).then(|| first.clone())
        });
        ComparedModel { is_known: names.contains(&model.name.to_lowercase()), same_as, model }
    };
    Ok(found.into_iter().map(candidate).collect())
}

fn show(candidates: &[ComparedModel], format: Format) -> Result<()> {
    let from = |model: &FoundModel| model.tool.map_or("file", Tool::name);
    if format == Format::Json {
        let entry = |candidate: &ComparedModel| {
            let FoundModel { name, path, bytes, files, .. } = &candidate.model;
            json!({
                "name": name,
                "from": from(&candidate.model),
                "path": path,
                "size": bytes,
                "in_store": candidate.is_known,
                "same_as": candidate.same_as,
                "problem": files.as_ref().err(),
            })
        };
        println!("{}", serde_json::to_string_pretty(&candidates.iter().map(entry).collect::<Vec<_>>())?);
        return Ok(());
    }
    if candidates.is_empty() {
        eprintln!("no model of Ollama, Hugging Face, LM Studio or llama.cpp was found in the usual folders");
        return Ok(());
    }
    let row = |candidate: &ComparedModel| {
        let model = &candidate.model;
        let state = plain(&candidate.state()).into_owned();
        vec![plain(&model.name).into_owned(), from(model).to_owned(), size(model.bytes), state]
    };
    table(&["NAME", "FROM", "SIZE", ""], &candidates.iter().map(row).collect::<Vec<_>>());
    let new = candidates.iter().filter(|candidate| candidate.model.files.is_ok() && !candidate.is_known);
    let (count, bytes) = new.fold((0, 0), |(count, bytes), candidate| (count + 1, bytes + candidate.model.bytes));
    eprintln!(
        "{count} of {} models can be adopted. They have {}; adopting them copies only their headers and documents, and reads each file once",
        candidates.len(),
        size(bytes)
    );
    Ok(())
}

/// Adopts the models one after the other, and continues after a failure.
async fn adopt_all(config: &Config, client: &Client, candidates: Vec<ComparedModel>) -> Result<()> {
    let (mut failed, count) = (0, candidates.len());
    for ComparedModel { model, .. } in candidates {
        match adopt(config, client, &model).await {
            Ok(()) => println!("{}", plain(&model.name)),
            Err(error) if count == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                eprintln!("`{}` was not adopted: {}", plain(&model.name), plain(&format!("{error:#}")));
            }
        }
    }
    ensure!(failed == 0, "{failed} of {count} models were not adopted");
    Ok(())
}

async fn adopt(config: &Config, client: &Client, model: &FoundModel) -> Result<()> {
    let files = model.files.as_ref().map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let request = model.request();
    let request = match files {
        FoundFiles::At { path, projector } => {
            let text = |path: &Path| -> Result<String> {
                let path = std::path::absolute(path)?;
                Ok(path.to_str().with_context(|| format!("the path `{}` is not UTF-8", path.display()))?.to_owned())
            };
            let request = api::ollama::CreateRequest {
                path: Some(text(path)?),
                projector: projector.as_deref().map(text).transpose()?,
                ..request
            };
            create::with_files(request, config, client).await?
        }
        FoundFiles::Named(files) => create::with_named_files(request, files, config, client).await?,
    };
    create::send(client, &request).await
}
