//! A stream of a client.

use std::task::Poll;

use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Request, Response};

use crate::chunk::Chunk;
use crate::error::SendError;
use crate::stream::{Broken, Incoming, Outgoing, Ready};

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) ready: Ready,
    /// The request, until the caller fetches its event.
    pub(super) request: Option<Box<Parts>>,
    pub(super) websocket: bool,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// Until the final response is sent.
    respond: Option<SendResponse<Chunk>>,
    done_reported: bool,
}

impl Stream {
    /// Creates the stream of a request; `None` if it was reset already.
    pub(super) fn accept(request: Request<RecvStream>, respond: SendResponse<Chunk>) -> Option<Stream> {
        let (parts, body) = request.into_parts();
        let ended = body.is_end_stream();
        let mut stream = Stream {
            ready: Ready::new(),
            request: Some(Box::new(parts)),
            websocket: false,
            incoming: Incoming::new(body, ended),
            outgoing: Outgoing::new(),
            respond: Some(respond),
            done_reported: false,
        };
        stream.poll().is_none().then_some(stream)
    }

    /// Moves what was received. Returns the reason of a reset, and whether it is the client's.
    pub(super) fn poll(&mut self) -> Option<(Reason, bool)> {
        if !self.ready.take() || self.done_reported {
            return None;
        }
        match self.incoming.poll(&mut self.ready.context()) {
            Ok(()) => {}
            // Without a reason the connection is lost, which its own event reports.
            Err(Broken::Error(error)) => return error.reason().map(|reason| (reason, error.is_remote())),
            Err(broken) => {
                self.reset(broken.reason());
                return Some((broken.reason(), false));
            }
        }
        let context = &mut self.ready.context();
        let reset = match (&mut self.respond, self.outgoing.stream()) {
            (Some(respond), _) => respond.poll_reset(context),
            (None, Some(stream)) => stream.poll_reset(context),
            (None, None) => Poll::Pending,
        };
        match reset {
            Poll::Ready(Ok(reason)) => Some((reason, true)),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        }
    }

    pub(super) fn respond(
        &mut self,
        response: Response<()>,
        interim: bool,
        end: bool,
    ) -> Result<(), SendError> {
        let respond = self.respond.as_mut().ok_or(SendError::State)?;
        if interim {
            return respond.send_informational(response).map_err(|_| SendError::NoStream);
        }
        let stream = respond.send_response(response, end).map_err(|_| SendError::NoStream)?;
        self.outgoing.begin(stream, end);
        self.respond = None;
        Ok(())
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        match (&mut self.respond, self.outgoing.stream()) {
            (Some(respond), _) => respond.send_reset(reason),
            (None, Some(stream)) => stream.send_reset(reason),
            (None, None) => {}
        }
        self.incoming.discard();
    }

    /// Returns whether the stream is done and was not reported yet, and marks it as reported.
    ///
    /// RFC 9113 §8.1: a response that ends before its request ends the stream; its release resets it with
    /// NO_ERROR. Of a WebSocket both directions end for themselves.
    pub(super) fn report_done(&mut self) -> bool {
        let is_sent = self.outgoing.is_ended() && self.outgoing.unsent() == 0;
        let is_new = is_sent && (!self.websocket || self.incoming.is_done()) && !self.done_reported;
        self.done_reported |= is_new;
        is_new
    }

    /// Returns whether the stream was reported as done.
    pub(super) fn is_done(&self) -> bool {
        self.done_reported
    }
}
