//! The program itself, over the kernel's TCP on loopback: exit codes, a conversation, and clients that are no proxies.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs the real program; a test may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csp_wire::context::{Place, Record, message_of};

const DEADLINE: Duration = Duration::from_secs(30);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csp-context"));
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A program that runs until it is dropped.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(more: &[&str]) -> Self {
        let address = csp_support::free_address().to_string();
        let child = command(&["--listen", &address]).args(more).spawn().unwrap();
        Program { child, address: address.parse().unwrap() }
    }

    fn connect(&self) -> TcpStream {
        let end = Instant::now() + DEADLINE;
        loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(DEADLINE)).unwrap();
                    return stream;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn emit(record: Record<'_>) -> Vec<u8> {
    let mut bytes = [0; 300];
    let len = record.emit_head(None, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Returns whether the program ends the connection, whatever it has sent before.
fn is_ended(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Has a message pass the handler `duplicate`, as the first or a later one of a connection.
fn converse(mut stream: &TcpStream, path: u16) {
    let place = Place { path, generation: 0, stage: 2 };
    let call = Record::Call { place, sequence: 1, age_ns: 0, message: message_of(0) };
    let mut head = [0; 100];
    let len = call.emit_head(Some((&[5], 5)), &mut head).unwrap();
    let stage = Record::Stage { place, room: 1 << 20, handler: "duplicate", parameters: "2" };
    let hello = if path == 1 { emit(Record::Hello { credit: 64 }) } else { Vec::new() };
    let bytes = [&hello[..], &emit(stage), &head[..len], b"hello"].concat();
    stream.write_all(&bytes).unwrap();
    let same = emit(Record::Same { place, output: 0 });
    let expected = [&hello[..], &same, &same, &emit(Record::Done { place, fault: false })].concat();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, expected);
}

#[test]
fn exit_codes_say_why_it_did_not_run() {
    let code = |arguments: &[&str]| command(arguments).status().unwrap().code();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(code(&["--help"]), Some(0));
    assert_eq!(code(&["--handlers"]), Some(0));
    assert_eq!(code(&["--listen", "nowhere"]), Some(64));
    assert_eq!(code(&["--calls", "0"]), Some(64));
    assert_eq!(code(&["--listen", &address]), Some(69));
    assert_eq!(code(&["--log", "csp_context=loud"]), Some(78));
}

#[test]
fn clients_that_are_no_proxies_are_disconnected_and_disturb_nobody() {
    let program = Program::start(&[]);
    let good = program.connect();
    converse(&good, 1);
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 64], &emit(Record::Hello { credit: 1 }).repeat(2)] {
        let mut bad = program.connect();
        bad.write_all(bytes).unwrap();
        assert!(is_ended(&bad), "{bytes:?}");
    }
    converse(&good, 2);
}

#[test]
fn connections_beyond_the_bound_are_refused() {
    let program = Program::start(&["--connections-max", "1"]);
    let good = program.connect();
    converse(&good, 1);
    assert!(is_ended(&program.connect()));
    converse(&good, 2);
}

#[test]
fn it_stops_by_sigterm() {
    let mut program = Program::start(&[]);
    converse(&program.connect(), 1);
    let killed = Command::new("kill").arg(program.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = program.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}
