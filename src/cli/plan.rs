//! `lode plan`.

use anyhow::Result;
use api::lode::{PlanRequest, PlanResponse, PlannedDevice, PlannedMemory};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::Format;
use super::client::Client;
use super::text::{short, table};
use crate::config::Config;
use crate::size::bytes;
use content::text::size;

/// Arguments of `lode plan`.
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// The model; its registry is queried if it is not in the store
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// Free memory of a device, e.g. 24GiB; give it once for each device
    #[arg(long = "gpu", value_name = "SIZE", value_parser = bytes)]
    gpus: Vec<u64>,
    /// Context length in tokens
    #[arg(long = "ctx", value_name = "TOKENS")]
    context: Option<u64>,
    /// Number of parallel sequences
    #[arg(long, value_name = "SEQUENCES")]
    parallel: Option<u64>,
    /// Element type of the KV cache: `f32`, `f16`, `bf16` or `q8_0`
    #[arg(long = "kv", value_name = "TYPE")]
    kv_type: Option<String>,
    /// Connect to the registry without TLS
    #[arg(long)]
    insecure: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &PlanArguments) -> Result<()> {
    let request = PlanRequest {
        model: arguments.model.clone(),
        gpus: arguments.gpus.clone(),
        num_ctx: arguments.context,
        num_parallel: arguments.parallel,
        kv_cache_type: arguments.kv_type.clone(),
        insecure: arguments.insecure,
    };
    let plan: PlanResponse = Client::connect(config).await?.post("/api/lode/plan", &request).await?;
    match arguments.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&plan)?),
        Format::Table => print(&plan),
    }
    Ok(())
}

fn print(plan: &PlanResponse) {
    let PlanResponse { model, architecture, context, parallel, kv_cache_type, .. } = plan;
    println!("{model} ({}), {architecture}", short(&plan.digest));
    println!("{parallel} × {context} tokens, KV cache in {kv_cache_type}");
    println!();
    table(&["", "OLLAMA", "EXACT"], &rows(plan));
    for note in &plan.notes {
        println!("\nnote: {note}");
    }
}

/// Returns both estimates side by side. A size that only the exact one has is `-` for Ollama's.
fn rows(plan: &PlanResponse) -> Vec<Vec<String>> {
    let row = |name: &str, ollama: Option<String>, exact: &dyn Fn(&PlannedMemory) -> String| {
        vec![
            name.to_owned(),
            ollama.unwrap_or_else(|| "-".to_owned()),
            plan.exact.as_ref().map_or("-".to_owned(), exact),
        ]
    };
    let both = |name: &str, of: &dyn Fn(&PlannedMemory) -> String| row(name, Some(of(&plan.ollama)), of);
    let layers = |memory: &PlannedMemory| format!("{} of {}", memory.layers_on_devices, memory.layers);
    let mut rows = vec![
        both("layers on devices", &layers),
        both("weights", &|memory| size(memory.weights)),
        both("KV cache", &|memory| size(memory.kv_cache)),
        both("graph, activations", &|memory| size(memory.graph)),
        row("process", None, &|memory| size(memory.process)),
        both("on devices", &|memory| size(memory.on_devices)),
        both("in system memory", &|memory| size(memory.in_system)),
        row("  of it private", None, &|memory| size(memory.private)),
        both("total", &|memory| size(memory.total)),
    ];
    for (index, device) in plan.ollama.devices.iter().enumerate() {
        let held = |device: &PlannedDevice| format!("{} layers, {}", device.layers, size(device.total));
        let exact = |memory: &PlannedMemory| memory.devices.get(index).map(held).unwrap_or_default();
        rows.push(row(&format!("device {index} ({})", size(device.free)), Some(held(device)), &exact));
    }
    rows
}
