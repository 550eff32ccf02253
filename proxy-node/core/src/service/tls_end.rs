//! The client's end of a flow over TLS.

use std::sync::Arc;

use csp_tcp::{Buffer, Stack, State};
use csp_tls::ClientIdentity;
use csp_types::{FlowLabel, Instant};

use super::ClientEnd;
use crate::tls::Sessions;

/// A connection of the TCP engine with a session. All numbers are of plaintext.
#[derive(Debug)]
pub struct TlsEnd<'a> {
    pub(crate) now: Instant,
    pub(crate) label: FlowLabel,
    pub(crate) tcp: &'a mut Stack,
    pub(crate) tls: &'a mut Sessions,
}

impl ClientEnd for TlsEnd<'_> {
    fn readable(&self) -> usize {
        self.tls.held(self.label).0
    }

    /// Those of one record.
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        let plaintext = self.tls.get_mut(self.label).map_or(&[][..], |secured| secured.session.plaintext());
        let first = &plaintext[..plaintext.len().min(max)];
        Some(first).filter(|slice| !slice.is_empty()).into_iter()
    }

    fn consume(&mut self, len: usize) {
        if let Some(secured) = self.tls.get_mut(self.label) {
            secured.session.consume(len);
            secured.advance(self.tcp, self.now);
        }
    }

    fn is_finished(&self) -> bool {
        self.tls.get(self.label).is_none_or(|secured| secured.session.is_closed_by_peer())
    }

    fn protocol(&self) -> Option<&[u8]> {
        self.tls.get(self.label)?.session.protocol()
    }

    fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        self.tls.get(self.label)?.session.identity()
    }

    fn write(&mut self, bytes: &[u8], _: Option<&Buffer>) -> usize {
        let taken = bytes.len().min(self.room());
        if let Some(secured) = self.tls.get_mut(self.label).filter(|_| taken > 0) {
            secured.session.write(&bytes[..taken]);
            self.tls.flush_later(self.label);
        }
        taken
    }

    fn room(&self) -> usize {
        self.tls.room(self.tcp, self.label)
    }

    fn unacknowledged(&self) -> u32 {
        self.tls.unacknowledged(self.tcp, self.label)
    }

    fn useful_window(&self) -> u32 {
        let cwnd = self.tcp.info(self.label).map_or(0, |info| info.cwnd);
        cwnd.saturating_mul(2).min(self.tcp.config().send_buffer_max)
    }

    fn set_window(&mut self, window: u32) {
        self.tcp.set_send_capacity(self.label, window);
        if let Some(secured) = self.tls.get_mut(self.label) {
            secured.window = window;
        }
    }

    fn is_over(&self) -> bool {
        self.tcp.info(self.label).is_none_or(|info| info.state == State::Done)
    }

    fn unsent(&self) -> usize {
        self.tcp.unsent(self.label) + self.tls.held(self.label).1
    }

    fn call_again(&mut self) {
        self.tcp.report_writable(self.label);
    }
}
