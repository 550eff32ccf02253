//! How long daemons take to notice something, seen from the host, and how much of that their guests took.
//!
//! Guests are emulated, on a machine that does other things too: a guest may stand still while the protocol's
//! time runs. A metronome in each guest shows it. Its lines come to the host on the way that the daemons' log
//! lines come; the longest time without one, less the period, is what the guest took.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two lines of a metronome.
const PERIOD: Duration = Duration::from_millis(20);
const LOG_POLL: Duration = Duration::from_millis(2);

/// The metronome's command.
pub(super) fn metronome() -> [String; 3] {
    let script = format!(
        "import time\nwhile True:\n    time.sleep({})\n    print('.', flush=True)",
        PERIOD.as_secs_f64()
    );
    ["/usr/bin/python3".to_owned(), "-uc".to_owned(), script]
}

/// A line that is waited for: one with `words`, behind the first `seen` bytes of a daemon's log.
pub(super) struct Line {
    pub name: &'static str,
    pub log: PathBuf,
    pub seen: usize,
    pub words: &'static str,
    /// The log of the metronome in the daemon's guest.
    pub metronome: PathBuf,
}

/// When a line came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// After what was to be noticed.
    pub after: Duration,
    /// How long the guest stood still meanwhile, at a stretch.
    pub stood_still: Duration,
}

impl Notice {
    /// What the protocol took.
    pub(super) fn protocol(self) -> Duration {
        self.after.saturating_sub(self.stood_still)
    }
}

/// The longest time without a line of a metronome.
struct Beat {
    lines: u64,
    last: Instant,
    longest: Duration,
}

impl Beat {
    fn new(lines: u64, now: Instant) -> Self {
        Beat { lines, last: now, longest: Duration::ZERO }
    }

    /// Takes note of the metronome's lines so far.
    fn look(&mut self, lines: u64, now: Instant) {
        self.longest = self.longest.max(now.saturating_duration_since(self.last));
        if lines != self.lines {
            (self.lines, self.last) = (lines, now);
        }
    }

    fn stood_still(&self) -> Duration {
        self.longest.saturating_sub(PERIOD)
    }
}

/// Waits until every line is there; when each came after `began`, at most `deadline`.
pub(super) fn wait_for_lines(lines: &[Line], began: Instant, deadline: Duration) -> Result<Vec<Notice>> {
    let beats = |line: &Line| fs::metadata(&line.metronome).map(|file| file.len());
    let mut watched = Vec::new();
    for line in lines {
        watched.push((Beat::new(beats(line)?, began), None));
    }
    loop {
        for (line, (beat, notice)) in
            lines.iter().zip(&mut watched).filter(|(_, (_, notice))| notice.is_none())
        {
            let text = fs::read_to_string(&line.log)?;
            beat.look(beats(line)?, Instant::now());
            if text.get(line.seen..).is_some_and(|text| text.contains(line.words)) {
                *notice = Some(Notice { after: began.elapsed(), stood_still: beat.stood_still() });
            }
        }
        if let Some(all) = watched.iter().map(|(_, notice)| *notice).collect() {
            return Ok(all);
        }
        if began.elapsed() >= deadline {
            let missing: Vec<_> = lines
                .iter()
                .zip(&watched)
                .filter(|(_, (_, n))| n.is_none())
                .map(|(line, _)| line.name)
                .collect();
            bail!("no line of {missing:?} within {deadline:?}");
        }
        std::thread::sleep(LOG_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_stands_still_is_told_apart_from_a_slow_protocol() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let stood_still = |looks: &[(u64, u64)]| {
            let mut beat = Beat::new(0, start);
            looks.iter().for_each(|(ms, lines)| beat.look(*lines, at(*ms)));
            beat.stood_still()
        };
        let steady: Vec<(u64, u64)> = (1..=52).map(|n| (20 * n, n)).collect();
        assert_eq!(stood_still(&steady), Duration::ZERO);
        // No line between 700 ms and 950 ms, and one that is still missing at the end.
        let with_gap: Vec<(u64, u64)> =
            steady.iter().copied().filter(|(ms, _)| !(701..950).contains(ms)).collect();
        assert_eq!(stood_still(&with_gap), Duration::from_millis(240));
        assert_eq!(stood_still(&[(20, 1), (1020, 1)]), Duration::from_millis(980));
        let notice = Notice { after: Duration::from_millis(1043), stood_still: Duration::from_millis(240) };
        assert_eq!(notice.protocol(), Duration::from_millis(803));
    }
}
