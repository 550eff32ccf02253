//! A process's end of a connection: it serves requests one after the other, and keeps the connection or
//! closes it, as the keys of the requests say.

use csp_types::{Duration, Instant};

use super::dice;
use super::framing::{Body, Framing, Head, LAST_CHUNK, put_chunk, take_head};
use crate::conversation::Conversation;
use crate::pattern::Request;

/// Most payload of a chunk in bytes.
const CHUNK_MAX: u32 = 9_000;
/// Longest time until a process closes an idle connection, if it does, in microseconds.
const IDLE_US_MAX: u32 = 150_000;

/// What becomes of a connection after a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Kept,
    /// The process closes it when this time has passed without a request.
    Idle(Duration),
    /// The process closes it instead of reading what comes next: its time was over at that moment.
    AtNext,
    /// The process closes it, as it has announced or not.
    Closed {
        announced: bool,
    },
}

impl After {
    fn of(key: u32) -> Self {
        match dice(key, 20, 8) {
            0..3 => After::Kept,
            3 => After::AtNext,
            4 | 5 => After::Idle(Duration::from_micros(dice(key, 21, IDLE_US_MAX).into())),
            6 => After::Closed { announced: true },
            _ => After::Closed { announced: false },
        }
    }
}

/// The request that is served.
#[derive(Debug)]
struct Current {
    talk: Conversation,
    request: Request,
    body: Body,
    framing: Framing,
    head_written: bool,
    /// The end of the response was written.
    written: bool,
    taken: u64,
    given: u64,
}

/// A process's end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    current: Option<Current>,
    head: Vec<u8>,
    out: Vec<u8>,
    /// What becomes of the connection, after the last response.
    after: Option<After>,
    /// When it is closed, if it is idle until then.
    idle_until: Option<Instant>,
    closing: bool,
    peer_finished: bool,
    /// Requests whose heads were read.
    pub(crate) served: Vec<Request>,
    /// Bytes read of each request that is over.
    read: Vec<(u32, u64)>,
    /// A description of wrong data received.
    pub(crate) wrong: Option<String>,
}

impl Serving {
    pub(crate) fn key(&self) -> u32 {
        self.current.as_ref().map_or(0, |current| current.request.key)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.taken)
    }

    pub(crate) fn given(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.given)
    }

    pub(crate) fn reads(&self) -> bool {
        !self.closing
    }

    pub(crate) fn is_over(&self) -> bool {
        let gives_up = || self.current.as_ref().is_none_or(|current| !current.body.is_complete());
        self.closing && self.out.is_empty() || self.peer_finished && gives_up()
    }

    pub(crate) fn wakes(&self) -> Option<Instant> {
        self.idle_until.filter(|until| *until < Instant::FAR_FUTURE)
    }

    /// Processes the time: an idle connection may be closed.
    pub(crate) fn settle(&mut self, now: Instant) {
        let is_idle = self.current.is_none() && self.head.is_empty() && !self.closing;
        match (is_idle, self.after, self.idle_until) {
            (false, ..) => self.idle_until = None,
            (true, Some(After::Idle(time)), None) => self.idle_until = Some(now + time),
            // The next call has something to read.
            (true, Some(After::AtNext), None) => self.idle_until = Some(Instant::FAR_FUTURE),
            (true, Some(After::AtNext), Some(_)) => (self.idle_until, self.closing) = (None, true),
            (true, _, Some(until)) if until <= now => (self.idle_until, self.closing) = (None, true),
            _ => {}
        }
    }

    /// Processes bytes of requests.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.wrong.is_none() && !self.closing {
            let before = bytes.len();
            let taken = match &mut self.current {
                None => self.begin(&mut bytes),
                Some(current) => take_body(current, &mut bytes),
            };
            self.current.iter_mut().for_each(|current| current.taken += (before - bytes.len()) as u64);
            self.finish();
            if let Err(what) = taken {
                let key = self.key();
                self.wrong.get_or_insert_with(|| format!("request {key:08x}: {what}"));
            }
        }
    }

    /// Reads a head; begins the request when it is complete.
    fn begin(&mut self, bytes: &mut &[u8]) -> Result<(), String> {
        let Some(head) = take_head(&mut self.head, bytes)? else { return Ok(()) };
        let request = request_of(&head)?;
        let mut talk = Conversation::serving();
        talk.take(&request.emit());
        self.served.push(request);
        (self.after, self.idle_until) = (None, None);
        let framing = match dice(request.key, 22, 3) {
            0 => Framing::Length(request.download.into()),
            1 => Framing::Chunked,
            _ => Framing::UntilClose,
        };
        let body = Body::new(head.framing.unwrap_or(Framing::Length(0)));
        let (head_written, written) = (false, false);
        let mut current = Current { talk, request, body, framing, head_written, written, taken: 0, given: 0 };
        let checked = check_body(&mut current);
        self.current = Some(current);
        checked
    }

    pub(crate) fn on_end(&mut self) {
        self.peer_finished = true;
    }

    /// Writes the next bytes of the response.
    pub(crate) fn next(&mut self, into: &mut [u8]) -> usize {
        while self.out.len() < into.len() && self.write() {}
        let len = self.out.len().min(into.len());
        into[..len].copy_from_slice(&self.out[..len]);
        len
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.out.drain(..len);
        self.current.iter_mut().for_each(|current| current.given += len as u64);
        self.finish();
    }

    /// Writes the next piece of the response; returns whether there may be another one.
    fn write(&mut self) -> bool {
        let answers = |it: &&mut Current| !it.written && it.talk.answers();
        let Some(current) = self.current.as_mut().filter(answers) else { return false };
        let Request { key, download, .. } = current.request;
        if !std::mem::replace(&mut current.head_written, true) {
            self.out.extend(response_head(current).into_bytes());
            return true;
        }
        let mut piece = [0; CHUNK_MAX as usize];
        let size = 1 + dice(key, 30 + current.talk.given() as u32, CHUNK_MAX);
        let len = current.talk.next(&mut piece[..size as usize]);
        current.talk.sent(len);
        match current.framing {
            Framing::Chunked if len > 0 => put_chunk(&mut self.out, &piece[..len]),
            Framing::Chunked => self.out.extend_from_slice(LAST_CHUNK),
            Framing::Length(_) | Framing::UntilClose => self.out.extend_from_slice(&piece[..len]),
        }
        current.written = match current.framing {
            Framing::Chunked => len == 0,
            Framing::Length(_) | Framing::UntilClose => current.talk.given() == u64::from(download),
        };
        !current.written
    }

    /// Ends the present request when its response is sent and nothing of it is left to be read.
    fn finish(&mut self) {
        let sent = self.out.is_empty();
        let over = |it: &mut Current| it.written && sent && it.body.is_complete();
        let Some(mut current) = self.current.take_if(over) else { return };
        self.wrong = self.wrong.take().or(current.talk.wrong.take());
        self.read.push((current.request.key, current.taken));
        let after = After::of(current.request.key);
        self.after = Some(after);
        self.closing |= current.framing == Framing::UntilClose || matches!(after, After::Closed { .. });
    }

    pub(crate) fn take_read(&mut self, over: bool) -> Vec<(u32, u64)> {
        let current = self.current.as_ref().filter(|_| over);
        self.read.extend(current.map(|current| (current.request.key, current.taken)));
        std::mem::take(&mut self.read)
    }
}

/// Reads the request that a path names.
fn request_of(head: &Head) -> Result<Request, String> {
    let wrong = || format!("the request line {:?}", head.line);
    let hex = head.line.split([' ', '/']).nth(2).filter(|hex| hex.len() == 2 * Request::LEN);
    let hex = hex.ok_or_else(wrong)?;
    let mut bytes = [0; Request::LEN];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let digits = hex.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Request::parse(&bytes).ok_or_else(wrong)
}

fn response_head(current: &Current) -> String {
    let framing = match current.framing {
        Framing::Length(length) => format!("Content-Length: {length}\r\n"),
        Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        Framing::UntilClose => String::new(),
    };
    let closes = match After::of(current.request.key) {
        After::Closed { announced: true } => "Connection: close\r\n",
        _ => "",
    };
    format!("HTTP/1.1 200 OK\r\n{framing}{closes}\r\n")
}

/// Processes a part of a request's body.
fn take_body(current: &mut Current, bytes: &mut &[u8]) -> Result<(), String> {
    if current.body.is_complete() {
        return Err(format!("{} bytes behind its end", bytes.len()));
    }
    if let Some(payload) = current.body.take(bytes)? {
        current.talk.take(payload);
    }
    check_body(current)
}

/// Checks that a complete body has all bytes.
fn check_body(current: &mut Current) -> Result<(), String> {
    let received = current.talk.taken() - Request::LEN as u64;
    if current.body.is_complete() && received != u64::from(current.request.upload) {
        return Err(format!("a complete body of {received} bytes"));
    }
    current.talk.wrong.take().map_or(Ok(()), Err)
}
