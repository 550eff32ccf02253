//! The connection to a member of a pool.

use super::{StreamEnd, readable};
use crate::body::{BodyReader, Piece};
use crate::fault::{Fault, Refusal};
use crate::head::{Framing, HeadReader, Response, Scratch};
use crate::limits::{INTERIM_MAX, Limits};
use crate::name::Name;

/// What the readable bytes of a member are.
#[derive(Clone, Copy, Debug)]
pub enum FromMember<'a> {
    /// More bytes are needed.
    More,
    /// An interim response (1xx but 101). The caller forwards it if the client takes it, consumes
    /// [`Response::head_len`] bytes and calls [`MemberSide::accept`].
    Interim(Response<'a>),
    /// The final response, or 101. The caller forwards the head, consumes it and calls
    /// [`MemberSide::accept`]. Until then the head is returned again.
    Response(Response<'a>),
    /// A part of the response's body: never [`Piece::More`] or [`Piece::End`].
    Body(Piece),
    /// The response is complete. Returned once, also for a response without a body.
    ResponseEnd,
    /// This many bytes belong to the protocol after the upgrade.
    Tunnel(usize),
    /// The member has ended its direction of the tunnel.
    TunnelEnd,
    /// The member has ended the connection before any byte of a response: see [`MemberSide::loss`].
    Unanswered,
    /// The member has ended a connection without a request.
    Closed,
}

/// What a lost connection means for its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The member has provably read nothing of the request: any request may go to another member.
    Unread,
    /// The member may have processed the request: it may be sent again if its method is idempotent.
    Maybe,
    /// The member has begun to answer, perhaps by 1xx: the request is not sent again.
    Answered,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Head(HeadReader),
    Body(BodyReader),
    Complete,
    Tunnel,
}

/// The connection to a member of a pool.
#[derive(Clone, Copy, Debug)]
pub struct MemberSide {
    state: State,
    is_head: bool,
    is_upgrade: bool,
    request_complete: bool,
    answered: bool,
    interim: u8,
    /// Whether the member lets the connection be kept.
    keep: bool,
    /// Bytes sent to the member on this connection, and how many of them before this request.
    sent: u64,
    sent_before: u64,
    requests: u32,
}

impl Default for MemberSide {
    fn default() -> Self {
        MemberSide {
            state: State::Idle,
            is_head: false,
            is_upgrade: false,
            request_complete: false,
            answered: false,
            interim: 0,
            keep: true,
            sent: 0,
            sent_before: 0,
            requests: 0,
        }
    }
}

impl MemberSide {
    /// Begins a request. `is_head`: of the method HEAD; `is_upgrade`: forwarded with `Upgrade`.
    pub fn begin(&mut self, is_head: bool, is_upgrade: bool) {
        *self = MemberSide {
            state: State::Head(HeadReader::default()),
            is_head,
            is_upgrade,
            keep: true,
            sent: self.sent,
            sent_before: self.sent,
            requests: self.requests.saturating_add(1),
            ..MemberSide::default()
        };
    }

    /// Reports that `len` bytes of the request were handed to the connection.
    pub fn sent(&mut self, len: usize) {
        self.sent = self.sent.saturating_add(len as u64);
    }

    /// Reports that all of the request was handed to the connection.
    pub fn request_end(&mut self) {
        self.request_complete = true;
    }

    /// Examines the readable bytes. After an error the caller resets the connection; the client gets 502, or
    /// its response is cut.
    pub fn read<'a>(
        &mut self,
        slices: &[&'a [u8]],
        end: StreamEnd,
        limits: &Limits,
        scratch: &'a mut Scratch,
    ) -> Result<FromMember<'a>, Refusal> {
        match &mut self.state {
            State::Idle | State::Complete => match readable(slices) {
                0 if end.is_end() => Ok(FromMember::Closed),
                0 => Ok(FromMember::More),
                _ => Err(Refusal::whole(Fault::Unasked)),
            },
            State::Head(_) if end.is_end() && readable(slices) == 0 => Ok(FromMember::Unanswered),
            State::Head(reader) => {
                let response = reader.response(slices, end.is_end(), limits, scratch)?;
                let Some(response) = response else {
                    return match end.is_end() {
                        // Nothing but empty lines.
                        true => Err(Refusal::whole(Fault::TruncatedHead)),
                        false => Ok(FromMember::More),
                    };
                };
                self.head(response)
            }
            State::Body(body) => {
                // Only FIN says that a body without a length is whole.
                let piece = match end {
                    StreamEnd::Lost if readable(slices) == 0 && !body.is_done() => Err(Fault::TruncatedBody),
                    _ => body.next(slices, end.is_end(), limits),
                };
                Ok(match piece.map_err(Refusal::whole)? {
                    Piece::More => FromMember::More,
                    Piece::End => {
                        self.state = State::Complete;
                        FromMember::ResponseEnd
                    }
                    piece => FromMember::Body(piece),
                })
            }
            State::Tunnel => Ok(match readable(slices) {
                0 if end.is_end() => FromMember::TunnelEnd,
                0 => FromMember::More,
                readable => FromMember::Tunnel(readable),
            }),
        }
    }

    fn head<'a>(&self, response: Response<'a>) -> Result<FromMember<'a>, Refusal> {
        if response.is_interim() {
            return match self.interim < INTERIM_MAX {
                true => Ok(FromMember::Interim(response)),
                false => Err(Refusal::whole(Fault::TooManyInterim)),
            };
        }
        // RFC 9110 §15.2.2, §7.8.
        if response.status() == 101 && !(self.is_upgrade && response.is_upgrade()) {
            return Err(Refusal::at(Fault::UnexpectedSwitch, 1));
        }
        Ok(FromMember::Response(response))
    }

    /// Continues behind a head that the caller has consumed.
    pub fn accept(&mut self, response: &Response<'_>) {
        if response.is_interim() {
            self.interim = self.interim.saturating_add(1);
            self.state = State::Head(HeadReader::default());
            return;
        }
        self.answered = true;
        let framing = response.framing(self.is_head);
        // A member that frames a body where none may be would have it read as the next response.
        let is_coded = response.fields().any(|field| field.known == Name::TransferEncoding);
        let has_length = response.content_length().is_some_and(|len| len > 0);
        let is_bodied_204 = response.status() == 204 && (is_coded || has_length);
        self.keep = response.is_persistent() && framing != Framing::UntilClose && !is_bodied_204;
        self.state = match response.status() {
            101 => State::Tunnel,
            _ => State::Body(BodyReader::new(framing)),
        };
    }

    /// Reports that the caller has consumed `len` bytes of payload or trailers.
    pub fn moved(&mut self, len: usize) {
        if let State::Body(body) = &mut self.state {
            body.moved(len);
        }
    }

    /// Returns what the end of the connection means for its request. `read`: how many bytes of the connection
    /// the member's process has read, if it has reported that.
    pub fn loss(&self, read: Option<u64>) -> Loss {
        if self.answered || self.interim > 0 {
            Loss::Answered
        } else if self.sent == self.sent_before || read.is_some_and(|read| read <= self.sent_before) {
            Loss::Unread
        } else {
            Loss::Maybe
        }
    }

    /// Returns whether the connection can carry another request: both messages are complete, the member keeps
    /// it, and it has sent nothing more.
    pub fn can_be_kept(&self, readable: usize, end: StreamEnd) -> bool {
        matches!(self.state, State::Complete)
            && self.request_complete
            && self.keep
            && readable == 0
            && end == StreamEnd::Open
    }

    /// Puts a connection aside that [can be kept](Self::can_be_kept). Bytes that arrive then are a fault.
    pub fn release(&mut self) {
        self.state = State::Idle;
    }

    /// Returns whether the request has the method HEAD, so that its response has no body.
    pub fn is_to_head(&self) -> bool {
        self.is_head
    }

    /// Returns the number of requests that were begun on this connection.
    pub fn requests(&self) -> u32 {
        self.requests
    }
}
