//! One context: its pool, its streams and channels, and the descriptor that becomes readable when events are
//! pending.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

use csp_types::{Duration, Instant, ProgramName};
use csp_vi::Armed;
use libc::c_int;

use crate::channels::{ChannelSettings, Channels, MESSAGE_MAX};
use crate::connection::{Source, Transport};
use crate::core::{Core, Event, FLAG_RELEASE};
use crate::error::{Error, Result};
use crate::handle::{self, ContextId, Key, Kind};
use crate::pool::{Pool, Work};
use crate::streams::Streams;
use crate::system::{now, unix_seconds};
use crate::table::Table;
use crate::wait::Waiter;

/// `CSP_ABORT`: queued buffers are not sent, and a stream's peer receives a reset.
pub const FLAG_ABORT: u32 = 1;

/// `CSP_ANY_USER`: a listener admits processes of other users.
pub const FLAG_ANY_USER: u32 = 1;
/// `CSP_IN_PLACE`: messages are lent in place, without copying.
pub const FLAG_IN_PLACE: u32 = 2;

/// Messages that a program may hold in place, of all channels together.
const IN_PLACE_MAX: usize = 65_536;

/// Interval at which the providers of a program that polls without waiting poll their sockets.
const ARM_EVERY: Duration = Duration::from_micros(50);

/// Listeners of one context.
const LISTENERS_MAX: usize = 64;
/// Bounds of a context's options: length of a buffer in bytes.
pub const BUFFER_LEN: std::ops::RangeInclusive<usize> = MESSAGE_MAX..=1 << 20;
/// As above: number of buffers in each of the two parts of the pool.
pub const BUFFERS: std::ops::RangeInclusive<usize> = 2..=65_536;
/// As above: number of connections.
pub const CONNECTIONS: std::ops::RangeInclusive<usize> = 1..=131_072;

/// Options of a context.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of each buffer.
    pub buffer_len: usize,
    /// Buffers for the program.
    pub outgoing: usize,
    /// Buffers for received data.
    pub incoming: usize,
    /// Streams and channels at once.
    pub connections_max: usize,
    /// The agent's socket.
    pub agent: PathBuf,
    /// The folder of the sockets of channel listeners.
    pub channels: PathBuf,
    /// The program's name.
    pub program: ProgramName,
}

/// The library's state for a program.
pub struct Context {
    core: Core,
    options: Options,
    streams: Option<Streams>,
    channels: Channels,
    waiter: Waiter,
    /// Generations of the descriptors that the waiter watches; they are registered anew if these differ.
    watched: Option<(Option<u64>, u64)>,
    armed: bool,
    /// The time at which a poll without events last armed the providers, which makes them poll their sockets.
    armed_at: Instant,
}

impl Context {
    /// A context without connections.
    pub fn new(id: ContextId, options: Options) -> Result<Context> {
        let in_bounds = BUFFER_LEN.contains(&options.buffer_len)
            && BUFFERS.contains(&options.outgoing)
            && BUFFERS.contains(&options.incoming)
            && CONNECTIONS.contains(&options.connections_max);
        if !in_bounds {
            return Err(Error::INVALID);
        }
        let core = Core {
            id,
            pool: Pool::new(options.buffer_len, options.outgoing, options.incoming)?,
            connections: Table::new(options.connections_max),
            listeners: Table::new(LISTENERS_MAX),
            in_place: Table::new(IN_PLACE_MAX),
            released: Vec::new(),
            events: VecDeque::with_capacity(options.outgoing + options.incoming),
            starved: VecDeque::new(),
            returned: false,
        };
        let channels = Channels::new(options.channels.clone(), &options.program);
        let waiter = Waiter::new()?;
        Ok(Context {
            core,
            options,
            streams: None,
            channels,
            waiter,
            watched: None,
            armed: false,
            armed_at: Instant::ZERO,
        })
    }

    /// The context's id.
    pub fn id(&self) -> ContextId {
        self.core.id
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.waiter.fd()
    }

    /// Performs all pending work.
    fn progress(&mut self, at: Instant) {
        let unix = unix_seconds();
        let woken = std::mem::take(&mut self.armed);
        if woken {
            self.waiter.clear_signal();
        }
        let core = &mut self.core;
        if let Some(streams) = &mut self.streams {
            streams.progress(core, at, unix, woken);
        }
        self.channels.progress(core, at, unix);
        if std::mem::take(&mut core.returned) {
            for _ in 0..core.starved.len() {
                let Some(key) = core.starved.pop_front() else { break };
                let Some(connection) = core.connections.get_mut(key) else { continue };
                connection.starved = false;
                if let Some(streams) = &mut self.streams {
                    streams.serve_starved(core, at, key);
                }
            }
        }
    }

    /// Stores up to `into.len()` events; returns how many.
    pub fn poll(&mut self, into: &mut [std::mem::MaybeUninit<Event>]) -> usize {
        let at = now();
        self.progress(at);
        if self.core.events.is_empty() && at >= self.armed_at + ARM_EVERY {
            self.armed_at = at;
            self.arm_transports();
            self.progress(at);
        }
        self.next_events(into)
    }

    /// Stores pending events. Events of accepted connections end a batch, so that the program can set a
    /// connection's pointer before its first event.
    fn next_events(&mut self, into: &mut [std::mem::MaybeUninit<Event>]) -> usize {
        let (mut count, mut accepted) = (0, false);
        while let Some(slot) = into.get_mut(count) {
            if accepted && self.core.events.front().is_some_and(|event| event.accepted == 0) {
                break;
            }
            let Some(event) = self.core.next_event() else { break };
            accepted |= event.accepted != 0;
            slot.write(event);
            count += 1;
        }
        count
    }

    /// Makes the descriptor readable when the next event is pending. Returns `true` if one is pending
    /// already.
    pub fn arm(&mut self) -> Result<bool> {
        self.armed = true;
        let mut busy = !self.core.events.is_empty();
        if !busy {
            busy = self.arm_transports();
        }
        self.watch()?;
        if busy {
            self.waiter.signal();
            return Ok(true);
        }
        self.keep_time();
        Ok(false)
    }

    /// Makes the descriptor readable, while it is armed, at the next deadline.
    pub fn keep_time(&mut self) {
        if self.armed {
            let streams = self.streams.as_ref().and_then(Streams::next_timeout);
            self.waiter.wake_at(streams.into_iter().chain(self.channels.next_timeout()).min());
        }
    }

    /// Arms the providers; returns `true` if they are ready already. Arming makes them poll their sockets,
    /// which signal connections and hang-ups; otherwise they poll them rarely.
    fn arm_transports(&mut self) -> bool {
        let streams = self.streams.as_mut().is_some_and(|s| s.arm() == Armed::Busy);
        let channels = self.channels.arm(&self.core) == Armed::Busy;
        streams || channels
    }

    /// Updates the set of watched descriptors.
    fn watch(&mut self) -> Result<()> {
        let streams = self.streams.as_ref().map(Streams::wake_generation);
        let is = Some((streams, self.channels.wake_generation()));
        if self.watched == is {
            return Ok(());
        }
        let mut wakes = Vec::new();
        if let Some(streams) = &self.streams {
            streams.wake(&mut wakes);
        }
        self.channels.wake(&mut wakes);
        self.waiter.watch(&wakes)?;
        self.watched = is;
        Ok(())
    }

    /// As [`poll`](Self::poll), but waits for at most `timeout_ms` (negative: without limit) if there is no
    /// event.
    pub fn wait(&mut self, into: &mut [std::mem::MaybeUninit<Event>], timeout_ms: c_int) -> Result<usize> {
        let until = u64::try_from(timeout_ms).ok().map(|ms| now() + Duration::from_millis(ms));
        loop {
            let count = self.poll(into);
            if count > 0 || into.is_empty() {
                return Ok(count);
            }
            let left = match until.map(|until| until.saturating_since(now())) {
                None => -1,
                Some(Duration::ZERO) => return Ok(0),
                Some(left) => left.as_millis() as c_int + 1,
            };
            // A signal that the program handles ends the wait, as in every blocking call.
            if !self.arm()? && !self.waiter.sleep(left) && timeout_ms < 0 {
                return Ok(0);
            }
        }
    }

    /// Takes a buffer from the pool for the program.
    pub fn take_buffer(&mut self) -> Result<crate::core::Buffer> {
        let key = self.core.pool.take()?;
        Ok(self.core.describe(key, 0, 0))
    }

    /// Takes a buffer back.
    pub fn release_buffer(&mut self, kind: Kind, key: Key) -> Result<()> {
        if kind == Kind::InPlace {
            let lent = self.core.in_place.remove(key).ok_or(Error::BUFFER)?;
            self.channels.release(now(), lent);
            return Ok(());
        }
        let lender = self.core.pool.release(key)?;
        self.core.freed(lender);
        Ok(())
    }

    fn streams(&mut self) -> Result<&mut Streams> {
        if self.streams.is_none() {
            let options = &self.options;
            self.streams = Some(Streams::attach(&options.agent, &options.program, options.connections_max)?);
        }
        self.streams.as_mut().ok_or(Error::IO)
    }

    /// Listens for streams.
    pub fn listen_stream(&mut self, address: SocketAddr, backlog: u32, user: usize) -> Result<Key> {
        self.streams()?;
        let Context { core, streams, .. } = self;
        streams.as_mut().ok_or(Error::IO)?.listen(core, address, backlog, user)
    }

    /// Starts a stream.
    pub fn connect_stream(&mut self, address: SocketAddr, user: usize) -> Result<Key> {
        self.streams()?;
        let Context { core, streams, .. } = self;
        streams.as_mut().ok_or(Error::IO)?.connect(core, now(), address, user)
    }

    /// Listens for channels.
    pub fn listen_channel(&mut self, name: &[u8], flags: u32, user: usize) -> Result<Key> {
        if flags & !(FLAG_ANY_USER | FLAG_IN_PLACE) != 0 {
            return Err(Error::INVALID);
        }
        let settings = ChannelSettings {
            any_user: flags & FLAG_ANY_USER != 0,
            in_place: flags & FLAG_IN_PLACE != 0,
            user,
        };
        self.channels.listen(&mut self.core, name, settings)
    }

    /// Opens a channel.
    pub fn connect_channel(&mut self, name: &[u8], flags: u32, user: usize) -> Result<Key> {
        if flags & !FLAG_IN_PLACE != 0 {
            return Err(Error::INVALID);
        }
        let settings = ChannelSettings { any_user: false, in_place: flags & FLAG_IN_PLACE != 0, user };
        self.channels.connect(&mut self.core, now(), name, settings)
    }

    /// Sends `work.length` bytes from `data` on. They lie in `buffer`, which is a buffer of the pool or a
    /// message in place.
    pub fn send(&mut self, connection: Key, kind: Kind, buffer: Key, data: usize, work: Work) -> Result<()> {
        let found = self.core.connection(connection)?;
        match found.transport {
            Transport::Gone => return Err(Error::PIPE),
            _ if found.shutdown => return Err(Error::PIPE),
            Transport::Channel { .. } if work.length as usize > MESSAGE_MAX => {
                return Err(Error::MESSAGE_SIZE);
            }
            Transport::Stream(_) | Transport::Waiting if work.immediate != 0 => return Err(Error::INVALID),
            _ => {}
        }
        if work.flags & !FLAG_RELEASE != 0 {
            return Err(Error::INVALID);
        }
        if kind == Kind::InPlace {
            self.send_copy(connection, buffer, data, work)?;
        } else {
            self.core.enqueue(connection, buffer, data, work)?;
        }
        self.write_some(now(), connection);
        Ok(())
    }

    /// Copies a message in place to send it: its descriptor must not be held until another peer receives it.
    fn send_copy(&mut self, connection: Key, lent: Key, data: usize, work: Work) -> Result<()> {
        let copy = self.core.copied(lent, data, work.length)?;
        let start = self.core.pool.address(copy.index) as usize;
        if let Err(error) = self.core.enqueue(connection, copy, start, work) {
            self.core.pool.release(copy)?;
            return Err(error);
        }
        self.release_buffer(Kind::InPlace, lent)
    }

    fn write_some(&mut self, at: Instant, key: Key) {
        let Context { core, streams, channels, .. } = self;
        match (core.connections.get(key).map(|c| c.transport), streams) {
            (Some(Transport::Channel { .. }), _) => channels.write_some(core, at, key),
            (Some(Transport::Stream(_)), Some(streams)) => streams.write_some(core, at, key),
            _ => {}
        }
    }

    /// Ends the sending direction of a stream after the queued buffers.
    pub fn shutdown(&mut self, key: Key) -> Result<()> {
        let connection = self.core.connection(key)?;
        match connection.transport {
            Transport::Gone => return Err(Error::PIPE),
            Transport::Channel { .. } => return Err(Error::INVALID),
            Transport::Waiting | Transport::Stream(_) => connection.shutdown = true,
        }
        self.write_some(now(), key);
        Ok(())
    }

    /// Ends a connection; its handle becomes invalid.
    pub fn end_connection(&mut self, key: Key, flags: u32) -> Result<()> {
        if flags & !FLAG_ABORT != 0 {
            return Err(Error::INVALID);
        }
        let connection = self.core.connection(key)?;
        let (transport, open) = (connection.transport, connection.open);
        let at = now();
        if flags & FLAG_ABORT == 0 && open && transport != Transport::Gone {
            connection.ended = true;
            self.write_some(at, key);
            return Ok(());
        }
        let Context { core, streams, channels, .. } = self;
        match (transport, streams) {
            (Transport::Channel { .. }, _) => channels.close(core, at, key),
            (_, Some(streams)) => streams.close(core, at, key, flags & FLAG_ABORT != 0),
            (_, None) => {
                core.fail_queue(key, Error::CANCELED);
                core.connections.remove(key);
            }
        }
        Ok(())
    }

    /// Ends a listener.
    pub fn end_listener(&mut self, key: Key) -> Result<()> {
        let listener = self.core.listeners.remove(key).ok_or(Error::HANDLE)?;
        // The events of these connections will not be reported.
        let handle = key.handle(Kind::Listener, self.core.id);
        let unreported = self.core.events.iter().filter(|event| event.handle == handle);
        let unreported: Vec<Key> = unreported.map(|event| handle::key(event.accepted)).collect();
        for connection in unreported {
            self.end_connection(connection, FLAG_ABORT)?;
        }
        match (listener.source, &mut self.streams) {
            (Source::Channel(set), _) => self.channels.end_listener(set),
            (Source::Stream(id), Some(streams)) => streams.end_listener(id),
            (Source::Stream(_), None) => {}
        }
        Ok(())
    }

    /// The shared part, for look-ups.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Abandons everything in a forked child; nothing is sent to any peer.
    pub fn abandon_after_fork(self) {
        self.channels.abandon_after_fork();
        if let Some(streams) = self.streams {
            streams.abandon_after_fork();
        }
    }
}
