//! One subscriber: its handshake, its subscriptions, and the events that it reads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use csp_api::events::Event;
use csp_daemon::clock;
use csp_events::{Cursor, Filter};
use csp_types::CurvePublicKey;
use csp_zmtp::{
    CONTROL_LEN_MAX, Connection, Counters, Cursor as Received, ENTROPY_LEN, FrameHeader, Item, Mechanism,
    sealed_len,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Shared;

/// Topics of a subscriber.
const TOPICS_MAX: usize = 256;
/// Bytes that are read at once.
const READ_LEN: usize = 4096;
/// Longest time between two looks at deadlines, and at whether the policy still names the key.
const LOOK: Duration = Duration::from_secs(1);
/// Events that are read at once, and bytes that are written at once.
const EVENTS_AT_ONCE: usize = 50;
const WRITE_LEN: usize = 16 << 10;
/// Time for a write: a subscriber that reads nothing for so long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a subscriber is disconnected.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Protocol(String),
    #[error("it has more than {TOPICS_MAX} subscriptions")]
    Topics,
    #[error("it read nothing for 30 s")]
    Stuck,
    #[error("the policy does not name its key")]
    Denied,
}

/// A connection of a subscriber.
pub(super) struct Subscriber {
    shared: Arc<Shared>,
    stream: TcpStream,
    from: SocketAddr,
    connection: Connection,
    counters: Counters,
    received: Vec<u8>,
    /// Position of the first byte of `received`.
    base: u64,
    topics: Vec<Vec<u8>>,
    key: Option<[u8; 32]>,
    /// Where it has read to; `None` before the handshake is complete.
    cursor: Option<Cursor>,
    /// When the policy was looked at for its key.
    looked: Instant,
}

impl Subscriber {
    pub(super) fn new(stream: TcpStream, from: SocketAddr, shared: Arc<Shared>) -> Subscriber {
        let (config, now) = (shared.config.clone(), clock::now());
        let connection = match &shared.keys {
            None => Connection::null(config, now),
            Some(keys) => {
                let mut entropy = [0; ENTROPY_LEN];
                entropy.fill_with(rand::random);
                Connection::curve(config, keys.clone(), &entropy, now)
            }
        };
        Subscriber {
            shared,
            stream,
            from,
            connection,
            counters: Counters::default(),
            received: Vec::new(),
            base: 0,
            topics: Vec::new(),
            key: None,
            cursor: None,
            looked: Instant::now(),
        }
    }

    /// Serves it to its end.
    pub(super) async fn serve(mut self) {
        // Events are few and late ones are worth less.
        let _ = self.stream.set_nodelay(true);
        let end = match self.run().await {
            Err(end) => end,
            Ok(()) => End::Closed,
        };
        // An ERROR of the handshake says why.
        let _ = tokio::time::timeout(LOOK, self.send_control()).await;
        if self.cursor.is_some() {
            self.shared.counts.subscribers.fetch_sub(1, Ordering::Relaxed);
        }
        let (from, key) = (self.from, self.key.map(CurvePublicKey).map(|key| key.to_string()));
        tracing::info!(%from, key, why = %end, "a subscriber of events is disconnected");
    }

    async fn run(&mut self) -> Result<(), End> {
        let mut room = [0; READ_LEN];
        loop {
            self.send_control().await?;
            let (hub, cursor) = (self.shared.hub.clone(), self.cursor.clone());
            let (filter, has_topics) = (Filter::default(), !self.topics.is_empty());
            let next = async {
                match cursor {
                    Some(cursor) if has_topics => hub.after(&cursor, &filter, EVENTS_AT_ONCE, LOOK).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                read = self.stream.read(&mut room) => match read {
                    Ok(0) | Err(_) => return Err(End::Closed),
                    Ok(len) => {
                        self.received.extend_from_slice(&room[..len]);
                        self.receive()?;
                    }
                },
                read = next => {
                    self.shared.counts.missed.fetch_add(read.missed, Ordering::Relaxed);
                    self.cursor = Some(read.cursor);
                    self.send(&read.events).await?;
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            self.look()?;
        }
    }

    /// Looks at deadlines, and whether the subscriber may still be here.
    fn look(&mut self) -> Result<(), End> {
        let now = clock::now();
        if self.connection.next_timeout().is_some_and(|at| at <= now) {
            let done = self.connection.on_timeout(now, &mut self.counters);
            done.map_err(|error| End::Protocol(error.to_string()))?;
        }
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        match &self.key {
            Some(key) if self.shared.name_of(key).is_none() => Err(End::Denied),
            _ => Ok(()),
        }
    }

    /// Processes what was received.
    fn receive(&mut self) -> Result<(), End> {
        let now = clock::now();
        loop {
            let slices = std::iter::once(&self.received[..]);
            let mut input = Received::new(self.base, slices);
            let item = self.connection.next(now, &mut input, &mut self.counters);
            let Some(item) = item.map_err(|error| End::Protocol(error.to_string()))? else {
                match self.connection.is_paused() {
                    true => continue,
                    false => break,
                }
            };
            match item {
                Item::Authorise(peer) => {
                    let key = peer.key;
                    self.authorise(key)?;
                }
                Item::Ready(_) => self.ready(),
                Item::Subscribe(topic) => {
                    if self.topics.len() >= TOPICS_MAX {
                        return Err(End::Topics);
                    }
                    self.topics.push(topic.to_vec());
                }
                Item::Cancel(topic) => {
                    let at = self.topics.iter().position(|known| known == topic);
                    at.map(|at| self.topics.swap_remove(at));
                }
                Item::Message(_) => {}
            }
        }
        let released = self.connection.released();
        let done = usize::try_from(released.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.received.drain(..done.min(self.received.len()));
        self.base = released;
        Ok(())
    }

    /// Lets a key in that the policy names.
    fn authorise(&mut self, key: Option<[u8; 32]>) -> Result<(), End> {
        let name = key.and_then(|key| self.shared.name_of(&key));
        self.key = key;
        match name {
            Some(name) => {
                tracing::info!(name, from = %self.from, "a subscriber of events is connected");
                self.connection.allow();
                Ok(())
            }
            None => {
                self.shared.counts.denied.fetch_add(1, Ordering::Relaxed);
                self.connection.deny(&mut self.counters);
                Err(End::Denied)
            }
        }
    }

    /// It gets what arrives from now on.
    fn ready(&mut self) {
        if self.cursor.is_none() {
            self.shared.counts.subscribers.fetch_add(1, Ordering::Relaxed);
            self.cursor = Some(self.shared.hub.latest(&Filter::default(), 0).cursor);
        }
    }

    async fn send_control(&mut self) -> Result<(), End> {
        let mut out = [0; CONTROL_LEN_MAX];
        loop {
            let len = self.connection.transmit(clock::now(), &mut out, &mut self.counters);
            match len.map_err(|error| End::Protocol(error.to_string()))? {
                0 => return Ok(()),
                len => self.write(&out[..len]).await?,
            }
        }
    }

    /// Sends those of `events` that it has subscribed to.
    async fn send(&mut self, events: &[Event]) -> Result<(), End> {
        let mut out = Vec::new();
        for event in events {
            let topic = topic(event);
            if !self.topics.iter().any(|prefix| topic.as_bytes().starts_with(prefix)) {
                continue;
            }
            let Ok(json) = serde_json::to_vec(event) else { continue };
            self.frame(topic.as_bytes(), true, &mut out)?;
            self.frame(&json, false, &mut out)?;
            self.shared.counts.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.write(&out).await
    }

    fn frame(&mut self, body: &[u8], more: bool, out: &mut Vec<u8>) -> Result<(), End> {
        if self.connection.mechanism() == Mechanism::Null {
            out.extend_from_slice(FrameHeader::message(body.len(), more).as_bytes());
            out.extend_from_slice(body);
            return Ok(());
        }
        let at = out.len();
        out.resize(at + sealed_len(body.len()), 0);
        let sealed = self.connection.encrypt(&[body], more, &mut out[at..]);
        sealed.map(drop).map_err(|error| End::Protocol(error.to_string()))
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        for part in bytes.chunks(WRITE_LEN) {
            let written = tokio::time::timeout(WRITE_TIMEOUT, self.stream.write_all(part)).await;
            written.map_err(|_| End::Stuck)?.map_err(|_| End::Closed)?;
        }
        Ok(())
    }
}

/// Returns the topic of an event: `event/SEVERITY/KIND/OBJECT`.
fn topic(event: &Event) -> String {
    format!("event/{}/{}/{}", event.severity.as_str(), event.kind, event.object)
}
