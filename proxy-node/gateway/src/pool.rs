//! Connections to members: those that are in use, and those that are kept, by pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use csp_http::exchange::{MemberSide, StreamEnd};
use csp_proxy_core::ServerHost;
use csp_proxy_core::service::upstream::{Ended, ServerId, UpstreamEnd};
use csp_types::{FlowLabel, Instant};

use crate::table::Table;
use crate::timers::{Armed, Timers};

/// A pool of a policy, by the order of first use at this worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolId {
    at: u32,
    /// The policy. Connections that were asked for under an older one are not kept.
    epoch: u32,
}

impl PoolId {
    /// Returns its position among the pools of the policy with this number; `None`: it is of another one.
    pub(crate) fn index_of(self, epoch: u32) -> Option<usize> {
        self.is_of(epoch).then_some(self.at as usize)
    }

    /// Returns whether it is of the policy with this number.
    pub(crate) fn is_of(self, epoch: u32) -> bool {
        self.epoch == epoch
    }
}

/// What a connection to a member is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// For the exchange of this client's connection with this serial number.
    By(FlowLabel, u32),
    /// It is kept for later requests.
    Kept {
        /// When it is closed.
        until: Instant,
    },
    /// It is to be closed: both sides have finished.
    Finished,
    /// It is to be reset, or was ended.
    Doomed,
}

/// A connection to a member.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) side: MemberSide,
    pub(crate) server: ServerId,
    pub(crate) address: (ServerHost, u16),
    pub(crate) used: Use,
    /// How the core has removed it while an exchange used it.
    pub(crate) gone: Option<Ended>,
    pub(crate) armed: Armed,
    pool: PoolId,
}

/// All connections to members of a worker.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) table: Table<Member>,
    names: HashMap<Arc<str>, PoolId>,
    /// Kept connections of each pool; the last one was used last.
    kept: Vec<VecDeque<FlowLabel>>,
    kept_count: usize,
    /// The pools of requests, by token, for which no member has a place.
    waiting: HashMap<u64, PoolId>,
    /// Their number by pool.
    waiting_of: Vec<u32>,
    epoch: u32,
}

impl Members {
    /// Returns the pool of this name.
    pub(crate) fn pool(&mut self, name: &Arc<str>) -> PoolId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = PoolId { at: self.kept.len() as u32, epoch: self.epoch };
        self.names.insert(Arc::clone(name), id);
        self.kept.push(VecDeque::new());
        self.waiting_of.push(0);
        id
    }

    /// Inserts a connection that was opened for a client's exchange.
    pub(crate) fn insert(
        &mut self,
        label: FlowLabel,
        pool: PoolId,
        (server, address): (ServerId, (ServerHost, u16)),
        (client, serial): (FlowLabel, u32),
    ) {
        let member = Member {
            side: MemberSide::default(),
            server,
            address,
            used: Use::By(client, serial),
            gone: None,
            armed: Armed::default(),
            pool,
        };
        self.table.insert(label, member);
    }

    /// Removes and returns the kept connection that was idle longest: all of them have their turn, and with
    /// them their members.
    pub(crate) fn take_kept(&mut self, pool: PoolId) -> Option<FlowLabel> {
        let label = self.kept.get_mut(pool.at as usize).filter(|_| pool.epoch == self.epoch)?.pop_front()?;
        self.kept_count -= 1;
        Some(label)
    }

    /// As [`take_kept`](Self::take_kept), of those to processes for which `is_fit` returns true.
    pub(crate) fn take_kept_of_process(
        &mut self,
        pool: PoolId,
        mut is_fit: impl FnMut(FlowLabel) -> bool,
    ) -> Option<FlowLabel> {
        let of_process = |label: &FlowLabel| {
            self.table.get(*label).is_some_and(|member| matches!(member.address.0, ServerHost::Node(_)))
        };
        let kept = self.kept.get_mut(pool.at as usize).filter(|_| pool.epoch == self.epoch)?;
        let label = kept.remove(kept.iter().position(|label| of_process(label) && is_fit(*label))?)?;
        self.kept_count -= 1;
        Some(label)
    }

    /// Keeps a connection whose exchange has ended, if it belongs to the present policy and no request waits
    /// for its place. Returns `false` if the caller has to end it.
    pub(crate) fn keep(
        &mut self,
        label: FlowLabel,
        until: Instant,
        most: usize,
        timers: &mut Timers,
    ) -> bool {
        let Some(member) = self.table.get_mut(label) else { return false };
        let Some(kept) = self.kept.get_mut(member.pool.at as usize) else { return false };
        let is_awaited = self.waiting_of.get(member.pool.at as usize).is_some_and(|count| *count > 0);
        if member.pool.epoch != self.epoch || kept.len() >= most || is_awaited {
            return false;
        }
        member.side.release();
        member.used = Use::Kept { until };
        timers.arm(label, &mut member.armed, Some(until));
        kept.push_back(label);
        self.kept_count += 1;
        true
    }

    /// Removes and returns the kept connection that was idle longest, which the caller resets.
    pub(crate) fn evict(&mut self) -> Option<FlowLabel> {
        let oldest = self.kept.iter().filter_map(|kept| kept.front().copied());
        let label = oldest.min_by_key(|label| match self.table.get(*label).map(|member| member.used) {
            Some(Use::Kept { until }) => until,
            _ => Instant::ZERO,
        })?;
        self.discard(label);
        Some(label)
    }

    /// Records that the request with this token waits for a place at a member of a pool. Removes and returns
    /// the kept connection that has such a place and was idle longest, which the caller closes.
    pub(crate) fn waits(&mut self, token: u64, name: &Arc<str>) -> Option<FlowLabel> {
        let pool = self.pool(name);
        if self.waiting.insert(token, pool).is_none()
            && let Some(count) = self.waiting_of.get_mut(pool.at as usize)
        {
            *count += 1;
        }
        let label = self.take_kept(pool)?;
        if let Some(member) = self.table.get_mut(label) {
            member.used = Use::Finished;
        }
        Some(label)
    }

    /// Records that the request with this token does not wait any more.
    pub(crate) fn waits_no_more(&mut self, token: u64) {
        let Some(pool) = self.waiting.remove(&token).filter(|pool| pool.epoch == self.epoch) else { return };
        if let Some(count) = self.waiting_of.get_mut(pool.at as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// Removes a kept connection from its pool.
    pub(crate) fn discard(&mut self, label: FlowLabel) {
        let Some(member) = self.table.get_mut(label) else { return };
        if let Use::Kept { .. } = member.used {
            member.used = Use::Doomed;
            let Some(kept) = self.kept.get_mut(member.pool.at as usize) else { return };
            if let Some(at) = kept.iter().rposition(|known| *known == label) {
                kept.remove(at);
                self.kept_count -= 1;
            }
        }
    }

    /// Begins another policy: connections of the one before are kept no longer. Returns those that are idle,
    /// for the caller to close.
    pub(crate) fn renew(&mut self) -> Vec<FlowLabel> {
        self.epoch = self.epoch.wrapping_add(1);
        self.names.clear();
        let idle: Vec<FlowLabel> = self.kept.drain(..).flatten().collect();
        self.kept_count = 0;
        self.waiting_of.clear();
        for label in &idle {
            if let Some(member) = self.table.get_mut(*label) {
                member.used = Use::Finished;
            }
        }
        idle
    }

    /// Returns the number of the policy.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the number of kept connections.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept_count
    }
}

/// Returns whether further bytes follow the readable ones.
pub(crate) fn stream_end(end: &impl UpstreamEnd) -> StreamEnd {
    match end.ended() {
        Some(how) => ended(how),
        None if end.is_finished() => StreamEnd::Finished,
        None => StreamEnd::Open,
    }
}

/// Returns what the end of a connection says of its bytes.
pub(crate) fn ended(how: Ended) -> StreamEnd {
    match how {
        Ended::Closed => StreamEnd::Finished,
        Ended::Reset | Ended::ByService => StreamEnd::Lost,
    }
}
