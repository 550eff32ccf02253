//! The paper's scenarios on virtual time keep the bars that the evaluation shows.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../simulation/scenarios.rs"]
mod scenarios;
#[path = "../simulation/mod.rs"]
mod simulation;

use csp_quality::{MonitorFrequency, Scheme};
use csp_types::Duration;
use scenarios::{Ingress, Outcome, on_paper};

const B: usize = 1;

fn total(outcomes: &[Outcome; 3]) -> f64 {
    outcomes.iter().map(|outcome| outcome.output).sum()
}

#[test]
fn fig_2_without_filters_no_scheme_gives_b_what_it_sends() {
    for scheme in Scheme::ALL {
        let outcomes = scenarios::equal_inputs(scheme, Ingress::Ring);
        let part = outcomes[B].output / outcomes[B].input;
        assert!((0.3..0.6).contains(&part), "{scheme:?}: {outcomes:?}");
    }
    let delay = |scheme| scenarios::equal_inputs(scheme, Ingress::Ring)[B].delay;
    assert!(delay(Scheme::PriorityAware) * 2.0 < delay(Scheme::RoundRobin));
}

#[test]
fn fig_3_with_filters_priority_gives_b_all_it_sends() {
    for scheme in Scheme::ALL {
        let outcomes = scenarios::equal_inputs(scheme, Ingress::Filtered);
        let promises = if scheme == Scheme::PriorityAwareReserved { [50.0, 200.0, 50.0] } else { [0.0; 3] };
        let expected = on_paper(scheme, [330.0; 3], [0, 1, 0], promises);
        for (outcome, expected) in outcomes.iter().zip(expected) {
            assert!(
                (outcome.output - expected).abs() < 0.02 * expected,
                "{scheme:?}: {outcomes:?} {expected}"
            );
        }
        if matches!(scheme, Scheme::PriorityAware | Scheme::PriorityAwareReserved) {
            assert!(outcomes[B].output >= 0.99 * outcomes[B].input, "{outcomes:?}");
        }
    }
}

#[test]
fn fig_4_par_keeps_what_pa_takes_away() {
    let pa = scenarios::spike(Scheme::PriorityAware);
    assert!(pa[0].output < 1.0 && pa[2].output < 1.0 && pa[B].output > 495.0, "{pa:?}");
    let par = scenarios::spike(Scheme::PriorityAwareReserved);
    assert!(par[0].kept >= 1.0 && par[2].kept >= 1.0 && par[0].kept.is_finite(), "{par:?}");
    assert!(total(&par) >= 0.99 * 500.0 && par[B].output > 390.0, "{par:?}");
}

#[test]
fn fig_5_lent_contexts_fill_the_link() {
    let sa = scenarios::contexts_are_scarce(Scheme::Static);
    let par = scenarios::contexts_are_scarce(Scheme::PriorityAwareReserved);
    assert!((0.35..0.45).contains(&(total(&sa) / 500.0)), "{sa:?}");
    assert!(total(&par) >= 0.99 * 500.0, "{par:?}");
    assert!(par[B].output >= 3.0 * sa[B].output && par[B].delay <= sa[B].delay / 2.0, "{sa:?} {par:?}");
}

#[test]
fn fig_9_the_frequent_mode_notices_within_20_us() {
    let frequent = scenarios::notice(MonitorFrequency::Frequent, 64, 100);
    let infrequent = scenarios::notice(MonitorFrequency::Infrequent(Duration::from_micros(500)), 1, 100);
    assert!(frequent <= 20.0 && infrequent > frequent && infrequent <= 501.0, "{frequent} {infrequent}");
}

#[test]
fn fig_11_the_link_stays_full_while_b_has_all_it_sends_in_its_surge() {
    let series = scenarios::adaptation();
    let schemes: Vec<&str> = series.switches.iter().map(|(_, scheme)| *scheme).collect();
    assert_eq!(schemes, ["RR", "PAR", "RR"]);
    for at in 5..series.output[0].len() {
        let sum: f64 = (0..3).map(|flow| series.output[flow][at]).sum();
        assert!(sum >= 0.99 * 500.0, "at {:.2} s: {sum}", at as f64 * series.step);
    }
    let part = |flow: usize, from: usize, to: usize| -> f64 {
        let sum = |values: &[f64]| values[from..to].iter().sum::<f64>();
        sum(&series.output[flow]) / sum(&series.input[flow])
    };
    assert!(part(B, 52, 100) >= 0.99, "from 40 ms after the surge on");
    assert!(part(B, 110, 150) >= 0.99);
}

#[test]
fn fig_12_b_has_most_of_the_link_and_the_least_delay() {
    let [a, b, c] = scenarios::airline();
    assert!(b.output > a.output.max(c.output) && b.delay < a.delay.min(c.delay), "{a:?} {b:?} {c:?}");
    assert!((a.output - c.output).abs() < 0.05 * a.output, "A and C share: {a:?} {c:?}");
    assert!(a.kept >= 1.0 && b.kept >= 1.0 && c.kept >= 1.0);
}
