//! Processing of segments that arrive for a connection, in the order of RFC 9293 §3.10.7.

mod ack;
mod data;
mod full_sized;
mod handshake;
mod validate;

pub(crate) use data::HoleAcks;
pub(crate) use full_sized::ShortSegment;

use csp_types::Instant;
use csp_wire::tcp::{Flags, Options, Segment};

use crate::api::{Arrival, DropReason, State};
use crate::blocks::Place;
use crate::seq::Seq;
use crate::tcb::{Context, Tcb};

/// A parsed segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    /// The segment is a SYN, whose window field is not scaled (RFC 7323 §2.2).
    pub unscaled: bool,
    pub options: Options,
    pub payload: &'a [u8],
    /// Location of the payload in the block pool; `None` if it lies elsewhere.
    pub place: Option<Place>,
    /// When the network node received it.
    pub ingress: Instant,
    /// The ECN field of its IP header.
    pub ecn: u8,
    /// See [`Arrival::segment_size`].
    pub segment_size: u16,
}

impl<'a> Incoming<'a> {
    pub fn read(segment: &Segment<'_>, payload: &'a [u8], arrival: &Arrival) -> Self {
        Incoming {
            seq: Seq(segment.seq()),
            ack: Seq(segment.ack()),
            flags: segment.flags(),
            window: segment.window(),
            unscaled: segment.flags().syn(),
            options: segment.options(),
            payload,
            place: None,
            ingress: arrival.ingress,
            ecn: arrival.ecn,
            segment_size: arrival.segment_size,
        }
    }

    /// SEG.LEN: the sequence numbers that the segment occupies, SYN and FIN included (RFC 9293 §3.4).
    pub fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.flags.syn()) + u32::from(self.flags.fin())
    }

    /// SEG.WND in bytes; `shift` is the sender's window scale.
    pub fn window_bytes(&self, shift: u8) -> u32 {
        u32::from(self.window) << if self.unscaled { 0 } else { shift }
    }

    /// Location in the block pool of `part`, a subslice of the payload.
    pub fn place_of(&self, part: &[u8], block_len: usize) -> Option<Place> {
        let offset = (part.as_ptr() as usize).checked_sub(self.payload.as_ptr() as usize)?;
        self.place.map(|place| place.plus(offset as u32, block_len))
    }

    /// The sequence number after the segment's last one.
    pub fn end(&self) -> Seq {
        self.seq.plus(self.len())
    }
}

/// Why a segment had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reject {
    pub reason: DropReason,
    /// The caller must reply with a RST to the segment; the connection is unchanged.
    pub reset: bool,
}

impl From<DropReason> for Reject {
    fn from(reason: DropReason) -> Self {
        Reject { reason, reset: false }
    }
}

impl Tcb {
    /// Processes a segment of this connection.
    pub fn on_segment(&mut self, cx: &mut Context<'_>, segment: Incoming<'_>) -> Result<(), Reject> {
        match self.state {
            State::SynSent => self.on_segment_syn_sent(cx, &segment),
            State::Done => Err(DropReason::NoConnection.into()),
            _ => self.on_segment_synchronised(cx, segment),
        }
    }

    fn on_segment_synchronised(
        &mut self,
        cx: &mut Context<'_>,
        mut segment: Incoming<'_>,
    ) -> Result<(), Reject> {
        if segment.flags.rst() {
            return self.process_rst(cx, &segment);
        }
        let seq = segment.seq;
        if self.state == State::SynReceived && segment.flags.syn() && seq == self.irs {
            if !segment.flags.ack() {
                // A retransmitted SYN: our SYN/ACK is sent again.
                self.renegotiate_ecn(&segment);
                self.syn_due = true;
                self.maybe_transmit = true;
                return Ok(());
            }
            // Simultaneous open: only the acknowledgement of the SYN/ACK is new (RFC 9293 §3.5).
            segment.flags = Flags(segment.flags.0 & !Flags::SYN.0);
            segment.seq = segment.seq.plus(1);
        }
        self.validate(cx, &segment)?;
        self.last_received = cx.now;
        self.keepalive_probes = 0;
        if self.state == State::SynReceived {
            self.complete_handshake(cx, &segment)?;
        }
        self.process_ecn(cx, &segment);
        self.process_ack(cx, &segment)?;
        // TS.Recent is updated only now, because a segment with an unacceptable acknowledgement must have no
        // effect. It is updated before the state is checked, because TIME-WAIT inherits it.
        self.update_ts_recent(cx, seq, &segment.options);
        if self.state == State::Done {
            return Ok(());
        }
        let result = self.process_data(cx, &segment);
        if self.state == State::Resetting {
            self.continue_reset(cx);
        }
        result
    }
}
