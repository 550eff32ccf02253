//! How an exchange gets a connection to a member: a kept one, or one that the core opens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_http::exchange::{Loss, StreamEnd};
use csp_http::head::Framing;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, OpenError, Opened, Request, Upstream, UpstreamEnd};
use csp_types::{FlowLabel, Instant};

use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::client::Downstream;
use crate::pool::{Use, stream_end};
use crate::shared::{Cx, Shared};
use crate::spec::Reuse;

impl Exchange {
    /// Takes a kept connection, or asks for one.
    pub(crate) fn open(&mut self, cx: &mut Cx<'_, impl Ends>) {
        if self.begin_cached(cx) {
            return;
        }
        if self.over_http2.is_spoken {
            return self.open_stream(cx);
        }
        if !self.fresh {
            while let Some(label) = self.take_kept(cx) {
                if is_usable(label, cx.ends) {
                    cx.ends.relate(cx.client, label);
                    cx.shared.upstreams.reused += 1;
                    self.record.attempts = self.record.attempts.saturating_add(1);
                    self.record.reused = true;
                    return self.join(cx.now, cx.client, label, cx.shared);
                }
                if let Some(member) = cx.shared.members.table.get_mut(label) {
                    member.used = Use::Doomed;
                }
                cx.ends.end(label, Step::Close);
            }
        }
        self.ask(cx.now, cx.client, cx.shared);
    }

    /// Takes a kept connection that the request may use, which can turn out closed: any, if the request can
    /// be sent again whatever the member has read of it; one whose process says what it has read, if it
    /// can be while that is nothing.
    fn take_kept(&mut self, cx: &mut Cx<'_, impl Ends>) -> Option<FlowLabel> {
        let reuse = self.service.pool.reuse;
        if self.service.pool.idle_max == 0 || self.asked.is_upgrade {
            return None;
        }
        let pool = cx.shared.members.pool(self.target.as_ref()?);
        let is_repeatable = self.asked.is_idempotent && self.asked.framing == Framing::None;
        if is_repeatable || reuse == Reuse::Always {
            return cx.shared.members.take_kept(pool);
        }
        match reuse == Reuse::Unread && (self.asked.framing == Framing::None || self.keeps_body()) {
            true => {
                let tells = |label| cx.ends.upstream(label).is_some_and(|end| end.tells_reads());
                cx.shared.members.take_kept_of_process(pool, tells)
            }
            false => None,
        }
    }

    /// Asks the core for a connection.
    pub(super) fn ask(&mut self, now: Instant, client: FlowLabel, shared: &mut Shared) {
        let Some(name) = &self.target else { return };
        let pool = shared.members.pool(name);
        self.pool = Some(pool);
        if self.over_http2.is_spoken && self.stage != Stage::Opening {
            shared.links.opening(pool);
        }
        self.stage = Stage::Opening;
        self.record.attempts = self.record.attempts.saturating_add(1);
        self.record.reused = false;
        let connect = self.timeouts().connect;
        shared.requests.push_back(Request::Open(Upstream {
            token: self.token(client),
            service: std::sync::Arc::clone(name),
            excluded: self.excluded,
            client: self.peer_of_member(),
            client_flow: client,
            window: 0,
            deadline: (!connect.is_zero()).then(|| now + connect),
        }));
    }

    /// Returns what a member learns of the client by the connection itself: nothing but its port if the
    /// connection may be kept, since other clients' requests follow.
    fn peer_of_member(&self) -> SocketAddr {
        match (self.service.pool.idle_max, self.peer) {
            (0, peer) => peer,
            (_, SocketAddr::V4(peer)) => (Ipv4Addr::UNSPECIFIED, peer.port()).into(),
            (_, SocketAddr::V6(peer)) => (Ipv6Addr::UNSPECIFIED, peer.port()).into(),
        }
    }

    /// Processes the core's answer. Returns whether it was expected.
    pub(crate) fn opened(
        &mut self,
        now: Instant,
        (client, serial): (FlowLabel, u32),
        outcome: Result<Opened, OpenError>,
        shared: &mut Shared,
    ) -> bool {
        if self.stage != Stage::Opening || serial != self.serial & 0x7fff_ffff {
            return false;
        }
        match (outcome, self.pool) {
            (Ok(opened), Some(pool)) if self.over_http2.is_spoken => {
                self.opened_link(now, (client, opened, pool), shared);
            }
            (Ok(opened), Some(pool)) => {
                shared.members.insert(opened.label, pool, (opened.server, opened.address), (client, serial));
                shared.upstreams.opened += 1;
                self.join(now, client, opened.label, shared);
            }
            (Ok(_), None) => return false,
            (Err(error), _) => {
                shared.upstreams.failed += 1;
                self.refused(now, client, error, shared);
            }
        }
        true
    }

    fn refused(&mut self, now: Instant, client: FlowLabel, error: OpenError, shared: &mut Shared) {
        let reason = match error {
            OpenError::Refused(server) => {
                self.failed = Some(Reason::MemberRefused);
                if self.tried < self.service.retries && self.excluded.insert(server) {
                    self.tried += 1;
                    self.count_retry(shared);
                    return self.ask(now, client, shared);
                }
                Reason::MemberRefused
            }
            OpenError::NoRoom if !self.has_evicted && self.evict(client, shared) => return,
            OpenError::NoRoom if self.over_http2.is_spoken && !self.over_http2.is_narrow => {
                return self.narrow(now, client, shared);
            }
            OpenError::TimedOut => Reason::ConnectTimeout,
            OpenError::NoRoom | OpenError::TokenInUse => Reason::NoRoom,
            OpenError::NoService
            | OpenError::NoMember
            | OpenError::MixedFamilies
            | OpenError::AllExcluded
            | OpenError::Draining
            | OpenError::NoServer => Reason::NoServer,
        };
        // Where no other member is left, the member that has failed is to blame.
        self.opening_over(shared);
        self.stage = Stage::New;
        self.failure = Some(self.failed.unwrap_or(reason));
    }

    /// Ends a kept connection, and asks again when it has ended: idle connections must not take the room of
    /// requests.
    fn evict(&mut self, client: FlowLabel, shared: &mut Shared) -> bool {
        self.has_evicted = true;
        let evicted = shared.members.evict();
        if let Some(label) = evicted {
            shared.ready.push_back(label);
        }
        let is_evicted = evicted.is_some() || shared.links.evict();
        if is_evicted {
            shared.starved.push_back((client, self.serial));
        }
        is_evicted
    }

    /// Asks again after a connection to a member has ended.
    pub(crate) fn ask_again(&mut self, now: Instant, client: FlowLabel, serial: u32, shared: &mut Shared) {
        if self.stage == Stage::Opening && self.serial == serial {
            self.ask(now, client, shared);
        }
    }

    /// Uses a connection.
    fn join(&mut self, now: Instant, client: FlowLabel, label: FlowLabel, shared: &mut Shared) {
        let Some(member) = shared.members.table.get_mut(label) else { return };
        member.used = Use::By(client, self.serial);
        member.side.begin(self.asked.is_head, self.asked.is_upgrade);
        self.record.member = Some(member.address);
        self.record.phases.connect = now - self.record.began;
        self.stage = Stage::Joined(label);
        (self.joined, self.sent, self.progress) = (Some(now), None, now);
    }

    /// The member's connection has ended before any byte of a response. The request goes to another one, or
    /// is answered.
    pub(super) fn lost(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        let Some(label) = self.member() else { return Flow::Wait };
        let read = cx.ends.upstream(label).and_then(|end| end.bytes_read());
        let member = cx.shared.members.table.get(label);
        let (loss, server) = member.map_or((Loss::Maybe, None), |m| (m.side.loss(read), Some(m.server)));
        let may_repeat = match loss {
            Loss::Unread => true,
            Loss::Maybe => self.asked.is_idempotent,
            Loss::Answered => false,
        };
        let was_kept = self.record.reused;
        cx.shared.upstreams.stale += u64::from(was_kept);
        let has_tries = was_kept || self.tried < self.service.retries;
        if !may_repeat || self.body_touched || !has_tries || !down.is_awaited() {
            return self.fail(cx, down, Reason::MemberClosed);
        }
        self.part(cx, false);
        if !was_kept {
            self.tried += 1;
            self.failed = Some(Reason::MemberClosed);
            server.map(|server| self.excluded.insert(server));
        }
        self.fresh = true;
        (self.head_sent, self.replay_sent) = (0, 0);
        self.up.clear(&mut cx.shared.work.buffers);
        self.count_retry(cx.shared);
        self.ask(cx.now, cx.client, cx.shared);
        Flow::Moved
    }

    pub(super) fn count_retry(&self, shared: &mut Shared) {
        if let Some(served) = shared.services.get_mut(&self.service.number)
            && let Some(counters) = served.of_rule(&self.service, self.rule)
        {
            counters.retries += 1;
        }
    }
}

/// Returns whether a kept connection can carry a request: its member would get a new one, and has neither
/// ended this one nor sent anything.
fn is_usable(label: FlowLabel, ends: &mut impl Ends) -> bool {
    let is_wanted = ends.is_wanted(label);
    is_wanted
        && ends.upstream(label).is_some_and(|end| end.readable() == 0 && stream_end(&end) == StreamEnd::Open)
}
