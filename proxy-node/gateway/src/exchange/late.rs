//! What an exchange does that has taken too long.

use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};

use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::client::Downstream;
use crate::shared::Cx;

impl Exchange {
    /// Ends an exchange whose [deadline](Self::deadline) has passed. `readable`: bytes of the client that are
    /// not read.
    pub(crate) fn overdue(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        readable: usize,
    ) -> Flow {
        if self.stage == Stage::Shared && cx.now < self.total_deadline() {
            return self.look_again(cx);
        }
        let reason = self.blame(cx, down, readable);
        self.fail(cx, down, reason)
    }

    /// Returns who has kept the exchange waiting.
    fn blame(&self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream, readable: usize) -> Reason {
        let is_total = self.total_deadline() <= cx.now;
        match self.stage {
            Stage::Joined(_) | Stage::Stream(_) => {}
            Stage::Stored if !is_total => return Reason::ClientStalled,
            Stage::Tunnel(_) => return Reason::TunnelIdle,
            Stage::Waiting if !is_total => return Reason::ConnectTimeout,
            Stage::New | Stage::Opening | Stage::Waiting | Stage::Shared | Stage::Stored => {
                return Reason::TotalTimeout;
            }
        }
        if is_total {
            return Reason::TotalTimeout;
        }
        match self.down_framer {
            None if self.sent.is_some() => Reason::ResponseTimeout,
            // The client still owes a part of its request, and nobody else keeps it from sending that.
            None if self.takes_request() && readable == 0 && !down.awaits_continue() => Reason::BodyTimeout,
            None => Reason::MemberStalled,
            Some(_) => {
                let waits_for_client = match self.stage {
                    Stage::Joined(label) => cx.ends.upstream(label).is_some_and(|end| end.readable() > 0),
                    Stage::Stream(id) => !cx.shared.links.data(id).is_empty(),
                    _ => false,
                };
                let is_compressed = self.compressor.as_ref().is_some_and(|of| !of.waiting().is_empty());
                if waits_for_client || is_compressed || !down.out().is_empty() {
                    Reason::ClientStalled
                } else {
                    Reason::MemberStalled
                }
            }
        }
    }

    /// Returns whether it has become a tunnel.
    pub(crate) fn was_tunnel(&self) -> bool {
        self.record.status == 101
    }
}
