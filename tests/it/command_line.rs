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
    assert!(tensors.contains("model.embed_tokens.weight") && tensors.contains("sha256:"), "{tensors}");
    let (answer, _) = run(&["run", "brief", "Hello"]);
    assert!(!answer.trim().is_empty());
    let (_, timing) = run(&["run", "brief", "Hello", "--verbose"]);
    assert!(timing.contains("eval rate:"), "{timing}");
    assert!(run(&["ps"]).0.contains("100% CPU"));
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
    // A terminal of its own, which tells its state afterwards.
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
        (vec!["run", "127.0.0.1:1/x/nope", "x"], "none could be pulled: `127.0.0.1:1` cannot be reached"),
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
