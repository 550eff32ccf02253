//! A context elsewhere, as the plane sees it: it gets messages within its credit, and answers them in order.

use std::collections::VecDeque;

use csp_handlers::Emit;
use csp_messages::{FormatId, MessagePlane, RemoteCall, RemoteDone, RemoteError};
use csp_quality::SharedLink;
use csp_types::Instant;

/// The number of the context.
pub const CONTEXT: u16 = 2;

#[derive(Default)]
pub struct Elsewhere {
    /// What it was given, the oldest first, with how many emits of it have been passed on.
    given: VecDeque<(RemoteCall, u32)>,
    pub answered: u64,
}

impl Elsewhere {
    /// Fetches messages.
    pub fn fetch(&mut self, plane: &mut MessagePlane) {
        while let Some(call) = plane.next_call(CONTEXT) {
            assert!(plane.slices(call.handle).next().is_some());
            self.given.push_back((call, 0));
        }
    }

    /// Answers up to `most` messages, as far as what it emits has room: a stage that has none holds back no
    /// other. Returns how many.
    pub fn answer(
        &mut self,
        plane: &mut MessagePlane,
        most: usize,
        mut link: Option<&mut SharedLink>,
    ) -> usize {
        let (mut at, mut done, mut waiting) = (0, 0, Vec::new());
        while done < most
            && let Some((call, passed)) = self.given.get_mut(at)
        {
            let stage = plane
                .remote_stage(call.ticket)
                .map(|stage| (stage.handler == "head", stage.parameters.parse().unwrap_or(1)));
            let Some((head, times)) = stage else {
                self.given.remove(at);
                continue;
            };
            let emit = match head {
                true => Emit::Range { format: FormatId::UNKNOWN, start: 0, len: 5 },
                false => Emit::Same,
            };
            while *passed < times && !waiting.contains(&call.ticket) {
                match plane.remote_emit(Instant::ZERO, call.ticket, (0, emit), link.as_deref_mut()) {
                    Ok(()) => *passed += 1,
                    Err(RemoteError::Full) => waiting.push(call.ticket),
                    Err(error) => panic!("{error}"),
                }
            }
            if waiting.contains(&call.ticket) {
                at += 1;
                continue;
            }
            let processed = RemoteDone::Processed;
            plane.remote_done(Instant::ZERO, call.ticket, processed, link.as_deref_mut()).unwrap();
            self.given.remove(at);
            (at, done) = (0, done + 1);
            waiting.clear();
            self.answered += 1;
        }
        done
    }

    /// Loses everything that it was given.
    pub fn lose(&mut self, plane: &mut MessagePlane) {
        self.given.clear();
        plane.remote_lost(CONTEXT);
    }
}
