//! Set-up and release of VIs.

use std::path::Path;

use super::layout::Mapping;
use super::rendezvous::{Kind, PACKET_LEN_MAX, Packet};
use super::vi::{Rings, Stage, Vi};
use super::{ShmProvider, Token, acceptor, sys};
use crate::provider::check_private_data;
use crate::{Event, Provider, RequestId, ViAddress, ViConfig, ViError, ViId};

pub(super) fn path_of(address: &ViAddress) -> Result<&Path, ViError> {
    match address {
        ViAddress::Path(path) => Ok(path),
        other => Err(other.unreachable("the shm provider needs a path".to_owned())),
    }
}

fn send_packet(socket: &sys::Fd, packet: &Packet, memory: Option<&sys::Fd>) -> Result<(), sys::Errno> {
    let mut bytes = [0; PACKET_LEN_MAX];
    let len = packet.write(&mut bytes);
    sys::send(socket, &bytes[..len], memory)
}

/// Sends a rejection. A connector that has closed its socket does not get it, which is harmless.
pub(super) fn refuse(waiting: &acceptor::Waiting, kind: Kind) {
    let packet = Packet { kind, config: waiting.config, private_data: Vec::new() };
    let _ = send_packet(&waiting.socket, &packet, None);
}

impl ShmProvider {
    /// Connects and blocks until the listener has answered, at most `timeout_ms` milliseconds. For clients
    /// without other work in the meantime. Returns the VI and the listener's private data. Other events
    /// remain queued.
    pub fn connect_wait(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        timeout_ms: u32,
    ) -> Result<(ViId, Vec<u8>), ViError> {
        let vi = self.connect(address, config, private_data)?;
        let deadline = sys::monotonic_ms() + u64::from(timeout_ms);
        loop {
            let answer = |event: &Event| match event {
                Event::Established { vi: of, .. } | Event::Refused { vi: of, .. } => *of == vi,
                _ => false,
            };
            let position = self.events.iter().position(answer);
            match position.and_then(|at| self.events.remove(at)) {
                Some(Event::Established { private_data, .. }) => {
                    if let Some(vi) = self.vis.get_mut(vi.0) {
                        vi.stage = Stage::Open;
                    }
                    return Ok((vi, private_data));
                }
                Some(Event::Refused { reason, .. }) => {
                    self.end(vi, true)?;
                    return Err(reason);
                }
                _ => {}
            }
            let left = deadline.saturating_sub(sys::monotonic_ms());
            if left == 0 {
                self.end(vi, true)?;
                return Err(address.unreachable("no answer within the time limit".to_owned()));
            }
            let mut tokens = [0; sys::READY_MAX];
            let timeout = i32::try_from(left).unwrap_or(i32::MAX);
            let count = sys::ready(&self.epoll, &mut tokens, timeout);
            self.handle(&tokens[..count]);
        }
    }

    pub(super) fn start_connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let path = path_of(address)?;
        let id = self
            .vis
            .insert(Vi::new(Stage::Connecting, config, None, None))
            .ok_or(ViError::Exhausted("VI"))?;
        let packet = Packet { kind: Kind::Request, config, private_data: private_data.to_vec() };
        let connected = sys::connect(path).and_then(|socket| {
            let socket = socket.lifted(self.floor);
            send_packet(&socket, &packet, None)?;
            sys::watch(&self.epoll, &socket, Token::Vi(id).to_u64())?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => {
                if let Some(vi) = self.vis.get_mut(id) {
                    vi.socket = Some(socket);
                }
            }
            Err(errno) => {
                let reason = address.unreachable(errno.text());
                self.events.push_back(Event::Refused { vi: ViId(id), reason });
            }
        }
        Ok(ViId(id))
    }

    pub(super) fn answer(
        &mut self,
        id: RequestId,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let waiting = self.acceptor.waiting.remove(id.0).ok_or(ViError::Unknown("connection request"))?;
        if waiting.config.message_len != config.message_len {
            refuse(&waiting, Kind::Mismatch);
            return Err(ViError::Protocol("the message lengths differ"));
        }
        let made = Mapping::create(&waiting.config, &config);
        let (mapping, memory) = made.inspect_err(|_| refuse(&waiting, Kind::Reject))?;
        let vi = Vi::new(Stage::Opening, config, Some(Rings::of_listener(mapping)), None);
        let Some(vi) = self.vis.insert(vi) else {
            refuse(&waiting, Kind::Reject);
            return Err(ViError::Exhausted("VI"));
        };
        let packet = Packet { kind: Kind::Accept, config, private_data: private_data.to_vec() };
        let socket = waiting.socket;
        let sent = send_packet(&socket, &packet, Some(&memory))
            .map_err(|_| ViError::Unknown("connection request (its peer is gone)"))
            .and_then(|()| {
                sys::watch(&self.epoll, &socket, Token::Vi(vi).to_u64()).map_err(|e| e.of("epoll_ctl"))
            });
        if let Err(error) = sent {
            self.vis.remove(vi);
            return Err(error);
        }
        if let Some(end) = self.vis.get_mut(vi) {
            end.socket = Some(socket);
        }
        self.events.push_back(Event::Established { vi: ViId(vi), private_data: Vec::new() });
        Ok(ViId(vi))
    }

    /// Handles a VI's socket that is readable or hung up.
    pub(super) fn on_socket(&mut self, id: u64) {
        let Some(vi) = self.vis.get(id) else { return };
        let Some(socket) = &vi.socket else { return };
        if vi.stage == Stage::Connecting {
            return self.receive_answer(id);
        }
        // Reads one packet. More are rare, since only an armed receiver is sent one; epoll then reports the
        // socket again.
        match sys::receive(socket, &mut [0]) {
            Ok(1..) | Err(sys::Errno(libc::EAGAIN)) => {}
            Ok(0) | Err(_) => self.hang_up(id),
        }
    }

    fn receive_answer(&mut self, id: u64) {
        let Some(vi) = self.vis.get_mut(id) else { return };
        let Some(socket) = &vi.socket else { return };
        let mut bytes = [0; PACKET_LEN_MAX];
        let got = sys::receive_with_descriptor(socket, &mut bytes);
        if matches!(got, Err(sys::Errno(libc::EAGAIN))) {
            return;
        }
        match read_answer(got, &bytes, &vi.config) {
            Ok((mapping, private_data)) => {
                vi.rings = Some(Rings::of_connector(mapping));
                vi.stage = Stage::Opening;
                self.events.push_back(Event::Established { vi: ViId(id), private_data });
            }
            Err(reason) => {
                if let Some(socket) = vi.socket.take() {
                    sys::unwatch(&self.epoll, &socket);
                }
                self.events.push_back(Event::Refused { vi: ViId(id), reason });
            }
        }
    }

    fn hang_up(&mut self, id: u64) {
        let Some(vi) = self.vis.get_mut(id) else { return };
        let Some(socket) = vi.socket.take() else { return };
        sys::unwatch(&self.epoll, &socket);
        if vi.is_hung_up() {
            self.hung_up += 1;
        }
    }

    /// Ends a VI whose peer wrote an invalid value to the memory.
    pub(super) fn break_vi(&mut self, id: u64) {
        let Some(vi) = self.vis.get_mut(id) else { return };
        if vi.is_hung_up() {
            self.hung_up -= 1;
        }
        (vi.ended, vi.broken) = (true, true);
        if let Some(socket) = vi.socket.take() {
            sys::unwatch(&self.epoll, &socket);
            sys::shutdown(&socket);
        }
        self.counters.violations += 1;
        self.events.push_back(Event::Disconnected { vi: ViId(id), clean: false });
    }

    /// Removes a VI. A live peer sees its end, as clean or unclean.
    pub(super) fn end(&mut self, vi: ViId, clean: bool) -> Result<(), ViError> {
        let end = self.vis.remove(vi.0).ok_or(ViError::Unknown("VI"))?;
        if end.is_hung_up() {
            self.hung_up -= 1;
        }
        if let Some(socket) = &end.socket {
            if let Some(rings) = &end.rings {
                rings.sender.close(clean);
            }
            sys::unwatch(&self.epoll, socket);
            sys::shutdown(socket);
        }
        self.sent.retain(|&(id, _)| id != vi.0);
        self.events.retain(|event| match event {
            Event::Established { vi: of, .. }
            | Event::Refused { vi: of, .. }
            | Event::Disconnected { vi: of, .. } => *of != vi,
            Event::Request(_) => true,
        });
        Ok(())
    }
}

fn read_answer(
    got: Result<(usize, Option<sys::Fd>), sys::Errno>,
    bytes: &[u8],
    own: &ViConfig,
) -> Result<(Mapping, Vec<u8>), ViError> {
    let (len, memory) = got.map_err(|e| e.of("recvmsg"))?;
    if len == 0 {
        return Err(ViError::Unreachable {
            address: "the listener".to_owned(),
            reason: "it closed the connection".to_owned(),
        });
    }
    let packet = Packet::parse(bytes.get(..len).unwrap_or(&[]))?;
    match (packet.kind, memory) {
        (Kind::Accept, Some(memory)) if packet.config.message_len == own.message_len => {
            Ok((Mapping::open(&memory, own, &packet.config)?, packet.private_data))
        }
        (Kind::Accept, Some(_)) | (Kind::Mismatch, _) => Err(ViError::Protocol("the message lengths differ")),
        (Kind::Accept, None) => Err(ViError::Protocol("the descriptor of the memory is missing")),
        (Kind::Reject, _) => Err(ViError::Rejected),
        (Kind::Request, _) => Err(ViError::Protocol("a request arrived instead of an answer")),
    }
}
