//! Logging to standard error, filtered by `LODE_LOG`, as text or JSON lines; and the export of
//! traces to an `OpenTelemetry` collector.

use std::io::{self, IsTerminal, Write};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line, with the span of the request.
    Json,
}

impl LogFormat {
    /// Parses `text` or `json`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A writer to standard error that never fails. Standard error may be a file on a full disk or a
/// pipe without a reader. Lines that cannot be written are lost, which does not affect the code
/// that logs them.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Silences html5ever, which logs every text that it sanitizes, such as prompts and answers. A
/// filter that names it enables it again.
const QUIET: &str = "html5ever=warn";

/// A filter for log lines, in the syntax of `tracing`: a level, or levels for parts of the program.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl LogFilter {
    /// Parses a filter such as `info` or `lode_daemon=debug,info`. Returns `None` if the text is
    /// not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
        // `tracing` reads any other word as a part of the program, and logs the lines of that part
        // only. A misspelt level is therefore refused.
        let names_part = |word: &str| word.contains(['=', '[']) || word.starts_with("lode");
        let fits = text.split(',').map(str::trim).all(|word| is_level(word) || names_part(word));
        (fits && EnvFilter::try_new(text).is_ok()).then(|| Self(text.to_owned()))
    }
}

/// Spans that are exported. The exporter's own requests must not be among them.
const EXPORTED: &str = "off,lode=info,lode_daemon=info,lode_transfer=info,lode_scheduler=info";

/// Whether traces are exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Traces {
    /// They are sent by OTLP over HTTP, to the collector that the standard variables name.
    Exported {
        /// The name of this service in traces.
        service: String,
    },
    /// Spans are only in the log.
    Off,
}

/// Exports traces until it is dropped, which sends the last ones.
#[must_use]
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|provider| provider.shutdown()) {
            tracing::warn!("the last traces were not exported: {error}");
        }
    }
}

/// Starts logging, and the export of traces.
pub(crate) fn start(LogFilter(filter): &LogFilter, format: LogFormat, traces: &Traces) -> Telemetry {
    let chosen = EnvFilter::try_new(format!("{QUIET},{filter}"));
    let filter = chosen.unwrap_or_else(|_| EnvFilter::new("info"));
    // The library's default honors NO_COLOR; files and pipes get no escape sequences.
    let log = tracing_subscriber::fmt::layer().with_writer(|| Log);
    let log = if io::stderr().is_terminal() { log } else { log.with_ansi(false) };
    let log = match format {
        LogFormat::Text => log.with_filter(filter).boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let (provider, problem) = match traces {
        Traces::Off => (None, None),
        Traces::Exported { service } => match provider(service) {
            Ok(provider) => (Some(provider), None),
            Err(problem) => (None, Some(problem)),
        },
    };
    let export = provider.as_ref().map(export_layer);
    // A second call, as in tests, has no effect.
    let _ = tracing_subscriber::registry().with(log).with(export).try_init();
    if let Some(problem) = problem {
        tracing::error!("traces are not exported: {problem}; see OTEL_EXPORTER_OTLP_ENDPOINT");
    }
    Telemetry(provider)
}

fn provider(service: &str) -> Result<SdkTracerProvider, String> {
    let exporter = SpanExporter::builder().with_http().build().map_err(|e| e.to_string())?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name(service.to_owned()).with_attribute(version).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

fn export_layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(
    provider: &SdkTracerProvider,
) -> impl Layer<S> + use<S> {
    // Name and kind of a span can be set until it is activated. They are known after the response.
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("lode")).with_context_activation(false);
    layer.with_filter(EnvFilter::new(EXPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_of_all_or_of_parts() {
        for good in ["info", "DEBUG", "off", "lode_daemon=debug,info", "lode=trace", "hyper=info, warn", "lode_runner"]
        {
            assert!(LogFilter::parse(good).is_some(), "{good}");
        }
        for bad in ["bogus===", "lode=debgu", "inof", "debug;info", "info,,x"] {
            assert!(LogFilter::parse(bad).is_none(), "{bad}");
        }
    }
}
