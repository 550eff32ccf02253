//! A stream to a member.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::Poll;

use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::response::Parts;

use crate::chunk::Chunk;
use crate::limits::INTERIM_MAX;
use crate::stream::{Broken, Incoming, Outgoing, Ready};

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) ready: Ready,
    /// Until the final response comes.
    response: Option<ResponseFuture>,
    interims: u8,
    /// Heads of responses whose events the caller has not fetched, and those that have no event yet.
    heads: VecDeque<Parts>,
    unreported: usize,
    /// Whether the request is HEAD.
    pub(super) to_head: bool,
    /// Whether the final response has no body.
    pub(super) had_no_body: bool,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) done_reported: bool,
}

impl Stream {
    pub(super) fn new(response: ResponseFuture, body: SendStream<Chunk>, to_head: bool, end: bool) -> Self {
        let mut outgoing = Outgoing::new();
        outgoing.begin(body, end);
        Stream {
            ready: Ready::new(),
            response: Some(response),
            interims: 0,
            heads: VecDeque::new(),
            unreported: 0,
            to_head,
            had_no_body: false,
            incoming: Incoming::default(),
            outgoing,
            done_reported: false,
        }
    }

    /// Moves what was received.
    pub(super) fn poll(&mut self) -> Result<(), Broken> {
        if !self.ready.take() || self.done_reported {
            return Ok(());
        }
        self.poll_response()?;
        if self.response.is_none() {
            self.incoming.poll(&mut self.ready.context())?;
        }
        Ok(())
    }

    fn poll_response(&mut self) -> Result<(), Broken> {
        let Some(response) = &mut self.response else { return Ok(()) };
        let context = &mut self.ready.context();
        loop {
            match response.poll_informational(context) {
                Poll::Ready(Some(Ok(interim))) => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX {
                        return Err(Broken::TooManyInterim);
                    }
                    self.heads.push_back(interim.into_parts().0);
                    self.unreported += 1;
                }
                Poll::Ready(Some(Err(error))) => return Err(Broken::Error(error)),
                Poll::Ready(None) => break,
                Poll::Pending => return Ok(()),
            }
        }
        match Pin::new(response).poll(context) {
            Poll::Ready(Ok(response)) => {
                let (parts, body) = response.into_parts();
                self.had_no_body = body.is_end_stream();
                self.incoming = Incoming::new(body, self.had_no_body);
                self.heads.push_back(parts);
                self.unreported += 1;
                self.response = None;
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(Broken::Error(error)),
            Poll::Pending => Ok(()),
        }
    }

    /// Returns whether a head has come that was not reported yet, and marks it as reported: whether it is
    /// interim.
    pub(super) fn report_head(&mut self) -> Option<bool> {
        let at = self.heads.len() - self.unreported;
        let head = self.heads.get(at)?;
        self.unreported -= 1;
        Some(head.status.is_informational())
    }

    /// Returns the oldest head that the caller has not fetched.
    pub(super) fn next_head(&mut self) -> Option<Parts> {
        self.heads.pop_front()
    }

    /// Returns whether the response has begun.
    pub(super) fn is_answered(&self) -> bool {
        self.response.is_none()
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        if let Some(stream) = self.outgoing.stream() {
            stream.send_reset(reason);
        }
        self.incoming.discard();
    }
}
