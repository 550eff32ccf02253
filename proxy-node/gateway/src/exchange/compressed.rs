//! Responses that are compressed on their way to the client. What the cache stores is what the member has
//! sent; each client's response is compressed for itself.

use csp_cache::Object;
use csp_filters::compress::{Coding, rewrite};
use csp_http::body::Piece;
use csp_http::head::{Framing, HeadReader, Response, Scratch};
use csp_http::limits::{FIELDS_MAX, HEAD_LEN_MAX};
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::FlowLabel;

use super::{Exchange, Flow};
use crate::client::Downstream;
use crate::compressor::{Compressor, Places};
use crate::links::StreamId;
use crate::shared::{Cx, Shared};

/// Bytes that are compressed in one step, of which a connection has up to 64 in a turn: a millisecond.
const STEP: usize = 1 << 10;

/// What compression makes of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coded {
    /// It is sent as it is.
    No,
    /// So is this one, but another client's might be compressed.
    Varies,
    /// It is compressed, by this level.
    By((Coding, u8)),
}

impl Coded {
    /// Returns the framing of the body as its sender now frames it: its length is known no more.
    pub(super) fn source(self, source: Framing) -> Framing {
        if let Coded::By(_) = self { Framing::UntilClose } else { source }
    }

    pub(super) fn coding(self) -> Option<(Coding, u8)> {
        if let Coded::By(coding) = self { Some(coding) } else { None }
    }

    /// Changes a head of this length in its buffer, by way of `room`. Returns the new length; `None`: it is
    /// too long.
    pub(super) fn head(self, head: &mut [u8], len: usize, room: &mut Vec<u8>) -> Option<usize> {
        if self == Coded::No {
            return Some(len);
        }
        room.clear();
        rewrite(&head[..len], self.coding().map(|(coding, _)| coding), room);
        head.get_mut(..room.len())?.copy_from_slice(room);
        Some(room.len())
    }
}

impl Exchange {
    /// Returns whether a response is compressed whose body its sender frames so.
    pub(super) fn coded(&self, response: &Response<'_>, source: Framing, places: &Places) -> Coded {
        let filters = self.rule().map_or(&self.service.filters, |rule| &rule.filters);
        let Some(compress) = filters.compress.as_ref() else { return Coded::No };
        if response.status() == 304 {
            // As the response has it that it stands for (RFC 9110 §15.4.5), whose type is not known.
            return if compress.is_on() { Coded::Varies } else { Coded::No };
        }
        let len = if let Framing::Length(len) = source { Some(len) } else { None };
        if !compress.fits(response, len.filter(|_| !self.asked.is_head)) {
            return Coded::No;
        }
        if source == Framing::None || self.asked.is_head {
            return Coded::Varies;
        }
        match self.filtered.coding.filter(|_| places.has_room()) {
            Some(coding) => Coded::By(coding),
            None => Coded::Varies,
        }
    }

    /// As [`coded`](Self::coded), of a stored response.
    pub(super) fn coded_object(
        &self,
        object: &Object,
        framing: Framing,
        (scratch, places): (&mut Scratch, &Places),
    ) -> Coded {
        let filters = self.rule().map_or(&self.service.filters, |rule| &rule.filters);
        if filters.compress.is_none() {
            return Coded::No;
        }
        let (head_len_max, fields_max) = (HEAD_LEN_MAX, FIELDS_MAX);
        let limits = csp_http::Limits { head_len_max, fields_max, ..self.service.limits };
        match HeadReader::default().response(&[object.head()], true, &limits, scratch) {
            Ok(Some(response)) => self.coded(&response, framing, places),
            _ => Coded::No,
        }
    }

    /// Begins to compress the response whose head goes to the client.
    pub(super) fn compress_by(&mut self, coding: Option<(Coding, u8)>, shared: &Shared) {
        self.compressor = coding.map(|coding| Box::new(Compressor::new(coding, &shared.places)));
    }

    /// Returns whether only compressed bytes of a response are left.
    pub(super) fn is_ending(&self) -> bool {
        self.compressor.as_ref().is_some_and(|compressor| compressor.ends)
    }

    /// Processes a part of a response's body that is compressed. Trailers are dropped.
    pub(super) fn compressed_piece(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        label: FlowLabel,
        piece: Piece,
    ) -> Flow {
        let (len, is_payload) = match piece {
            Piece::Framing { len, .. } | Piece::Trailers(len) => (len, false),
            Piece::Payload(readable) => (readable.min(STEP), true),
            Piece::More | Piece::End => return Flow::Wait,
        };
        if is_payload && !self.send_compressed(cx, down) {
            return Flow::Wait;
        }
        let (Some(mut end), Some(compressor)) = (cx.ends.upstream(label), self.compressor.as_deref_mut())
        else {
            return Flow::Wait;
        };
        let mut consumed = len;
        if is_payload {
            let rule = self.rule.and_then(|at| self.service.rules().get(at));
            let cache = rule.and_then(|rule| rule.cache.as_ref());
            let mut storing = self.cache.as_deref_mut().filter(|state| state.is_storing());
            consumed = 0;
            for slice in end.peek(len) {
                if let Some(state) = storing.as_deref_mut() {
                    state.store(slice, cache, (cx.now, &mut cx.shared.work));
                }
                compressor.write(slice);
                consumed += slice.len();
            }
        }
        end.consume(consumed);
        drop(end);
        if (is_payload || matches!(piece, Piece::Trailers(_)))
            && let Some(member) = cx.shared.members.table.get_mut(label)
        {
            member.side.moved(consumed);
        }
        self.send_compressed(cx, down);
        Flow::Moved
    }

    /// The same of a stream of HTTP/2.
    pub(super) fn compressed_stream(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
    ) -> Flow {
        if !self.send_compressed(cx, down) {
            return Flow::Wait;
        }
        let Some(compressor) = self.compressor.as_deref_mut() else { return Flow::Wait };
        let Shared { links, work, .. } = &mut *cx.shared;
        let data = links.data(id);
        let data = &data[..data.len().min(STEP)];
        if let Some(state) = self.cache.as_deref_mut().filter(|state| state.is_storing()) {
            let rule = self.rule.and_then(|at| self.service.rules().get(at));
            state.store(data, rule.and_then(|rule| rule.cache.as_ref()), (cx.now, work));
        }
        compressor.write(data);
        let len = data.len();
        links.release(id, len);
        self.send_compressed(cx, down);
        Flow::Moved
    }

    /// The same of a stored body. Returns the number of bytes that were taken.
    pub(super) fn compressed_stored(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        piece: &[u8],
    ) -> usize {
        if !self.send_compressed(cx, down) {
            return 0;
        }
        let Some(compressor) = self.compressor.as_deref_mut() else { return 0 };
        let piece = &piece[..piece.len().min(STEP)];
        compressor.write(piece);
        self.send_compressed(cx, down);
        piece.len()
    }

    /// The member says nothing at the moment: the client gets all that it has said.
    pub(super) fn flush_compressed(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
    ) -> Flow {
        match self.compressor.as_deref_mut().is_some_and(Compressor::flush) {
            true => {
                self.send_compressed(cx, down);
                Flow::Moved
            }
            false if self.compressor.as_ref().is_some_and(|of| !of.waiting().is_empty()) => {
                self.send_compressed(cx, down);
                Flow::Wait
            }
            false => Flow::Wait,
        }
    }

    /// Ends the body. Returns whether all of it has gone to the client.
    pub(super) fn finish_compressed(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
    ) -> bool {
        self.compressor.iter_mut().for_each(|compressor| compressor.finish());
        self.send_compressed(cx, down)
    }

    /// Sends what has come out. Returns whether nothing waits any more.
    fn send_compressed(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> bool {
        let (Some(compressor), Some(framer)) = (self.compressor.as_deref_mut(), &mut self.down_framer) else {
            return true;
        };
        while !compressor.waiting().is_empty() {
            let work = &mut cx.shared.work;
            let len = framer.permits(compressor.waiting().len(), down.out(), &mut work.buffers);
            if !down.flush(cx.ends, &mut work.buffers) {
                return false;
            }
            let written = down.write(cx.ends, &compressor.waiting()[..len]);
            framer.passed(written);
            compressor.sent(written);
            if written == 0 {
                return false;
            }
            self.progress = cx.now;
        }
        true
    }
}
