//! The program itself, over the kernel's TCP on loopback: exit codes, a conversation, and clients that are no
//! proxies.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs the real program; a test may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csp_types::options::OnStop;
use csp_wire::context::{Place, Record, Supply, message_of};

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
                    stream.set_nodelay(true).unwrap();
                    return stream;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Program {
    /// The processor time of all of its threads: what a neighbour takes is not in it.
    fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let time = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
            let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            text.split(' ').next().unwrap().parse().unwrap()
        };
        Duration::from_nanos(tasks.map(time).sum())
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
    let stage = Record::Stage {
        place,
        room: 1 << 20,
        handler: "duplicate",
        parameters: "2",
        supply: Supply::default(),
    };
    let hello = if path == 1 { emit(Record::Hello { credit: 64 }) } else { Vec::new() };
    let bytes = [&hello[..], &emit(stage), &head[..len], b"hello"].concat();
    stream.write_all(&bytes).unwrap();
    let same = emit(Record::Same { place, output: 0 });
    let expected =
        [&hello[..], &same, &same, &emit(Record::Done { place, fault: false, ended: false })].concat();
    // What other stages have counted may stand between.
    let mut answer = Vec::new();
    while answer.len() < expected.len() {
        let mut head = [0; 4];
        stream.read_exact(&mut head).unwrap();
        let mut record = head.to_vec();
        record.resize(Record::len_at(&head).unwrap(), 0);
        stream.read_exact(&mut record[4..]).unwrap();
        if !matches!(Record::parse(&record), Ok(Some((Record::Report { .. }, _)))) {
            answer.extend(record);
        }
    }
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

/// Emits nothing, for ever.
const ENDLESS: &str = r#"(module
    (memory (export "memory") 1 1)
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "on_message") (param i32 i32 i32) (result i32) (loop $on (br $on)) (i32.const 0)))"#;

#[test]
#[ignore = "measures time: make test-faults"]
fn a_module_that_never_ends_is_stopped_within_10_ms() {
    let program = Program::start(&[]);
    let mut stream = program.connect();
    let code = wat::parse_str(ENDLESS).unwrap();
    let object = &csp_sandbox::Sha256::of(&code).0;
    let supply = Supply { module: Some(object), formats: None, on_stop: OnStop::End };
    stream.write_all(&emit(Record::Hello { credit: 64 })).unwrap();
    let (mut times, mut walls) = (Vec::new(), Vec::new());
    for path in 0..50 {
        let place = Place { path, generation: 0, stage: 0 };
        let begin = emit(Record::Stage { place, room: 1 << 20, handler: "mine", parameters: "", supply });
        let part = emit(Record::Part { object, total: code.len() as u32, offset: 0, bytes: &code });
        stream.write_all(&begin).unwrap();
        if path == 0 {
            read_until(&stream, |record| matches!(record, Record::Want { .. }));
            stream.write_all(&part).unwrap();
        }
        // It is made meanwhile; what is measured is the call.
        std::thread::sleep(Duration::from_millis(30));
        let call = Record::Call { place, sequence: 1, age_ns: 0, message: message_of(0) };
        let mut head = [0; 100];
        let len = call.emit_head(Some((&[5], 5)), &mut head).unwrap();
        let (begun, before) = (Instant::now(), program.cpu());
        stream.write_all(&[&head[..len], b"hello"].concat()).unwrap();
        read_until(&stream, |record| *record == Record::Done { place, fault: true, ended: true });
        times.push(program.cpu() - before);
        walls.push(begun.elapsed());
        stream.write_all(&emit(Record::Gone { place })).unwrap();
    }
    times.sort();
    walls.sort();
    println!(
        "processor time {:?} (half), {:?} (all); {:?}, {:?} of the clock",
        times[25], times[49], walls[25], walls[49]
    );
    assert!(times[49] <= Duration::from_millis(10), "{times:?}");
}

/// Reads records until one is as expected.
fn read_until(mut stream: &TcpStream, is_it: impl Fn(&Record<'_>) -> bool) {
    let mut bytes = Vec::new();
    loop {
        let mut more = [0; 4096];
        let len = stream.read(&mut more).unwrap();
        assert!(len > 0, "the program ended the connection");
        bytes.extend_from_slice(&more[..len]);
        let mut used = 0;
        while let Some((record, len)) = Record::parse(&bytes[used..]).unwrap() {
            if is_it(&record) {
                return;
            }
            used += len;
        }
        bytes.drain(..used);
    }
}
