//! The connection of a client.

use super::{StreamEnd, readable};
use crate::body::{BodyReader, Piece};
use crate::fault::{Fault, Refusal};
use crate::head::{Framing, HeadReader, Method, Request, Scratch, Version};
use crate::limits::Limits;

/// What the readable bytes of a client are.
#[derive(Clone, Copy, Debug)]
pub enum FromClient<'a> {
    /// More bytes are needed.
    More,
    /// A request begins. The caller consumes [`Request::head_len`] bytes and calls
    /// [`ClientSide::accept`] once it has used the head. Until then the head is returned again.
    Request(Request<'a>),
    /// A part of the request's body: never [`Piece::More`] or [`Piece::End`].
    Body(Piece),
    /// The request is complete. Returned once, also for a request without a body.
    RequestEnd,
    /// A further request waits until this exchange has ended, or nothing was read.
    Waiting,
    /// This many bytes belong to the protocol after the upgrade. The caller moves what the member has room
    /// for.
    Tunnel(usize),
    /// The client has ended its direction of the tunnel.
    TunnelEnd,
    /// The caller consumes this many bytes at once: nobody wants them.
    Discard(usize),
    /// The rest of a request is not read: the caller sends FIN, and goes on reading until
    /// [`Closed`](Self::Closed).
    Finish,
    /// The connection is over, and the caller closes it.
    Closed,
}

/// What a response says of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// Nothing: it is kept, which HTTP/1.1 implies.
    Implied,
    /// `keep-alive`, for a client of HTTP/1.0.
    KeepAlive,
    /// `close`.
    Close,
}

/// How a response is sent to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The framing of its body. [`Framing::UntilClose`] only to clients of HTTP/1.0.
    pub framing: Framing,
    /// The `Connection` field.
    pub connection: Connection,
}

/// What the caller does after a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// The connection is kept. The caller goes on reading: the rest of the request is discarded, then comes
    /// the next one.
    Keep,
    /// The caller sends FIN, and goes on reading until [`FromClient::Closed`], so that bytes on their way do
    /// not reset the connection before the client has read the response.
    Finish,
    /// The caller resets the connection: with FIN the client would take a response for whole that is not.
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum Reading {
    Head(HeadReader),
    Body(BodyReader),
    Complete,
    /// The response has ended before the request: of its body at most so much is discarded.
    Drain(BodyReader, u64),
    /// The last response was sent: at most so many bytes are discarded.
    Linger(u64),
    Tunnel,
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answering {
    None,
    Awaited,
    Body(Framing),
    Tunnel,
}

/// What of the request bears on the response.
#[derive(Clone, Copy, Debug)]
struct Asked {
    version: Version,
    is_head: bool,
    is_upgrade: bool,
    /// The client waits for 100.
    awaits_continue: bool,
}

impl Asked {
    /// Of a request that could not be read.
    const UNKNOWN: Asked =
        Asked { version: Version::Http11, is_head: false, is_upgrade: false, awaits_continue: false };
}

/// The connection of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientSide {
    reading: Reading,
    answering: Answering,
    asked: Asked,
    /// Whether the connection may be kept after this exchange.
    keep: bool,
    exchanges: u32,
}

impl Default for ClientSide {
    fn default() -> Self {
        ClientSide {
            reading: Reading::Head(HeadReader::default()),
            answering: Answering::None,
            asked: Asked::UNKNOWN,
            keep: true,
            exchanges: 0,
        }
    }
}

impl ClientSide {
    /// Examines the readable bytes. After an error the caller resets the member's connection, if there is
    /// one, and calls [`refuse`](Self::refuse).
    pub fn read<'a>(
        &mut self,
        slices: &[&'a [u8]],
        end: StreamEnd,
        limits: &Limits,
        scratch: &'a mut Scratch,
    ) -> Result<FromClient<'a>, Refusal> {
        let readable = || readable(slices);
        match &mut self.reading {
            Reading::Head(reader) => match reader.request(slices, end.is_end(), limits, scratch)? {
                Some(request) => Ok(FromClient::Request(request)),
                None if end.is_end() => Ok(self.over()),
                None => Ok(FromClient::More),
            },
            Reading::Body(body) => {
                let piece = body.next(slices, end.is_end(), limits).map_err(Refusal::whole)?;
                Ok(match piece {
                    Piece::More => FromClient::More,
                    Piece::End => {
                        self.reading = Reading::Complete;
                        FromClient::RequestEnd
                    }
                    piece => FromClient::Body(piece),
                })
            }
            Reading::Complete => {
                // A client that has finished gets this response and no further one.
                self.keep &= !end.is_end() || readable() > 0;
                Ok(FromClient::Waiting)
            }
            Reading::Drain(body, left) => {
                let piece = body.next(slices, end.is_end(), limits);
                let (drained, reading) = drain(*body, *left, piece);
                self.reading = reading.unwrap_or(Reading::Linger(limits.linger_len_max));
                Ok(drained)
            }
            Reading::Linger(left) => match readable() {
                0 if self.answering != Answering::None => Ok(FromClient::Waiting),
                0 if end.is_end() => Ok(self.over()),
                0 => Ok(FromClient::More),
                _ if *left == 0 => Ok(self.over()),
                readable => {
                    let len = usize::try_from(*left).map_or(readable, |left| left.min(readable));
                    *left -= len as u64;
                    Ok(FromClient::Discard(len))
                }
            },
            Reading::Tunnel => Ok(match readable() {
                0 if end.is_end() => FromClient::TunnelEnd,
                0 => FromClient::More,
                readable => FromClient::Tunnel(readable),
            }),
            Reading::Over => Ok(FromClient::Closed),
        }
    }

    fn over(&mut self) -> FromClient<'static> {
        self.reading = Reading::Over;
        FromClient::Closed
    }

    /// Begins the exchange of a request whose head the caller has consumed.
    pub fn accept(&mut self, request: &Request<'_>) {
        self.reading = Reading::Body(BodyReader::new(request.framing()));
        self.answering = Answering::Awaited;
        self.asked = Asked {
            version: request.version(),
            is_head: request.method() == Method::Head,
            is_upgrade: request.is_upgrade(),
            awaits_continue: request.expects_continue(),
        };
        self.keep &= request.is_persistent();
        self.exchanges = self.exchanges.saturating_add(1);
    }

    /// Reports that the caller has consumed `len` bytes of payload or trailers.
    pub fn moved(&mut self, len: usize) {
        if let Reading::Body(body) = &mut self.reading {
            body.moved(len);
            self.asked.awaits_continue = false;
        }
    }

    /// Returns whether an interim response (1xx but 101) is sent to the client, and records it. None goes to
    /// a client of HTTP/1.0 (RFC 9110 §15.2), or after the final response has begun.
    pub fn interim(&mut self, status: u16) -> bool {
        let is_sent = self.answering == Answering::Awaited && self.asked.version == Version::Http11;
        if is_sent && status == 100 {
            self.asked.awaits_continue = false;
        }
        is_sent
    }

    /// Returns whether the client waits for 100 before it sends the body. The caller may then answer 100
    /// itself, by [`interim`](Self::interim), if it does not leave that to the member.
    pub fn awaits_continue(&self) -> bool {
        self.asked.awaits_continue && self.answering == Answering::Awaited
    }

    /// Begins the final response, of which the member or the caller frames the body by `framing`. `None`: a
    /// response has begun before, or none is awaited.
    pub fn respond(&mut self, framing: Framing) -> Option<Plan> {
        if self.answering != Answering::Awaited {
            return None;
        }
        // RFC 9110 §10.1.1: a client that has got no 100 may send the body or not; what its next bytes are
        // cannot be known.
        if self.asked.awaits_continue && !matches!(self.reading, Reading::Complete) {
            self.keep = false;
        }
        let framing = match framing {
            _ if self.asked.is_head => Framing::None,
            Framing::Chunked | Framing::UntilClose if self.asked.version == Version::Http10 => {
                self.keep = false;
                Framing::UntilClose
            }
            Framing::UntilClose => Framing::Chunked,
            framing => framing,
        };
        self.answering = Answering::Body(framing);
        let connection = match (self.keep, self.asked.version) {
            (false, _) => Connection::Close,
            (true, Version::Http10) => Connection::KeepAlive,
            (true, Version::Http11) => Connection::Implied,
        };
        Some(Plan { framing, connection })
    }

    /// Begins an answer after which the connection ends: of a request that is refused, or whose body the
    /// caller reads no further. `None`: a response has begun, and the caller acts on
    /// [`response_cut`](Self::response_cut) instead.
    pub fn refuse(&mut self, framing: Framing, limits: &Limits) -> Option<Plan> {
        if matches!(self.reading, Reading::Head(_)) && self.answering == Answering::None {
            self.asked = Asked::UNKNOWN;
            self.answering = Answering::Awaited;
        }
        self.keep = false;
        let plan = self.respond(framing)?;
        self.reading = Reading::Linger(limits.linger_len_max);
        Some(plan)
    }

    /// Switches to another protocol after 101. An error: the client has not asked for it, its request is not
    /// complete, or another response has begun. The member is at fault.
    pub fn switched(&mut self) -> Result<(), Refusal> {
        let is_right = self.answering == Answering::Awaited
            && matches!(self.reading, Reading::Complete)
            && self.asked.is_upgrade;
        if !is_right {
            return Err(Refusal::whole(Fault::UnexpectedSwitch));
        }
        (self.reading, self.answering) = (Reading::Tunnel, Answering::Tunnel);
        Ok(())
    }

    /// Ends the response: all of it was written.
    pub fn response_end(&mut self, limits: &Limits) -> After {
        let framing = match std::mem::replace(&mut self.answering, Answering::None) {
            Answering::Body(framing) => framing,
            // The client may still send.
            Answering::Tunnel => return After::Finish,
            Answering::None | Answering::Awaited => Framing::UntilClose,
        };
        if !self.keep || framing == Framing::UntilClose {
            self.reading = Reading::Linger(limits.linger_len_max);
            return After::Finish;
        }
        self.reading = match self.reading {
            Reading::Body(body) if body.is_done() => Reading::Head(HeadReader::default()),
            Reading::Body(body) => Reading::Drain(body, limits.drain_len_max),
            _ => Reading::Head(HeadReader::default()),
        };
        After::Keep
    }

    /// Ends the response before all of it was written: the member is lost or at fault. A client can see that
    /// a part is missing by the framing, unless it ends with the connection.
    pub fn response_cut(&mut self, limits: &Limits) -> After {
        self.keep = false;
        match std::mem::replace(&mut self.answering, Answering::None) {
            Answering::Body(Framing::Length(_) | Framing::Chunked) => {
                self.reading = Reading::Linger(limits.linger_len_max);
                After::Finish
            }
            _ => {
                self.reading = Reading::Over;
                After::Reset
            }
        }
    }

    /// Ends the connection after this exchange, such as while the proxy drains. Returns whether there is no
    /// exchange, so that the caller can close it now.
    pub fn close_after_exchange(&mut self) -> bool {
        self.keep = false;
        self.is_idle()
    }

    /// Returns whether no request has begun, as far as its head was read.
    pub fn is_idle(&self) -> bool {
        matches!(self.reading, Reading::Head(_)) && self.answering == Answering::None
    }

    /// Returns whether a response may be begun.
    pub fn is_awaited(&self) -> bool {
        self.answering == Answering::Awaited
    }

    /// Returns whether the request was read to its end.
    pub fn is_request_complete(&self) -> bool {
        match self.reading {
            Reading::Body(body) => body.is_done(),
            Reading::Head(_) | Reading::Drain(..) => false,
            _ => true,
        }
    }

    /// Returns the number of requests that were accepted.
    pub fn exchanges(&self) -> u32 {
        self.exchanges
    }
}

/// Discards the rest of a request's body within `left` bytes of payload. Returns the next state; `None`: the
/// rest is too long or faulty, and the connection ends.
fn drain(
    mut body: BodyReader,
    left: u64,
    piece: Result<Piece, Fault>,
) -> (FromClient<'static>, Option<Reading>) {
    match piece {
        Ok(Piece::More) => (FromClient::More, Some(Reading::Drain(body, left))),
        Ok(Piece::End) => (FromClient::Discard(0), Some(Reading::Head(HeadReader::default()))),
        Ok(Piece::Framing { len, .. }) => (FromClient::Discard(len), Some(Reading::Drain(body, left))),
        Ok(Piece::Payload(len) | Piece::Trailers(len)) => match left.checked_sub(len as u64) {
            Some(left) => {
                body.moved(len);
                (FromClient::Discard(len), Some(Reading::Drain(body, left)))
            }
            None => (FromClient::Finish, None),
        },
        Err(_) => (FromClient::Finish, None),
    }
}
