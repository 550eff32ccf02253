//! What a provider reports to its caller: completions and events, in the order that
//! [`Provider`](crate::Provider) promises. For the providers that learn of messages and ends in any order
//! (`ucx`, `tcp`).

use std::collections::VecDeque;

use crate::receives::Arrived;
use crate::{BufferId, Completion, Event, ViError, ViId};

/// What is reported of one end of a VI.
#[derive(Default)]
pub(crate) struct Reported {
    /// Messages that arrived before `Established` was polled.
    early: VecDeque<Arrived>,
    /// Messages received and not polled.
    unpolled: u32,
    /// The caller has polled `Established`.
    open: bool,
    /// `Some` once the end of the VI was detected: whether it is clean.
    ended: Option<bool>,
    /// The end of the VI is in the event queue, or the caller has released the VI.
    end_reported: bool,
}

impl Reported {
    /// Whether the end of the VI was detected.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

/// The reports of one provider.
#[derive(Default)]
pub(crate) struct Reports {
    pub completions: VecDeque<Completion>,
    pub events: VecDeque<Event>,
    /// VIs whose end was detected and not reported.
    ending: usize,
}

impl Reports {
    /// Whether there is nothing to poll.
    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.events.is_empty()
    }

    /// Whether the end of a VI waits for its last message to be polled.
    pub(crate) fn has_endings(&self) -> bool {
        self.ending > 0
    }

    /// Reports a message, once `Established` was polled.
    pub(crate) fn arrived(&mut self, vi: u64, of: &mut Reported, arrived: Arrived) {
        of.unpolled += 1;
        if of.open {
            self.completions.push_back(received(vi, arrived));
        } else {
            of.early.push_back(arrived);
        }
    }

    /// Records that the caller polled `Established`: messages that arrived earlier can be polled now.
    pub(crate) fn open(&mut self, vi: u64, of: &mut Reported) {
        of.open = true;
        self.completions.extend(of.early.drain(..).map(|arrived| received(vi, arrived)));
    }

    /// Records that the caller polled a message.
    pub(crate) fn polled(&mut self, of: &mut Reported) {
        of.unpolled = of.unpolled.saturating_sub(1);
    }

    /// Reports that a connecting VI failed.
    pub(crate) fn refused(&mut self, vi: u64, reason: ViError) {
        self.events.push_back(Event::Refused { vi: ViId(vi), reason });
    }

    /// Records the end of a VI.
    pub(crate) fn end(&mut self, of: &mut Reported, clean: bool) {
        if of.ended.is_none() {
            of.ended = Some(clean);
            self.ending += 1;
        }
    }

    /// Reports the end of a VI if it has ended and its last message was polled.
    pub(crate) fn report_end(&mut self, vi: u64, of: &mut Reported) {
        if let Some(clean) = of.ended
            && of.open
            && of.unpolled == 0
            && !of.end_reported
        {
            of.end_reported = true;
            self.ending -= 1;
            self.events.push_back(Event::Disconnected { vi: ViId(vi), clean });
        }
    }

    /// Discards all completions and events of a VI that the caller releases.
    pub(crate) fn discard(&mut self, vi: u64, of: &mut Reported) {
        if of.ended.is_some() && !of.end_reported {
            of.end_reported = true;
            self.ending -= 1;
        }
        self.completions.retain(|completion| match completion {
            Completion::Received { vi: of, .. } | Completion::Sent { vi: of, .. } => of.0 != vi,
        });
        self.events.retain(|event| match event {
            Event::Established { vi: of, .. }
            | Event::Refused { vi: of, .. }
            | Event::Disconnected { vi: of, .. } => of.0 != vi,
            Event::Request(_) => true,
        });
    }
}

fn received(vi: u64, arrived: Arrived) -> Completion {
    Completion::Received {
        vi: ViId(vi),
        buffer: BufferId(arrived.buffer),
        len: arrived.len,
        immediate: arrived.immediate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_follow_established_and_the_end_follows_the_messages() {
        let (mut reports, mut of) = (Reports::default(), Reported::default());
        reports.arrived(5, &mut of, Arrived { buffer: 1, len: 2, immediate: 3 });
        reports.end(&mut of, true);
        reports.end(&mut of, false);
        reports.report_end(5, &mut of);
        assert!(reports.is_empty() && reports.has_endings() && of.has_ended());
        reports.open(5, &mut of);
        let message = Completion::Received { vi: ViId(5), buffer: BufferId(1), len: 2, immediate: 3 };
        assert_eq!(reports.completions.pop_front(), Some(message));
        reports.report_end(5, &mut of);
        assert!(reports.is_empty(), "the message is not polled");
        reports.polled(&mut of);
        reports.report_end(5, &mut of);
        reports.report_end(5, &mut of);
        assert_eq!(reports.events, [Event::Disconnected { vi: ViId(5), clean: true }]);
        assert!(!reports.has_endings());
        reports.discard(5, &mut of);
        assert!(reports.is_empty());
    }
}
