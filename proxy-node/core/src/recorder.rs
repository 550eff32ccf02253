//! The flight recorder, recently ended flows, and the counters.
//!
//! All other parts write to it, and none of them reads it.

use std::collections::VecDeque;

use csp_types::{FlowLabel, FourTuple, Instant, TraceEvent, TraceKind, TraceRing};

use super::connection_log::ConnectionLog;
use super::flow::Flow;
use super::service_counters::CountersByService;
use super::{Counters, ENDED_MAX};

/// A flow that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedFlow {
    pub(crate) label: FlowLabel,
    pub(crate) tuple: FourTuple,
    pub(crate) service: u32,
    pub(crate) at: Instant,
}

/// The recorder of one worker.
#[derive(Debug)]
pub(crate) struct Recorder {
    trace: TraceRing,
    ended: VecDeque<EndedFlow>,
    pub(crate) counters: Counters,
    pub(crate) log: ConnectionLog,
    pub(crate) services: CountersByService,
}

impl Recorder {
    /// Creates a recorder whose flight recorder holds `trace_events` events.
    pub(crate) fn new(trace_events: usize) -> Self {
        Recorder {
            trace: TraceRing::new(trace_events),
            ended: VecDeque::with_capacity(ENDED_MAX),
            counters: Counters::default(),
            log: ConnectionLog::default(),
            services: CountersByService::default(),
        }
    }

    /// Records an event of a flow that does not concern a segment.
    #[inline]
    pub(crate) fn record(&mut self, at: Instant, label: FlowLabel, kind: TraceKind, len: u32) {
        self.event(TraceEvent { at, label, kind, len, ..TraceEvent::default() });
    }

    /// Records an event.
    #[inline]
    pub(crate) fn event(&mut self, event: TraceEvent) {
        self.trace.record(event);
    }

    /// Records the server's first byte.
    pub(crate) fn first_byte(&mut self, now: Instant, flow: &Flow) {
        let after_ns = now.as_nanos().saturating_sub(flow.began.as_nanos());
        self.services.first_byte(flow.counted, after_ns);
        self.log.first_byte(now, flow.label);
    }

    /// Records the end of a flow, and keeps its addresses.
    pub(crate) fn flow_ended(&mut self, at: Instant, flow: &Flow) {
        self.record(at, flow.label, TraceKind::Ended, 0);
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedFlow { label: flow.label, tuple: flow.tuple, service: flow.service, at });
    }

    /// Returns the flight recorder.
    pub(crate) fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// Returns ended flows, the latest first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &EndedFlow> {
        self.ended.iter().rev()
    }
}
