//! `lode doctor`: finds problems of this installation and says how to fix them.
//!
//! It only reads: it changes nothing, starts no daemon, and sends requests to the daemon only. Each
//! check gives a finding. The exit code is 1 if any finding is a failure.

mod machine;
mod network;
mod store;

use anyhow::{Result, bail};
use serde::Serialize;

use super::Format;
use super::text::{columns, plain, wrapped};
use crate::config::Config;

/// Column widths of the check names and of the grades.
const NAMES: usize = 15;
const GRADES: usize = 11;
/// Minimum width of the column with the findings.
const NARROWEST: usize = 20;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    /// It works, but not as well as it could, or possibly not for every user.
    Warning,
    /// Something does not work.
    Failure,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// Name of the check.
    check: &'static str,
    grade: Grade,
    /// Description of the result.
    found: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Ok, found: found.into(), remedy: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, grade: Grade::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn failure(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, grade: Grade::Failure, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// Runs all checks and prints their findings.
pub(super) async fn run(config: &Config, format: Format) -> Result<()> {
    let mut findings = machine::programs(config);
    findings.extend(store::check(config));
    findings.extend(network::check(config).await);
    findings.extend(machine::hardware(config));
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print(&findings);
    }
    let failures = findings.iter().filter(|finding| finding.grade == Grade::Failure).count();
    match failures {
        0 => Ok(()),
        1 => bail!("one thing does not work"),
        many => bail!("{many} things do not work"),
    }
}

fn print(findings: &[Finding]) {
    let grade = |finding: &Finding| match finding.grade {
        Grade::Ok => "ok",
        Grade::Warning => "WARNING",
        Grade::Failure => "FAILURE",
    };
    let columns = columns();
    // Long findings wrap to the next line instead of being cut.
    let room = columns.map(|columns| columns.saturating_sub(NAMES + GRADES).max(NARROWEST));
    let line = |check: &str, grade: &str, found: &str| {
        println!("{}", format!("{check:NAMES$}{grade:GRADES$}{found}").trim_end());
    };
    line("CHECK", "", "FOUND");
    for finding in findings {
        let found = plain(&finding.found);
        let found = room.map_or_else(|| vec![found.to_string()], |room| wrapped(&found, room));
        let heads = std::iter::once((finding.check, grade(finding))).chain(std::iter::repeat(("", "")));
        found.iter().zip(heads).for_each(|(found, (check, grade))| line(check, grade, found));
    }
    for finding in findings {
        if let Some(remedy) = &finding.remedy {
            let text = format!("{} ({}): {remedy}", grade(finding), finding.check);
            println!("\n{}", columns.map_or_else(|| text.clone(), |columns| wrapped(&text, columns).join("\n")));
        }
    }
}
