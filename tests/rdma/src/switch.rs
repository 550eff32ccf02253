//! The Ethernet of a run: a switch between QEMU's stream devices.
//!
//! RoCE expects a network with hardly any loss. QEMU's multicast on loopback loses frames when a guest is
//! slower than another, and each loss stops a queue pair for half a second. This switch queues megabytes of
//! frames for a slow guest, so only a stopped guest loses frames. A frame goes to the guest that it is
//! addressed to, or else to all.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};

/// Largest queue for a guest, in bytes.
const WAITING_LEN_MAX: usize = 16 << 20;
/// Longest frame that QEMU sends (its NET_BUFSIZE).
const FRAME_LEN_MAX: usize = 4096 + 65536;
/// Length of the prefix of each frame: its length, big-endian.
const PREFIX_LEN: usize = 4;
const READ_LEN: usize = 256 << 10;
/// First bytes of the guests' Ethernet addresses; the last byte is the guest's number.
const ADDRESS: [u8; 5] = [0x52, 0x54, 0x00, 0x99, 0x00];

/// A running switch. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Switch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the Ethernet address of a guest in QEMU's format.
pub(crate) fn address(number: u8) -> String {
    let bytes: Vec<String> = ADDRESS.iter().chain([&number]).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

impl Switch {
    /// Starts a switch with sockets at `paths`, guest 1's first.
    ///
    /// # Errors
    /// A socket cannot be created.
    pub(crate) fn start<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<Self> {
        let mut ports = Vec::new();
        for path in paths {
            let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
            ports.push(Port { listener, cable: None, input: Vec::new(), output: Vec::new(), written: 0 });
        }
        let (stop, stopped) = UnixStream::pair()?;
        let thread =
            thread::Builder::new().name("switch".to_owned()).spawn(move || serve(&mut ports, &stopped))?;
        Ok(Switch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The port of a guest.
struct Port {
    listener: UnixListener,
    cable: Option<UnixStream>,
    /// Bytes received of an incomplete frame.
    input: Vec<u8>,
    /// Frames queued for the guest, with their prefixes, and the number of bytes of them already written.
    output: Vec<u8>,
    written: usize,
}

/// Forwards frames until the other end of `stopped` is closed.
fn serve(ports: &mut [Port], stopped: &UnixStream) {
    let mut part = vec![0; READ_LEN];
    while let Some(ready) = wait(ports, stopped) {
        for (at, ready) in ready.into_iter().enumerate() {
            if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                continue;
            }
            let mut frames = ports[at].receive(&mut part);
            let mut used = 0;
            while let Some(frame) = next(&frames[used..]) {
                forward(ports, at, frame);
                used += PREFIX_LEN + frame.len();
            }
            frames.drain(..used);
            ports[at].input = frames;
        }
        for port in ports.iter_mut() {
            port.send();
        }
    }
}

/// Waits until a port is ready. Returns the events of each port, or `None` when the switch must stop.
fn wait(ports: &[Port], stopped: &UnixStream) -> Option<Vec<PollFlags>> {
    let mut descriptors = vec![PollFd::new(stopped, PollFlags::IN)];
    for port in ports {
        let wanted = if port.waiting() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let descriptor = port.cable.as_ref().map_or(port.listener.as_fd(), |cable| cable.as_fd());
        descriptors.push(PollFd::from_borrowed_fd(descriptor, wanted));
    }
    // An interrupted call returns no events.
    let _ = poll(&mut descriptors, None);
    let ready: Vec<PollFlags> = descriptors.iter().map(PollFd::revents).collect();
    let (stop, ready) = ready.split_first()?;
    stop.is_empty().then(|| ready.to_vec())
}

/// Returns the first complete frame of `bytes`, without its prefix.
fn next(bytes: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = bytes.split_first_chunk::<PREFIX_LEN>()?;
    rest.get(..u32::from_be_bytes(*prefix) as usize)
}

/// Queues a frame for its destinations.
fn forward(ports: &mut [Port], from: usize, frame: &[u8]) {
    let owner = frame.strip_prefix(&ADDRESS).and_then(|rest| rest.first()).map(|number| usize::from(*number));
    for (at, port) in ports.iter_mut().enumerate() {
        if at != from && owner.is_none_or(|number| number == at + 1) {
            port.queue(frame);
        }
    }
}

impl Port {
    fn waiting(&self) -> usize {
        self.output.len() - self.written
    }

    /// Accepts a guest's connection, or reads from it. Returns the bytes not yet forwarded, old and new.
    fn receive(&mut self, part: &mut [u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.input);
        let Some(cable) = &mut self.cable else {
            self.cable = self.listener.accept().ok().map(|(cable, _)| cable);
            let unblocked = self.cable.as_ref().is_some_and(|cable| cable.set_nonblocking(true).is_ok());
            self.cable = self.cable.take().filter(|_| unblocked);
            return bytes;
        };
        match cable.read(part) {
            Ok(n @ 1..) => bytes.extend_from_slice(&part[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => self.unplugged(),
        }
        let prefix =
            bytes.first_chunk::<PREFIX_LEN>().map_or(0, |prefix| u32::from_be_bytes(*prefix) as usize);
        if prefix > FRAME_LEN_MAX {
            self.unplugged();
            bytes.clear();
        }
        bytes
    }

    /// Queues a frame for the guest, or drops it if the queue is full.
    fn queue(&mut self, frame: &[u8]) {
        if self.cable.is_some() && self.waiting() + PREFIX_LEN + frame.len() <= WAITING_LEN_MAX {
            self.output.extend_from_slice(&(frame.len() as u32).to_be_bytes());
            self.output.extend_from_slice(frame);
        }
    }

    /// Writes queued frames as far as the guest accepts them.
    fn send(&mut self) {
        while self.waiting() > 0 {
            let Some(cable) = &mut self.cable else { break };
            match cable.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.unplugged(),
            }
        }
        // Written bytes are removed when they are more than half of the queue, so that each byte moves at
        // most once.
        if self.written > self.output.len() / 2 {
            self.output.drain(..self.written);
            self.written = 0;
        }
    }

    fn unplugged(&mut self) {
        self.cable = None;
        self.output.clear();
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// Returns a switch with three guests, the directory of its sockets, and the guests' ends.
    fn three(name: &str) -> (Switch, PathBuf, Vec<UnixStream>) {
        let folder = std::env::temp_dir().join(format!("csp-switch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let paths: Vec<PathBuf> = (1..=3).map(|n| folder.join(format!("{n}"))).collect();
        let switch = Switch::start(paths.iter().map(PathBuf::as_path)).unwrap();
        let guests = paths.iter().map(|path| UnixStream::connect(path).unwrap()).collect();
        (switch, folder, guests)
    }

    fn frame(to: [u8; 6], mark: u8) -> Vec<u8> {
        let mut bytes = 60_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&to);
        bytes.resize(64, mark);
        bytes
    }

    fn received(guest: &UnixStream) -> u8 {
        received_within(guest, DEADLINE).unwrap()
    }

    fn received_within(mut guest: &UnixStream, time: Duration) -> Option<u8> {
        guest.set_read_timeout(Some(time)).unwrap();
        let mut bytes = [0; 64];
        guest.read_exact(&mut bytes).ok()?;
        Some(bytes[63])
    }

    #[test]
    fn frames_reach_the_guest_they_are_addressed_to() {
        let (switch, folder, mut guests) = three("addresses");
        // A guest whose frame has arrived is connected; until then what is sent to it is lost.
        for guest in &mut guests {
            guest.write_all(&frame([0x52, 0x54, 0, 0x99, 0, 9], 0)).unwrap();
        }
        let whole = [frame([0xff; 6], 1), frame([0x52, 0x54, 0, 0x99, 0, 3], 2)].concat();
        // Sent in two parts that do not end with a frame.
        let deadline = std::time::Instant::now() + DEADLINE;
        let mut seen = Vec::new();
        while !seen.ends_with(&[1, 2]) && std::time::Instant::now() < deadline {
            guests[0].write_all(&whole[..70]).unwrap();
            guests[0].write_all(&whole[70..]).unwrap();
            let soon = || received_within(&guests[2], Duration::from_millis(100));
            seen.extend(std::iter::from_fn(soon).take(2));
        }
        assert_eq!(seen[seen.len() - 2..], [1, 2]);
        assert_eq!(received(&guests[1]), 1);
        drop(switch);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_guest_that_does_not_read_delays_no_other() {
        let (switch, folder, mut guests) = three("slow");
        guests[1].write_all(&frame([0x52, 0x54, 0, 0x99, 0, 1], 7)).unwrap();
        assert_eq!(received(&guests[0]), 7);
        guests[2].write_all(&frame([0x52, 0x54, 0, 0x99, 0, 1], 8)).unwrap();
        assert_eq!(received(&guests[0]), 8);
        let many = frame([0x52, 0x54, 0, 0x99, 0, 2], 3).repeat(1000);
        guests[0].set_write_timeout(Some(DEADLINE)).unwrap();
        for _ in 0..2 * WAITING_LEN_MAX / many.len() {
            guests[0].write_all(&many).unwrap();
        }
        guests[0].write_all(&frame([0x52, 0x54, 0, 0x99, 0, 3], 4)).unwrap();
        assert_eq!(received(&guests[2]), 4);
        drop(switch);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
