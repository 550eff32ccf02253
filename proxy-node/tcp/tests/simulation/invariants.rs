//! Invariants that hold between two steps and at the end.

use csp_tcp::{Event, Occupancy, SynCookies};

use crate::app::{Appetite, Script, Step};
use crate::host::{EngineHost, Host};
use crate::scenario::{PROMPT, Side, Theme};
use crate::watch::TIMER_SLACK;
use crate::world::World;

impl World {
    /// Checks between two steps, after everything permitted was sent.
    pub fn check_step(&mut self) {
        for side in 0..2 {
            let (Some(engine), Some(watch)) = (self.hosts[side].engine(), &self.watches[side]) else {
                continue;
            };
            self.check_timers(engine);
            check_occupancy(&engine.stack.occupancy());
            watch.check_owed(self.now);
            if self.scenario.theme == Theme::Crowded {
                continue;
            }
            for n in 0..self.conversations.len() {
                self.check_conversation(side, n);
            }
        }
    }

    fn check_conversation(&mut self, side: usize, n: usize) {
        let tuple = self.conversations[n].tuple_at(side);
        let (Some(done), Some(watch)) = (self.done(side, &tuple), self.watches[side].as_mut()) else {
            return;
        };
        watch.check_window(&tuple, &done);
        watch.check_idle(self.now, &tuple, &done);
    }

    /// Checks that a timer runs for every connection that waits for an acknowledgement or for a window to
    /// open.
    fn check_timers(&self, engine: &EngineHost) {
        let reported = engine.stack.next_timeout();
        for info in engine.stack.connections() {
            if info.in_flight == 0 && info.send_queue == 0 {
                continue;
            }
            let deadline = info.deadline.unwrap_or_else(|| panic!("no timer runs: {info:?}"));
            let reported = reported.unwrap_or_else(|| panic!("next_timeout reports no timer: {info:?}"));
            let most = self.now + engine.stack.config().rto_max + TIMER_SLACK;
            assert!(deadline <= most, "only a keepalive timer runs: {info:?}");
            let latest = deadline.max(self.now) + TIMER_SLACK;
            assert!(reported <= latest, "next_timeout is {reported:?}, a timer is due at {deadline:?}");
        }
    }

    /// Checks that every conversation has ended and left no state.
    pub fn check_end(&self) {
        for n in 0..self.conversations.len() {
            self.check_outcome(n);
        }
        for (side, host) in self.hosts.iter().enumerate() {
            match host {
                Host::Engine(engine) => self.check_empty(side, engine),
                Host::Model(model) => {
                    assert!(model.is_empty(), "the model has not ended: {:?}", model.describe())
                }
            }
        }
        if self.scenario.is_little_reordered() {
            self.check_little_reordered();
        }
        if self.scenario.is_clean() {
            self.check_clean();
            self.check_speed();
        }
    }

    fn check_outcome(&self, n: usize) {
        let conversation = &self.conversations[n];
        if conversation.is_forceful() || self.scenario.is_rough() {
            return;
        }
        for (side, end) in conversation.ends.iter().enumerate() {
            let far = &conversation.ends[1 - side];
            // Reused addresses can meet the end of their previous connection; then the connecting side
            // receives an error.
            if conversation.plan.after.is_some() && end.received == 0 && end.outcome != Some(Event::Closed) {
                continue;
            }
            assert_eq!(end.received, far.script().total(), "conversation {n}, side {side}");
            let ends_well = end.outcome == Some(Event::Closed);
            assert!(ends_well, "conversation {n}, side {side}: {:?}", conversation.ends);
        }
    }

    fn check_empty(&self, side: usize, engine: &EngineHost) {
        let EngineHost { stack, known, calls, .. } = engine;
        let o = stack.occupancy();
        let used = [o.connections.0, o.half_open.0, o.time_wait.0, o.blocks.0, o.range_sets.0, o.replies.0];
        assert_eq!(used, [0; 6], "side {side} is not empty: {o:?}");
        // A half-open connection evicted for one by cookie sends no last record: its network node learns of
        // the end by the stale label of a later segment, if there is one.
        let cookies = stack.config().syn_cookies != SynCookies::Off;
        let unsaid = if cookies { stack.counters().half_open_evicted } else { 0 };
        assert!(
            known.len() as u64 <= unsaid,
            "side {side}: the end of a flow was not reported to the network node"
        );
        assert_eq!(stack.next_timeout(), None, "side {side}: a timer without a connection");
        let c = stack.counters();
        assert_eq!(c.segments_received, calls.segments_received, "segments_received");
        assert_eq!(c.segments_sent, calls.segments_sent, "segments_sent");
        assert_eq!(c.bytes_sent, calls.bytes_sent, "bytes_sent");
        assert_eq!(c.segments_retransmitted, calls.retransmissions, "segments_retransmitted");
        let dropped = c.dropped_stale_label
            + c.dropped_no_addresses
            + c.dropped_ports_differ
            + c.dropped_no_connection
            + c.dropped_bad_flags
            + c.dropped_table_full
            + c.dropped_backlog_full
            + c.dropped_outside_window
            + c.dropped_paws
            + c.dropped_bad_ack
            + c.dropped_unexpected_syn
            + c.dropped_bad_reset
            + c.dropped_data_after_close
            + c.dropped_time_wait;
        assert_eq!(dropped, calls.drops, "drops are not counted by reason: {c:?}");
        let ended = c.closed + c.aborted + c.failed_reset + c.failed_timed_out + c.failed_data_after_close;
        assert!(c.established >= calls.established && c.established <= ended, "established and ended: {c:?}");
    }

    /// Checks that without loss, delay and reordering nothing is retransmitted or marked as lost.
    fn check_clean(&self) {
        for (side, watch) in self.watches.iter().enumerate() {
            let (Some(watch), Some(engine)) = (watch, self.hosts[side].engine()) else { continue };
            let c = engine.stack.counters();
            assert_eq!(watch.needless(), 0, "side {side} retransmitted on a clean link: {c:?}");
            assert_eq!(c.fast_recoveries, 0, "side {side} detected loss on a clean link");
            let timeouts = c.retransmission_timeouts - watch.misunderstood_syns;
            assert_eq!(timeouts, 0, "side {side} timed out on a clean link");
        }
    }

    /// RFC 8985 §6.2: once a connection has observed reordering, a delay of a quarter of a round trip is not
    /// taken for loss.
    fn check_little_reordered(&self) {
        for engine in self.hosts.iter().filter_map(Host::engine) {
            let c = engine.stack.counters();
            assert!(c.fast_recoveries <= 2 * c.established, "loss was detected where there was none: {c:?}");
        }
    }

    /// Checks that between applications that do not pause, no conversation takes longer than windows, round
    /// trips and delayed acknowledgements explain.
    fn check_speed(&self) {
        let round = self.links[0].plan.delay + self.links[1].plan.delay + PROMPT + TIMER_SLACK;
        let window = self.scenario.sides.iter().map(Side::window).min().unwrap_or(1);
        for (n, conversation) in self.conversations.iter().enumerate() {
            let scripts = &conversation.plan.scripts;
            let rests = |script: &Script| {
                script.appetite != Appetite::Eager
                    || script.steps.iter().any(|step| matches!(step, Step::Pause(_)))
            };
            if conversation.is_forceful() || conversation.refused || scripts.iter().any(rests) {
                continue;
            }
            let bytes: u64 = scripts.iter().map(Script::total).sum();
            let steps: usize = scripts.iter().map(|script| script.steps.len()).sum();
            // Twelve rounds for the handshake, slow start to the largest window, and the end.
            let rounds = 12 + 2 * steps as u64 + 3 * bytes / window;
            let took = conversation.lasted.1 - conversation.lasted.0;
            assert!(took <= round * rounds as u32, "conversation {n} took {took:?}: {:?}", conversation.ends);
        }
    }
}

fn check_occupancy(o: &Occupancy) {
    let all = [o.connections, o.half_open, o.time_wait, o.blocks, o.range_sets, o.listeners, o.replies];
    assert!(all.iter().all(|(used, capacity)| used <= capacity), "more entries than capacity: {o:?}");
    assert!(o.half_open.0 <= o.connections.0, "{o:?}");
}
