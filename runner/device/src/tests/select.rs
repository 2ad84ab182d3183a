//! Tests of the selection of the best logits, compared with sorting on the host.

use std::collections::HashMap;

use super::{Random, machine, tensor};
use crate::{Best, Change, MOST_BEST, Selection};

/// Returns the expected selection of a row.
fn expected(logits: &[f32], selection: &Selection<'_>) -> Best {
    let changes: HashMap<u32, Change> = selection.changes.iter().map(|change| (change.token, *change)).collect();
    let may_come = |token: &u32| {
        selection
            .allowed
            .is_none_or(|words| words.get(*token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
    };
    let changed = |token: u32| {
        let logit = logits[token as usize];
        let Some(Change { bias, divisor, minus, .. }) = changes.get(&token) else { return (token, logit) };
        let x = logit + bias;
        (token, if x > 0.0 { x / divisor } else { x * divisor } - minus)
    };
    let mut all: Vec<(u32, f32)> = (0..logits.len() as u32).filter(may_come).map(changed).collect();
    let largest = all.iter().fold(f32::NEG_INFINITY, |largest, (_, logit)| largest.max(*logit));
    let mass: f64 = all.iter().map(|(_, logit)| f64::from(logit - largest).exp()).filter(|mass| !mass.is_nan()).sum();
    let is_broken = all.iter().any(|(_, logit)| logit.is_nan());
    all.sort_by(|a, b| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0)));
    all.truncate(selection.count);
    Best { tokens: all, largest, mass: mass as f32, is_broken }
}

#[test]
fn the_best_of_rows() {
    for (vocabulary, backwards) in [(5, false), (2048, true), (2049, false), (9000, true)] {
        let Some(machine) = machine(backwards) else { return };
        let mut random = Random(41);
        // Few distinct values, so that many logits are equal.
        let logits: Vec<f32> = random.rows(4, vocabulary).iter().map(|x| (x * 40.0).round() / 8.0).collect();
        let change =
            |token: usize, bias, divisor, minus| Change { token: (token % vocabulary) as u32, bias, divisor, minus };
        let changes = [
            change(1, 0.0, 1.5, 0.25),
            change(2047, 9.0, 1.0, 0.0),
            change(4, -3.0, 2.0, 0.0),
            change(8999, 8.0, 0.5, 1.0),
        ];
        let mut own: Vec<Change> = Vec::new();
        for change in changes {
            if own.iter().all(|other| other.token != change.token) {
                own.push(change);
            }
        }
        let some: Vec<u32> = (0..vocabulary.div_ceil(32) - 1).map(|_| random.next() as u32).collect();
        let wanted = [
            (3, Selection { count: 1, changes: &[], allowed: None }),
            (0, Selection { count: 40, changes: &own, allowed: None }),
            (2, Selection { count: 300, changes: &own[..1], allowed: Some(&some) }),
            (0, Selection { count: MOST_BEST, changes: &[], allowed: None }),
            (0, Selection { count: 1000, changes: &[], allowed: None }),
            (1, Selection { count: 7, changes: &own, allowed: Some(&[0b10010]) }),
            (1, Selection { count: 7, changes: &[], allowed: Some(&[]) }),
        ];
        let found = machine.best(&tensor(&logits, 4), &wanted).expect("the best");
        // The merging of lists depends on the greatest count of all rows.
        let one = |wanted| machine.best(&tensor(&logits, 4), &[wanted]).expect("the best").remove(0);
        let alone: Vec<Best> = wanted.iter().map(|wanted| one(*wanted)).collect();
        for (found, (row, selection)) in found.iter().chain(&alone).zip(wanted.iter().chain(&wanted)) {
            let expected = expected(&logits[row * vocabulary..(row + 1) * vocabulary], selection);
            let what = format!("{} of {vocabulary}", selection.count);
            assert_eq!(found.tokens, expected.tokens, "{what}");
            assert_eq!(found.largest.to_bits(), expected.largest.to_bits(), "{what}");
            assert!(
                (found.mass - expected.mass).abs() <= 1e-4 * expected.mass,
                "{what}: {} {}",
                found.mass,
                expected.mass
            );
            assert!(!found.is_broken, "{what}");
        }
        // Repeated, to check that the counters of blocks were reset.
        assert_eq!(machine.best(&tensor(&logits, 4), &wanted).expect("the best"), found);
    }
}

#[test]
fn zeros_of_either_sign_are_equal() {
    let Some(machine) = machine(false) else { return };
    let logits = tensor(&[-1.0, -0.0, 0.0, -0.0], 1);
    let found = machine.best(&logits, &[(0, Selection { count: 2, changes: &[], allowed: None })]).expect("the best");
    assert_eq!(
        found[0].tokens.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
        [1, 2],
        "the first, as on the host"
    );
}

#[test]
fn logits_that_are_no_numbers_are_told() {
    let Some(machine) = machine(false) else { return };
    let mut logits = vec![0.5; 3000];
    logits[2500] = f32::NAN;
    let all = Selection { count: 3, changes: &[], allowed: None };
    let first = Selection { allowed: Some(&[0b111]), ..all };
    let found = machine.best(&tensor(&logits, 1), &[(0, all), (0, first)]).expect("the best");
    assert!(found[0].is_broken && !found[1].is_broken, "what may not come is not looked at");
    let none = machine.best(&tensor(&[f32::NEG_INFINITY; 4], 1), &[(0, all)]).expect("the best");
    assert_eq!(none[0].largest.to_bits(), f32::NEG_INFINITY.to_bits());
    let beyond = Selection { count: MOST_BEST + 1, ..all };
    assert!(machine.best(&tensor(&logits, 1), &[(0, beyond)]).is_err());
    assert!(machine.best(&tensor(&logits, 1), &[(1, all)]).is_err(), "a row that there is not");
}
