//! Runs programs, and connects to servers: bounded in time and in bytes, whatever the other side does.

use std::io::Read;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::host::NotRun;

/// Longest output read of a program, in bytes.
const OUTPUT_LEN_MAX: usize = 16 << 20;
/// Longest errors read of a program, in bytes.
const ERRORS_LEN_MAX: usize = 64 << 10;
/// How long a program may run.
const RUN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a program is waited for that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a program is looked at that has closed its output.
const POLL: Duration = Duration::from_millis(2);
/// How long it may take to resolve a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Where programs are looked for, whatever PATH the caller has.
const PROGRAMS: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// What a program has written, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Which part of an output is kept that is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Its beginning; the program is ended then.
    Beginning,
    /// Its end, from the beginning of a line on.
    End,
}

/// Starts a program with an empty environment, reads what it writes, and kills it when it takes too long.
pub fn run(program: &str, arguments: &[&str], part: Part) -> Result<Ran, NotRun> {
    run_within(program, arguments, part, RUN_TIMEOUT)
}

fn run_within(program: &str, arguments: &[&str], part: Part, most: Duration) -> Result<Ran, NotRun> {
    let path = find(program).ok_or_else(|| NotRun::Missing(program.to_owned()))?;
    let failed = |why: String| NotRun::Failed(program.to_owned(), why);
    let late = || failed(format!("no end within {} s", most.as_secs()));
    let deadline = Instant::now() + most;
    let mut child = Command::new(path)
        .args(arguments)
        .env_clear()
        .env("PATH", PROGRAMS)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let errors = reader(child.stderr.take(), ERRORS_LEN_MAX, Part::Beginning);
    let Ok(out) = reader(child.stdout.take(), OUTPUT_LEN_MAX, part).recv_timeout(most) else {
        kill(&mut child);
        return Err(late());
    };
    // A program that writes more than is read waits for a reader: it ends here.
    if part == Part::Beginning && out.len() >= OUTPUT_LEN_MAX {
        let _ = child.kill();
    }
    // One that has closed its output may go on.
    let Some(status) = ended(&mut child, deadline) else {
        kill(&mut child);
        return Err(late());
    };
    // A process that it has left behind may keep this pipe open.
    let err = errors.recv_timeout(KILL_TIMEOUT).unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ran { code: status.code().unwrap_or(-1), out: text(out), err: text(err) })
}

/// Returns where a program is; one with a path is there or nowhere.
fn find(program: &str) -> Option<PathBuf> {
    let candidates = PROGRAMS.split(':').map(|folder| Path::new(folder).join(program));
    candidates.into_iter().find(|path| path.is_file())
}

/// Waits for the end of a program, until `deadline` at most.
fn ended(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            _ => return None,
        }
    }
}

/// Kills a program. One that the kernel does not let go is left behind.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = ended(child, Instant::now() + KILL_TIMEOUT);
}

/// Reads a pipe in a thread, which ends when the pipe does.
fn reader(pipe: Option<impl Read + Send + 'static>, most: usize, part: Part) -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let bytes = pipe.map(|pipe| match part {
            Part::Beginning => beginning(pipe, most),
            Part::End => end(pipe, most),
        });
        send.send(bytes.unwrap_or_default())
    });
    receive
}

fn beginning(pipe: impl Read, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.take(most as u64).read_to_end(&mut bytes);
    bytes
}

/// The last lines, of `most` bytes at most.
fn end(mut pipe: impl Read, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut more = true;
    let mut whole = true;
    while more {
        let before = bytes.len();
        more = pipe.by_ref().take(most as u64 + 1).read_to_end(&mut bytes).is_ok() && bytes.len() > before;
        // What is dropped goes in large pieces.
        let dropped = bytes.len().saturating_sub(most);
        // A byte before what is kept shows whether that begins a line.
        whole &= dropped == 0;
        if dropped > 1 {
            bytes.drain(..dropped - 1);
        }
    }
    if !whole {
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..line);
    }
    bytes
}

/// Opens a TCP connection to one of a name's addresses, and closes it.
pub fn connect(to: &str) -> Result<(), String> {
    let (send, receive) = mpsc::channel();
    let name = to.to_owned();
    // The resolver of libc has a deadline of its own, which may be minutes.
    std::thread::spawn(move || {
        let addresses = name.to_socket_addrs();
        send.send(addresses.map(|all| all.take(ADDRESSES_MAX).collect::<Vec<SocketAddr>>()))
    });
    let seconds = RESOLVE_TIMEOUT.as_secs();
    let late = |_| format!("its name is not resolved within {seconds} s");
    let addresses = receive.recv_timeout(RESOLVE_TIMEOUT).map_err(late)?;
    connect_to_any(&addresses.map_err(|error| error.to_string())?)
}

fn connect_to_any(addresses: &[SocketAddr]) -> Result<(), String> {
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, part: Part, most: Duration) -> Result<Ran, NotRun> {
        run_within("sh", &["-c", script], part, most)
    }

    #[test]
    fn a_program_s_output_and_code_are_returned() {
        let ran = shell("echo a; echo b >&2; exit 3", Part::Beginning, RUN_TIMEOUT).unwrap();
        assert_eq!(ran, Ran { code: 3, out: "a\n".into(), err: "b\n".into() });
        assert_eq!(run("csp-none", &[], Part::End), Err(NotRun::Missing("csp-none".into())));
    }

    #[test]
    fn a_program_that_closes_its_output_and_goes_on_is_killed() {
        let begun = Instant::now();
        let most = Duration::from_millis(300);
        for script in ["exec >&- 2>&-; sleep 60", "exec >&-; sleep 60", "sleep 60"] {
            let ran = shell(script, Part::Beginning, most);
            assert!(matches!(ran, Err(NotRun::Failed(..))), "{script}: {ran:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_process_left_behind_with_the_errors_open_does_not_stop_the_reader() {
        let begun = Instant::now();
        let ran = shell("sleep 60 >&- & echo a", Part::Beginning, RUN_TIMEOUT).unwrap();
        assert_eq!((ran.code, ran.out.as_str()), (0, "a\n"));
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn of_an_output_that_is_too_long_the_beginning_or_the_end_is_kept() {
        let script = "seq 1 3000000";
        let ran = shell(script, Part::Beginning, RUN_TIMEOUT).unwrap();
        assert!(ran.out.starts_with("1\n2\n") && ran.out.len() == OUTPUT_LEN_MAX);
        let ran = shell(script, Part::End, RUN_TIMEOUT).unwrap();
        assert!(ran.code == 0 && ran.out.ends_with("\n2999999\n3000000\n"));
        assert!(ran.out.len() <= OUTPUT_LEN_MAX && ran.out.len() > OUTPUT_LEN_MAX - 16);
    }

    #[test]
    fn an_end_begins_with_a_line() {
        let check = |text: &str, most: usize, expected: &str| {
            assert_eq!(end(text.as_bytes(), most), expected.as_bytes(), "{text} {most}");
        };
        check("ab\ncd\n", 6, "ab\ncd\n");
        check("ab\ncd\n", 5, "cd\n");
        check("ab\ncd\n", 3, "cd\n");
        check("ab\ncd\n", 2, "");
        check(&("x\n".repeat(1000) + "end\n"), 7, "x\nend\n");
        check("", 4, "");
    }

    #[test]
    fn each_address_of_a_name_is_tried() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let open = open.local_addr().unwrap();
        assert_eq!(connect_to_any(&[closed, open]), Ok(()));
        assert!(connect_to_any(&[closed]).is_err() && connect_to_any(&[]).is_err());
        assert_eq!(connect(&open.to_string()), Ok(()));
    }
}
