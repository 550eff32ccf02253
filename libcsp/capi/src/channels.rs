//! Channels: messages between processes of this host, over shared memory.
//!
//! Each listener has an endpoint of its own, since an endpoint does not report which of its addresses a peer
//! connected to; all channels that this side opened share another one. A message is copied once on each side:
//! from the buffer into the ring, and from the ring into a buffer.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use csp_transport::{
    Endpoint, EndpointConfig, LinkEvent, LinkId, LocalPeers, MessageKind, PeerIdentity, ProcessId, Purpose,
};
use csp_types::{Instant, ProgramName};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, Memory, ViAddress, Wake};

use crate::connection::{Connection, Lent, Listener, Source, Transport};
use crate::core::{Core, EventType};
use crate::error::{Error, Result, of_down, of_send};
use crate::handle::Key;
use crate::system::random;

/// Longest message in bytes (`CSP_MESSAGE_MAX`).
pub const MESSAGE_MAX: usize = 16 * 1024;
/// Largest number of sets at once (one per listener, one for opened channels), and of channels in each.
const SETS_MAX: usize = 33;
const LINKS_MAX: u32 = 256;
/// Longest name of a listener: the path of its socket must fit a Unix address.
const NAME_MAX: usize = 64;

/// Messages and events processed for one endpoint in one call.
const BURST_MAX: usize = 512;

struct Set {
    endpoint: Endpoint,
    /// Serial number of the set: another set may use its place before or after it.
    serial: u64,
    /// The listener, while the program has not ended it.
    listener: Option<Key>,
    /// The path of its socket.
    path: Option<PathBuf>,
    /// The connection of each link, by the link's slot.
    owners: Vec<Option<Key>>,
    /// The memory of messages that are lent in place, by the link's slot.
    memories: Vec<Option<Memory>>,
    /// Whether channels accepted here lend messages in place.
    in_place: bool,
    /// Channels established in this turn: their queues can be sent.
    opened: Vec<Key>,
}

/// The program's settings for a listener or channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSettings {
    /// Whether processes of other users may connect.
    pub any_user: bool,
    /// Whether messages are lent in place.
    pub in_place: bool,
    /// The program's pointer.
    pub user: usize,
}

/// The channels of a context.
pub struct Channels {
    folder: PathBuf,
    program: ProcessId,
    /// The first set is for channels that this side opens.
    sets: Vec<Option<Set>>,
    /// Channels whose queue waits for credit, each once.
    blocked: VecDeque<Key>,
    /// Number of changes of the set of descriptors.
    changes: u64,
}

/// Checks that a name is a plain file name.
fn check_name(name: &[u8]) -> Result<&str> {
    let good = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.iter().all(good) && !name.starts_with(b".");
    if fits { std::str::from_utf8(name).map_err(|_| Error::INVALID) } else { Err(Error::INVALID) }
}

impl Channels {
    /// No channels yet. Listeners are sockets in `folder`; `program` is the name stated to peers.
    pub fn new(folder: PathBuf, program: &ProgramName) -> Self {
        let program = ProcessId::of_program(program, std::process::id(), None);
        Channels { folder, program, sets: vec![None], blocked: VecDeque::new(), changes: 0 }
    }

    fn make(&self, local: Option<LocalPeers>) -> Result<Set> {
        let node = "local".parse().map_err(|_| Error::IO)?;
        let identity = PeerIdentity::process(node, self.program, random());
        let config = EndpointConfig { links_max: LINKS_MAX, ..EndpointConfig::message(identity, local) };
        let endpoint = Endpoint::new(Box::new(ShmProvider::new()?), config);
        debug_assert!(endpoint.message_len() >= MESSAGE_MAX);
        Ok(Set {
            endpoint,
            serial: random(),
            listener: None,
            path: None,
            owners: vec![None; LINKS_MAX as usize],
            memories: vec![None; LINKS_MAX as usize],
            in_place: false,
            opened: Vec::new(),
        })
    }

    fn path_of(&self, name: &[u8]) -> Result<PathBuf> {
        Ok(self.folder.join(format!("{}.csp", check_name(name)?)))
    }

    /// Listens under a name.
    pub fn listen(&mut self, core: &mut Core, name: &[u8], settings: ChannelSettings) -> Result<Key> {
        let path = self.path_of(name)?;
        let slot = self.sets.iter().skip(1).position(Option::is_none).map(|at| at + 1);
        let slot = slot.or((self.sets.len() < SETS_MAX).then_some(self.sets.len())).ok_or(Error::TOO_MANY)?;
        if !core.listeners.has_room() {
            return Err(Error::TOO_MANY);
        }
        // If the folder cannot be created, listening reports why.
        let _ = std::fs::create_dir_all(&self.folder);
        // SAFETY: the call takes no arguments and cannot fail.
        let own_user = unsafe { libc::getuid() };
        let local = if settings.any_user { LocalPeers::Anyone } else { LocalPeers::User(own_user) };
        let mut set = self.make(Some(local))?;
        set.in_place = settings.in_place;
        let address = ViAddress::Path(path.clone());
        set.endpoint.listen(&address).map_err(|_| refusal_to_listen(&path))?;
        let listener = Listener { source: Source::Channel(slot), user: settings.user, paused: false };
        let key = core.listeners.insert(listener).ok_or(Error::TOO_MANY)?;
        (set.listener, set.path) = (Some(key), Some(path));
        match self.sets.get_mut(slot) {
            Some(place) => *place = Some(set),
            None => self.sets.push(Some(set)),
        }
        self.changes += 1;
        Ok(key)
    }

    /// Ends a listener; its channels remain.
    pub fn end_listener(&mut self, at: usize) {
        let Some(set) = self.sets.get_mut(at).and_then(Option::as_mut) else { return };
        set.listener = None;
        // It cannot be found any more. The socket itself is closed with the last channel.
        if let Some(path) = set.path.take() {
            let _ = std::fs::remove_file(path);
        }
        self.drop_unused(at);
    }

    fn drop_unused(&mut self, at: usize) {
        let Some(place) = self.sets.get_mut(at) else { return };
        let unused = |set: &mut Set| set.listener.is_none() && set.owners.iter().all(Option::is_none);
        if place.as_mut().is_some_and(unused) {
            *place = None;
            self.changes += 1;
        }
    }

    /// Opens a channel to the process that listens under a name.
    pub fn connect(
        &mut self,
        core: &mut Core,
        now: Instant,
        name: &[u8],
        settings: ChannelSettings,
    ) -> Result<Key> {
        let path = self.path_of(name)?;
        if !core.connections.has_room() {
            return Err(Error::TOO_MANY);
        }
        if self.sets.first().is_none_or(Option::is_none) {
            let set = self.make(None)?;
            if let Some(place) = self.sets.first_mut() {
                *place = Some(set);
                self.changes += 1;
            }
        }
        let set = self.sets.first_mut().and_then(Option::as_mut).ok_or(Error::IO)?;
        let link = set.endpoint.connect(now, &ViAddress::Path(path), Purpose::Message, 0, (0, 1), b"")?;
        let mut connection = Connection::new(Transport::Channel { set: 0, link }, settings.user);
        connection.in_place = settings.in_place;
        let key = core.connections.insert(connection).ok_or(Error::TOO_MANY)?;
        if let Some(owner) = set.owners.get_mut(link.index()) {
            *owner = Some(key);
        }
        Ok(key)
    }

    /// Performs all pending work.
    pub fn progress(&mut self, core: &mut Core, now: Instant, unix_s: u64) {
        while let Some(lent) = core.released.pop() {
            self.release(now, lent);
        }
        for at in 0..self.sets.len() {
            let Some(set) = self.sets.get_mut(at).and_then(Option::as_mut) else { continue };
            set.endpoint.progress(now, unix_s);
            for _ in 0..BURST_MAX {
                if let Some(event) = set.endpoint.poll_event() {
                    set.on_event(core, now, at, event);
                } else if !set.receive(core, now, at) {
                    break;
                }
            }
            self.blocked.extend(set.opened.drain(..));
            if at > 0 {
                self.drop_unused(at);
            }
        }
        for _ in 0..self.blocked.len() {
            let Some(key) = self.blocked.pop_front() else { break };
            if let Some(connection) = core.connections.get_mut(key) {
                connection.blocked = false;
                self.write_some(core, now, key);
            }
        }
    }

    /// Sends queued messages as far as credit allows, then ends the channel if the program has ended it.
    pub fn write_some(&mut self, core: &mut Core, now: Instant, key: Key) {
        let Some(connection) = core.connections.get(key).filter(|c| c.open && !c.blocked) else { return };
        let Transport::Channel { set: at, link } = connection.transport else { return };
        let Some(set) = self.sets.get_mut(at).and_then(Option::as_mut) else { return };
        while let Some(connection) = core.connections.get(key).filter(|c| c.queued > 0) {
            let index = connection.head;
            let immediate = core.pool.work(index).map_or(0, |w| w.immediate);
            let gather = [core.pool.outgoing_bytes(index)];
            match set.endpoint.send(now, link, MessageKind::Message, immediate, &gather) {
                Ok(()) => core.complete(key, None),
                Err(error) => match of_send(error) {
                    None => return self.block(core, key),
                    Some(error) => core.complete(key, Some(error)),
                },
            }
        }
        if core.connections.get(key).is_some_and(|c| c.ended) {
            self.close(core, now, key);
        }
    }

    /// Releases a message that the program held in place.
    pub fn release(&mut self, now: Instant, lent: Lent) {
        let (at, serial) = lent.set;
        if let Some(set) = self.sets.get_mut(at).and_then(Option::as_mut).filter(|set| set.serial == serial) {
            set.endpoint.release(now, lent.message);
        }
    }

    fn block(&mut self, core: &mut Core, key: Key) {
        if let Some(connection) = core.connections.get_mut(key) {
            connection.blocked = true;
            self.blocked.push_back(key);
        }
    }

    /// Ends a channel at once; queued messages are not sent.
    pub fn close(&mut self, core: &mut Core, now: Instant, key: Key) {
        core.fail_queue(key, Error::CANCELED);
        let Some(connection) = core.connections.remove(key) else { return };
        let Transport::Channel { set: at, link } = connection.transport else { return };
        if let Some(set) = self.sets.get_mut(at).and_then(Option::as_mut) {
            set.endpoint.close(now, link);
            set.clear_owner(link);
        }
        if at > 0 {
            self.drop_unused(at);
        }
    }

    /// Time at which [`progress`](Self::progress) must be called even if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.sets.iter().flatten().filter_map(|set| set.endpoint.next_timeout()).min()
    }

    /// Arms the descriptors. Messages for which there is no free buffer do not count as ready.
    pub fn arm(&mut self, core: &Core) -> Armed {
        let mut armed = Armed::Armed;
        for set in self.sets.iter_mut().flatten() {
            let full = core.pool.incoming().is_none();
            let one = if full { set.endpoint.provider_mut().arm() } else { set.endpoint.arm() };
            // A provider that cannot be armed must be polled.
            if one != Ok(Armed::Armed) {
                armed = Armed::Busy;
            }
        }
        armed
    }

    /// The descriptors to wait on, appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.sets.iter().flatten().for_each(|set| set.endpoint.wake(into));
    }

    /// Generation of the set that [`wake`](Self::wake) returns.
    pub fn wake_generation(&self) -> u64 {
        self.changes
    }

    /// Abandons all channels in a forked child; nothing is sent to any peer.
    pub fn abandon_after_fork(self) {
        self.sets.into_iter().flatten().for_each(|set| set.endpoint.abandon_after_fork());
    }
}

impl Set {
    fn clear_owner(&mut self, link: LinkId) {
        if let Some(owner) = self.owners.get_mut(link.index()) {
            *owner = None;
        }
        if let Some(memory) = self.memories.get_mut(link.index()) {
            *memory = None;
        }
    }

    /// Maps the memory of an established channel if its messages are lent in place. Otherwise they are
    /// copied.
    fn map_memory(&mut self, link: LinkId, in_place: bool) {
        if let Some(memory) = self.memories.get_mut(link.index()) {
            *memory = self.endpoint.memory(link).ok().filter(|_| in_place);
        }
    }

    fn owner(&self, core: &Core, at: usize, link: LinkId) -> Option<Key> {
        let key = self.owners.get(link.index()).copied().flatten()?;
        let transport = core.connections.get(key)?.transport;
        (transport == Transport::Channel { set: at, link }).then_some(key)
    }

    fn on_event(&mut self, core: &mut Core, now: Instant, at: usize, event: LinkEvent) {
        match event {
            LinkEvent::Up { link, peer, .. } => match self.owner(core, at, link) {
                Some(key) => {
                    if let Some(connection) = core.connections.get_mut(key) {
                        (connection.open, connection.blocked) = (true, true);
                        self.opened.push(key);
                        let in_place = connection.in_place;
                        self.map_memory(link, in_place);
                    }
                    core.report(EventType::Connected, key, None);
                }
                None => self.accept(core, now, at, link, peer.uid),
            },
            LinkEvent::Down { link, reason } => {
                let Some(key) = self.owner(core, at, link) else { return };
                self.clear_owner(link);
                core.fail_queue(key, Error::PIPE);
                let Some(connection) = core.connections.get_mut(key) else { return };
                let error = of_down(&reason, connection.open);
                connection.transport = Transport::Gone;
                if connection.ended {
                    core.connections.remove(key);
                } else {
                    core.report(EventType::Closed, key, error);
                }
            }
        }
    }

    fn accept(&mut self, core: &mut Core, now: Instant, at: usize, link: LinkId, peer_user: Option<u32>) {
        let Some(listener) = self.listener else { return self.endpoint.close(now, link) };
        let mut connection = Connection::new(Transport::Channel { set: at, link }, 0);
        connection.open = true;
        connection.peer_user = peer_user;
        connection.in_place = self.in_place;
        self.map_memory(link, self.in_place);
        let Some(key) = core.connections.insert(connection) else { return self.endpoint.close(now, link) };
        if let Some(owner) = self.owners.get_mut(link.index()) {
            *owner = Some(key);
        }
        core.report_accepted(listener, key);
    }

    /// Receives one message. Returns `false` if there is none, or no buffer for it.
    fn receive(&mut self, core: &mut Core, now: Instant, at: usize) -> bool {
        let Some(link) = self.endpoint.next_message() else { return false };
        let key = self.owners.get(link.index()).copied().flatten();
        let key = key.filter(|key| core.connections.get(*key).is_some_and(|c| !c.ended));
        if let Some(memory) = self.memories.get(link.index()).cloned().flatten() {
            let Some(message) = self.endpoint.take(now) else { return false };
            let lent = Lent { set: (at, self.serial), message, memory };
            let back = match key {
                Some(key) => core.received_in_place(key, lent),
                None => Some(lent),
            };
            back.into_iter().for_each(|lent| self.endpoint.release(now, lent.message));
            return true;
        }
        if core.pool.incoming().is_none() {
            return false;
        }
        let Some(received) = self.endpoint.receive(now, core.pool.incoming_bytes()) else { return false };
        if let Some(key) = key {
            core.received(key, received.len, received.immediate);
        }
        true
    }
}

/// Determines why listening at a socket failed, since the provider reports it as text only.
fn refusal_to_listen(path: &Path) -> Error {
    match path.parent().map(std::fs::metadata) {
        Some(Ok(folder)) if folder.is_dir() => {
            if path.exists() {
                Error::ADDRESS_IN_USE
            } else {
                Error::ACCESS
            }
        }
        _ => Error::ACCESS,
    }
}
