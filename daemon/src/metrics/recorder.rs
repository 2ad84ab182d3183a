//! Keeps the daemon's counters, gauges and histograms, and prints them in Prometheus's text format
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4).
//!
//! It implements [`metrics::Recorder`], so that every crate counts with the macros of `metrics`.
//! All values are atomics; a scrape locks the table of names only while it reads them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Upper bounds of histogram buckets in seconds: from a token of a small model to the load of a
/// large one.
const SECONDS: [f64; 14] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

/// The metrics of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<BTreeMap<String, Family>>>);

/// A metric with all its series.
#[derive(Debug, Default)]
struct Family {
    help: String,
    /// By their labels as the text format writes them, without braces: `model="a",kind="prompt"`.
    series: BTreeMap<String, Series>,
}

/// The values of one set of labels.
#[derive(Debug)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

/// A histogram over [`SECONDS`].
#[derive(Debug, Default)]
struct Buckets {
    /// Samples up to each bound and above the bound before it; the last entry has the samples above
    /// all bounds.
    counts: [AtomicU64; SECONDS.len() + 1],
    /// The sum of all samples, as the bits of an `f64`.
    sum: AtomicU64,
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bucket = SECONDS.iter().position(|bound| value <= *bound).unwrap_or(SECONDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // The closure always returns a value, so the update cannot fail.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl Metrics {
    fn families(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        // No code panics while it holds the lock half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, help: SharedString) {
        self.families().entry(name.as_str().to_owned()).or_default().help = help.into_owned();
    }

    /// The series of a key, made by `make` if there is none; `read` extracts its value.
    fn series<T>(
        &self,
        key: &Key,
        make: impl FnOnce() -> Series,
        read: impl FnOnce(&Series) -> Option<T>,
    ) -> Option<T> {
        let labels = labels(key);
        let mut families = self.families();
        let family = families.entry(key.name().to_owned()).or_default();
        read(family.series.entry(labels).or_insert_with(make))
    }

    /// All metrics in Prometheus's text format, sorted by name and labels.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for (name, family) in &*self.families() {
            let Some(first) = family.series.values().next() else { continue };
            let kind = match first {
                Series::Counter(_) => "counter",
                Series::Gauge(_) => "gauge",
                Series::Histogram(_) => "histogram",
            };
            if !family.help.is_empty() {
                line(&mut text, format_args!("# HELP {name} {}", escaped(&family.help)));
            }
            line(&mut text, format_args!("# TYPE {name} {kind}"));
            for (labels, series) in &family.series {
                series.render(&mut text, name, labels);
            }
            text.push('\n');
        }
        text
    }
}

impl Series {
    fn render(&self, text: &mut String, name: &str, labels: &str) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        match self {
            Self::Counter(value) => line(text, format_args!("{name}{braced} {}", value.load(Ordering::Relaxed))),
            Self::Gauge(bits) => {
                line(text, format_args!("{name}{braced} {}", f64::from_bits(bits.load(Ordering::Relaxed))));
            }
            Self::Histogram(buckets) => {
                let separator = if labels.is_empty() { "" } else { "," };
                let mut total = 0;
                let bounds = SECONDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(&buckets.counts) {
                    total += count.load(Ordering::Relaxed);
                    line(text, format_args!("{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {total}"));
                }
                line(text, format_args!("{name}_sum{braced} {}", f64::from_bits(buckets.sum.load(Ordering::Relaxed))));
                line(text, format_args!("{name}_count{braced} {total}"));
            }
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("invariant: writing to a string does not fail");
}

fn labels(key: &Key) -> String {
    let label = |label: &metrics::Label| format!("{}=\"{}\"", label.key(), escaped(label.value()).replace('"', "\\\""));
    key.labels().map(label).collect::<Vec<_>>().join(",")
}

/// A help text or label value: backslashes and line feeds are escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// A name that is used for two kinds of metric counts nothing under the second.
impl Recorder for Metrics {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let read = |series: &Series| match series {
            Series::Counter(value) => Some(Counter::from_arc(value.clone())),
            _ => None,
        };
        self.series(key, || Series::Counter(Arc::default()), read).unwrap_or_else(Counter::noop)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let read = |series: &Series| match series {
            Series::Gauge(bits) => Some(Gauge::from_arc(bits.clone())),
            _ => None,
        };
        self.series(key, || Series::Gauge(Arc::default()), read).unwrap_or_else(Gauge::noop)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let read = |series: &Series| match series {
            Series::Histogram(buckets) => Some(Histogram::from_arc(buckets.clone())),
            _ => None,
        };
        self.series(key, || Series::Histogram(Arc::default()), read).unwrap_or_else(Histogram::noop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_counters_gauges_and_histograms_in_the_text_format() {
        let recorder = Metrics::default();
        metrics::with_local_recorder(&recorder, || {
            metrics::describe_counter!("b_total", "Lines\nof \\ text");
            metrics::counter!("b_total", "model" => "a \"b\" \\ \n", "kind" => "x").increment(2);
            metrics::counter!("b_total", "model" => "a \"b\" \\ \n", "kind" => "x").increment(1);
            metrics::counter!("c_total").absolute(7);
            metrics::gauge!("a_bytes").set(1.5);
            for seconds in [0.001, 0.003, 500.0] {
                metrics::histogram!("d_seconds", "route" => "/").record(seconds);
            }
        });
        let text = recorder.render();
        let (others, histogram) = text.split_once("# TYPE d_seconds").expect("the histogram is printed last");
        let expected = "# TYPE a_bytes gauge\na_bytes 1.5\n\n\
            # HELP b_total Lines\\nof \\\\ text\n# TYPE b_total counter\n\
            b_total{model=\"a \\\"b\\\" \\\\ \\n\",kind=\"x\"} 3\n\n\
            # TYPE c_total counter\nc_total 7\n\n";
        assert_eq!(others, expected);
        for line in [
            " histogram",
            "d_seconds_bucket{route=\"/\",le=\"0.001\"} 1",
            "d_seconds_bucket{route=\"/\",le=\"0.002\"} 1",
            "d_seconds_bucket{route=\"/\",le=\"0.005\"} 2",
            "d_seconds_bucket{route=\"/\",le=\"120\"} 2",
            "d_seconds_bucket{route=\"/\",le=\"+Inf\"} 3",
            "d_seconds_sum{route=\"/\"} 500.004",
            "d_seconds_count{route=\"/\"} 3",
        ] {
            assert!(histogram.lines().any(|found| found == line), "{line} is not in {histogram}");
        }
    }
}
