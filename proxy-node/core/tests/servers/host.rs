//! A host with a TCP engine: a client, or a plain server.

use std::collections::{BTreeMap, VecDeque};

use csp_tcp::{Arrival, Event, FailReason, Stack, StackConfig};
use csp_tls::{ServerTls, Session};
use csp_types::{Duration, FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Segment;

/// How a connection ended at a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Failed(FailReason),
}

/// A connection of a host.
#[derive(Default, Debug)]
pub struct Connection {
    pub established: bool,
    pub read: Vec<u8>,
    /// The peer has finished.
    pub finished: bool,
    pub end: Option<End>,
    /// Bytes to write, and whether the end of the stream follows.
    to_write: VecDeque<u8>,
    finish: bool,
    has_finished: bool,
    /// Bytes of the peer are not read.
    pub stalls: bool,
    pub session: Option<Session>,
    /// Ciphertext that was received, and that waits to be sent.
    received: Vec<u8>,
    waiting: Vec<u8>,
    /// The stream ends without close_notify.
    pub cuts: bool,
}

impl Connection {
    /// Decrypts what has arrived.
    fn decrypt(&mut self) {
        let Some(session) = &mut self.session else { return };
        let mut done = 0;
        while let Some(len) =
            session.next_record(self.received.len() - done, [&self.received[done..]].into_iter())
        {
            session.take_record([&self.received[done..done + len]].into_iter());
            done += len;
            self.read.extend_from_slice(session.plaintext());
            session.consume(usize::MAX);
        }
        self.received.drain(..done);
        self.finished |= session.is_closed_by_peer();
    }

    /// Encrypts what is to be written; returns whether all of it was, and the end that follows it.
    fn encrypt(&mut self) -> bool {
        let Some(session) = &mut self.session else { return true };
        session.write(self.to_write.make_contiguous());
        self.to_write.clear();
        if self.finish && !self.cuts {
            session.close();
        }
        session.encrypt(1 << 20, &mut self.waiting);
        self.waiting.is_empty() && !session.has_output()
    }
}

/// A host with a TCP engine.
pub struct Host {
    pub tcp: Stack,
    pub connections: BTreeMap<u32, Connection>,
    /// Connections of clients, in order.
    pub accepted: Vec<FlowLabel>,
    /// Everything that arrives is sent back, and the end of the stream, too.
    pub echoes: bool,
    /// What is answered to the head of a request, before the end of the stream.
    pub answer: Vec<u8>,
    /// Nothing arrives.
    pub silent: bool,
    /// Clients speak TLS.
    pub tls: Option<ServerTls>,
}

impl Host {
    /// A host whose engine has sizes of its own.
    pub fn new(seed: u8, sizes: StackConfig) -> Self {
        let config = StackConfig {
            connections: 128,
            blocks: 1024,
            isn_secret: [seed; 16],
            keepalive_idle: Some(Duration::from_secs(10)), // a lost RST is not repeated
            time_wait: Duration::from_secs(1),
            ..sizes
        };
        Host {
            tcp: Stack::new(config),
            connections: BTreeMap::new(),
            accepted: Vec::new(),
            echoes: false,
            answer: Vec::new(),
            silent: false,
            tls: None,
        }
    }

    pub fn at(&self, label: FlowLabel) -> &Connection {
        &self.connections[&label.to_wire()]
    }

    pub fn at_mut(&mut self, label: FlowLabel) -> &mut Connection {
        self.connections.entry(label.to_wire()).or_default()
    }

    pub fn write(&mut self, label: FlowLabel, bytes: &[u8]) {
        self.at_mut(label).to_write.extend(bytes);
    }

    pub fn finish(&mut self, label: FlowLabel) {
        self.at_mut(label).finish = true;
    }

    /// Reads and writes what it can; returns whether anything happened.
    pub fn run(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some((label, event)) = self.tcp.poll_event() {
            any = true;
            let known = self.connections.entry(label.to_wire()).or_default();
            match event {
                Event::Established { passive, .. } => {
                    known.established = true;
                    if passive {
                        self.accepted.push(label);
                        known.session = self.tls.as_ref().and_then(Session::new);
                    }
                }
                Event::PeerFinished => known.finished |= known.session.is_none(),
                Event::Closed => known.end = Some(End::Closed),
                Event::Failed(why) => known.end = Some(End::Failed(why)),
                Event::Readable | Event::Writable | Event::Broken(_) | Event::Reset => {}
            }
        }
        for (label, known) in &mut self.connections {
            let Some(label) = FlowLabel::from_wire(*label) else { continue };
            if !known.stalls {
                let before = known.read.len();
                let read = if known.session.is_some() { &mut known.received } else { &mut known.read };
                self.tcp.read_with(now, label, usize::MAX, |bytes| {
                    read.extend_from_slice(bytes);
                    bytes.len()
                });
                known.decrypt();
                let new = &known.read[before..];
                any |= !new.is_empty();
                if !self.answer.is_empty() && !new.is_empty() && known.read.ends_with(b"\r\n\r\n") {
                    known.to_write.extend(&self.answer);
                    known.finish = true;
                }
                if self.echoes {
                    known.to_write.extend(new);
                    known.finish |= known.finished && !known.has_finished;
                }
            }
            let mut is_done = known.encrypt();
            let written = match known.session {
                None => self.tcp.write(now, label, known.to_write.make_contiguous()),
                Some(_) => self.tcp.write(now, label, &known.waiting),
            };
            match known.session {
                None => _ = known.to_write.drain(..written),
                Some(_) => {
                    known.waiting.drain(..written);
                    is_done |= known.waiting.is_empty();
                }
            }
            any |= written > 0;
            if known.finish
                && is_done
                && known.to_write.is_empty()
                && (known.end, known.established) == (None, true)
            {
                (known.finish, known.has_finished) = (false, true);
                self.tcp.shutdown(now, label);
                any = true;
            }
        }
        any
    }

    /// Processes a segment with these addresses, as the host sees them.
    pub fn receive(&mut self, now: Instant, tuple: FourTuple, bytes: &[u8]) {
        let Ok(segment) = Segment::parse(bytes) else { return };
        if self.silent {
            return;
        }
        let label = FlowLabel::NONE;
        let arrival = Arrival { label, tuple: Some(tuple), ingress: now, via: 0, ecn: 0, segment_size: 0 };
        let _ = self.tcp.on_segment(now, arrival, &segment, segment.payload());
    }

    /// Returns the next segment to send, and its addresses as the receiver sees them.
    pub fn next_segment(&mut self, now: Instant) -> Option<(FourTuple, Vec<u8>)> {
        loop {
            let transmit = self.tcp.poll_transmit(now)?;
            let FourTuple { local, remote } = transmit.tuple;
            let Some(header) = transmit.header else { continue };
            let mut bytes = vec![0; header.header_len()];
            header.emit(&mut bytes).unwrap();
            transmit.payload().for_each(|slice| bytes.extend_from_slice(slice));
            return Some((FourTuple { local: remote, remote: local }, bytes));
        }
    }
}
