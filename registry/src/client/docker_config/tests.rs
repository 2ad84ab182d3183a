//! Tests of host spellings, of helpers (shell scripts), and of the files that are written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn config(folder: &Path) -> DockerConfig {
    // Helpers are in the same folder; the shell and its commands are in the usual places.
    let search_path = std::env::join_paths([folder, Path::new("/usr/bin"), Path::new("/bin")]).expect("no colons");
    DockerConfig::new(folder.join("config.json"), search_path)
}

fn with_json(folder: &Path, json: &Value) -> DockerConfig {
    fs::write(folder.join("config.json"), json.to_string()).expect("a file");
    config(folder)
}

fn helper(folder: &Path, name: &str, script: &str) {
    // Another process writes the script. If this process had it open for writing, a test that forks
    // at that moment would inherit the open file, and a file that is open for writing cannot be
    // executed.
    let path = folder.join(format!("docker-credential-{name}"));
    let text = format!("#!/bin/sh\n{script}\n");
    let command = "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let status = std::process::Command::new("/bin/sh").args(["-c", command, "sh", &text]).arg(path).status();
    assert!(status.expect("a shell").success());
}

fn password(user: &str, password: &str) -> Credential {
    Credential::Password { user: user.to_owned(), password: password.to_owned() }
}

#[test]
fn finds_hosts_in_all_spellings() {
    let folder = folder();
    let auth = |text: &str| json!({ "auth": text });
    let config = with_json(
        folder.path(),
        &json!({"auths": {
            "https://index.docker.io/v1/": auth("bWU6aHVi"),
            "https://ghcr.io": auth("bWU6Z2hjcjp3aXRoOmNvbG9ucw=="),
            "HTTP://Old.example/v2/": auth("bWU6b2xk"),
            "localhost:5000": {"identitytoken": "identity", "auth": "bWU6"},
            "token.example": {"registrytoken": "registry"},
            "plain.example": {"username": "me", "password": "plain"},
            "both.example/v1/": auth("bWU6b2xk"),
            "both.example": auth("bWU6bmV3"),
            "helped.example": {},
            "padded.example": auth("bWU6cHcAAA=="),
        }}),
    );
    let cases = [
        ("docker.io", Some(password("me", "hub"))),
        ("registry-1.docker.io", Some(password("me", "hub"))),
        ("ghcr.io", Some(password("me", "ghcr:with:colons"))),
        ("old.example", Some(password("me", "old"))),
        ("localhost:5000", Some(Credential::IdentityToken("identity".to_owned()))),
        ("token.example", Some(Credential::Bearer("registry".to_owned()))),
        ("plain.example", Some(password("me", "plain"))),
        ("both.example", Some(password("me", "new"))),
        ("padded.example", Some(password("me", "pw"))),
        ("helped.example", None),
        ("localhost", None),
        ("evil.ghcr.io", None),
    ];
    for (host, expect) in cases {
        assert_eq!(config.find(host).expect(host), expect, "{host}");
    }
}

#[test]
fn tells_of_files_that_cannot_be_read() {
    let folder = folder();
    assert_eq!(config(folder.path()).find("a").expect("no file, no login"), None);
    let malformed =
        ["{", "[]", "nonsense", "{\"auths\":{\"a\":{\"auth\":\"???\"}}}", "{\"auths\":{\"a\":{\"auth\":\"YWJj\"}}}"];
    for text in malformed {
        fs::write(folder.path().join("config.json"), text).expect("a file");
        let error = config(folder.path()).find("a").expect_err(text).to_string();
        assert!(error.contains("config.json"), "{error}");
    }
    for odd in [json!({}), json!({"auths": 7, "credsStore": {}}), json!({"auths": {"a": []}, "credHelpers": []})] {
        assert_eq!(with_json(folder.path(), &odd).find("a").expect("nothing of ours"), None, "{odd}");
    }
    let path = with_json(folder.path(), &json!({"credsStore": "../../bin/sh"}));
    assert!(path.find("a").expect_err("a path").to_string().contains("is not a credential helper"));
}

#[test]
fn asks_helpers() {
    let folder = folder();
    let script = r#"read -r server
case "$1 $server" in
"get https://index.docker.io/v1/") echo '{"ServerURL":"x","Username":"me","Secret":"hub"}' ;;
"get token.example") echo '{"ServerURL":"x","Username":"<token>","Secret":"identity"}' ;;
"get broken.example") echo 'this is no JSON' ;;
"get locked.example") echo 'the key chain is locked'; exit 1 ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac"#;
    helper(folder.path(), "chain", script);
    helper(folder.path(), "own", r#"echo '{"Username":"own","Secret":"secret"}'"#);
    let config = with_json(
        folder.path(),
        &json!({"credsStore": "chain", "credHelpers": {"own.example": "own", "gone.example": "gone"},
            "auths": {"file.example": {"auth": "bWU6b2xk"}}}),
    );
    let cases = [
        ("docker.io", Some(password("me", "hub"))),
        ("token.example", Some(Credential::IdentityToken("identity".to_owned()))),
        ("own.example", Some(password("own", "secret"))),
        ("file.example", Some(password("me", "old"))),
        ("unknown.example", None),
    ];
    for (host, expect) in cases {
        assert_eq!(config.find(host).expect(host), expect, "{host}");
    }
    for (host, expect) in
        [("broken.example", "does not answer"), ("locked.example", "is locked"), ("gone.example", "install")]
    {
        let error = config.find(host).expect_err(host).to_string();
        assert!(error.contains(expect), "{error}");
    }
    let uninstalled = with_json(folder.path(), &json!({"credsStore": "gone"}));
    assert_eq!(uninstalled.find("a").expect("as if nobody had logged in"), None);
}

#[test]
fn does_not_wait_for_helpers_for_ever() {
    let folder = folder();
    helper(folder.path(), "slow", "exec sleep 600");
    let mut config = with_json(folder.path(), &json!({"credsStore": "slow"}));
    config.helper_limit = Duration::from_millis(50);
    assert!(config.find("a").expect_err("it sleeps").to_string().contains("did not answer"));
}

#[test]
fn keeps_logins_and_everything_else() {
    let folder = folder();
    let path = folder.path().join("deeper/config.json");
    let config = DockerConfig::new(path.clone(), OsString::new());
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let read = || -> Value { serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON") };
    config.store("docker.io", &password("me", "pw:x")).expect("kept");
    assert_eq!((mode(&path), mode(&folder.path().join("deeper"))), (0o600, 0o700));
    assert_eq!(read(), json!({"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cHc6eA=="}}}));
    assert_eq!(config.find("docker.io").expect("read"), Some(password("me", "pw:x")));

    let others = json!({"proxies": {"default": 1}, "auths": {"https://A.example/v1/": {"auth": "eDp5", "email": "e"}},
        "unknown": [1, 2]});
    fs::write(&path, others.to_string()).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("made readable");
    config.store("a.example", &Credential::IdentityToken("t".to_owned())).expect("kept");
    let expect = json!({"proxies": {"default": 1}, "auths": {"a.example": {"email": "e", "identitytoken": "t"}},
        "unknown": [1, 2]});
    assert_eq!((read(), mode(&path)), (expect, 0o600));

    assert!(config.erase("a.example").expect("erased"));
    assert!(!config.erase("a.example").expect("nothing to erase"));
    assert_eq!(read()["auths"], json!({}));
    let left: Vec<_> = fs::read_dir(folder.path().join("deeper")).expect("a folder").collect();
    assert_eq!(left.len(), 1, "no temporary file is left");

    assert!(config.store("a", &password("a:b", "c")).is_err(), "a colon cannot be kept");
    fs::write(&path, "{ broken").expect("written");
    assert!(config.store("a", &password("b", "c")).is_err());
    assert_eq!(fs::read(&path).expect("a file"), b"{ broken", "what we cannot read we do not replace");
}

#[test]
fn writes_through_links() {
    let folder = folder();
    let target = folder.path().join("target.json");
    fs::write(&target, "{}").expect("a file");
    std::os::unix::fs::symlink(&target, folder.path().join("config.json")).expect("a link");
    config(folder.path()).store("a", &password("b", "c")).expect("kept");
    assert!(folder.path().join("config.json").is_symlink());
    assert!(fs::read_to_string(&target).expect("a file").contains("Yjpj"));
}

#[test]
fn gives_logins_to_helpers() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let script = format!(
        r#"case "$1" in
store) cat > '{0}' ;;
get) cat '{0}' 2>/dev/null || {{ echo 'credentials not found in native keychain'; exit 1; }} ;;
erase) rm '{0}' 2>/dev/null || {{ echo 'credentials not found'; exit 1; }} ;;
esac"#,
        kept.display()
    );
    helper(folder.path(), "chain", &script);
    let config = with_json(folder.path(), &json!({"credsStore": "chain"}));
    for login in [password("me", "secret"), Credential::IdentityToken("identity".to_owned())] {
        config.store("ghcr.io", &login).expect("kept");
        assert_eq!(config.find("ghcr.io").expect("asked"), Some(login));
        let text = fs::read_to_string(folder.path().join("config.json")).expect("a file");
        assert!(text.contains("ghcr.io") && !text.contains("secret") && !text.contains("identity"), "{text}");
    }
    let token = config.store("ghcr.io", &Credential::Bearer("t".to_owned()));
    assert!(token.is_err(), "a helper has no place for it, and the file is not where secrets go here");
    assert!(config.erase("ghcr.io").expect("erased"));
    assert_eq!(config.find("ghcr.io").expect("asked"), None);
    assert!(!config.erase("ghcr.io").expect("erased already"));
}

#[test]
fn shows_no_secrets() {
    let shown = format!(
        "{:?} {:?} {:?}",
        password("me", "secret"),
        Credential::IdentityToken("secret".to_owned()),
        Credential::Bearer("secret".to_owned())
    );
    assert!(!shown.contains("secret"), "{shown}");
}
