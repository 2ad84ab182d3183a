//! Examples in the help of each command.

/// Example command lines, by command.
pub(super) const EXAMPLES: &[(&str, &[&str])] = &[
    ("serve", &["lode serve", "LODE_HOST=0.0.0.0:11434 lode serve"]),
    (
        "create",
        &[
            "lode create mine -f ./model.gguf",
            "lode create small -f ./folder -q q4_k_m",
            "lode create helper -f Modelfile",
        ],
    ),
    (
        "adopt",
        &[
            "lode adopt",
            "lode adopt ollama",
            "lode adopt huggingface hf.co/OWNER/NAME",
            "lode adopt ./model.gguf --name mine",
        ],
    ),
    (
        "run",
        &[
            "lode run gemma3",
            "lode run gemma3 \"Why is the sky blue?\"",
            "lode run gemma3 --parameter temperature=0 --format json \"Three rivers\"",
            "git diff | lode run gemma3 \"Write a commit message\"",
        ],
    ),
    ("launch", &["lode launch claude --model qwen3", "lode launch codex -- exec \"Explain this project\""]),
    (
        "pull",
        &[
            "lode pull gemma3",
            "lode pull hf.co/OWNER/NAME:Q4_K_M",
            "lode pull registry.example/team/mine:v2",
            "lode pull gemma3 --limit 5MB/s --detach",
        ],
    ),
    ("prefetch", &["lode prefetch registry.example/team/chat:1 --nodes gpu1,gpu2:11434"]),
    ("search", &["lode search gemma", "lode search registry.example/team"]),
    ("push", &["lode push mine registry.example/team/mine:v2", "lode push mine registry.example/team/mine --dry-run"]),
    ("jobs", &["lode jobs", "lode jobs --all", "lode jobs --follow 3"]),
    ("pause", &["lode pause 3"]),
    ("resume", &["lode resume 3"]),
    ("cancel", &["lode cancel 3 4"]),
    ("limit", &["lode limit 10MB/s", "lode limit none", "lode limit 2MB/s --job 3"]),
    ("login", &["lode login registry.example", "pass registry | lode login registry.example -u me --password-stdin"]),
    ("logout", &["lode logout registry.example"]),
    ("list", &["lode list", "lode list registry.example/team", "lode list --format json"]),
    ("show", &["lode show gemma3", "lode show gemma3 --modelfile", "lode show gemma3 --tensors"]),
    ("cp", &["lode cp gemma3 mine:before"]),
    ("rm", &["lode rm mine:before other"]),
    ("ps", &["lode ps"]),
    ("stop", &["lode stop gemma3"]),
    ("history", &["lode history mine"]),
    ("rollback", &["lode rollback mine", "lode rollback mine --to sha256:4f1c"]),
    ("pin", &["lode pin mine"]),
    ("unpin", &["lode unpin mine"]),
    ("du", &["lode du", "lode du mine gemma3"]),
    ("move", &["lode move mine --to /mnt/models", "lode move --unused 30d --to /mnt/models --dry-run"]),
    ("own", &["lode own mine"]),
    ("diff", &["lode diff mine mine:before", "lode diff base tuned --values"]),
    ("plan", &["lode plan gemma3 --ctx 32768", "lode plan gemma3 --gpu 24GiB --kv q8_0 --parallel 4"]),
    ("perplexity", &["lode perplexity gemma3 text.txt", "lode perplexity gemma3 text.txt --window 512 --second-half"]),
    ("fsck", &["lode fsck", "lode fsck --sample 10%", "lode fsck --since 7d"]),
    ("repair", &["lode repair", "lode repair gemma3"]),
    ("gc", &["lode gc", "lode gc --dry-run"]),
    ("prune", &["lode prune --dry-run", "lode prune --older-than 30d"]),
    ("tier", &["lode tier", "lode tier move --after 7d --dry-run", "lode tier recall gemma3"]),
    ("save", &["lode save mine -o mine.tar", "lode save mine -o update.tar --since earlier.tar"]),
    ("load", &["lode load mine.tar", "lode load ./layout --name mine"]),
    (
        "export",
        &[
            "lode export mine --to ./files",
            "lode export mine --to mine.gguf --format gguf --dtype f16",
            "lode export mine --to ./hf --format safetensors --lossy",
        ],
    ),
    (
        "registry",
        &[
            "lode registry --storage s3://models/registry --collect-every 24h",
            "lode registry gc --storage s3://models/registry --dry-run",
        ],
    ),
    ("htpasswd", &["lode htpasswd alice >> users"]),
    ("doctor", &["lode doctor"]),
    ("ui", &["lode ui", "lode ui --print"]),
    ("key", &["lode key laptop >> keys", "lode key build --scopes read,write >> keys"]),
    ("shutdown", &["lode shutdown"]),
    ("version", &["lode version"]),
    ("completions", &["lode completions bash > /etc/bash_completion.d/lode"]),
];

/// Returns the text that follows the options of a command.
pub(super) fn below(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| format!("  {line}"));
    ["Examples:".to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn every_command_has_some_that_it_understands() {
        let mut command = Arguments::command();
        command.build();
        for own in command.get_subcommands().filter(|own| !own.is_hide_set() && own.get_name() != "help") {
            let name = own.get_name();
            let (_, lines) = EXAMPLES.iter().find(|(own, _)| *own == name).unwrap_or_else(|| panic!("{name} has none"));
            for line in *lines {
                assert!(line.chars().count() <= 78, "{line}");
                // The part of a pipeline that calls this program.
                let ours = line.split_once("lode ").expect("it calls the program").1;
                let ours = ours.split(' ').take_while(|word| !word.starts_with('>')).collect::<Vec<_>>().join(" ");
                let words = ours.split('"').enumerate().flat_map(|(at, part)| match at % 2 {
                    0 => part.split_whitespace().map(str::to_owned).collect(),
                    _ => vec![part.to_owned()],
                });
                let parsed = Arguments::try_parse_from(["lode".to_owned()].into_iter().chain(words));
                assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("it is refused"));
                assert!(ours.starts_with(name), "{line} is an example of {name}");
            }
        }
        assert_eq!(EXAMPLES.len(), command.get_subcommands().filter(|own| !own.is_hide_set()).count() - 1);
    }
}
