//! The state that streams and channels share: the pool, the tables, and the events that wait for the program.

use std::collections::VecDeque;

use libc::{c_int, c_void};

use crate::connection::{Connection, LENT_MAX, Lent, Listener, QUEUE_MAX};
use crate::error::{Error, Result};
use crate::handle::{self, ContextId, Key, Kind};
use crate::pool::{NONE, Pool, Work};
use crate::table::Table;

/// `CSP_RELEASE`: the buffer returns to the pool after it was sent, without an event.
pub const FLAG_RELEASE: u32 = 1;

/// `struct csp_buffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Its id while the program holds it; 0: none.
    pub id: u64,
    /// The bytes.
    pub data: *mut c_void,
    /// Capacity from `data` on, in bytes.
    pub capacity: u32,
    /// Length of the data, in bytes.
    pub length: u32,
}

impl Buffer {
    /// No buffer.
    pub const NONE: Buffer = Buffer { id: 0, data: std::ptr::null_mut(), capacity: 0, length: 0 };
}

/// `enum csp_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventType {
    /// A listener has a new connection.
    Accepted = 1,
    /// A requested connection is established.
    Connected = 2,
    /// Data was received; the buffer is lent to the program.
    Received = 3,
    /// A buffer was sent, or will never be sent.
    Sent = 4,
    /// The peer has ended its sending direction.
    End = 5,
    /// The connection has ended.
    Closed = 6,
}

/// `struct csp_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// An [`EventType`].
    pub kind: u32,
    /// 0 or a code.
    pub error: c_int,
    /// The connection or listener.
    pub handle: u64,
    /// The new connection of `Accepted`.
    pub accepted: u64,
    /// The handle's pointer.
    pub user: *mut c_void,
    /// The tag passed with a buffer that was sent.
    pub tag: u64,
    /// The buffer of `Received` and `Sent`.
    pub buffer: Buffer,
    /// Immediate data of a message.
    pub immediate: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: the pointers belong to the program or point into the pool; no code here dereferences them.
unsafe impl Send for Event {}

/// The shared part of a context.
pub struct Core {
    /// The context.
    pub id: ContextId,
    /// Its buffers.
    pub pool: Pool,
    /// Streams and channels.
    pub connections: Table<Connection>,
    /// Listeners.
    pub listeners: Table<Listener>,
    /// Messages that the program holds in place. Bounded by the descriptors of all channels.
    pub in_place: Table<Lent>,
    /// Messages in place that it returned, until the channels release them.
    pub released: Vec<Lent>,
    /// Events that the program has not polled. Bounded: a buffer is in at most one event, and a connection
    /// has at most three events without a buffer.
    pub events: VecDeque<Event>,
    /// Connections that found no buffer for received data, each once.
    pub starved: VecDeque<Key>,
    /// A receive buffer was returned since the starved connections were last served.
    pub returned: bool,
}

impl Core {
    /// The connection of a handle's key, unless the program ended it.
    pub fn connection(&mut self, key: Key) -> Result<&mut Connection> {
        self.connections.get_mut(key).filter(|c| !c.ended).ok_or(Error::HANDLE)
    }

    fn event_of(&self, kind: EventType, key: Key) -> Event {
        Event {
            kind: kind as u32,
            error: 0,
            handle: key.handle(Kind::Connection, self.id),
            accepted: 0,
            user: std::ptr::null_mut(),
            tag: 0,
            buffer: Buffer::NONE,
            immediate: 0,
            reserved: 0,
        }
    }

    /// Queues an event of a connection, unless the program ended it.
    pub fn report(&mut self, kind: EventType, key: Key, error: Option<Error>) {
        if self.connection(key).is_ok() {
            let event = Event { error: error.map_or(0, |e| e.0), ..self.event_of(kind, key) };
            self.events.push_back(event);
        }
    }

    /// Queues the event of a listener's new connection.
    pub fn report_accepted(&mut self, listener: Key, connection: Key) {
        let event = Event {
            handle: listener.handle(Kind::Listener, self.id),
            accepted: connection.handle(Kind::Connection, self.id),
            ..self.event_of(EventType::Accepted, connection)
        };
        self.events.push_back(event);
    }

    /// Returns the next event for the program, with the handle's current pointer. Events of a connection that
    /// the program has ended meanwhile are dropped, except those that return its buffers.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(mut event) = self.events.pop_front() {
            let key = handle::key(event.handle);
            let user = if event.kind == EventType::Accepted as u32 {
                self.listeners.get(key).map(|l| l.user)
            } else {
                self.connections.get(key).filter(|c| !c.ended).map(|c| c.user)
            };
            if user.is_none() && event.kind == EventType::Received as u32 {
                self.take_back(event.buffer.id);
            }
            if user.is_some() || event.kind == EventType::Sent as u32 {
                event.user = user.unwrap_or(0) as *mut c_void;
                return Some(event);
            }
        }
        None
    }

    /// Takes back the buffer of an event that is dropped.
    fn take_back(&mut self, id: u64) {
        if handle::kind(id) == Ok(Kind::InPlace) {
            let lent = self.in_place.remove(handle::key(id));
            self.released.extend(lent);
        } else {
            let lender = self.pool.recycle(handle::key(id).index);
            self.freed(lender);
        }
    }

    /// Describes a buffer for the program.
    pub fn describe(&self, key: Key, offset: u32, length: u32) -> Buffer {
        let capacity = (self.pool.buffer_len() as u32).saturating_sub(offset);
        let data = self.pool.address(key.index).wrapping_add(offset as usize);
        Buffer { id: key.handle(Kind::Buffer, self.id), data: data.cast(), capacity, length }
    }

    /// Whether data may be read for a connection now: a buffer is free, and the program holds fewer than the
    /// limit. If not, the connection is served when a buffer is returned.
    pub fn may_receive(&mut self, key: Key) -> bool {
        let has_buffer = self.pool.incoming().is_some();
        let Some(connection) = self.connections.get_mut(key).filter(|c| !c.ended) else { return false };
        if has_buffer && connection.lent < LENT_MAX {
            return true;
        }
        if !std::mem::replace(&mut connection.starved, true) {
            self.starved.push_back(key);
        }
        false
    }

    /// Lends the program the buffer that [`Pool::incoming`] returned, with `length` bytes of a connection.
    pub fn received(&mut self, key: Key, length: usize, immediate: u32) {
        let Some(buffer) = self.pool.lend(key) else { return };
        if let Some(connection) = self.connections.get_mut(key) {
            connection.lent += 1;
        }
        let buffer = self.describe(buffer, 0, length as u32);
        let event = Event { buffer, immediate, ..self.event_of(EventType::Received, key) };
        self.events.push_back(event);
    }

    /// Lends the program a message in place. Returns it if there is no room for another.
    pub fn received_in_place(&mut self, key: Key, lent: Lent) -> Option<Lent> {
        let (length, immediate) = (lent.message.len as u32, lent.message.immediate);
        let (Some(data), true) =
            (lent.memory.at(lent.message.offset, lent.message.len), self.in_place.has_room())
        else {
            return Some(lent);
        };
        let id = self.in_place.insert(lent)?.handle(Kind::InPlace, self.id);
        let buffer = Buffer { id, data: data.cast(), capacity: length, length };
        let event = Event { buffer, immediate, ..self.event_of(EventType::Received, key) };
        self.events.push_back(event);
        None
    }

    /// Copies part of a message that the program holds in place to a buffer of the pool, which the program
    /// then holds as well.
    pub fn copied(&mut self, key: Key, data: usize, length: u32) -> Result<Key> {
        let lent = self.in_place.get(key).ok_or(Error::BUFFER)?;
        let start = lent.memory.at(lent.message.offset, lent.message.len).map_or(0, |at| at as usize);
        let skipped = data.wrapping_sub(start);
        if skipped > lent.message.len || length as usize > lent.message.len - skipped {
            return Err(Error::INVALID);
        }
        let copy = self.pool.take()?;
        // SAFETY: `length` bytes from `data` on are within the message, by the check, and fit the buffer,
        // which is as long as the longest message at least; the pool's memory and a link's do not overlap.
        // The peer may change what is copied: any bytes will do.
        unsafe {
            let from = std::ptr::with_exposed_provenance::<u8>(data);
            std::ptr::copy_nonoverlapping(from, self.pool.address(copy.index), length as usize);
        }
        Ok(copy)
    }

    /// Records that the program, or a connection, released a buffer.
    pub fn freed(&mut self, lender: Option<Key>) {
        let Some(lender) = lender else { return };
        self.returned = true;
        if let Some(connection) = self.connections.get_mut(lender) {
            connection.lent = connection.lent.saturating_sub(1);
        }
    }

    /// Appends a buffer of the program to a connection's queue.
    pub fn enqueue(&mut self, key: Key, buffer: Key, data: usize, work: Work) -> Result<()> {
        let connection = self.connections.get(key).filter(|c| !c.ended).ok_or(Error::HANDLE)?;
        if connection.queued >= QUEUE_MAX {
            return Err(Error::AGAIN);
        }
        let index = self.pool.enqueue(buffer, data, work)?;
        let Some(connection) = self.connections.get_mut(key) else { return Err(Error::HANDLE) };
        let last = std::mem::replace(&mut connection.tail, index);
        connection.queued += 1;
        match self.pool.work(last) {
            Some(last) if connection.head != NONE => last.next = index,
            _ => connection.head = index,
        }
        Ok(())
    }

    /// Removes the first buffer of a connection's queue: it was sent, or will never be sent.
    pub fn complete(&mut self, key: Key, error: Option<Error>) {
        let Some(connection) = self.connections.get_mut(key).filter(|c| c.head != NONE) else { return };
        let index = connection.head;
        let Some(work) = self.pool.work(index).copied() else { return };
        connection.head = work.next;
        connection.queued -= 1;
        if work.next == NONE {
            connection.tail = NONE;
        }
        if work.flags & FLAG_RELEASE != 0 {
            let lender = self.pool.recycle(index);
            return self.freed(lender);
        }
        let buffer = self.pool.return_to_program(index);
        let buffer = self.describe(buffer, work.offset, work.length);
        let (error, tag) = (error.map_or(0, |e| e.0), work.tag);
        let event = Event { error, tag, buffer, ..self.event_of(EventType::Sent, key) };
        self.events.push_back(event);
    }

    /// Fails all buffers of a connection's queue: they will not be sent.
    pub fn fail_queue(&mut self, key: Key, error: Error) {
        while self.connections.get(key).is_some_and(|c| c.head != NONE) {
            self.complete(key, Some(error));
        }
    }
}
