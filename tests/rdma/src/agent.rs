//! The agent in a guest: runs the programs that the host requests and reports their output and exit codes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::frame::Frame;

/// The directory of the serial ports to the host. A guest has one.
const PORTS: &str = "/sys/class/virtio-ports";
const OUTPUT_PART: usize = 16 << 10;
/// Time limit for the rest of a program's output after its end: its children may keep the pipe open.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(1);
/// Number and interval of the checks for the host.
const HOST_CHECKS: u32 = 1000;
const HOST_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Exit code of a program that could not be started, as shells define it.
const NOT_STARTED: u32 = 127;

type Port = Arc<Mutex<File>>;
/// Process groups of the running programs.
type Groups = Arc<Mutex<HashMap<u32, Pid>>>;

/// Serves the host until it disconnects.
///
/// # Errors
/// The port cannot be opened, or the host sent something other than a frame.
pub fn serve() -> Result<()> {
    let name = fs::read_dir(PORTS).context(PORTS)?.next().context("no serial port to the host")??.file_name();
    let mut from = File::options().read(true).write(true).open(Path::new("/dev").join(name))?;
    wait_for_host(&from)?;
    let port: Port = Arc::new(Mutex::new(from.try_clone()?));
    let groups = Groups::default();
    send(&port, 0, &Frame::Ready);
    loop {
        match Frame::read(&mut from) {
            Ok((program, Frame::Start(command))) => start(program, &command, &port, &groups),
            Ok((program, Frame::Signal(number))) => signal(program, number, &groups),
            Ok((_, frame)) => eprintln!("unexpected frame from the host: {frame:?}"),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the kernel sees the host: a read before that returns the end of the file.
fn wait_for_host(port: &File) -> Result<()> {
    for _ in 0..HOST_CHECKS {
        let mut descriptors = [PollFd::new(port, PollFlags::OUT)];
        poll(&mut descriptors, None)?;
        if !descriptors[0].revents().contains(PollFlags::HUP) {
            return Ok(());
        }
        thread::sleep(HOST_CHECK_INTERVAL);
    }
    bail!("the host has not opened the serial port")
}

fn send(port: &Port, program: u32, frame: &Frame) {
    // A failure means that the host has disconnected, which ends the agent when it reads.
    let _ = frame.write(program, &mut *port.lock().unwrap_or_else(PoisonError::into_inner));
}

fn start(program: u32, command: &[u8], port: &Port, groups: &Groups) {
    let mut child = match spawn(command) {
        Ok(child) => child,
        Err(error) => {
            send(port, program, &Frame::Error(format!("cannot start: {error}\n").into_bytes()));
            return send(port, program, &Frame::Exited(NOT_STARTED));
        }
    };
    groups.lock().unwrap_or_else(PoisonError::into_inner).insert(program, Pid::from_child(&child));
    let (port, groups) = (Arc::clone(port), Arc::clone(groups));
    thread::spawn(move || {
        let ended = copy_outputs(&mut child, program, &port);
        let code = child.wait().map_or(NOT_STARTED, code);
        for _ in 0..2 {
            let _ = ended.recv_timeout(OUTPUT_DEADLINE);
        }
        groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&program);
        send(&port, program, &Frame::Exited(code));
    });
}

fn spawn(command: &[u8]) -> io::Result<Child> {
    let text = String::from_utf8_lossy(command);
    let mut words = text.split_terminator('\0');
    let (Some(folder), Some(program)) = (words.next(), words.next()) else {
        return Err(io::Error::other("the command has no program"));
    };
    Command::new(program)
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

fn code(status: ExitStatus) -> u32 {
    let signal = status.signal().map(|number| 128 + number);
    signal.or(status.code()).unwrap_or(255) as u32
}

/// Forwards the program's outputs, each from a thread of its own. The receiver gets a message at the end of
/// each.
fn copy_outputs(child: &mut Child, program: u32, port: &Port) -> Receiver<()> {
    let (ended, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        copy(out, program, port, Frame::Output, &ended);
    }
    if let Some(error) = child.stderr.take() {
        copy(error, program, port, Frame::Error, &ended);
    }
    receiver
}

fn copy(
    mut from: impl Read + Send + 'static,
    program: u32,
    port: &Port,
    frame: fn(Vec<u8>) -> Frame,
    ended: &Sender<()>,
) {
    let (port, ended) = (Arc::clone(port), ended.clone());
    thread::spawn(move || {
        let mut part = vec![0; OUTPUT_PART];
        while let Ok(n @ 1..) = from.read(&mut part) {
            send(&port, program, &frame(part[..n].to_vec()));
        }
        let _ = ended.send(());
    });
}

fn signal(program: u32, number: u32, groups: &Groups) {
    let group = groups.lock().unwrap_or_else(PoisonError::into_inner).get(&program).copied();
    let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
    if let (Some(group), Some(signal)) = (group, signal) {
        // The program may have ended meanwhile.
        let _ = kill_process_group(group, signal);
    }
}
