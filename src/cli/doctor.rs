//! `lode doctor`: what is wrong with this installation, and how to mend it.
//!
//! It looks and changes nothing, starts no daemon, and asks nobody but the daemon. Each check is a finding; the exit code
//! is 1 where one of them is a failure.

mod machine;
mod network;
mod store;

use anyhow::{Result, bail};
use serde::Serialize;

use super::Format;
use super::text::{columns, plain, wrapped};
use crate::config::Config;

/// Columns for the names of checks, and for grades.
const NAMES: usize = 15;
const GRADES: usize = 11;
/// What was found has at least so many.
const NARROWEST: usize = 20;

/// How good or bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    /// It works, but not as well as it could, or perhaps not for everybody.
    Warning,
    /// Something does not work.
    Failure,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    grade: Grade,
    /// What is the case.
    found: String,
    /// What to do about it.
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

/// Checks everything and prints what was found.
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
    // Nothing of what was found is cut: it goes on in the next line.
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
