//! A client's end in memory, of which a test sees and says everything.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ended, Ends, UpstreamEnd};
use csp_tcp::{Buffer, Direction, Stack};
use csp_types::FlowLabel;

/// A client's end. Its host acknowledges what it is sent at once.
#[derive(Default)]
pub struct End {
    /// Bytes of the client that were not read yet.
    pub arrived: Vec<u8>,
    /// Longest slice in which they lie, in bytes; 0: they lie in one.
    pub slice: usize,
    /// The client has sent FIN.
    pub finished: bool,
    /// What the broker has written.
    pub sent: Vec<u8>,
    /// What it may write.
    pub room: usize,
    /// The broker has sent FIN, and writes nothing any more.
    pub fin: bool,
    /// The client's host acknowledges nothing by itself: what was written counts as unacknowledged.
    pub silent: bool,
    pub unacknowledged: u32,
    /// Bytes written that were not sent once.
    pub unsent: usize,
    /// How often the broker asked to be called when something is acknowledged.
    pub called_again: u32,
    /// The client is a process of the cluster.
    pub local: bool,
    /// The broker has opened the connection.
    pub upstream: bool,
    /// Lends memory.
    pub engine: Option<Rc<RefCell<Stack>>>,
    /// Where the bytes of each write were, and how many, if that is to be kept.
    pub writes: Option<Vec<(*const u8, usize)>>,
}

impl End {
    /// An end with room for so many bytes.
    pub fn new(room: usize) -> End {
        End { room, ..End::default() }
    }

    fn take(&mut self, bytes: &[u8]) -> usize {
        assert!(!self.fin, "nothing follows the end of the stream");
        if let Some(writes) = &mut self.writes {
            writes.push((bytes.as_ptr(), bytes.len()));
        }
        let taken = bytes.len().min(self.room);
        self.sent.extend_from_slice(&bytes[..taken]);
        self.room -= taken;
        self.unacknowledged += if self.silent { taken as u32 } else { 0 };
        taken
    }

    fn slices(&self, max: usize) -> impl Iterator<Item = &[u8]> {
        let slice = if self.slice == 0 { usize::MAX } else { self.slice };
        self.arrived[..max.min(self.arrived.len())].chunks(slice)
    }
}

/// The only connection that is known while it is served: a client's, or one to a process.
impl Ends for End {
    fn client(&mut self, _: FlowLabel) -> Option<impl ClientEnd> {
        Some(self)
    }
    fn upstream(&mut self, _: FlowLabel) -> Option<impl UpstreamEnd> {
        Some(self)
    }
    fn splice(&mut self, _: FlowLabel, _: FlowLabel, _: usize) -> usize {
        0
    }
    fn end(&mut self, _: FlowLabel, _: Step) {
        panic!("the broker ends only what is served");
    }
    fn relate(&mut self, _: FlowLabel, _: FlowLabel) {}
    fn give_back(&mut self, buffer: Buffer) {
        assert!(ClientEnd::give_back(&mut &mut *self, buffer).is_none());
    }
}

/// The ends of several clients, by the index of their labels.
pub struct Clients<'a>(pub &'a mut BTreeMap<u32, End>);

impl Ends for Clients<'_> {
    fn client(&mut self, label: FlowLabel) -> Option<impl ClientEnd> {
        self.0.get_mut(&(label.index() as u32))
    }
    fn upstream(&mut self, _: FlowLabel) -> Option<impl UpstreamEnd> {
        None::<&mut End>
    }
    fn splice(&mut self, _: FlowLabel, _: FlowLabel, _: usize) -> usize {
        0
    }
    fn end(&mut self, _: FlowLabel, _: Step) {
        panic!("the broker ends only what is served");
    }
    fn relate(&mut self, _: FlowLabel, _: FlowLabel) {}
    fn give_back(&mut self, buffer: Buffer) {
        let engine = self.0.values().find_map(|end| end.engine.as_ref());
        engine.expect("it has lent the buffer").borrow_mut().give_back(buffer);
    }
}

impl UpstreamEnd for &mut End {
    fn readable(&self) -> usize {
        self.arrived.len()
    }
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        self.slices(max)
    }
    fn consume(&mut self, len: usize) {
        self.arrived.drain(..len);
    }
    fn is_finished(&self) -> bool {
        self.finished
    }
    fn ended(&self) -> Option<Ended> {
        None
    }
    fn room(&self) -> usize {
        self.room
    }
    fn write(&mut self, parts: &[&[u8]]) -> usize {
        parts.iter().map(|part| self.take(part)).sum()
    }
    fn window(&self) -> u32 {
        0
    }
    fn widen(&mut self, _: u32) -> u32 {
        0
    }
}

impl ClientEnd for &mut End {
    fn readable(&self) -> usize {
        self.arrived.len()
    }
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        self.slices(max)
    }
    fn consume(&mut self, len: usize) {
        self.arrived.drain(..len);
    }
    fn is_finished(&self) -> bool {
        self.finished
    }
    fn lend(&mut self) -> Option<Buffer> {
        self.engine.as_ref()?.borrow_mut().lend(Direction::Send)
    }
    fn give_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        let Some(engine) = &self.engine else { return Some(buffer) };
        engine.borrow_mut().give_back(buffer);
        None
    }
    fn write(&mut self, bytes: &[u8], buffer: Option<&Buffer>) -> usize {
        assert!(buffer.is_none_or(|buffer| buffer.bytes().as_ptr_range().contains(&bytes.as_ptr())));
        self.take(bytes)
    }
    fn room(&self) -> usize {
        self.room
    }
    fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }
    fn useful_window(&self) -> u32 {
        0
    }
    fn set_window(&mut self, _: u32) {}
    fn is_over(&self) -> bool {
        false
    }
    fn unsent(&self) -> usize {
        self.unsent
    }
    fn call_again(&mut self) {
        self.called_again += 1;
    }
    fn is_local(&self) -> bool {
        self.local
    }
}
