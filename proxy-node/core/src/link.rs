//! The output link, which the core owns: byte streams and local services are its clients.
//!
//! ```text
//!   engine ─ next_wanting ─▶ ┌────────────┐ ─ next_allowed ─▶ engine: allow
//!                            │ OutputLink │
//!   local services ─ offer ─▶└────────────┘ ─ transmit ─────▶ local services: to their receivers
//! ```
//! While no information flows share the link, everything is sent at once.

use csp_quality::{Fired, FlowStatus, LinkStatus, OutputLink, SharedLinkConfig, TriggerError};
use csp_types::{FlowLabel, Instant};

use super::context::Turn;
use super::flow::Stage;
use super::service::local::LocalServices;
use super::{ProxyCore, ProxyOutput};

impl<S: LocalServices> ProxyCore<S> {
    /// Shares the output link among information flows; `None` ends the sharing. Starts or stops metering all
    /// byte streams. Takes effect with the next [`drive`](Self::drive).
    ///
    /// # Errors
    /// As for [`OutputLink::share`].
    pub fn set_link(&mut self, now: Instant, config: Option<SharedLinkConfig>) -> Result<(), TriggerError> {
        let before = self.link.is_shared();
        let done = match config {
            Some(config) => self.link.share(now, config),
            None => {
                self.local.unshare(now, &mut self.link);
                Ok(())
            }
        };
        let metered = self.link.is_shared();
        if metered != before {
            for flow in self.flows.newest().filter(|flow| flow.stage != Stage::Local) {
                self.tcp.set_metered(now, flow.label, metered);
            }
        }
        done
    }

    /// Sets the clock that measures the costs of handlers for information flows.
    pub fn set_link_clock(&mut self, clock: fn() -> Instant) {
        self.link.set_clock(Some(clock));
    }

    /// Returns the output link, read-only.
    pub fn link(&self) -> &OutputLink {
        &self.link
    }

    /// Returns the state of the output link and of its information flows; `None` if it is not shared.
    pub fn link_status(&mut self, now: Instant) -> Option<(LinkStatus, Vec<FlowStatus>)> {
        self.link.status(now)
    }

    /// Returns the next change of a trigger of information flows, with its name.
    pub fn next_fired(&mut self) -> Option<(String, Fired)> {
        self.link.next_fired()
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Announces to the output link the byte streams that could send, and allows them the bytes that the link
    /// grants. Returns whether a stream may send more.
    pub(super) fn share_link(&mut self) -> bool {
        let now = self.cx.now;
        let Some(shared) = self.link.shared_mut() else { return false };
        while let Some(label) = self.cx.tcp.next_withdrawn() {
            shared.end_stream(label);
        }
        while let Some((label, tuple, bytes)) = self.cx.tcp.next_wanting() {
            shared.want_bytes(now, label, tuple, bytes);
        }
        self.local.release(now, self.link);
        let mut any = false;
        while let Some((label, bytes)) = self.link.next_allowed() {
            any |= self.cx.tcp.allow(now, label, bytes);
        }
        any
    }

    /// Meters a new byte stream, if information flows share the output link.
    pub(super) fn meter(&mut self, label: FlowLabel) {
        if self.link.is_shared() {
            self.cx.tcp.set_metered(self.cx.now, label, true);
        }
    }
}
