//! Rate, round trip and loss against offered load, on levels 2 and 3, and unmatched traffic beside a
//! saturated host.

use std::fmt::Write as _;
use std::time::{Duration, Instant as Clock};

use csp_plugins::Level;

use super::Bed;
use crate::load::{self, Case};
use crate::plot::{self, Line};

/// Offered load, in thousands of packets a second.
const OFFERED: [u64; 9] = [10, 50, 100, 200, 300, 500, 1_000, 2_000, 4_000];

/// What was measured against offered load.
#[derive(Default)]
pub struct Offered {
    table: String,
    rates: Vec<Line>,
    trips: Vec<Line>,
    losses: Vec<Line>,
}

impl Offered {
    pub fn measure(&mut self, bed: &mut Bed, (level, case, len): (u8, Case, usize), time: Duration) {
        let (mut rates, mut trips, mut losses) = (vec![], vec![], vec![]);
        for offered in OFFERED {
            let (rate, trip, loss) = bed.offered(offered, time);
            let line = format!(
                "| {level} | {} | {len} | {offered} | {:.0} | {:.1} | {:.1} | {:.2} % |",
                case.plugin().0,
                rate / 1e3,
                trip.0,
                trip.1,
                loss * 100.0
            );
            eprintln!("{line}");
            let _ = writeln!(self.table, "{line}");
            rates.push((offered as f64, rate * len as f64 * 8.0 / 1e6));
            trips.push((offered as f64, trip.0));
            losses.push((offered as f64, loss.max(0.0) * 100.0));
        }
        if case == Case::NoOp {
            let name = format!("level {level}, {len} bytes");
            let all = [(&mut self.rates, rates), (&mut self.trips, trips), (&mut self.losses, losses)];
            all.into_iter().for_each(|(lines, points)| lines.push(Line { name: name.clone(), points }));
        }
    }

    /// Writes the plots, if there is a folder for them, and returns the section.
    pub fn finish(&self, write: Option<&str>) -> String {
        let plots = [
            ("offered-rate", "Transfer rate, Mb/s", &self.rates),
            ("offered-round-trip", "Round trip, median, µs", &self.trips),
            ("offered-loss", "Loss, %", &self.losses),
        ];
        let mut text = String::from(
            "\n### Against offered load\n\nLevel 3 beside level 2, where the same plug-in runs in the worker. What is offered is offered by the worker's \
             own thread.\n\n",
        );
        for (file, title, lines) in plots {
            if let Some(folder) = write {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(format!("{folder}/{file}.svg"), plot::draw(title, lines)).unwrap();
            }
            let _ = writeln!(text, "![{title}, no-op]({file}.svg)\n");
        }
        let _ = writeln!(
            text,
            "| level | plug-in | bytes | offered, k packets/s | came back, k packets/s | round trip, median, µs | p99, µs | loss \
             |\n|---|---|---|---|---|---|---|---|"
        );
        text + &self.table
    }
}

/// Unmatched frames a second that are offered beside a saturated host.
const BESIDE: f64 = 200e3;

impl Bed {
    /// Offers [`BESIDE`] unmatched frames a second, and `matched` others. Returns how many of each kind a
    /// second were processed: unmatched ones by the core, others when they came back.
    fn beside(&mut self, unmatched: &[Vec<u8>], matched: f64, time: Duration) -> (f64, f64) {
        self.reset();
        let processed = |bed: &Bed| bed.worker.core().counters().drop_not_ours;
        let (begin, before, mut sent) = (Clock::now(), processed(self), 0u64);
        while begin.elapsed() < time {
            let elapsed = begin.elapsed().as_secs_f64();
            for _ in 0..((elapsed * BESIDE) as u64).saturating_sub(sent) {
                let frame = &unmatched[sent as usize % unmatched.len()];
                // What the port has no room for is lost.
                let _ = self.client.transmitter.transmit(&[frame], None);
                sent += 1;
            }
            for _ in 0..((elapsed * matched) as u64).saturating_sub(self.sent).min(256) {
                self.send(usize::MAX);
            }
            self.client.transmitter.flush();
            self.turn();
        }
        let seconds = begin.elapsed().as_secs_f64();
        let back = self.back as f64 / seconds;
        while self.turn() {}
        ((processed(self) - before) as f64 / seconds, back)
    }
}

/// Unmatched traffic with and without a host that gets more packets than it can process.
pub fn unmatched_beside(time: Duration) -> String {
    let mut text = format!(
        "\n### Unmatched traffic beside a saturated host\n\n{:.0}k frames a second that no rule matches, alone and beside 1.25 times as many \
         packets for the plug-in as its host can process. This is far below what the worker can route by itself (the table of a worker at a memory \
         port).\n\n| plug-in | bytes | unmatched alone, k/s | host can, k/s | unmatched beside, k/s \
         | plug-in beside, k/s | ratio |\n|---|---|---|---|---|---|---|\n",
        BESIDE / 1e3
    );
    for len in [72, 1460] {
        let unmatched = load::frames(Case::Unmatched, len);
        let rules = load::rules(Case::Counter).into_iter().filter(|rule| load::unrelated(&rule.fields));
        let mut bed = Bed::new(Case::Counter, Level::Host, rules.collect(), len);
        let (alone, _) = bed.beside(&unmatched, 0.0, time);
        let (_, can) = bed.beside(&unmatched, 4e6, time);
        let (beside, back) = bed.beside(&unmatched, can * 1.25, time);
        let line = format!(
            "| counter | {len} | {:.1} | {:.0} | {:.1} | {:.0} | {:.3} |",
            alone / 1e3,
            can / 1e3,
            beside / 1e3,
            back / 1e3,
            beside / alone
        );
        eprintln!("{line}");
        let _ = writeln!(text, "{line}");
    }
    text
}
