//! Tests of the configuration.

use registry::server::access::{Challenge, Mode, UserSource};

use super::*;

#[test]
fn cache_types_are_checked() {
    assert_eq!(kv_type(None).expect("the default"), KvType::F16);
    assert_eq!(kv_type(Some("Q8_0".to_owned())).expect("a type"), KvType::Q8_0);
    let error = kv_type(Some("q4_0".to_owned())).expect_err("no type of ours").to_string();
    assert!(error.contains("LODE_KV_CACHE_TYPE"), "{error}");
}

#[test]
fn instructions_are_known_by_name() {
    assert_eq!(cpu("scalar").ok(), Some(InstructionSet::Scalar));
    assert!(cpu("avx1024").expect_err("no such set").to_string().contains("avx1024"));
}

#[test]
fn threads_are_a_number_of_them() {
    assert_eq!(threads("3").ok(), Some(3));
    for wrong in ["0", "-1", "two", "100000"] {
        assert!(threads(wrong).expect_err(wrong).to_string().contains(wrong));
    }
}

#[test]
fn zero_models_are_the_default() {
    let read = |text: &str| max_loaded(Some(text.to_owned()));
    assert_eq!((max_loaded(None).ok(), read("0").ok(), read("7").ok()), (Some(3), Some(3), Some(7)));
    assert!(read("many").expect_err("no number").to_string().contains("`many`"));
}

#[test]
fn tls_needs_both_files() {
    let some = |text: &str| Some(text.to_owned());
    assert!(tls(some("c"), some("k")).expect("both").is_some() && tls(None, None).expect("neither").is_none());
    for (certificate, key, expect) in
        [(some("c"), None, "without LODE_TLS_KEY"), (None, some("k"), "without LODE_TLS_CERT")]
    {
        let error = tls(certificate, key).expect_err("one of two").to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn registry_access_is_checked() {
    let read = |mode: Option<&str>, users: Option<&str>, challenge: Option<&str>| {
        let users = users.map(|path| UserSource::File(path.into()));
        let access = registry(mode.map(str::to_owned), users, challenge.map(str::to_owned))?;
        ensure_users(&access).map(|()| access)
    };
    let both = users(Some("file".to_owned()), Some("anna:$2y$".to_owned())).expect_err("two sources").to_string();
    assert!(both.contains("LODE_REGISTRY_USERS") && both.contains("LODE_REGISTRY_HTPASSWD"), "{both}");
    let default = read(None, None, None).expect("the default");
    assert_eq!((default.mode, default.challenge), (Mode::Open, Challenge::Bearer));
    let private = read(Some("private"), Some("u"), Some("basic")).expect("private");
    assert_eq!((private.mode, private.challenge), (Mode::Private, Challenge::Basic));
    for (mode, users, challenge, expect) in [
        (Some("private"), None, None, "set LODE_REGISTRY_USERS"),
        (Some("anonymous-pull"), None, None, "set LODE_REGISTRY_USERS"),
        (Some("closed"), None, None, "LODE_REGISTRY_MODE"),
        (None, None, Some("digest"), "LODE_REGISTRY_CHALLENGE"),
    ] {
        let error = read(mode, users, challenge).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    }
}
