//! What makes the long steps of handshakes for the proxies: each takes a time of its own, and overtakes
//! others.

use crossbeam_channel::Receiver;
use csp_proxy_node::ProxyWorker;
use csp_proxy_node::core::HandshakeStep;
use csp_types::{Duration, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Longest time of a step, in microseconds.
const STEP_MAX_US: u64 = 20_000;

pub(crate) struct Signing {
    steps: [Receiver<(u8, HandshakeStep)>; 2],
    /// Those under way: when each is made, for which proxy.
    away: Vec<(Instant, usize, HandshakeStep)>,
    random: ChaCha8Rng,
}

impl Signing {
    /// Begins, with these proxies.
    pub(crate) fn new(seed: u64, proxies: &mut [Option<ProxyWorker>; 2]) -> Self {
        let steps = [crossbeam_channel::never(), crossbeam_channel::never()];
        let mut signing =
            Signing { steps, away: Vec::new(), random: ChaCha8Rng::seed_from_u64(seed ^ 0x7369_676e) };
        for (at, proxy) in proxies.iter_mut().enumerate() {
            proxy.iter_mut().for_each(|proxy| signing.serve(at, proxy));
        }
        signing
    }

    /// Serves a proxy that has started. What another one before it was to get is lost.
    pub(crate) fn serve(&mut self, at: usize, proxy: &mut ProxyWorker) {
        let (signers, steps) = crossbeam_channel::unbounded();
        proxy.set_signers(signers);
        self.steps[at] = steps;
        self.away.retain(|(_, of, _)| *of != at);
    }

    /// Takes steps, and gives back those that are made. Returns whether there were any.
    pub(crate) fn turn(&mut self, now: Instant, proxies: &mut [Option<ProxyWorker>; 2]) -> bool {
        let before = self.away.len();
        for (at, steps) in self.steps.iter().enumerate() {
            for (_, step) in steps.try_iter() {
                let takes = Duration::from_micros(self.random.random_range(0..STEP_MAX_US));
                self.away.push((now + takes, at, step));
            }
        }
        let mut busy = self.away.len() > before;
        while let Some(made) = self.away.iter().position(|(due, ..)| *due <= now) {
            let (_, at, mut step) = self.away.swap_remove(made);
            step.run();
            if let Some(proxy) = &mut proxies[at] {
                proxy.handshake_step_made(step);
            }
            busy = true;
        }
        busy
    }

    /// Returns when the next step is made.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.away.iter().map(|(due, ..)| *due).min()
    }
}
