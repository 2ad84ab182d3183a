//! `lode diff`.

use anyhow::Result;
use api::lode::{DiffRequest, DiffResponse, TensorDiff, TensorSide, ValueDiff};
use clap::Args;

use super::Format;
use super::client::Client;
use super::text::{short, table};
use crate::config::Config;
use content::text::size;

/// Arguments of `lode diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArguments {
    /// Name of the first model
    a: String,
    /// Name of the second model
    b: String,
    /// Compute the numeric difference of tensors that differ
    #[arg(long)]
    values: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &DiffArguments) -> Result<()> {
    let request = DiffRequest { a: arguments.a.clone(), b: arguments.b.clone(), values: arguments.values };
    let diff: DiffResponse = Client::connect(config).await?.post("/api/lode/diff", &request).await?;
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&diff)?);
        return Ok(());
    }
    let mut rows: Vec<Vec<String>> = diff.tensors.iter().map(|tensor| row(tensor, arguments.values)).collect();
    let blob = |digest: &Option<String>| digest.as_deref().map_or_else(|| "-".to_owned(), short);
    rows.extend(diff.layers.iter().map(|layer| vec![layer.name.clone(), blob(&layer.a), blob(&layer.b)]));
    if !rows.is_empty() {
        let head: &[&str] = if arguments.values { &["NAME", "A", "B", "MAX", "RMS"] } else { &["NAME", "A", "B"] };
        table(head, &rows);
    }
    let (differ, layers) = (diff.tensors.len(), diff.layers.len());
    let added = size(diff.added_bytes);
    eprintln!("{} tensors are the same, {differ} differ, and {layers} other layers", diff.equal_tensors);
    eprintln!("beside '{}', '{}' takes {} more blobs ({added})", diff.a, diff.b, diff.added_blobs);
    Ok(())
}

fn row(tensor: &TensorDiff, values: bool) -> Vec<String> {
    let side = |side: &Option<TensorSide>| match side {
        Some(side) => {
            let shape: Vec<String> = side.shape.iter().map(ToString::to_string).collect();
            format!("{} [{}] {}", side.dtype, shape.join(", "), size(side.size))
        }
        None => "-".to_owned(),
    };
    let mut row = vec![tensor.name.clone(), side(&tensor.a), side(&tensor.b)];
    if values {
        row.extend(match &tensor.values {
            Some(ValueDiff::Computed { compared, max, rms, not_finite }) => {
                let all = tensor
                    .a
                    .as_ref()
                    .map_or(0, |side| side.shape.iter().fold(1_u64, |all, size| all.saturating_mul(*size)));
                let mut notes = Vec::new();
                if *compared < all {
                    notes.push(format!("{compared} of {all} numbers"));
                }
                if *not_finite > 0 {
                    notes.push(format!("{not_finite} not finite"));
                }
                let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
                [format!("{max:.3e}"), format!("{rms:.3e}{notes}")]
            }
            Some(ValueDiff::NotAvailable(reason)) => [format!("n/a: {reason}"), String::new()],
            None => [String::new(), String::new()],
        });
    }
    row
}
