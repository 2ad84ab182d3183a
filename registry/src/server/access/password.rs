//! Hashed passwords of the file of users: bcrypt.

use std::fmt;

use bcrypt::{HashParts, Version};

use super::AccessError;

/// The cost for `lode htpasswd`: about 50 ms of one core.
const COST: u32 = 10;
/// Maximum cost: about 2 s. Each step doubles the time, and an unauthenticated request can cause
/// it.
const MAX_COST: u32 = 15;
/// bcrypt ignores bytes beyond this length.
const MAX_PASSWORD: usize = 72;
const MAX_USER: usize = 255;
/// Salt and hash for unknown users. No password matches.
const NOBODY: &str = "L6Bc/AlTQHyd9liGgGEZyOFLPHNgyxeEPfgYfBCVxJ7JIlwxyVU3u";

/// A hashed password, checked to be well-formed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PasswordHash {
    text: String,
    cost: u32,
}

impl PasswordHash {
    /// Parses `$2y$10$…`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let version = text.get(..4).unwrap_or_default();
        if !matches!(version, "$2a$" | "$2b$" | "$2y$") {
            return Err(
                "only bcrypt hashes (`$2y$…`) are supported; `htpasswd -B` and `lode htpasswd` make them".to_owned()
            );
        }
        let cost = text.get(4..6).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        if cost.is_none() || text.parse::<HashParts>().is_err() {
            return Err(
                "the bcrypt hash is malformed; expected `$2y$`, a cost of two digits, `$` and 53 characters".to_owned()
            );
        }
        match cost.and_then(|digits| digits.parse().ok()) {
            Some(cost @ 4..=MAX_COST) => Ok(Self { text: text.to_owned(), cost }),
            _ => Err(format!("the bcrypt hash has a cost that is not supported; expected 4 to {MAX_COST}")),
        }
    }

    /// The hash for unknown users, so that a check takes as long as for existing users.
    pub(super) fn of_nobody(cost: u32) -> Self {
        Self { text: format!("$2b${cost:02}${NOBODY}"), cost }
    }

    /// The cost: the number of rounds as a power of two.
    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    /// Whether this is the hash of the password. It takes long, so never call it on an async
    /// thread.
    pub(super) fn verify(&self, password: &str) -> bool {
        bcrypt::verify(password, &self.text).unwrap_or(false)
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(hidden)")
    }
}

/// Creates a line for the file of users: `user:$2y$10$…`. Takes about 50 ms.
pub fn htpasswd_line(user: &str, password: &str) -> Result<String, AccessError> {
    if !is_user_name(user) {
        return Err(AccessError::UserName(user.chars().take(100).collect()));
    }
    check_password(password).map_err(AccessError::Password)?;
    let hashed = bcrypt::hash_with_result(password, COST);
    let hashed = hashed.map_err(|_| AccessError::Password("the system gives no random numbers for its salt"))?;
    Ok(format!("{user}:{}", hashed.format_for_version(Version::TwoY)))
}

/// Whether the text can be the name of a user.
pub(super) fn is_user_name(text: &str) -> bool {
    // A line that begins with `#` is a comment.
    let fine = |c: char| c != ':' && !c.is_control();
    (1..=MAX_USER).contains(&text.len()) && !text.starts_with('#') && text.trim() == text && text.chars().all(fine)
}

/// Checks that bcrypt uses every byte of the password.
pub(super) fn check_password(password: &str) -> Result<(), &'static str> {
    if password.is_empty() {
        return Err("it is empty");
    }
    if password.len() > MAX_PASSWORD {
        return Err("it is longer than 72 bytes, and bcrypt does not look at what is beyond");
    }
    if password.contains('\0') {
        return Err("it has a zero byte, where it ends for bcrypt");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_hashes_and_verifies() {
        let line = htpasswd_line("anna", "correct horse").expect("a line");
        let (user, hash) = line.split_once(':').expect("user and hash");
        assert_eq!((user, &hash[..7]), ("anna", "$2y$10$"));
        let hash = PasswordHash::parse(hash).expect("our own is read");
        assert!(hash.verify("correct horse"));
        assert!(!hash.verify("correct horses"));
        assert!(!PasswordHash::of_nobody(4).verify(""));
        PasswordHash::parse(&PasswordHash::of_nobody(9).text).expect("nobody's is well-formed");
        // From the crypt_blowfish test vectors, to check our implementation against another.
        let foreign = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
        assert!(PasswordHash::parse(foreign).expect("theirs is read").verify("U*U"));
    }

    #[test]
    fn access_refuses_other_hashes() {
        let rest = &NOBODY;
        for (bad, expect) in [
            ("plain", "only bcrypt"),
            ("$apr1$ebI0ZzNW$iLbnqDsyKRVJNlTlx3mMF1", "only bcrypt"),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "only bcrypt"),
            (&format!("$2x$05${rest}"), "only bcrypt"),
            (&format!("$2y$+5${rest}"), "malformed"),
            (&format!("$2y$05${}", &rest[1..]), "malformed"),
            (&format!("$2y$05${rest}x"), "malformed"),
            ("$2y$", "malformed"),
            ("$2y$é", "malformed"),
            (&format!("$2y$03${rest}"), "4 to 15"),
            (&format!("$2y$31${rest}"), "4 to 15"),
        ] {
            let error = PasswordHash::parse(bad).expect_err(bad);
            assert!(error.contains(expect), "{bad}: {error}");
        }
    }

    #[test]
    fn access_refuses_names_and_passwords() {
        for bad in ["", "a:b", "a\nb", "#a", " a", &"a".repeat(256)] {
            assert!(matches!(htpasswd_line(bad, "secret"), Err(AccessError::UserName(_))), "{bad}");
        }
        for bad in ["", "a\0b", &"a".repeat(73)] {
            assert!(matches!(htpasswd_line("anna", bad), Err(AccessError::Password(_))), "{bad}");
        }
    }
}
