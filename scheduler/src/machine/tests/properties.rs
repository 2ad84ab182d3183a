//! Property tests over arbitrary events in any order. The world checks the invariants after each
//! event; at the end no request waits.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::world::{Fate, Turn, World, ask, limits};
use protocol::DeviceChoice;

use crate::machine::{
    Ask, Context, End, KeepAlive, KeepAliveChoice, Limits, Outcome, RequestId, Residence, RunnerId, Stop,
};

/// An event of the simulation. The numbers select among the existing items.
#[derive(Clone, Debug)]
enum Happening {
    Ask {
        model: u8,
        context: Context,
        keep_alive: Option<KeepAlive>,
        pinned: bool,
        layers: Option<u64>,
        is_aside: bool,
    },
    Leave {
        which: usize,
        outcome: Outcome,
    },
    Pending {
        which: usize,
        turn: Turn,
    },
    Crash {
        which: usize,
        killed: bool,
    },
    Stop {
        model: u8,
        when: Stop,
    },
    Pass(Duration),
}

/// Number of models; only the first is ever pinned.
const MODELS: u8 = 5;

fn context() -> impl Strategy<Value = Context> {
    prop_oneof![
        4 => Just(Context::AtLeast(4096)),
        1 => Just(Context::AtLeast(2048)),
        1 => Just(Context::Exactly(4096)),
        1 => Just(Context::Exactly(8192)),
    ]
}

fn keep_alive() -> impl Strategy<Value = Option<KeepAlive>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(KeepAlive::Forever)),
        1 => Just(Some(KeepAlive::For(Duration::ZERO))),
        1 => Just(Some(KeepAlive::For(Duration::from_secs(3)))),
    ]
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        12 => Just(Turn::Well),
        1 => Just(Turn::OutOfMemory),
        1 => Just(Turn::Refused),
        1 => Just(Turn::Crash),
        1 => Just(Turn::Kill),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let outcome = prop_oneof![4 => Just(Outcome::Well), 1 => Just(Outcome::Failed)];
    prop_oneof![
        8 => (0..MODELS, context(), keep_alive(), any::<bool>(), prop_oneof![6 => Just(None), 1 => (0_u64..2).prop_map(Some)], any::<bool>())
            .prop_map(|(model, context, keep_alive, pinned, layers, is_aside)| {
                Happening::Ask { model, context, keep_alive, pinned, layers, is_aside }
            }),
        6 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Happening::Leave { which, outcome }),
        8 => (any::<usize>(), turn()).prop_map(|(which, turn)| Happening::Pending { which, turn }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, killed)| Happening::Crash { which, killed }),
        1 => (0..MODELS, prop_oneof![Just(Stop::Now), Just(Stop::WhenIdle)])
            .prop_map(|(model, when)| Happening::Stop { model, when }),
        4 => (0_u64..4000).prop_map(|time| Happening::Pass(Duration::from_millis(time))),
    ]
}

fn some_limits() -> impl Strategy<Value = Limits> {
    let memory = prop_oneof![Just(None), (95_u64..300).prop_map(Some)];
    (1_usize..4, memory, 1_usize..12).prop_map(|(most, memory, queue)| Limits { memory, queue, ..limits(most) })
}

fn happen(world: &mut World, request: u64, happening: &Happening) {
    let model = |number: u8| format!("model-{number}");
    match *happening {
        Happening::Ask { model: number, context, keep_alive, pinned, layers, is_aside } => {
            let own = ask(request, &model(number), context);
            let residence = if pinned && number == 0 { Residence::Pinned } else { Residence::Evictable };
            let keep_alive = KeepAliveChoice { asked: keep_alive, ..own.keep_alive };
            let choice = DeviceChoice { layers, device: None };
            world.ask(Ask { keep_alive, residence, choice, is_aside, ..own });
        }
        Happening::Leave { which, outcome } => {
            let there: Vec<RequestId> = world.granted().into_iter().chain(world.waiting()).collect();
            if !there.is_empty() {
                world.leave(there[which % there.len()], outcome);
            }
        }
        Happening::Pending { which, turn } => {
            if !world.pending.is_empty() {
                world.happen(which % world.pending.len(), turn);
            }
        }
        Happening::Crash { which, killed } => {
            let ready = world.processes.iter().filter(|(_, process)| process.ready);
            let ready: Vec<RunnerId> = ready.map(|(runner, _)| *runner).collect();
            if !ready.is_empty() {
                let text = "signal".to_owned();
                let end = if killed { End::Killed(text) } else { End::Other(text) };
                world.crash(ready[which % ready.len()], end);
            }
        }
        Happening::Stop { model: number, when } => world.stop(&model(number), when),
        Happening::Pass(time) => world.pass(time),
    }
}

/// Runs the world to its end: no request waits, and after stopping everything no process is left.
fn end(mut world: World) {
    world.finish();
    let open = |fate: &Fate| matches!(fate, Fate::Waiting | Fate::Granted(_));
    assert!(!world.fates.values().any(open), "{:?}", world.fates);
    world.stop_all();
    world.calm();
    assert!(world.processes.is_empty(), "{:?}", world.processes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_events_keep_the_invariants(
        limits in some_limits(),
        happenings in proptest::collection::vec(happening(), 1..120),
    ) {
        let mut world = World::new(limits);
        for (request, happening) in (0_u64..).zip(happenings) {
            happen(&mut world, request, &happening);
        }
        end(world);
    }
}

#[test]
fn ten_thousand_events_lose_nobody() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    for seed in [1_u8, 7, 42] {
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        let mut world = World::new(Limits { memory: Some(160), queue: 16, ..limits(3) });
        let happening = happening();
        for request in 0..10_000 {
            let next = happening.new_tree(&mut runner).expect("a happening").current();
            happen(&mut world, request, &next);
        }
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for fate in world.fates.values() {
            let kind = match fate {
                Fate::Waiting => "waiting",
                Fate::Granted(_) => "granted",
                Fate::Done => "done",
                Fate::Refused(_) => "refused",
                Fate::Cancelled => "cancelled",
            };
            *kinds.entry(kind).or_default() += 1;
        }
        // A simulation that serves almost no requests would prove nothing.
        assert!(kinds.get("done").is_some_and(|done| *done > 500), "seed {seed}: {kinds:?}");
        assert!(kinds.get("refused").is_some_and(|refused| *refused > 100), "seed {seed}: {kinds:?}");
        end(world);
    }
}
