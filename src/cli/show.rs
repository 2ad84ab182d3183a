//! `lode show`.

use anyhow::Result;
use api::ollama::{ShowRequest, ShowResponse};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::Format;
use super::client::Client;
use super::text::{plain, plain_for_terminal, short, table};
use crate::config::Config;
use content::text::size;

/// Arguments of `lode show`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct ShowArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// List all tensors with type, shape, size and blob
    #[arg(long, group = "part")]
    tensors: bool,
    /// Print only the Modelfile
    #[arg(long, group = "part")]
    modelfile: bool,
    /// Print only the chat template
    #[arg(long, group = "part")]
    template: bool,
    /// Print only the system prompt
    #[arg(long, group = "part")]
    system: bool,
    /// Print only the parameters
    #[arg(long, group = "part")]
    parameters: bool,
    /// Print only the license
    #[arg(long, group = "part")]
    license: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &ShowArguments) -> Result<()> {
    let request = ShowRequest { model: arguments.model.clone(), verbose: arguments.tensors, ..ShowRequest::default() };
    let shown: ShowResponse = Client::connect(config).await?.post("/api/show", &request).await?;
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    let parts = [
        (arguments.modelfile, &shown.modelfile),
        (arguments.template, &shown.template),
        (arguments.system, &shown.system),
        (arguments.parameters, &shown.parameters),
        (arguments.license, &shown.license),
    ];
    if let Some((_, text)) = parts.iter().find(|(wanted, _)| *wanted) {
        println!("{}", plain_for_terminal(text.trim_end_matches('\n')));
    } else if arguments.tensors {
        tensors(&shown);
    } else {
        overview(&shown);
    }
    Ok(())
}

fn tensors(shown: &ShowResponse) {
    let row = |tensor: &api::ollama::TensorEntry| {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let shape = format!("[{}]", shape.join(", "));
        vec![tensor.name.clone(), tensor.kind.clone(), shape, size(tensor.size), short(&tensor.digest)]
    };
    table(&["NAME", "DTYPE", "SHAPE", "SIZE", "DIGEST"], &shown.tensors.iter().map(row).collect::<Vec<_>>());
}

/// Prints a human-readable summary of a model.
pub(super) fn overview(shown: &ShowResponse) {
    let known = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    let fact = |key: &str| shown.model_info.get(key).map(ToString::to_string).unwrap_or_default();
    section(
        "Model",
        &[
            ("architecture", shown.details.family.clone()),
            ("parameters", shown.details.parameter_size.clone()),
            ("context length", known(shown.details.context_length)),
            ("embedding length", known(shown.details.embedding_length)),
            ("quantization", shown.details.quantization_level.clone()),
            ("tensors", fact("general.tensor_count")),
        ],
    );
    let lines = |title: &str, text: &str, most: usize| {
        if !text.is_empty() {
            println!("  {title}");
            for line in text.lines().take(most) {
                println!("    {}", plain(line));
            }
            println!();
        }
    };
    lines("Cannot be run", &shown.cannot_run, usize::MAX);
    lines("Capabilities", &shown.capabilities.join("\n"), usize::MAX);
    lines("Parameters", &shown.parameters, usize::MAX);
    let suggested = shown.sampling.iter().map(|(name, value)| format!("{name:<30} {value}"));
    let suggested: Vec<String> = suggested.collect();
    lines(&format!("Sampling by {}", shown.sampling_source), &suggested.join("\n"), usize::MAX);
    lines("System", &shown.system, 4);
    lines("License", &shown.license, 3);
}

fn section(title: &str, facts: &[(&str, String)]) {
    println!("  {title}");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        println!("    {name:<20} {}", plain(value));
    }
    println!();
}
