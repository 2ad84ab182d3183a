//! The command line against a daemon.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use crate::server::{LODE, Server};
use crate::support::{skip, tiny_model};

fn text(output: &Output) -> (String, String) {
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (read(&output.stdout), read(&output.stderr))
}

#[tokio::test]
async fn a_model_from_a_modelfile() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("Modelfile");
    let from = tiny_model();
    let modelfile =
        format!("FROM {}\nPARAMETER temperature 0\nPARAMETER num_predict 8\nSYSTEM Be brief.\n", from.display());
    std::fs::write(&path, modelfile).expect("a Modelfile");
    let path = path.to_string_lossy().into_owned();
    let run = |arguments: &[&str]| {
        let output = server.lode(arguments);
        let (out, err) = text(&output);
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        (out, err)
    };
    let (_, first) = run(&["create", "brief", "-f", &path]);
    assert!(first.contains("are new") && first.contains("success"), "{first}");
    let (_, second) = run(&["create", "again", "-f", &path]);
    assert!(second.contains("nothing was written"), "{second}");
    let (list, _) = run(&["list"]);
    assert!(list.starts_with("NAME") && list.contains("brief:latest") && list.contains("again:latest"), "{list}");
    assert_eq!(run(&["show", "brief", "--system"]).0, "Be brief.\n");
    let (tensors, _) = run(&["show", "brief", "--tensors"]);
    assert!(tensors.contains("model.embed_tokens.weight") && tensors.contains("BF16"), "{tensors}");
    let (answer, _) = run(&["run", "brief", "Hello"]);
    assert!(!answer.trim().is_empty());
    let (_, timing) = run(&["run", "brief", "Hello", "--verbose"]);
    assert!(timing.contains("eval rate:"), "{timing}");
    let (loaded, notes) = run(&["ps"]);
    assert!(
        loaded.contains("100% CPU") && notes.is_empty(),
        "what this build cannot have is told by `lode doctor`: {notes}"
    );
    run(&["stop", "brief"]);
    assert!(!run(&["ps"]).0.contains("brief"));
    run(&["cp", "brief", "third"]);
    run(&["rm", "brief", "again"]);
    let (json, _) = run(&["list", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["models"][0]["name"], "third:latest");
}

#[tokio::test]
async fn a_reader_that_leaves_ends_a_command() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    for arguments in [&["list"][..], &["show", "m", "--tensors"], &["run", "m", "Hello"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = server.command(arguments).stdin(Stdio::null()).stdout(writer).output().expect("the program runs");
        let (_, err) = text(&output);
        assert!(!output.status.success() && !err.contains("panicked"), "{arguments:?}: {:?} {err}", output.status);
    }
}

#[tokio::test]
async fn an_interrupt_gives_the_terminal_back() {
    let server = Server::start(&[]).await;
    // Runs in a new pseudo-terminal, and prints the terminal's state afterwards.
    let inner = format!("{} login registry.example -u me; echo status $?; stty -a", *LODE);
    let mut script = Command::new("script");
    script.args(["-qfec", &inner, "/dev/null"]).env("LODE_HOME", server.home()).env("LODE_HOST", &server.address);
    let spawned = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        return skip("command_line::an_interrupt_gives_the_terminal_back", "there is no program `script`");
    };
    let (mut input, mut output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut told = Vec::new();
    let mut byte = [0];
    while !told.ends_with(b": ") {
        assert_eq!(output.read(&mut byte).expect("output"), 1, "{}", String::from_utf8_lossy(&told));
        told.extend(byte);
    }
    input.write_all(b"sec\x03").expect("a terminal");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("output");
    child.wait().expect("an end");
    assert!(rest.contains("status 130"), "{rest}");
    let modes: Vec<&str> = rest.split_whitespace().collect();
    assert!(modes.contains(&"echo") && modes.contains(&"isig"), "{rest}");
    assert!(!rest.contains("sec"), "{rest}");
}

#[tokio::test]
async fn errors_name_the_thing_and_exit_with_one() {
    let server = Server::start(&[]).await;
    for (arguments, says) in [
        (vec!["show", "nope"], "model 'nope' not found"),
        (vec!["run", "127.0.0.1:1/x/nope", "x"], "could not be pulled: `127.0.0.1:1` cannot be reached"),
        (vec!["rm", "nope"], "not found"),
        (vec!["cp", "nope", "x"], "not found"),
        (vec!["create", "x", "-f", "/no/such"], "/no/such"),
        (vec!["create", "../x", "-f", "/"], "is not a model name"),
    ] {
        let output = server.lode(&arguments);
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(out.is_empty() && err.contains(says), "{arguments:?}: {out}{err}");
    }
    let wrong = server.lode(&["frobnicate"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[tokio::test]
async fn shutdown_ends_the_daemon_in_order() {
    let mut server = Server::start(&[]).await;
    let output = server.lode(&["shutdown"]);
    assert!(output.status.success(), "{:?}", text(&output));
    assert!(server.ended(std::time::Duration::from_secs(5)).await);
    let again = server.lode(&["shutdown"]);
    assert!(again.status.success() && text(&again).1.contains("no daemon"), "{:?}", text(&again));
}

#[tokio::test]
async fn a_second_daemon_on_one_store_is_refused() {
    let server = Server::start(&[]).await;
    let second = std::process::Command::new(&*crate::server::LODE)
        .arg("serve")
        .env("LODE_HOME", server.home())
        .env("LODE_HOST", "127.0.0.1:0")
        .output()
        .expect("the program runs");
    let (_, err) = text(&second);
    assert_eq!(second.status.code(), Some(1));
    assert!(err.contains("in use by process") && err.contains(&server.pid().to_string()), "{err}");
}

#[tokio::test]
async fn what_cannot_be_written_is_an_error() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    for arguments in [&["list"][..], &["show", "m"], &["version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let output = server.command(arguments).stdin(Stdio::null()).stdout(full).output().expect("the program runs");
        let (_, said) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to stdout") && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn shutdown_stops_the_daemon_that_is_named() {
    let (one, mut other) = (Server::start(&[]).await, Server::start(&[]).await);
    // The home of one daemon, and the address of the other.
    let mixed = [("LODE_HOST", other.address.as_str())];
    let output = one.lode_with(&mixed, &["shutdown"]);
    let (_, said) = text(&output);
    assert!(output.status.code() == Some(1) && said.contains("unset one of them"), "{said}");
    for server in [&one, &other] {
        assert!(server.lode(&["list"]).status.success(), "both go on");
    }
    // The address alone.
    let output = Command::new(&*LODE).arg("shutdown").env("LODE_HOST", &other.address).env("HOME", one.home()).output();
    let (_, said) = text(&output.expect("the program runs"));
    assert!(said.contains("stopped the daemon"), "{said}");
    assert!(other.ended(std::time::Duration::from_secs(10)).await);
    assert!(one.lode(&["list"]).status.success());
}

#[tokio::test]
async fn wrong_settings_are_refused_by_name() {
    let server = Server::start(&[]).await;
    for (name, value, says) in [
        ("LODE_HOST", "21300", "a port alone is `:21300`"),
        ("LODE_LOG", "bogus===", "LODE_LOG is `bogus===`"),
        ("LODE_LOG", "inof", "expected error, warn, info"),
    ] {
        let output = server.lode_with(&[(name, value)], &["list"]);
        let (_, said) = text(&output);
        assert!(output.status.code() == Some(1) && said.contains(says), "{name}={value}: {said}");
    }
}

/// Runs a session of `lode run` in a terminal of `columns` columns, and returns the terminal's
/// output.
fn session(server: &Server, test: &str, model: &str, columns: u32, typed: &str) -> Option<String> {
    let inner = format!("stty cols {columns}; {} run {model}", *LODE);
    let mut script = Command::new("script");
    script.args(["-qfec", &inner, "/dev/null"]).env("LODE_HOME", server.home()).env("LODE_HOST", &server.address);
    let spawned = script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        skip(test, "there is no program `script`");
        return None;
    };
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    let mut shown = String::new();
    let mut until = |said: &str, shown: &mut String| {
        let mut bytes = [0; 4096];
        while !shown.contains(said) {
            let count = output.read(&mut bytes).expect("the terminal");
            assert!(count > 0, "no `{said}` in {shown}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    until("/? for help", &mut shown);
    for line in typed.lines() {
        input.write_all(format!("{line}\r").as_bytes()).expect("the terminal takes it");
    }
    input.write_all(b"/bye\r").expect("the terminal takes it");
    let mut rest = String::new();
    let _ = output.read_to_string(&mut rest);
    assert!(child.wait().expect("its end").success(), "{shown}{rest}");
    Some(shown + &rest)
}

#[tokio::test]
async fn a_session_is_kept_and_goes_on_as_a_model() {
    const TEST: &str = "command_line::a_session_is_kept_and_goes_on_as_a_model";
    use crate::clients::scripted::{self, Line};
    let (server, model) = (Server::start(&[]).await, tempfile::tempdir().expect("a folder"));
    let words = "word ".repeat(30);
    let lines = [Line { asked: "GREET-ME", tool: None, says: format!("Dear **user**, {words}.") }];
    scripted::write(model.path(), &lines, "Done.");
    server.create("scripted", model.path()).await;
    let typed =
        "/set system Be brief.\n/set parameter temperature 0\n/set temprature 0\nGREET-ME\n/save kept\n/show system";
    let Some(shown) = session(&server, TEST, "scripted", 40, typed) else { return };
    for said in
        ["the system prompt is set", "temperature is 0", "did you mean", "saved as kept", "\u{1b}[1muser\u{1b}[22m"]
    {
        assert!(shown.contains(said), "no `{said}` in {shown}");
    }
    let answer = shown.lines().filter(|line| line.contains("word word"));
    assert!(answer.clone().count() >= 4, "{shown}");
    for line in answer {
        assert!(line.trim_end().len() <= 40 + "\u{1b}[1m\u{1b}[22m".len(), "{line:?} is too long");
    }
    let kept = server.ask("/api/show", &serde_json::json!({"model": "kept"})).await;
    assert_eq!((&kept["system"], &kept["messages"][0]["content"]), (&"Be brief.".into(), &"GREET-ME".into()), "{kept}");
    // The input is in the history file for the next session, and `lode history` does not confuse
    // that file with the models' versions.
    let prompts = std::fs::read_to_string(server.home().join("prompts")).expect("a file");
    assert!(prompts.contains("GREET-ME"), "{prompts}");
    assert!(server.lode(&["history", "kept"]).status.success());
}

#[tokio::test]
async fn what_is_typed_while_the_history_is_off_is_not_kept() {
    const TEST: &str = "command_line::what_is_typed_while_the_history_is_off_is_not_kept";
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let typed = "/set parameter num_predict 1\n/set history off\nUNKEPT-LINE\n/set history on\nKEPT-LINE";
    let Some(shown) = session(&server, TEST, "m", 80, typed) else { return };
    assert!(shown.contains("UNKEPT-LINE"), "{shown}");
    let prompts = std::fs::read_to_string(server.home().join("prompts")).expect("a file");
    assert!(prompts.contains("KEPT-LINE") && !prompts.contains("UNKEPT-LINE"), "{prompts}");
}

#[tokio::test]
async fn the_end_of_the_input_agrees_to_nothing() {
    let server = Server::start(&[]).await;
    let inner = format!("{} run 127.0.0.1:1/x/absent; echo status $?", *LODE);
    let mut script = Command::new("script");
    script.args(["-qfec", &inner, "/dev/null"]).env("LODE_HOME", server.home()).env("LODE_HOST", &server.address);
    let Ok(mut child) = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return skip("command_line::the_end_of_the_input_agrees_to_nothing", "there is no program `script`");
    };
    // Ctrl+D.
    child.stdin.take().expect("a pipe").write_all(b"\x04").expect("the terminal takes it");
    let told = child.wait_with_output().expect("its end");
    let told = String::from_utf8_lossy(&told.stdout);
    assert!(told.contains("[Y/n]") && told.contains("is not in the store") && told.contains("status 1"), "{told}");
    assert!(!told.contains("cannot be reached"), "it was pulled: {told}");
}

#[tokio::test]
async fn an_agent_is_not_started_for_a_model_that_is_not_here() {
    let server = Server::start(&[]).await;
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = server.command(&["launch", "continue", "--model", "127.0.0.1:1/x/absent", "--yes"]);
    let output = command.env("HOME", home.path()).stdin(Stdio::null()).output().expect("the program runs");
    let (out, err) = text(&output);
    assert!(
        out.is_empty() && err.contains("`127.0.0.1:1` cannot be reached") && !err.contains("starting"),
        "{out}{err}"
    );
    assert_eq!(
        (output.status.code(), std::fs::read_dir(home.path()).expect("a folder").count()),
        (Some(1), 0),
        "{err}"
    );
}

#[tokio::test]
async fn a_file_in_the_place_of_the_histories_is_moved() {
    let prepare = |home: &std::path::Path| {
        std::fs::create_dir_all(home).expect("a folder");
        std::fs::write(home.join("history"), "#V2\nhello\n").expect("a file");
    };
    let server = Server::prepared(&[], prepare).await;
    server.create("m", &tiny_model()).await;
    assert!(server.home().join("history").is_dir());
    assert_eq!(std::fs::read_to_string(server.home().join("prompts")).expect("a file"), "#V2\nhello\n");
}

#[tokio::test]
async fn shells_complete_names_of_models() {
    let server = Server::start(&[]).await;
    server.create("completed", &tiny_model()).await;
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = text(&server.lode(&["completions", shell]));
        assert!(script.contains("COMPLETE"), "{shell}: {script}");
    }
    let mut asked = server.command(&["--", "lode", "run", "comp"]);
    let output = asked.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2").output().expect("the program runs");
    assert!(text(&output).0.contains("completed"), "{output:?}");
}
