//! The byte streams of a client's connection of HTTP/1.1, as an exchange uses them.

use csp_http::exchange::{After, ClientSide, Plan};
use csp_http::head::Framing;
use csp_http::{Limits, Refusal};
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::upstream::Ends;
use csp_types::FlowLabel;

use crate::client::Downstream;
use crate::out::{Buffers, Out};
use crate::shared::{Slices, Work};

/// The connection's byte streams.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) label: FlowLabel,
    pub(super) side: ClientSide,
    pub(super) out: Out,
    pub(super) carry: Carry,
    pub(super) limits: Limits,
    /// What follows the response, once it is written.
    pub(super) after: Option<After>,
}

/// Bytes that were taken out of the connection before they could be used, in front of the readable ones.
#[derive(Debug, Default)]
pub(super) struct Carry {
    bytes: Vec<u8>,
    at: usize,
    /// What the worker counts of them.
    counted: usize,
}

impl Carry {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes, if there are any.
    pub(super) fn slice(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.at..]).filter(|bytes| !bytes.is_empty())
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, slices: &[&[u8]], work: &mut Work) {
        if self.bytes.capacity() == 0 {
            self.bytes = work.buffers.take();
        }
        for slice in slices {
            self.bytes.extend_from_slice(slice);
            self.counted += slice.len();
            work.carried += slice.len();
        }
    }

    /// Removes up to `len` bytes; returns how many.
    fn consume(&mut self, len: usize) -> usize {
        let len = len.min(self.len());
        self.at += len;
        len
    }

    /// Releases the memory if no bytes are left.
    pub(super) fn settle(&mut self, work: &mut Work) {
        if self.len() == 0 {
            self.clear(work);
        }
    }

    /// Removes and returns the bytes.
    pub(super) fn take(&mut self, work: &mut Work) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..self.at);
        self.clear(work);
        bytes
    }

    /// Drops the bytes.
    pub(super) fn clear(&mut self, work: &mut Work) {
        work.carried = work.carried.saturating_sub(std::mem::take(&mut self.counted));
        self.at = 0;
        work.buffers.give(std::mem::take(&mut self.bytes));
    }
}

impl Downstream for Stream {
    fn interim(&mut self, status: u16) -> bool {
        self.side.interim(status)
    }

    fn respond(&mut self, framing: Framing, closes: bool) -> Option<Plan> {
        if closes {
            self.side.close_after_exchange();
        }
        self.side.respond(framing)
    }

    fn refuse(&mut self, framing: Framing) -> Option<Plan> {
        self.side.refuse(framing, &self.limits)
    }

    fn switched(&mut self) -> Result<(), Refusal> {
        self.side.switched()
    }

    fn is_awaited(&self) -> bool {
        self.side.is_awaited()
    }

    fn awaits_continue(&self) -> bool {
        self.side.awaits_continue()
    }

    fn moved(&mut self, len: usize) {
        self.side.moved(len);
    }

    fn consume(&mut self, ends: &mut impl Ends, len: usize) {
        let len = len - self.carry.consume(len);
        if let Some(mut end) = ends.client(self.label).filter(|_| len > 0) {
            end.consume(len);
        }
    }

    fn copy(&mut self, ends: &mut impl Ends, len: usize, room: &mut Vec<u8>) {
        let carried = self.carry.slice().unwrap_or_default();
        let carried = &carried[..carried.len().min(len)];
        room.extend_from_slice(carried);
        if let Some(mut end) = ends.client(self.label) {
            end.peek(len - carried.len()).for_each(|slice| room.extend_from_slice(slice));
        }
    }

    fn pass_request(&mut self, ends: &mut impl Ends, to: FlowLabel, len: usize) -> usize {
        ends.splice(self.label, to, len)
    }

    fn take_request(
        &mut self,
        ends: &mut impl Ends,
        len: usize,
        take: &mut dyn FnMut(&[u8]) -> usize,
    ) -> usize {
        let Some(mut end) = ends.client(self.label) else { return 0 };
        let slices = Slices::of(end.peek(len));
        let mut taken = 0;
        for slice in slices.get() {
            let of_slice = take(slice);
            taken += of_slice;
            if of_slice < slice.len() {
                break;
            }
        }
        drop(slices);
        end.consume(taken);
        taken
    }

    fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    fn head(&mut self, ends: &mut impl Ends, text: &[u8], _: bool, buffers: &mut Buffers) -> bool {
        self.out.push(text, buffers);
        self.flush(ends, buffers);
        true
    }

    fn trailers(&mut self, _: &[u8]) {}

    fn flush(&mut self, ends: &mut impl Ends, buffers: &mut Buffers) -> bool {
        if self.out.is_empty() {
            return true;
        }
        let Some(mut end) = ends.client(self.label) else { return false };
        let written = end.write(self.out.waiting(), None);
        self.out.written(written, buffers);
        if !self.out.is_empty() {
            end.call_again();
        }
        self.out.is_empty()
    }

    fn pass_response(&mut self, ends: &mut impl Ends, from: FlowLabel, len: usize) -> usize {
        let moved = ends.splice(from, self.label, len);
        // A connection of TLS says nothing of room by itself.
        if moved < len
            && let Some(mut end) = ends.client(self.label)
        {
            end.call_again();
        }
        moved
    }

    fn write(&mut self, ends: &mut impl Ends, payload: &[u8]) -> usize {
        let Some(mut end) = ends.client(self.label) else { return 0 };
        let written = end.write(payload, None);
        if written < payload.len() {
            end.call_again();
        }
        written
    }

    fn end(&mut self) {
        self.after = Some(self.side.response_end(&self.limits));
    }

    fn cut(&mut self) {
        self.after = Some(self.side.response_cut(&self.limits));
    }
}
