//! What was measured through TCP, as figures beside the papers'.

use super::queries::Queries;
use super::transit::{Place, Transit};
use super::{Job, Report};
use crate::evaluation::{Bar, Figure};

/// What the project has set itself.
const THROUGHPUT: f64 = 1.5;
const PROCESSOR_TIME: f64 = 0.5;

/// Returns the figures of what was measured.
pub fn figures(report: &Report) -> Vec<Figure> {
    let transit = (!report.transit.is_empty()).then(|| in_transit(&report.transit));
    transit.into_iter().chain(report.queries.as_ref().map(queries)).collect()
}

fn job_name(job: Job) -> &'static str {
    match job {
        Job::All => "all flights",
        Job::Select => "select flights",
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn in_transit(all: &[Transit]) -> Figure {
    let bar = |t: &Transit| Bar {
        name: format!("{}, {}", job_name(t.job), t.place),
        value: t.rate,
        cells: vec![
            format!("{:.0}", t.app_ns),
            format!("{:.0}", t.app_fixed_ns),
            format!("{:.0}", t.cluster_ns),
            format!("{:.0}", t.bytes),
            format!("{:.0}", t.lost),
        ],
    };
    let mut findings = vec![
        "The paper: handlers near the network are faster than the same on the destination's processor, with both jobs, since that processor, its memory and \
         its bus are spared."
            .to_owned(),
    ];
    for job in Job::ALL {
        let of = |place| all.iter().find(|t| t.job == job && t.place == place);
        let (Some(there), Some(here)) = (of(Place::Destination), of(Place::Transit)) else { continue };
        let (rate, full) = (here.rate / there.rate, here.app_ns / there.app_ns);
        let fixed = here.app_fixed_ns / there.app_fixed_ns;
        findings.push(format!(
            "{}: in transit the throughput is {rate:.2} times that at the destination (the goal is {THROUGHPUT}: {}); the application node's processor time a message is \
             {full:.2} times as much as fast as it goes, {fixed:.2} times at {:.0} messages/s (the goal is {PROCESSOR_TIME}: {}). Network node and proxy node need \
             {:.0} ns more.",
            job_name(job),
            verdict(rate >= THROUGHPUT),
            here.fixed_rate,
            verdict(full.max(fixed) <= PROCESSOR_TIME),
            here.cluster_ns - there.cluster_ns
        ));
    }
    Figure {
        file: "morphing-in-transit",
        title: "Morphing, Figure 5: in transit beside at the destination's host",
        unit: "messages/s",
        columns: &[
            "application node ns",
            "ns at a fixed rate",
            "cluster ns",
            "bytes to it a message",
            "rows lost",
        ],
        bars: all.iter().map(bar).collect(),
        method: "Flights of 350 to 1,150 B from a client outside to a program under `csp-run`, which is unmodified and reads plain TCP with a length before each message. \
                 “All flights” writes every number of each flight in another type (`project`); “select flights” selects a fourth of them (`select`) and leaves 14 columns \
                 (`project`). In transit the operators stand in the channel's path; at the destination the program runs the same operators, from the same crate, on each message \
                 that it reads. The channel pushes, so that nothing is dropped. “Application node” is the processor time of the program and of its node's agent, “cluster” that of \
                 network node and proxy node, a message sent; all share the machine's two processors with the sender. A handler cannot stand before an unmodified server of a pool: \
                 such a channel passes streams on, and has no formats and no path.",
        findings,
    }
}

fn queries(queries: &Queries) -> Figure {
    let alone = Bar {
        name: "no query, as fast as it goes".to_owned(),
        value: queries.rate,
        cells: vec![format!("{:.0}", queries.cluster_ns), "0".into(), "0".into(), "0".into(), "".into()],
    };
    let bar = |part: &super::Part| Bar {
        name: format!("three queries, at {:.0} %", part.part * 100.0),
        value: part.rate,
        cells: vec![
            format!("{:.0}", part.cluster_ns),
            format!("{:.0}", part.lost),
            format!("{:.0}", part.lost_rows.iter().sum::<f64>()),
            format!("{:.0}", part.dropped),
            format!("{:.0}", part.p50_us),
        ],
    };
    let is_whole = |part: &&super::Part| part.lost == 0.0 && part.lost_rows == [0.0; 3];
    let most = queries.parts.iter().filter(is_whole).map(|part| part.part).fold(0.0, f64::max);
    let findings = vec![format!(
        "Nothing is lost up to {:.0} % of the rate without queries, {:.0} Mb/s in (the goal is 80 %: {}). The paper: 200 Mb/s in without loss, 350 Mb/s with some.",
        most * 100.0,
        queries.rate * most * 600.0 * 8.0 / 1e6,
        verdict(most >= 0.8)
    )];
    Figure {
        file: "c-core-through-tcp",
        title: "C-CORE, Table 1: two streams pushed in, three derived out, through TCP",
        unit: "messages/s in",
        columns: &[
            "cluster ns a message",
            "messages lost",
            "rows lost",
            "dropped for queries",
            "p50 us of the join",
        ],
        bars: std::iter::once(alone).chain(queries.parts.iter().map(bar)).collect(),
        method: "Two PUSH sockets send messages of 600 B; each stream has a PULL socket, and each query a SUB socket: seven programs on libzmq on one host outside. Two queries select a \
                 fourth of a stream by three conditions and leave four columns; the third joins both streams by sequence number. Losses are those of the worst round.",
        findings,
    }
}
