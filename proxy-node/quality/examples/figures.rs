//! The paper's figures of quality (IQ, Figs. 2 to 5, 9, 11, 12) with the real resource manager on virtual
//! time. `cargo run --release -p csp-quality --example figures [-- --write FOLDER]` prints the tables and
//! writes them with their plots.
#![allow(clippy::unwrap_used, reason = "a program for measurements")]

#[path = "../simulation/chart.rs"]
mod chart;
#[path = "../simulation/scenarios.rs"]
mod scenarios;
#[path = "../simulation/mod.rs"]
mod simulation;

use std::path::PathBuf;

use csp_quality::{MonitorFrequency, Scheme};
use csp_types::Duration;
use scenarios::{Ingress, NAMES, Outcome, on_paper};

const OPENING: &str = "# Quality of information flows: evaluation\n
## Simulated\n
Made by `cargo run --release -p csp-quality --example figures -- --write docs/quality`. **Every figure of this part is simulated**: the resource \
manager is the real one; sources, handlers, the receive ring and the link are models on virtual time (`proxy-node/quality/simulation`), so that \
the results are the same on every machine. Real runs through a proxy are at the end.\n
Three flows A, B and C share a link of 500 Mb/s; B has the highest priority. Items have 1,500 B if nothing else is said, and the time between \
two varies by half of it, either way (seeded). As in the paper's appliance, one receive ring (64 items) stands before the queues of A (512 \
items), B and C (256): an item whose queue is full holds the ring. Half a second to settle, then two seconds are measured. \
“On paper” is what the scheme gives by calculation: promises first, then equal parts of equal priority.\n";

/// A scheme, what came of it, and what it gives on paper.
type Row = (String, [Outcome; 3], Option<[f64; 3]>);

struct Report {
    text: String,
    charts: Vec<(&'static str, String)>,
}

impl Report {
    fn section(&mut self, title: &str, method: &str) {
        self.text += &format!("\n## {title}\n\n{method}\n\n");
    }

    fn chart(&mut self, file: &'static str, title: &str, svg: String) {
        self.text += &format!("![{title}]({file}.svg)\n\n");
        self.charts.push((file, svg));
    }

    /// Throughputs and delays of flows by scheme, as bars and as a table.
    fn outcomes(&mut self, files: [&'static str; 2], rows: &[Row]) {
        let values = |value: fn(&Outcome) -> f64| -> Vec<(String, Vec<f64>)> {
            rows.iter()
                .map(|(name, outcomes, _)| (name.clone(), outcomes.iter().map(value).collect()))
                .collect()
        };
        let throughput = chart::bars("Throughput, Mb/s", &NAMES, &values(|outcome| outcome.output));
        self.chart(files[0], "Throughput, Mb/s", throughput);
        self.chart(
            files[1],
            "Mean delay, ms",
            chart::bars("Mean delay, ms", &NAMES, &values(|outcome| outcome.delay)),
        );
        let columns = [
            "",
            "A Mb/s",
            "B Mb/s",
            "C Mb/s",
            "sum",
            "on paper",
            "A ms",
            "B ms",
            "C ms",
            "least of a promise in 100 ms",
        ];
        let table: Vec<Vec<String>> =
            rows.iter().map(|(name, outcomes, paper)| row(name, outcomes, *paper)).collect();
        self.text += &chart::table(&columns, &table);
        self.text.push('\n');
    }

    fn finding(&mut self, text: String) {
        self.text += &format!("- {text}\n");
    }
}

fn row(name: &str, outcomes: &[Outcome; 3], paper: Option<[f64; 3]>) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(outcomes.iter().map(|outcome| format!("{:.1}", outcome.output)));
    row.push(format!("{:.1}", outcomes.iter().map(|outcome| outcome.output).sum::<f64>()));
    row.push(paper.map_or("–".to_owned(), |shares| shares.map(|share| format!("{share:.0}")).join(" / ")));
    row.extend(outcomes.iter().map(|outcome| {
        if outcome.delay.is_nan() { "–".to_owned() } else { format!("{:.2}", outcome.delay) }
    }));
    let least = outcomes.iter().map(|outcome| outcome.kept).fold(f64::INFINITY, f64::min);
    row.push(if least.is_finite() { format!("{:.1} %", least * 100.0) } else { "–".to_owned() });
    row
}

fn main() {
    let mut report = Report { text: OPENING.to_owned(), charts: Vec::new() };
    equal_inputs(&mut report);
    spike(&mut report);
    contexts(&mut report);
    notice(&mut report);
    adaptation(&mut report);
    airline(&mut report);
    println!("{}", report.text);
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("--write") {
        let folder = PathBuf::from(arguments.next().expect("--write FOLDER"));
        std::fs::create_dir_all(&folder).unwrap();
        // What `csp-quality-bench` has measured, if it has.
        let real = std::fs::read_to_string(folder.join("real.md")).unwrap_or_default();
        if !real.is_empty() {
            report.text += &format!("\n## Real runs\n\n{real}");
        }
        std::fs::write(folder.join("evaluation.md"), &report.text).unwrap();
        report
            .charts
            .iter()
            .for_each(|(file, svg)| std::fs::write(folder.join(format!("{file}.svg")), svg).unwrap());
    }
}

fn equal_inputs(report: &mut Report) {
    let rows = |ingress| -> Vec<Row> {
        Scheme::ALL
            .into_iter()
            .map(|scheme| {
                let promises =
                    if scheme == Scheme::PriorityAwareReserved { [50.0, 200.0, 50.0] } else { [0.0; 3] };
                let paper =
                    (ingress == Ingress::Filtered).then(|| on_paper(scheme, [330.0; 3], [0, 1, 0], promises));
                (scheme.abbreviation().to_owned(), scenarios::equal_inputs(scheme, ingress), paper)
            })
            .collect()
    };
    report.section(
        "Fig. 2: five schemes, nothing before the queues",
        "330 Mb/s of each flow. SA allots by priority (1 : 2 : 1); PAR promises A and C 50, B 200 Mb/s.",
    );
    let ring = rows(Ingress::Ring);
    report.outcomes(["fig-2-throughput", "fig-2-delay"], &ring);
    let best = ring.iter().map(|(_, outcomes, _)| outcomes[1].output).fold(0.0, f64::max);
    report.finding(format!(
        "The paper: priority gives B some 10 % more, and B still has only half of what it sends. Here at most {best:.0} of 330 Mb/s: a queue of A or C \
         that is full holds the ring, and with it B, whatever the scheme does behind it. What a priority improves is B's delay."
    ));
    report.finding("The windows of a promise are those in which items of the flow wait in its queue; B's queue is mostly empty here, and what the ring holds has not arrived.".to_owned());
    report.section(
        "Fig. 3: the same with filters before the queues",
        "A trigger puts `drop-when-full` before a queue that is nine tenths full, and removes it when the queue has been at half for 100 ms.",
    );
    let filtered = rows(Ingress::Filtered);
    report.outcomes(["fig-3-throughput", "fig-3-delay"], &filtered);
    let part = filtered[3].1[1].output.min(filtered[4].1[1].output) / 330.0 * 100.0;
    report.finding(format!("The paper: B reaches what it sends under the schemes that know priorities. Here under PA and PAR: {part:.1} % or more (bar: 99 %)."));
}

fn spike(report: &mut Report) {
    report.section(
        "Fig. 4: B surges to 700 Mb/s",
        "A and C send 150 Mb/s each; PAR promises each of them 50 Mb/s. Filters as in Fig. 3.",
    );
    let rows: Vec<_> = [Scheme::PriorityAware, Scheme::PriorityAwareReserved]
        .into_iter()
        .map(|scheme| {
            let paper = on_paper(scheme, [150.0, 700.0, 150.0], [0, 1, 0], [50.0, 0.0, 50.0]);
            let name = scheme.abbreviation().to_owned();
            (name, scenarios::spike(scheme), Some(paper))
        })
        .collect();
    report.outcomes(["fig-4-throughput", "fig-4-delay"], &rows);
    report.finding("PA starves A and C, as in the paper; PAR keeps their promises in every window of 100 ms (the worst is in the last column), and leaves the rest to B.".to_owned());
}

fn contexts(report: &mut Report) {
    report.section(
        "Fig. 5: contexts are what is scarce",
        "A handler takes 192 µs an item, so that eight contexts just fill the link. One context is A's, two are B's, one is C's, four are nobody's. A and C send 38 Mb/s each, B 500.",
    );
    let rows: Vec<_> = [Scheme::Static, Scheme::PriorityAwareReserved]
        .into_iter()
        .map(|scheme| (scheme.abbreviation().to_owned(), scenarios::contexts_are_scarce(scheme), None))
        .collect();
    report.outcomes(["fig-5-throughput", "fig-5-delay"], &rows);
    let (sa, par) = (&rows[0].1, &rows[1].1);
    let sum = |outcomes: &[Outcome; 3]| outcomes.iter().map(|outcome| outcome.output).sum::<f64>() / 5.0;
    report.finding(format!(
        "The paper: SA uses about 40 % of the link, PAR fills it; B has more than three times the throughput and less than half the delay. Here {:.1} % and {:.1} % \
         (bar: 99 %), {:.2} times, and {:.2} of the delay.",
        sum(sa),
        sum(par),
        par[1].output / sa[1].output,
        par[1].delay / sa[1].delay
    ));
}

fn notice(report: &mut Report) {
    report.section(
        "Fig. 9: how soon a change is noticed",
        "The longest of 100 times from a queue's crossing of a threshold to the trigger. The flows' items arrive 16 µs apart on average while the queue fills. In the frequent mode triggers are looked at at every resource-management point, and 4 µs after the last look when items have moved.",
    );
    let infrequent = |micros| MonitorFrequency::Infrequent(Duration::from_micros(micros));
    let rows: Vec<Vec<String>> = [
        ("frequent: at every context, a point after every item", MonitorFrequency::Frequent, 1),
        ("frequent, a point after every 64 items", MonitorFrequency::Frequent, 64),
        ("infrequent: control context, every 45 µs", infrequent(45), 8),
        ("infrequent: control context, every 1 ms", infrequent(1_000), 8),
    ]
    .into_iter()
    .map(|(name, frequency, every)| {
        let micros = scenarios::notice(frequency, every, 100);
        vec![name.to_owned(), if micros < 1.0 { "less than 1".to_owned() } else { format!("{micros:.0}") }]
    })
    .collect();
    report.text += &chart::table(&["", "longest, µs"], &rows);
    report.text.push('\n');
    report.finding("The paper: within 45 µs; the bar: 20 µs in the frequent mode.".to_owned());
}

fn adaptation(report: &mut Report) {
    report.section(
        "Fig. 11: dynamic adaptation",
        "170 Mb/s of each; B surges to 400 at 1 s and ebbs to 100 at 2 s, when A and C send 220. The shipped policy switches from RR to PAR when B's rate reaches 250 Mb/s, \
         and back when it has been below 150 for 50 ms. PAR promises A and C 40 Mb/s each. Dotted: what arrives.",
    );
    let series = scenarios::adaptation();
    let title = "Mb/s through 3 s";
    let svg = chart::lines(title, &NAMES, series.step, &series.input, &series.output, &series.switches);
    report.chart("fig-11", title, svg);
    let points = 5..series.output[0].len();
    let sums = points.map(|at| (0..3).map(|flow| series.output[flow][at]).sum::<f64>());
    let least = sums.fold(f64::INFINITY, f64::min);
    let part = |from: usize, to: usize| {
        let sum = |values: &[f64]| values[from..to].iter().sum::<f64>();
        sum(&series.output[1]) / sum(&series.input[1]) * 100.0
    };
    let switches: Vec<String> =
        series.switches.iter().map(|(at, scheme)| format!("{scheme} at {at:.3} s")).collect();
    report.finding(format!(
        "Switches: {}. The link carries at least {least:.1} Mb/s in every 20 ms; B has {:.1} % of what it sends in its surge from 40 ms after its beginning on.",
        switches.join(", "),
        part(52, 100)
    ));
}

fn airline(report: &mut Report) {
    report.section(
        "Fig. 12: three handlers on one appliance",
        "Items of 600 B of three kinds, equally frequent (600 Mb/s of each): A becomes 100 B at 16 µs, B 300 B at 4 µs, C 540 B at 2 µs. PAR; B is promised 200 Mb/s, A and C 40 each. The sizes of A \
         and B are the paper's; costs and rates are ours, as the airline's data is not public.",
    );
    let rows = [("PAR".to_owned(), scenarios::airline(), None)];
    report.outcomes(["fig-12-throughput", "fig-12-delay"], &rows);
    report.finding("As in the paper, B has most of the link and the least delay, and A and C share the rest. Other than there, C waits longer than A: both queues hold as many items, and those of C are five times as long. A's handler takes eight times as long as C's, which is little beside either queue.".to_owned());
}
