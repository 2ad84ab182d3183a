//! Tests of the possible values of a name, on histories of a few operations.

use super::*;

const NAME: &str = "a";

/// Returns an operation on `NAME` with this interval.
fn operation(effect: Effect, certainty: Certainty, interval: (Moment, Moment)) -> Operation {
    Operation { place: Place::here(NAME), effect, certainty, begun: interval.0, ended: interval.1 }
}

fn set(digest: &str, interval: (Moment, Moment)) -> Operation {
    operation(Effect::Set(digest.to_owned()), Certainty::Acknowledged, interval)
}

fn perhaps(digest: &str, interval: (Moment, Moment)) -> Operation {
    operation(Effect::Set(digest.to_owned()), Certainty::Unknown, interval)
}

fn remove(interval: (Moment, Moment)) -> Operation {
    operation(Effect::Remove, Certainty::Acknowledged, interval)
}

fn copy(source: &str, interval: (Moment, Moment)) -> Operation {
    operation(Effect::Copy(Place::here(source)), Certainty::Acknowledged, interval)
}

/// Moves an operation to another name.
fn on(name: &str, operation: Operation) -> Operation {
    Operation { place: Place::here(name), ..operation }
}

/// Checks the possible values of `NAME` after all operations; `-` is no value.
fn check(operations: &[Operation], expected: &[&str]) {
    let possible = Explained::new(operations).between(&Place::here(NAME), 100, 100);
    let shown: Vec<&str> = possible.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
    assert_eq!(shown, expected, "{operations:#?}");
}

#[test]
fn a_name_that_nobody_gave_names_nothing() {
    check(&[], &["-"]);
    check(&[on("b", set("x", (1, 2)))], &["-"]);
}

#[test]
fn an_acknowledged_write_is_not_lost() {
    check(&[set("x", (1, 2))], &["x"]);
}

#[test]
fn a_stale_value_is_not_explained() {
    check(&[set("x", (1, 2)), set("y", (3, 4))], &["y"]);
}

#[test]
fn of_two_at_a_time_either_may_be_the_last() {
    check(&[set("x", (1, 4)), set("y", (2, 3))], &["x", "y"]);
    check(&[set("x", (1, 3)), set("y", (2, 4)), set("z", (5, 6))], &["z"]);
    check(&[set("x", (1, 4)), remove((2, 3))], &["-", "x"]);
}

#[test]
fn what_nobody_was_told_may_have_happened_or_not() {
    check(&[perhaps("x", (1, 2))], &["-", "x"]);
    check(&[set("x", (1, 2)), perhaps("y", (3, 4))], &["x", "y"]);
}

#[test]
fn what_died_with_the_daemon_does_not_come_later() {
    check(&[perhaps("x", (1, 3)), set("y", (4, 5))], &["y"]);
    check(&[perhaps("x", (1, 3)), set("y", (2, 5))], &["x", "y"]);
    check(&[perhaps("x", (1, OPEN)), set("y", (4, 5))], &["x", "y"]);
}

#[test]
fn a_removal_does_not_come_back() {
    check(&[set("x", (1, 2)), remove((3, 4))], &["-"]);
    check(&[set("x", (1, 2)), remove((3, 4)), perhaps("y", (5, 6))], &["-", "y"]);
}

#[test]
fn a_copy_gives_what_its_source_named_meanwhile() {
    let source = [on("b", set("x", (1, 2))), on("b", set("y", (3, 4)))];
    let [first, second] = source.clone();
    check(&[first.clone(), second.clone(), copy("b", (5, 6))], &["y"]);
    check(&[first, second, copy("b", (2, 6))], &["x", "y"]);
    // A later value of the source does not affect the copy.
    let [first, _] = source;
    check(&[first, copy("b", (3, 4)), on("b", set("z", (5, 6)))], &["x"]);
}

#[test]
fn copies_in_a_circle_give_what_came_into_it() {
    check(&[set("x", (1, 2)), on("b", copy(NAME, (3, 6))), copy("b", (4, 5))], &["x"]);
    check(&[set("x", (1, 2)), copy(NAME, (3, 4))], &["x"]);
}

#[test]
fn a_reading_is_explained_by_its_own_time() {
    let operations = [set("x", (1, 2)), set("y", (5, 6))];
    let explained = Explained::new(&operations);
    let check = |from: Moment, until: Moment, expected: &[&str]| {
        let possible = explained.between(&Place::here(NAME), from, until);
        let values: Vec<String> = possible.into_iter().flatten().collect();
        assert_eq!(values, expected, "from {from} until {until}");
    };
    check(3, 4, &["x"]);
    check(3, 5, &["x", "y"]);
    check(7, 8, &["y"]);
}

/// Returns a list of models in which `NAME` has this value.
fn seen(value: Option<&str>) -> BTreeMap<Place, Value> {
    BTreeMap::from([(Place::here(NAME), value.map(str::to_owned))])
}

#[test]
fn after_a_look_nothing_older_counts() {
    let mut history = History::default();
    let (first, second) = (history.begin(), history.begin());
    for (begun, digest) in [(first, "x"), (second, "y")] {
        history.end(begun, Place::here(NAME), Effect::Set(digest.to_owned()), Certainty::Acknowledged);
    }
    history.check(&seen(Some("x"))).expect("the two were at a time");
    history.check(&seen(Some("y"))).expect_err("it was `x`, and nobody changed it");
}

#[test]
fn a_death_ends_what_was_under_way() {
    let mut history = History::default();
    let (lost, pushed) = (history.begin(), history.begin());
    history.died();
    history.settled();
    assert!(history.has_died(lost));
    history.end(lost, Place::here(NAME), Effect::Set("x".to_owned()), Certainty::Unknown);
    history.end(pushed, Place::peer(NAME), Effect::Set("x".to_owned()), Certainty::Unknown);
    let later = history.begin();
    assert!(!history.has_died(later));
    for place in [Place::here(NAME), Place::peer(NAME)] {
        history.end(later, place, Effect::Set("y".to_owned()), Certainty::Acknowledged);
    }
    // The peer survives, so a request to it may still take effect.
    let value = Some("x".to_owned());
    history.check(&BTreeMap::from([(Place::peer(NAME), value)])).expect("it may have come late");
    history.check(&seen(Some("x"))).expect_err("it was lost before `y` was asked for");
}

#[test]
fn a_job_may_go_on_after_a_death() {
    let mut history = History::default();
    let lost = history.begin();
    history.died();
    history.end(lost, Place::here(NAME), Effect::Set("x".to_owned()), Certainty::Unknown);
    history.check(&seen(None)).expect("it may not have taken effect");
    history.check(&seen(Some("x"))).expect("it may have come late");
    history.settled();
    let later = history.begin();
    history.end(later, Place::here(NAME), Effect::Remove, Certainty::Acknowledged);
    history.check(&seen(Some("x"))).expect_err("it had ended before the removal");
}

#[test]
fn a_client_must_not_be_told_what_cannot_be() {
    let mut history = History::default();
    let begun = history.begin();
    history.end(begun, Place::here(NAME), Effect::Set("x".to_owned()), Certainty::Acknowledged);
    let begun = history.begin();
    history.read(begun, Place::here(NAME), None);
    let told = history.check(&seen(Some("x"))).expect_err("it was there all the time");
    assert!(told.contains("names None"), "{told}");
}
