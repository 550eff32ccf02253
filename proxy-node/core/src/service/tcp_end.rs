//! The client's end of a flow over TCP.

use csp_tcp::{Buffer, Direction, Stack, State};
use csp_types::{FlowLabel, Instant};

use super::ClientEnd;

/// A connection of the TCP engine.
#[derive(Debug)]
pub struct TcpEnd<'a> {
    pub(crate) now: Instant,
    pub(crate) label: FlowLabel,
    pub(crate) finished: bool,
    pub(crate) tcp: &'a mut Stack,
}

impl ClientEnd for TcpEnd<'_> {
    #[inline]
    fn readable(&self) -> usize {
        self.tcp.readable(self.label)
    }

    #[inline]
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        self.tcp.peek(self.label, max)
    }

    #[inline]
    fn consume(&mut self, len: usize) {
        self.tcp.consume(self.now, self.label, len);
    }

    #[inline]
    fn is_finished(&self) -> bool {
        self.finished
    }

    #[inline]
    fn write(&mut self, bytes: &[u8], buffer: Option<&Buffer>) -> usize {
        match buffer {
            Some(buffer) => self.tcp.write_in(self.now, self.label, bytes, buffer),
            None => self.tcp.write(self.now, self.label, bytes),
        }
    }

    fn lend(&mut self) -> Option<Buffer> {
        self.tcp.lend(Direction::Send)
    }

    fn give_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        self.tcp.give_back(buffer);
        None
    }

    #[inline]
    fn room(&self) -> usize {
        self.tcp.writable(self.label)
    }

    /// After the end of the connection, all bytes of the window: room is not advertised if nothing can be
    /// sent from it.
    #[inline]
    fn unacknowledged(&self) -> u32 {
        self.tcp.info(self.label).map_or(0, |info| match info.state {
            State::Done => u32::MAX,
            _ => info.send_queue as u32,
        })
    }

    /// Twice the congestion window: one in flight, and one available when acknowledgements permit more.
    fn useful_window(&self) -> u32 {
        let cwnd = self.tcp.info(self.label).map_or(0, |info| info.cwnd);
        cwnd.saturating_mul(2).min(self.tcp.config().send_buffer_max)
    }

    fn set_window(&mut self, window: u32) {
        self.tcp.set_send_capacity(self.label, window);
    }

    fn is_over(&self) -> bool {
        self.tcp.info(self.label).is_none_or(|info| info.state == State::Done)
    }

    fn unsent(&self) -> usize {
        self.tcp.unsent(self.label)
    }

    fn call_again(&mut self) {
        self.tcp.report_writable(self.label);
    }
}
