//! The help text of the program: commands in groups, examples, and the most important variables.

mod examples;

use std::fmt::Write;

use clap::builder::StyledStr;

/// Commands, grouped by purpose.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Use models", &["run", "launch", "ps", "stop", "ui"]),
    ("Get and make models", &["pull", "prefetch", "search", "create", "adopt", "list", "show", "cp", "rm"]),
    ("Share models", &["push", "login", "logout", "save", "load", "export"]),
    ("Transfers", &["jobs", "pause", "resume", "cancel", "limit"]),
    (
        "Versions and space",
        &["history", "rollback", "pin", "unpin", "du", "move", "own", "diff", "prune", "gc", "tier"],
    ),
    ("Examine", &["plan", "perplexity", "doctor", "fsck", "repair"]),
    ("Daemon", &["serve", "registry", "shutdown", "version", "key", "htpasswd", "completions", "help"]),
];

const EXAMPLES: &str = "\
Examples:
  lode run gemma3                      chat; the model is pulled first
  lode run gemma3 \"Why is the sky blue?\"
  lode launch claude --model qwen3     a coding agent with a model of yours
  lode create mine -f ./model.gguf     a model from a file or a folder
  lode push mine registry.example/team/mine

Variables:
  LODE_HOME            folder of the store (~/.local/share/lode)
  LODE_HOST            address of the daemon (127.0.0.1:11434)
  LODE_KEEP_ALIVE      how long an idle model stays loaded (5m)
  LODE_CONTEXT_LENGTH  tokens of context, or `auto` (auto)
  LODE_LOG             how much is logged (info)
  docs/configuration.md describes them.";

/// Returns the command line with this help text.
pub(super) fn with_groups(mut command: clap::Command) -> clap::Command {
    command.build();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}\n\n{EXAMPLES}\n",
        groups(&command)
    );
    with_examples(command).help_template(StyledStr::from(template))
}

/// Returns the command line with examples in the help of each command.
pub(super) fn with_examples(command: clap::Command) -> clap::Command {
    let add = |command: clap::Command, (name, lines): &(&str, &[&str])| {
        command.mut_subcommand(name, |own| own.after_help(examples::below(lines)))
    };
    examples::EXAMPLES.iter().fold(command, add)
}

/// Returns the commands and their descriptions, in groups.
fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let _ = writeln!(text, "  {name:<12} {}", about.map(ToString::to_string).unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = Arguments::command();
        command.build();
        let mut shown: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut there: Vec<&str> = visible.map(clap::Command::get_name).collect();
        shown.sort_unstable();
        there.sort_unstable();
        assert_eq!(shown, there);
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = with_groups(Arguments::command()).render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(help.contains("Variables:") && help.contains("  run "), "{help}");
    }
}
