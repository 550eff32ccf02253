//! The data exchanged by two ends of one connection, without any I/O: a request with an upload, then a
//! download.
//!
//! Both the client host and the application processes drive it, each over its own kind of socket; either may
//! request.

use crate::pattern::{self, Refusal, Request};

/// How a transaction ended, as observed by the requesting side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Every byte arrived, then the end of the stream, and the connection closed without an error.
    Complete,
    /// The stream ended early, at this byte.
    Short(u64),
    /// The connection failed, for this reason.
    Failed(String),
    /// The requesting side aborted it, as planned.
    Aborted,
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    asks: bool,
    request: Option<Request>,
    head: Vec<u8>,
    /// Bytes received of the other side's stream, without the request.
    received: u64,
    /// Bytes sent of this side's stream, with the request.
    sent: u64,
    peer_finished: bool,
    sending_ended: bool,
    /// Bytes in both directions after which the requesting side aborts.
    abort_after: Option<u64>,
    /// A description of wrong data received.
    pub(crate) wrong: Option<String>,
}

impl Conversation {
    /// Creates the requesting side.
    pub(crate) fn asking(request: Request, abort_after: Option<u64>) -> Self {
        Conversation { asks: true, request: Some(request), abort_after, ..Conversation::serving() }
    }

    /// Creates the serving side.
    pub(crate) fn serving() -> Self {
        Conversation {
            asks: false,
            request: None,
            head: Vec::new(),
            received: 0,
            sent: 0,
            peer_finished: false,
            sending_ended: false,
            abort_after: None,
            wrong: None,
        }
    }

    /// Processes bytes of the other side.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        if self.peer_finished {
            self.complain("bytes after the end of the stream");
        }
        if self.request.is_none() {
            let (head, rest) = bytes.split_at(bytes.len().min(Request::LEN - self.head.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if let Some(head) = self.head.first_chunk() {
                self.request = Request::parse(head);
                if self.request.is_none() {
                    self.complain("a request that was never sent");
                }
            }
        }
        let Some(request) = self.request else { return };
        let (key, total) =
            if self.asks { (!request.key, request.download) } else { (request.key, request.upload) };
        if let Some(at) = pattern::mismatch(key, self.received, bytes) {
            self.complain(&format!("the byte at {at} differs"));
        }
        self.received += bytes.len() as u64;
        if self.received > u64::from(total) {
            self.complain("more bytes than the other side sends");
        }
    }

    /// Processes the end of the other side's stream.
    pub(crate) fn on_end(&mut self) {
        self.peer_finished = true;
    }

    /// Writes the next bytes of this side's stream into `into`; the caller reports with [`sent`](Self::sent)
    /// how many it sent.
    pub(crate) fn next(&self, into: &mut [u8]) -> usize {
        let Some(request) = self.request.filter(|r| self.asks || self.may_answer(r)) else { return 0 };
        let total =
            if self.asks { Request::LEN as u64 + u64::from(request.upload) } else { request.download.into() };
        let len = into.len().min((total - self.sent) as usize);
        if !self.asks {
            pattern::fill(!request.key, self.sent, &mut into[..len]);
            return len;
        }
        let head = request.emit();
        for (at, byte) in (self.sent..).zip(&mut into[..len]) {
            *byte = match head.get(at as usize) {
                Some(byte) => *byte,
                None => pattern::byte(request.key, at - Request::LEN as u64),
            };
        }
        len
    }

    /// Records that `len` bytes of [`next`](Self::next) were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len as u64;
    }

    fn may_answer(&self, request: &Request) -> bool {
        let uploaded = self.received == u64::from(request.upload);
        request.refusal.is_some()
            || request.duplex
            || (uploaded && (self.peer_finished || !request.half_close))
    }

    /// Returns whether the serving side sends its response now.
    pub(crate) fn answers(&self) -> bool {
        self.request.is_some_and(|request| self.may_answer(&request))
    }

    fn all_sent(&self) -> bool {
        self.request.is_some_and(|r| match self.asks {
            true => self.sent == Request::LEN as u64 + u64::from(r.upload),
            false => self.sent == u64::from(r.download),
        })
    }

    /// Returns whether this side is to end its sending direction now; true only once.
    pub(crate) fn ends_sending(&mut self) -> bool {
        let now =
            self.asks && !self.sending_ended && self.request.is_some_and(|r| r.half_close) && self.all_sent();
        self.sending_ended |= now;
        now
    }

    /// Returns whether this side closes the connection now.
    pub(crate) fn is_over(&self) -> bool {
        if self.asks {
            // A reset may be lost, and nothing is sent that would cause another one.
            return self.peer_finished || (self.refusal().is_some() && self.has_response());
        }
        if self.refusal().is_some() {
            return self.all_sent();
        }
        let uploaded = self.request.filter(|r| self.received == u64::from(r.upload));
        match uploaded {
            Some(request) => self.may_answer(&request) && self.all_sent(),
            // A requesting side that closes before its request is complete wants no response.
            None => self.peer_finished,
        }
    }

    /// Returns whether the requesting side aborts now.
    pub(crate) fn aborts(&self) -> bool {
        self.abort_after.is_some_and(|after| self.sent + self.received >= after)
    }

    /// Returns how it ended for the requesting side, when the connection ended with `failure` or without one.
    pub(crate) fn ended(&self, failure: Option<String>) -> Ended {
        match failure {
            _ if self.refusal().is_some() && self.has_response() => Ended::Complete,
            Some(reason) => Ended::Failed(reason),
            None if self.peer_finished && self.has_response() => Ended::Complete,
            None => Ended::Short(self.received),
        }
    }

    /// Returns how the serving side refuses the upload, if it does and this side knows it.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.request.and_then(|request| request.refusal)
    }

    fn has_response(&self) -> bool {
        self.request.is_some_and(|request| self.received == u64::from(request.download))
    }

    /// Identifies the transaction; 0 before the request arrived.
    pub(crate) fn key(&self) -> u32 {
        self.request.map_or(0, |r| r.key)
    }

    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// Returns the bytes received of the other side's stream, the request included.
    pub(crate) fn taken(&self) -> u64 {
        self.head.len() as u64 + self.received
    }

    /// Returns the bytes sent of this side's stream.
    pub(crate) fn given(&self) -> u64 {
        self.sent
    }

    fn complain(&mut self, what: &str) {
        let side = if self.asks { "download" } else { "upload" };
        self.wrong
            .get_or_insert_with(|| format!("{side} of {:08x}: {what}", self.request.map_or(0, |r| r.key)));
    }
}
