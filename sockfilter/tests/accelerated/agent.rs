//! What the agent shows of a process, and the behaviour without an agent.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use csp_app_node::agent::{Processes, ProxyEntry};
use csp_policy::ProgramRule;
use csp_transport::ClusterKey;
use csp_types::TraceKind;
use csp_wire::agent::page::{COUNTER_NAMES, Reason, SocketEntry, SocketKind};

use crate::proxy::{PATIENCE, Proxy};
use crate::stage::*;

const SERVER: &str = "
import socket
listener = socket.socket()
listener.bind(('', 18099))
listener.listen(16)
k = socket.socket(); k.bind(('127.0.0.1', 0)); k.listen(1)
c, _ = listener.accept()
c.recv(100)
c.sendall(b'answer')
c.recv(100)
c.close()
listener.accept()
";

#[test]
fn the_agent_sees_sockets_traces_and_totals_of_living_and_dead() {
    let mut stage = Stage::new();
    let program = stage.python(SERVER, &[]);
    let label = stage.proxy.open(18099, b"question", false);
    stage.proxy.until("the answer", |p| p.flow(label).received == b"answer");
    let kinds = stage.ask(|table| {
        let sockets: Vec<_> = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect();
        sockets.iter().map(|s| (s.kind, s.reason, s.label.to_wire(), s.local.to_string())).collect::<Vec<_>>()
    });
    let of = |kind| kinds.iter().filter(|k| k.0 == kind).cloned().collect::<Vec<_>>();
    assert_eq!(of(SocketKind::Listener).len(), 1, "{kinds:?}");
    assert_eq!(of(SocketKind::KernelListener)[0].1, Reason::Loopback);
    let connection = (SocketKind::Connection, Reason::Accelerated, label, "10.76.0.100:18099".to_owned());
    assert_eq!(of(SocketKind::Connection), [connection]);
    stage.proxy.shutdown(label);
    stage.proxy.until("the close", |p| p.flow(label).closed);
    // It waits for the next connection once the page shows the close.
    while stage.ask(|table| table.pages().iter().map(|(_, page)| page.trace().len()).sum::<usize>()) < 4 {
        stage.proxy.run_for(std::time::Duration::from_millis(1));
    }
    signal(stage.pid(program), libc::SIGKILL);
    stage.wait(program);
    stage.proxy.until("the loss", |p| p.processes().is_empty());
    let mut seen = None;
    for _ in 0..100 {
        seen = stage.ask(|table| {
            let exited = |(info, _): &(csp_app_node::agent::ProcessInfo, _)| info.exited_unix_ms.is_some();
            let (info, page) = table.pages().into_iter().find(exited)?;
            let events: Vec<_> = page.trace().iter().map(|e| (e.label.to_wire(), e.kind, e.len)).collect();
            Some((info.program, events, table.totals()))
        });
        if seen.is_some() {
            break;
        }
        stage.proxy.run_for(std::time::Duration::from_millis(20));
    }
    let (program, events, totals) = seen.expect("the agent did not notice the end");
    assert_eq!(program.to_string(), "python3");
    use TraceKind::{AppClose, AppDataIn, AppDataOut, AppOpen};
    assert_eq!(
        events,
        [(label, AppOpen, 0), (label, AppDataIn, 8), (label, AppDataOut, 6), (label, AppClose, 0)]
    );
    let total = |name: &str| totals[COUNTER_NAMES.iter().position(|n| *n == name).unwrap()];
    assert_eq!((total("accepted"), total("bytes_read"), total("bytes_written")), (1, 8, 6));
    assert_eq!((total("flows_now"), total("listeners_kernel")), (0, 1));
}

/// A connection that was reset, one that it opened, and one that waits to be accepted.
const SHOWING: &str = "
import os, select, socket
listener = socket.create_server(('', 18124), backlog=16)
c, _ = listener.accept()
def wait(fd):
    p = select.poll(); p.register(fd, select.POLLIN); p.poll()
wait(c)
opened = socket.socket(); opened.setblocking(False)
try: opened.connect(('10.76.0.9', 80))
except BlockingIOError: pass
wait(opened)
";

#[test]
fn sockets_show_errors_queues_and_where_they_came_to_be() {
    let mut stage = Stage::new();
    stage.python(SHOWING, &[]);
    let reset = stage.proxy.open(18124, b"", false);
    stage.proxy.until("the connection", |p| p.flow(reset).accepted);
    stage.proxy.reset(reset);
    stage.proxy.until("a CONNECT", |p| !p.asked.is_empty());
    let asked = stage.proxy.asked.remove(0);
    let opened = stage.proxy.connected(asked);
    stage.proxy.open(18124, b"", false);
    let shown = |table: &Processes| {
        let sockets = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect::<Vec<_>>();
        let state = |s: &SocketEntry| {
            (s.label.to_wire(), s.local.to_string(), s.error, s.queue.waiting, s.queue.backlog)
        };
        let mut shown: Vec<_> = sockets.iter().map(state).collect();
        shown.sort_by_key(|s| s.0);
        shown
    };
    let mut expected = vec![
        (0, "0.0.0.0:18124".to_owned(), 0, 1, 16),
        (reset, "10.76.0.100:18124".to_owned(), libc::ECONNRESET as u16, 0, 0),
        (opened, "10.76.0.101:50000".to_owned(), 0, 0, 0),
    ];
    expected.sort_by_key(|s| s.0);
    let deadline = std::time::Instant::now() + PATIENCE;
    while stage.ask(shown) != expected {
        assert!(std::time::Instant::now() < deadline, "{:?} instead of {expected:?}", stage.ask(shown));
        stage.proxy.run_for(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_process_finds_a_returned_agent_and_learns_of_new_proxies() {
    let mut stage = Stage::new();
    let mut command = stage.command("/usr/bin/python3");
    command.args(["-u", "-m", "http.server", "18100"]);
    stage.start(command);
    stage.proxy.until("the server", |p| p.listening(18100).1 == 1);
    let before = stage.ask(|table| table.live()[0].id.clone());
    stage.restart_agent();
    let deadline = std::time::Instant::now() + PATIENCE;
    // One question for both: a process that was answered late attaches once more.
    let returned = |stage: &Stage| {
        stage.ask(|table| {
            let (live, pages) = (table.live(), table.pages());
            Some((live.first()?.id.clone(), pages.first()?.1.sockets()))
                .filter(|(_, sockets)| !sockets.is_empty())
        })
    };
    let (id, sockets) = loop {
        if let Some(found) = returned(&stage) {
            break found;
        }
        assert!(std::time::Instant::now() < deadline, "it did not come back");
        stage.proxy.run_for(Duration::from_millis(20));
    };
    assert_eq!(id, before, "it keeps its name");
    assert_eq!(sockets.len(), 1, "its listener is on the new page");
    let path = stage.folder.join("pn-2.w0.sock");
    let mut second = Proxy::listen(&path, ClusterKey::from_bytes([5; 32]));
    stage.directory().send_modify(|d| {
        let node = "pn-2".parse().unwrap();
        let path = path.display().to_string();
        d.proxies.push(ProxyEntry {
            node,
            worker: 0,
            address: path.clone(),
            path,
            provider: "shm",
            direct: None,
            draining: false,
        });
    });
    second.until("the server at the second proxy", |p| p.listening(18100).1 == 1);
    let response = second.exchange(18100, b"GET / HTTP/1.0\r\n\r\n");
    assert!(split_response(&response).0.contains("200"));
}

#[test]
fn without_an_agent_the_kernel_serves_or_strict_mode_refuses() {
    let stage = Stage::new();
    let script = "
import socket, errno
s = socket.socket(); s.bind(('', 0))
try: s.listen(5); print('listens')
except OSError as e: print(errno.errorcode[e.errno])
";
    for (mode, expected) in [("on", "listens\n"), ("strict", "ENETDOWN\n"), ("off", "listens\n")] {
        let mut command = stage.command("/usr/bin/python3");
        command.args(["-c", script]).env("CSP_MODE", mode).env("CSP_AGENT", "/nonexistent/agent.sock");
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{mode}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(words.lines().count(), usize::from(mode != "off"), "{words}");
        assert!(mode == "off" || words.contains("no agent at /nonexistent/agent.sock"), "{words}");
    }
}

const RULED: &str = "
import socket, sys
listeners = [socket.create_server(('', int(port))) for port in sys.argv[1:]]
c = socket.socket(); c.setblocking(False); c.connect_ex(('10.76.0.9', 9))
sys.stdin.close()
listeners[0].accept()
";

#[test]
fn a_rule_of_policy_for_a_program_leaves_what_it_does_not_name_to_the_kernel() {
    let mut stage = Stage::new();
    let rule = |program: &str| ProgramRule {
        program: program.to_owned(),
        listen: Some(vec![18121]),
        connect: false,
    };
    stage.directory().send_modify(|d| d.programs = vec![rule("nginx"), rule("python3")]);
    stage.python(RULED, &["18121", "18122"]);
    assert_ruled(&mut stage, 18121);
}

/// The rule leaves the second listener and the connection to the kernel.
fn assert_ruled(stage: &mut Stage, port: u16) {
    stage.proxy.until("the listener", |p| p.listening(port) == (1, 1));
    let mut sockets = stage.ask(|table| {
        let sockets: Vec<_> = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect();
        sockets.iter().map(|s| (s.kind as u32, s.reason, s.local.port())).collect::<Vec<_>>()
    });
    sockets.sort_unstable_by_key(|s| s.0);
    use SocketKind::{KernelConnection, KernelListener, Listener};
    let kinds: Vec<_> = sockets.iter().map(|s| (s.0, s.1)).collect();
    let mut expected = vec![
        (Listener as u32, Reason::Accelerated),
        (KernelListener as u32, Reason::Rule),
        (KernelConnection as u32, Reason::Rule),
    ];
    expected.sort_unstable_by_key(|s| s.0);
    assert_eq!(kinds, expected);
    assert_eq!(stage.proxy.asked.len(), 0, "it asked the proxy for a connection");
}

#[test]
fn a_rule_applies_to_a_program_of_that_name_whatever_the_name() {
    for name in ["php-fpm", "my server", "gr\u{fc}\u{df}e", &"n".repeat(255)] {
        let mut stage = Stage::new();
        let rule = |program: &str| ProgramRule {
            program: program.to_owned(),
            listen: Some(vec![18137]),
            connect: false,
        };
        let other = ProgramRule { listen: Some(vec![]), ..rule("php_fpm") };
        stage.directory().send_modify(|d| d.programs = vec![other, rule(name)]);
        let program = stage.folder.join(name);
        std::os::unix::fs::symlink("/usr/bin/python3", &program).unwrap();
        let mut command = stage.command(program.to_str().unwrap());
        command.arg(stage.write("script.py", RULED.as_bytes())).args(["18137", "18138"]);
        stage.start(command);
        assert_ruled(&mut stage, 18137);
        let names = stage.ask(|table| table.pages().iter().map(|(info, _)| info.program).collect::<Vec<_>>());
        assert_eq!(names, [name.parse().unwrap()]);
    }
}

#[test]
fn a_program_started_by_a_name_too_long_warns_and_uses_its_executable_s_name() {
    let stage = Stage::new();
    let executable = std::fs::canonicalize("/usr/bin/python3").unwrap();
    let executable = executable.file_name().unwrap().to_str().unwrap().to_owned();
    let mut command = stage.command("/usr/bin/python3");
    let output = command.arg0("n".repeat(300)).args(["-c", "print('runs')"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "runs\n");
    let expected = format!(
        "csp-sockfilter: argv[0]: a program's name is a file name of 1 to 255 bytes without / and NUL; this one has 300 \
         bytes; rules of policy for {executable} apply\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

/// A process without the filter makes a listener and hands it on: over exec, as systemd does, or by a Unix
/// socket.
const HANDING: &str = "
import os, socket, sys
listener = socket.create_server(('', int(sys.argv[6])))
environment = {'LD_PRELOAD': sys.argv[1], 'CSP_AGENT': sys.argv[2], 'CSP_MODE': sys.argv[3]}
a, b = socket.socketpair()
if sys.argv[4] == 'over exec': environment |= {'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid())}
elif os.fork() > 0:
    socket.send_fds(a, [b'x'], [listener.fileno()])
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.dup2((listener if sys.argv[4] == 'over exec' else b).fileno(), 3)
os.set_inheritable(3, True)
os.execve('/usr/bin/python3', ['python3', '-uc', sys.argv[5], sys.argv[4]], environment)
";
const HANDED: &str = "
import socket, sys
fd = 3
if sys.argv[1] != 'over exec': _, (fd,), _, _ = socket.recv_fds(socket.socket(fileno=3), 1, 1)
listener = socket.socket(fileno=fd)
try: c, _ = listener.accept()
except OSError as e: print('errno', e.errno)
else: c.sendall(c.recv(100).upper())
";

/// Has a listener from outside handed to a program with the filter.
fn handed(stage: &mut Stage, way: &str, mode: &str, port: &str) -> usize {
    let script = stage.write("handing.py", HANDING.as_bytes());
    let agent = stage.folder.join("agent.sock");
    let mut command = stage.command("/usr/bin/python3");
    command.env_remove("LD_PRELOAD").arg(script).arg(filter()).arg(agent).args([mode, way, HANDED, port]);
    stage.start(command)
}

const WAYS: [&str; 2] = ["over exec", "by a Unix socket"];

#[test]
fn a_listener_from_outside_the_filter_is_shown_and_works() {
    for way in WAYS {
        let mut stage = Stage::new();
        let program = handed(&mut stage, way, "on", "18123");
        let shown = |table: &Processes| {
            let sockets: Vec<_> = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect();
            sockets.iter().map(|s| (s.kind, s.reason, s.local.port())).collect::<Vec<_>>()
        };
        let deadline = std::time::Instant::now() + PATIENCE;
        while stage.ask(shown).is_empty() {
            assert!(std::time::Instant::now() < deadline, "{way}: it is not shown");
            stage.proxy.run_for(Duration::from_millis(5));
        }
        assert_eq!(stage.ask(shown), [(SocketKind::KernelListener, Reason::External, 18123)], "{way}");
        assert!(stage.kernel_sockets(program, 18123) > 0, "{way}: it is the kernel's");
        let mut client = std::net::TcpStream::connect(("127.0.0.1", 18123)).unwrap();
        client.write_all(b"question").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "QUESTION", "{way}");
        stage.succeeds(program);
        assert_eq!(stage.proxy.listening(18123), (0, 0), "{way}");
    }
}

#[test]
fn a_listener_from_outside_the_filter_is_refused_in_strict_mode() {
    for way in WAYS {
        let mut stage = Stage::new();
        let program = handed(&mut stage, way, "strict", "18125");
        let said = stage.succeeds(program);
        let line = "a listener that was made outside the filter is refused (strict mode): 0.0.0.0:18125";
        assert_eq!(said.matches(line).count(), 1, "{way}: {said}");
        assert!(said.ends_with(&format!("errno {}\n", libc::ENETDOWN)), "{way}: {said}");
    }
}
