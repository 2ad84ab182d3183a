//! Methods of Python's strings, lists and dictionaries: those in `minijinja_contrib`, and further
//! ones.

use minijinja::value::{Value, from_args};
use minijinja::{Error, ErrorKind, State};

/// Calls a method that the engine does not know.
pub(super) fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = of_text(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => one(args).map(|part| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|part| text.strip_suffix(part).unwrap_or(text).into()),
        "partition" => one(args).map(|mark| match text.split_once(mark) {
            Some((before, after)) => texts([before, mark, after]),
            None => texts([text, "", ""]),
        }),
        "rpartition" => one(args).map(|mark| match text.rsplit_once(mark) {
            Some((before, after)) => texts([before, mark, after]),
            None => texts(["", "", text]),
        }),
        "rsplit" => from_args::<(Option<&str>, Option<i64>)>(args).map(|(mark, most)| rsplit(text, mark, most)),
        "index" => one(args).and_then(|part| match text.find(part) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, format!("`{part}` is not in the text"))),
        }),
        "zfill" => from_args::<(usize,)>(args).and_then(|(width,)| {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let missing = width.saturating_sub(text.chars().count());
            bounded(missing).map(|()| Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
        }),
        "ljust" | "rjust" | "center" => from_args::<(usize, Option<&str>)>(args).and_then(|(width, fill)| {
            let missing = width.saturating_sub(text.chars().count());
            bounded(missing)?;
            // For an odd width, Python puts the odd blank before the text.
            let before = match method {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            let fill = |count: usize| fill.unwrap_or(" ").repeat(count);
            Ok(Value::from([&fill(before), text, &fill(missing - before)].concat()))
        }),
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "swapcase" => Ok(Value::from(text.chars().flat_map(swapped).collect::<String>())),
        _ => return None,
    })
}

fn one(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(one,)| one)
}

/// Refuses padding that is longer than the maximum output of a template.
fn bounded(missing: usize) -> Result<(), Error> {
    if missing <= crate::MAX_TEXT {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, super::explain_length()))
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// Splits from the end, at most `most` times: at a separator, or at blanks.
fn rsplit(text: &str, mark: Option<&str>, most: Option<i64>) -> Value {
    let mut most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    if let Some(mark) = mark {
        parts.extend(text.rsplitn(most.saturating_add(1), mark));
    } else {
        let mut rest = text.trim_end();
        while let Some((before, part)) = rest.rsplit_once(char::is_whitespace).filter(|_| most > 0) {
            parts.push(part);
            rest = before.trim_end();
            most -= 1;
        }
        parts.extend(Some(rest.trim_start()).filter(|rest| !rest.is_empty()));
    }
    texts(parts.into_iter().rev())
}

fn texts<'t>(parts: impl IntoIterator<Item = &'t str>) -> Value {
    parts.into_iter().map(str::to_owned).collect::<Vec<_>>().into()
}
