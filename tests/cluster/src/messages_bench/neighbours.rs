//! A byte service beside a channel that is as busy as its publisher can make it: the latency of nginx's
//! answers.
//!
//! ```text
//!            ┌─ wrk ── nginx's service ──┐
//!  client ───┤                           ├── one proxy worker
//!            └─ pushers ── channel ──────┘
//! ```
//! The machine is small, so that clients of messages take processor time from everything. The same clients
//! therefore also drive libzmq's streamer, past the worker: what wrk loses to that is the machine's, the rest
//! is the worker's.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::sample::middle;
use super::{Bench, Broker, Pattern};
use crate::client::{Fetch, micros};
use crate::process::wait_until;
use crate::{Tier, VIP, testing};

/// Kept-alive connections of wrk.
const CONNECTIONS: u32 = 8;
const FILE: &str = "100B";
const START: Duration = Duration::from_secs(20);
/// How long the channel is driven before wrk begins and after it has ended, in seconds.
const MARGIN_S: u32 = 2;

/// wrk's 99th percentile in microseconds, medians over the rounds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Neighbours {
    /// Nothing else runs.
    pub alone_us: f64,
    /// Messages are pushed through libzmq's streamer.
    pub beside_zmq_us: f64,
    /// The same clients push through a channel of the worker.
    pub beside_channel_us: f64,
    /// What they pushed through the channel in a second.
    pub channel_rate: f64,
    /// Frames meanwhile for which the tunnel between network node and proxy had no room.
    pub tunnel_full: f64,
}

impl Bench<'_> {
    /// Measures wrk alone and beside both brokers, in turn.
    pub(super) fn neighbours(&mut self, progress: &impl Fn(&str)) -> Result<Neighbours> {
        fs::write(self.cluster.scratch().join("www").join(FILE), testing::pattern(100))?;
        self.cluster.start_nginx()?;
        let url = format!("http://{VIP}/{FILE}");
        wait_until(&url, START, || self.cluster.answers(&url).then_some(()))?;
        let mut rounds = Vec::new();
        for round in 1..=self.plan.rounds {
            progress(&format!("round {round} of {}: wrk beside a busy channel", self.plan.rounds));
            self.go_on()?;
            let alone_us = self.wrk_p99_us()?;
            let (beside_zmq_us, _) = self.wrk_beside(Broker::ZmqProxy)?;
            let before = self.tunnel_full()?;
            let (beside_channel_us, channel_rate) = self.wrk_beside(Broker::Csp)?;
            let tunnel_full = self.tunnel_full()? - before;
            rounds.push(Neighbours { alone_us, beside_zmq_us, beside_channel_us, channel_rate, tunnel_full });
        }
        Ok(median(&rounds))
    }

    /// Returns wrk's 99th percentile while messages are pushed, and their rate.
    fn wrk_beside(&self, broker: Broker) -> Result<(f64, f64)> {
        thread::scope(|scope| {
            let seconds = self.plan.seconds + 2 * MARGIN_S;
            let load = scope.spawn(move || self.measure(broker, Pattern::Push, 1, 0.0, seconds));
            thread::sleep(Duration::from_secs(MARGIN_S.into()));
            let p99_us = self.wrk_p99_us();
            let sample = load.join().map_err(|_| anyhow::anyhow!("the load of messages has panicked"))??;
            Ok((p99_us?, sample.rate))
        })
    }

    fn tunnel_full(&self) -> Result<f64> {
        self.cluster.metric(Tier::NetworkNode, "csp_drops_total", "tunnel_full")
    }

    fn wrk_p99_us(&self) -> Result<f64> {
        let report = Fetch(&self.cluster).wrk(FILE, CONNECTIONS, self.plan.seconds)?;
        let p99 = report.lines().find_map(|line| line.trim().strip_prefix("99%"));
        p99.and_then(|text| micros(text.trim())).with_context(|| format!("wrk's 99 %:\n{report}"))
    }
}

fn median(rounds: &[Neighbours]) -> Neighbours {
    let of = |figure: fn(&Neighbours) -> f64| middle(rounds.iter().map(figure));
    Neighbours {
        alone_us: of(|n| n.alone_us),
        beside_zmq_us: of(|n| n.beside_zmq_us),
        beside_channel_us: of(|n| n.beside_channel_us),
        channel_rate: of(|n| n.channel_rate),
        tunnel_full: of(|n| n.tunnel_full),
    }
}
