//! The end of an exchange: what becomes of the member's connection, of the log and of the counters.

use csp_http::exchange::StreamEnd;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::{FlowLabel, Instant};

use super::{Exchange, Stage};
use crate::Reason;
use crate::pool::{Use, stream_end};
use crate::record::Record;
use crate::shared::{Cx, Shared};

impl Exchange {
    /// Leaves the member's connection. `complete`: the response is complete, and the connection is kept if it
    /// can be; otherwise it is reset, so that the member learns that nobody wants its response.
    pub(super) fn part(&mut self, cx: &mut Cx<'_, impl Ends>, complete: bool) {
        let (stage, tunnel_ended, is_written) = (self.stage, self.tunnel_ended, self.is_written());
        self.stage = Stage::New;
        let label = match stage {
            Stage::New | Stage::Shared | Stage::Stored => return,
            Stage::Opening => return self.withdraw(cx.client, cx.shared),
            Stage::Waiting | Stage::Stream(_) => {
                return self.leave_stream(stage, cx.now, cx.client, cx.shared);
            }
            Stage::Joined(label) | Stage::Tunnel(label) => label,
        };
        let Shared { members, timers, .. } = &mut *cx.shared;
        let Some(member) = members.table.get_mut(label) else { return };
        if member.gone.is_some() {
            members.table.remove(label);
            return;
        }
        let (readable, end) = match cx.ends.upstream(label) {
            Some(end) => (end.readable(), stream_end(&end)),
            None => (0, StreamEnd::Lost),
        };
        let options = &self.service.pool;
        let can_be_kept = complete
            && cx.ends.is_wanted(label)
            && member.side.can_be_kept(readable, end)
            && (options.requests_max == 0 || member.side.requests() < options.requests_max);
        let until = cx.now + self.service.timeouts.upstream_idle;
        if can_be_kept && members.keep(label, until, options.idle_max, timers) {
            return;
        }
        let is_whole = (complete && self.request_ended && is_written) || tunnel_ended == (true, true);
        if let Some(member) = members.table.get_mut(label) {
            member.used = Use::Doomed;
        }
        cx.ends.end(label, if is_whole { Step::Close } else { Step::Reset });
    }

    /// Withdraws the request for a connection.
    fn withdraw(&self, client: FlowLabel, shared: &mut Shared) {
        shared.withdraw(self.token(client));
        self.opening_over(shared);
    }

    /// The client's connection has ended: the member is left, without ends at hand.
    pub(crate) fn abandon(mut self: Box<Self>, now: Instant, client: FlowLabel, shared: &mut Shared) {
        match self.stage {
            Stage::New | Stage::Shared | Stage::Stored => {}
            Stage::Opening => self.withdraw(client, shared),
            stage @ (Stage::Waiting | Stage::Stream(_)) => self.leave_stream(stage, now, client, shared),
            Stage::Joined(label) | Stage::Tunnel(label) => {
                if let Some(member) = shared.members.table.get_mut(label) {
                    match member.gone {
                        Some(_) => drop(shared.members.table.remove(label)),
                        None => {
                            // A tunnel's member that has finished has nothing to lose.
                            let is_finished = matches!(self.stage, Stage::Tunnel(_)) && self.tunnel_ended.1;
                            member.used = if is_finished { Use::Finished } else { Use::Doomed };
                            shared.ready.push_back(label);
                        }
                    }
                }
            }
        }
        if !matches!(self.stage, Stage::Tunnel(_)) {
            self.record.reason = Some(Reason::ClientGone);
        }
        self.stage = Stage::New;
        self.finish(now, shared);
    }

    /// Leaves the cache: others wait for this exchange no more.
    fn leave_cache(&mut self, record: &mut Record, shared: &mut Shared) {
        let Some(mut state) = self.cache.take() else { return };
        let caching = &mut shared.work.caching;
        state.waits_no_more((record.flow, self.serial), caching);
        state.end_fill(caching);
        record.cache = state.result;
        caching.keep(state);
    }

    /// Ends an exchange whose stream was reset instead of an answer.
    pub(crate) fn refuse_stream(mut self: Box<Self>, now: Instant, reason: Reason, shared: &mut Shared) {
        (self.record.reason, self.record.status) = (Some(reason), 400);
        self.finish(now, shared);
    }

    /// Writes the log and the counters.
    pub(crate) fn finish(mut self: Box<Self>, now: Instant, shared: &mut Shared) {
        shared.exchanges = shared.exchanges.saturating_sub(1);
        let fresh = Record::new(&self.service.name, self.peer, self.record.flow, now);
        let mut record = std::mem::replace(&mut self.record, fresh);
        if record.status == 0 {
            record.status = 499;
        }
        record.phases.total = now - record.began;
        record.received = self.up_framer.passed;
        record.sent = self.down_framer.map_or(self.answered, |framer| framer.passed);
        self.leave_cache(&mut record, shared);
        let is_tunnel = record.status == 101;
        let mut is_recorded = self.service.log.is_some() && !record.is_well();
        if let Some(served) = shared.services.get_mut(&self.service.number) {
            is_recorded |= record.is_well() && served.is_sampled(self.service.log);
            if let Some(counters) = served.of_rule(&self.service, self.rule) {
                counters.ended(record.status, record.reason, (!is_tunnel).then_some(record.phases.total));
                if let Some(result) = record.cache {
                    counters.looked_up(result, record.sent);
                }
                counters.received += record.received;
                counters.sent += record.sent;
            }
        }
        shared.watches.see(&record);
        let room = match is_recorded {
            true => shared.log.push(record),
            false => record.take_room(),
        };
        let buffers = &mut shared.work.buffers;
        buffers.give(room);
        buffers.give(std::mem::take(&mut self.head));
        buffers.give(std::mem::take(&mut self.replay));
        self.compressor = None;
        self.filtered.clear(buffers);
        self.up.clear(buffers);
        shared.spare.keep(self);
    }
}
