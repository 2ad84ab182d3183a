//! Selected situations.

use std::time::Duration;

use super::world::{Fate, Turn, World, ask, limits};
use crate::Error;
use protocol::DeviceChoice;

use crate::machine::{
    Action, Ask, Context, End, KeepAlive, KeepAliveChoice, Limits, Outcome, RequestId, Residence, Stop,
};

const DEFAULT: Context = Context::AtLeast(4096);

fn kept(request: u64, model: &str, keep_alive: KeepAlive) -> Ask {
    let default = KeepAlive::For(Duration::from_mins(5));
    Ask { keep_alive: KeepAliveChoice { asked: Some(keep_alive), default }, ..ask(request, model, DEFAULT) }
}

fn pinned(request: u64, model: &str) -> Ask {
    Ask { residence: Residence::Pinned, ..ask(request, model, DEFAULT) }
}

fn refused(world: &World, request: u64) -> &Error {
    match world.fate(request) {
        Fate::Refused(error) => error,
        fate => panic!("{request} is {fate:?}"),
    }
}

/// A request that arrives, is served, and leaves.
fn served(world: &mut World, ask: Ask) {
    let request = ask.request;
    world.ask(ask);
    world.calm();
    assert!(world.is_granted(request.0), "{request:?} is {:?}", world.fate(request.0));
    world.leave(request, Outcome::Well);
}

#[test]
fn requests_share_a_model_up_to_its_slots() {
    let mut world = World::new(limits(1));
    for request in 0..5 {
        world.ask(ask(request, "a", DEFAULT));
    }
    world.calm();
    assert_eq!(world.granted(), [RequestId(0), RequestId(1)]);
    world.leave(RequestId(1), Outcome::Well);
    assert_eq!(world.granted(), [RequestId(0), RequestId(2)]);
    // A request in the middle of the queue is cancelled.
    world.leave(RequestId(3), Outcome::Well);
    world.leave(RequestId(0), Outcome::Well);
    assert_eq!(world.granted(), [RequestId(2), RequestId(4)]);
}

#[test]
fn requests_aside_take_no_slot() {
    let mut world = World::new(limits(1));
    let aside = |request| Ask { is_aside: true, ..ask(request, "a", DEFAULT) };
    for request in 0..3 {
        world.ask(ask(request, "a", DEFAULT));
    }
    for request in 3..9 {
        world.ask(aside(request));
    }
    world.calm();
    // The number of slots plus three.
    assert_eq!(world.granted(), [0, 1, 3, 4, 5, 6, 7].map(RequestId));
    // The two kinds of requests do not wait for each other.
    world.leave(RequestId(3), Outcome::Well);
    assert_eq!(world.granted(), [0, 1, 4, 5, 6, 7, 8].map(RequestId));
    world.leave(RequestId(0), Outcome::Well);
    assert_eq!(world.granted(), [1, 2, 4, 5, 6, 7, 8].map(RequestId));
    // A longer context waits for all of them, and younger requests of both kinds wait for it.
    world.ask(ask(9, "a", Context::AtLeast(8192)));
    world.ask(aside(10));
    for request in [1, 2, 4, 5, 6, 7] {
        world.leave(RequestId(request), Outcome::Well);
        assert!(!world.is_granted(9) && !world.is_granted(10), "after {request}");
    }
    world.leave(RequestId(8), Outcome::Well);
    world.calm();
    assert_eq!(world.granted(), [9, 10].map(RequestId));
}

#[test]
fn the_idle_go_first_and_those_with_the_least_time() {
    let mut world = World::new(limits(3));
    served(&mut world, kept(0, "a", KeepAlive::Forever));
    served(&mut world, kept(1, "b", KeepAlive::For(Duration::from_mins(9))));
    served(&mut world, kept(2, "c", KeepAlive::For(Duration::from_mins(1))));
    served(&mut world, ask(3, "d", DEFAULT));
    assert_eq!(world.models(), ["a", "b", "d"]);
    world.ask(ask(4, "b", DEFAULT));
    served(&mut world, ask(5, "e", DEFAULT));
    assert_eq!(world.models(), ["a", "b", "e"]);
    world.ask(ask(6, "e", DEFAULT));
    served(&mut world, ask(7, "f", DEFAULT));
    assert_eq!(world.models(), ["b", "e", "f"], "also one that is kept for ever");
}

#[test]
fn memory_is_a_limit_too() {
    // Each model needs 10 + 40 bytes.
    let mut world = World::new(Limits { memory: Some(120), ..limits(9) });
    served(&mut world, ask(0, "a", DEFAULT));
    served(&mut world, ask(1, "b", DEFAULT));
    served(&mut world, ask(2, "c", DEFAULT));
    assert_eq!(world.models(), ["b", "c"]);
    // A larger context needs the room of both models.
    served(&mut world, ask(3, "c", Context::Exactly(10_000)));
    assert_eq!(world.models(), ["c"]);
    world.ask(ask(4, "d", Context::Exactly(20_000)));
    assert!(matches!(refused(&world, 4), Error::TooLarge { need: 210, limit: 120 }));
}

#[test]
fn an_explicit_context_is_a_new_cache_and_no_new_load() {
    let mut world = World::new(limits(1));
    served(&mut world, ask(0, "a", DEFAULT));
    world.ask(ask(1, "a", Context::AtLeast(2048)));
    world.ask(ask(2, "a", Context::Exactly(8192)));
    // This context fits the loaded model, but the request came later.
    world.ask(ask(3, "a", Context::Exactly(4096)));
    world.calm();
    assert_eq!(world.granted(), [RequestId(1)]);
    world.leave(RequestId(1), Outcome::Well);
    world.calm();
    assert_eq!(world.granted(), [RequestId(2)]);
    world.leave(RequestId(2), Outcome::Well);
    world.calm();
    assert_eq!(world.granted(), [RequestId(3)]);
    let starts = world.actions.iter().filter(|action| matches!(action, Action::Start { .. })).count();
    let rebuilds = world.actions.iter().filter(|action| matches!(action, Action::Rebuild { .. })).count();
    assert_eq!((starts, rebuilds), (1, 2));
}

#[test]
fn a_runner_without_a_new_cache_is_replaced() {
    for turn in [Turn::Refused, Turn::OutOfMemory, Turn::Crash, Turn::Kill] {
        let mut world = World::new(limits(1));
        served(&mut world, ask(0, "a", DEFAULT));
        world.ask(ask(1, "a", Context::Exactly(8192)));
        world.happen(0, turn);
        world.calm();
        assert!(world.is_granted(1), "{turn:?}");
    }
}

#[test]
fn nobody_waits_for_ever_while_another_model_is_busy() {
    let mut world = World::new(limits(1));
    for request in 0..2 {
        world.ask(ask(request, "a", DEFAULT));
    }
    world.calm();
    world.ask(ask(10, "b", DEFAULT));
    for next in 20..120 {
        // There is always another request for `a`.
        world.ask(ask(next, "a", DEFAULT));
        world.pass(Duration::from_millis(100));
        let oldest = world.granted()[0];
        world.leave(oldest, Outcome::Well);
        world.calm();
        if world.is_granted(10) {
            assert!(world.now >= Duration::from_secs(2), "`a` has had its turn");
            world.finish();
            return;
        }
    }
    panic!("`b` never came to its turn");
}

#[test]
fn a_full_queue_refuses() {
    let mut world = World::new(Limits { queue: 3, ..limits(1) });
    for request in 0..4 {
        world.ask(ask(request, "a", DEFAULT));
    }
    let error = refused(&world, 3);
    assert!(matches!(error, Error::Busy));
    assert_eq!(error.to_string(), "server busy, please try again.  maximum pending requests exceeded");
    world.calm();
    world.ask(ask(4, "a", DEFAULT));
    world.finish();
    assert!(matches!(world.fate(4), Fate::Done));
}

#[test]
fn models_expire_unless_they_are_wanted() {
    let mut world = World::new(limits(3));
    served(&mut world, ask(0, "a", DEFAULT));
    served(&mut world, kept(1, "b", KeepAlive::For(Duration::ZERO)));
    served(&mut world, kept(2, "c", KeepAlive::Forever));
    assert_eq!(world.models(), ["a", "c"]);
    world.pass(Duration::from_secs(299));
    assert_eq!(world.models(), ["a", "c"]);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.models(), ["c"]);
    // The keep-alive of a request also holds for later requests without one.
    served(&mut world, kept(3, "c", KeepAlive::For(Duration::from_secs(5))));
    served(&mut world, ask(4, "c", DEFAULT));
    world.pass(Duration::from_secs(5));
    assert!(world.models().is_empty());
}

#[test]
fn pinned_models_stay() {
    let mut world = World::new(limits(2));
    served(&mut world, pinned(0, "a"));
    served(&mut world, ask(1, "b", DEFAULT));
    served(&mut world, ask(2, "c", DEFAULT));
    assert_eq!(world.models(), ["a", "c"]);
    served(&mut world, pinned(3, "d"));
    assert_eq!(world.models(), ["a", "d"]);
    world.ask(ask(4, "e", DEFAULT));
    assert!(matches!(refused(&world, 4), Error::Pinned { pinned: 2 }));
    world.pass(Duration::from_hours(9));
    assert_eq!(world.models(), ["a", "d"]);
    world.stop("a", Stop::WhenIdle);
    world.calm();
    served(&mut world, ask(5, "e", DEFAULT));
}

#[test]
fn a_crash_is_followed_by_pauses_that_grow() {
    let mut world = World::new(limits(1));
    let mut request = 0;
    for pause in [0, 1, 2] {
        world.ask(ask(request, "a", DEFAULT));
        world.calm();
        assert!(world.is_granted(request));
        world.crash(world.runner("a"), End::Other("signal: 6".to_owned()));
        world.leave(RequestId(request), Outcome::Failed);
        request += 1;
        world.ask(ask(request, "a", DEFAULT));
        if pause > 0 {
            world.calm();
            assert!(!world.is_granted(request), "after a pause of {pause} s");
            world.pass(Duration::from_secs(pause));
        }
        world.calm();
        assert!(world.is_granted(request), "after a pause of {pause} s");
        world.leave(RequestId(request), Outcome::Failed);
        request += 1;
    }
    served(&mut world, ask(request, "a", DEFAULT));
    world.crash(world.runner("a"), End::Other("signal: 6".to_owned()));
    served(&mut world, ask(request + 1, "a", DEFAULT));
}

#[test]
fn a_load_that_keeps_failing_is_told_at_once() {
    let mut world = World::new(limits(1));
    for request in 0..2 {
        world.ask(ask(request, "a", DEFAULT));
        world.happen(0, Turn::Well);
        world.happen(0, Turn::Crash);
        assert!(matches!(refused(&world, request), Error::Died(_)), "{request}");
    }
    world.ask(ask(2, "a", DEFAULT));
    let error = refused(&world, 2);
    assert!(matches!(error, Error::BackOff { failures: 2, seconds: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("boom") && error.to_string().contains("1 s"), "{error}");
    world.pass(Duration::from_secs(1));
    served(&mut world, ask(3, "a", DEFAULT));
}

#[test]
fn a_late_load_is_killed_and_told() {
    let mut world = World::new(limits(1));
    world.ask(ask(0, "a", DEFAULT));
    world.happen(0, Turn::Well);
    world.pass(Duration::from_secs(59));
    assert_eq!(world.waiting(), [RequestId(0)]);
    world.pass(Duration::from_secs(1));
    assert!(matches!(refused(&world, 0), Error::Timeout { seconds: 60, .. }));
    world.calm();
    served(&mut world, ask(1, "a", DEFAULT));
}

#[test]
fn lack_of_memory_evicts_and_tries_once_more() {
    for turn in [Turn::OutOfMemory, Turn::Kill] {
        let mut world = World::new(limits(3));
        served(&mut world, ask(0, "a", DEFAULT));
        world.ask(ask(1, "b", DEFAULT));
        world.calm();
        for request in 2..4 {
            world.ask(ask(request, "c", DEFAULT));
        }
        world.happen(0, Turn::Well);
        world.happen(0, turn);
        assert_eq!(world.models(), ["b"], "{turn:?}: the idle one goes, the busy one stays");
        assert_eq!(world.waiting(), [RequestId(2), RequestId(3)]);
        world.calm();
        assert!(world.is_granted(2) && world.is_granted(3), "{turn:?}");
        world.ask(ask(4, "d", DEFAULT));
        world.happen(0, Turn::Well);
        world.happen(0, turn);
        while !matches!(world.fate(4), Fate::Refused(_)) {
            let load = world.pending.iter().position(|pending| matches!(pending, super::world::Pending::Load(_)));
            world.happen(load.unwrap_or(0), if load.is_some() { turn } else { Turn::Well });
        }
        assert!(matches!(refused(&world, 4), Error::OutOfMemory(_)), "{turn:?}");
        let starts = world.actions.iter().filter(|action| matches!(action, Action::Start { .. })).count();
        assert_eq!(starts, 6, "a, b, twice c, twice d");
    }
}

#[test]
fn stopping_tells_who_waits() {
    let mut world = World::new(limits(1));
    for request in 0..3 {
        world.ask(ask(request, "a", DEFAULT));
    }
    world.calm();
    world.stop("a", Stop::Now);
    assert!(matches!(refused(&world, 2), Error::Stopped));
    world.calm();
    served(&mut world, ask(3, "a", DEFAULT));
    world.ask(ask(4, "a", DEFAULT));
    world.stop("a", Stop::WhenIdle);
    assert_eq!(world.models(), ["a"], "somebody uses it");
    world.leave(RequestId(4), Outcome::Well);
    assert!(world.models().is_empty());
    world.ask(ask(5, "b", DEFAULT));
    world.stop_all();
    world.ask(ask(6, "b", DEFAULT));
    assert!(matches!((refused(&world, 5), refused(&world, 6)), (Error::Stopped, Error::Stopped)));
    world.calm();
    assert!(world.processes.is_empty());
}

#[test]
fn another_plans_where_the_first_gave_up() {
    let mut world = World::new(limits(1));
    world.ask(ask(0, "a", DEFAULT));
    world.ask(ask(1, "a", DEFAULT));
    world.leave(RequestId(0), Outcome::Well);
    world.calm();
    assert!(world.is_granted(1));
    let mut world = World::new(limits(1));
    world.ask(ask(0, "a", DEFAULT));
    world.leave(RequestId(0), Outcome::Well);
    assert!(world.pending.is_empty() && world.processes.is_empty());
}

#[test]
fn idle_models_go_where_devices_have_no_room_beside_them() {
    let mut world = World::new(limits(3));
    served(&mut world, ask(0, "a", DEFAULT));
    world.ask(ask(1, "b", DEFAULT));
    world.calm();
    world.ask(ask(2, "c", DEFAULT));
    world.happen(0, Turn::OutOfMemory);
    assert_eq!(world.models(), ["b"], "the idle one goes, the busy one stays");
    world.happen(0, Turn::Well);
    // The second plan is the last: it uses the room that there is.
    world.happen(0, Turn::OutOfMemory);
    world.calm();
    assert!(world.is_granted(2));
    let mut world = World::new(limits(3));
    world.ask(ask(0, "a", DEFAULT));
    world.happen(0, Turn::OutOfMemory);
    world.calm();
    assert!(world.is_granted(0), "beside nobody it is the last at once");
    let mut world = World::new(limits(3));
    served(&mut world, ask(0, "on-the-cpu", DEFAULT));
    served(&mut world, ask(1, "a", DEFAULT));
    world.ask(ask(2, "b", DEFAULT));
    world.happen(0, Turn::OutOfMemory);
    assert_eq!(world.models(), ["on-the-cpu"], "who takes nothing of devices stays");
    world.calm();
    assert!(world.is_granted(2));
}

#[test]
fn a_model_is_loaded_anew_for_who_wants_its_layers_elsewhere() {
    let choice = |layers| DeviceChoice { layers: Some(layers), device: None };
    let mut world = World::new(limits(1));
    served(&mut world, ask(0, "a", DEFAULT));
    let first = world.runner("a");
    served(&mut world, Ask { choice: choice(2), ..ask(1, "a", DEFAULT) });
    let second = world.runner("a");
    assert_ne!(first, second);
    served(&mut world, Ask { choice: choice(2), ..ask(2, "a", DEFAULT) });
    served(&mut world, ask(3, "a", DEFAULT));
    assert_eq!(world.runner("a"), second, "the same choice, and none");
    world.ask(ask(4, "a", DEFAULT));
    world.ask(Ask { choice: choice(0), ..ask(5, "a", DEFAULT) });
    world.calm();
    assert!(world.is_granted(4) && !world.is_granted(5), "somebody uses it");
    world.leave(RequestId(4), Outcome::Well);
    world.calm();
    assert!(world.is_granted(5));
}
