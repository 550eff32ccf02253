//! Listeners whose options restrict whom they serve: they stay in the kernel, which obeys the restriction, or
//! the option is refused.

use std::sync::{Mutex, PoisonError};

use csp_wire::agent::page::{Reason, SocketKind};

use crate::stage::*;

/// Each listener asks the kernel for something; the kernel then serves it as it does without the filter.
const RESTRICTED: &str = "
import errno, os, socket, struct, sys
TCP_MD5SIG, IP_MINTTL, SO_BINDTOIFINDEX = 14, 21, 62
address = struct.pack('=HHI16s104x', socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, '::ffff:127.0.0.1'))
key = address + struct.pack('=BBHi80s', 0, 0, 6, 0, b'secret')
asks = [
    (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo'),
    (socket.SOL_SOCKET, SO_BINDTOIFINDEX, 1),
    (socket.IPPROTO_IP, IP_MINTTL, 1),
    (socket.IPPROTO_IP, socket.IP_TRANSPARENT, 1),
    (socket.IPPROTO_IPV6, 73, 1),
    (socket.IPPROTO_TCP, TCP_MD5SIG, key),
]
def listener(port):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('', port))
    return s
if len(sys.argv) > 1:
    s = socket.socket(fileno=int(sys.argv[1]))
    s.listen(4)
    print('after exec', s.getsockname()[1], flush=True)
    raise SystemExit
kept = []
for at, (level, name, value) in enumerate(asks):
    s = listener(18200 + at)
    s.setsockopt(level, name, value)
    s.listen(4)
    kept.append(s)
    if name == TCP_MD5SIG: continue
    c = socket.create_connection(('127.0.0.1' if level != socket.IPPROTO_IPV6 else '::1', 18200 + at))
    s.accept()[0].sendall(b'served by the kernel')
    assert c.recv(100) == b'served by the kernel'
# On an accelerated listener the same is refused; what changes nothing is not.
s = listener(18150)
s.listen(4)
for level, name, value in asks:
    try: s.setsockopt(level, name, value); print('accepted', level, name)
    except OSError as e: assert e.errno == errno.EOPNOTSUPP, (level, name, e)
s.setsockopt(socket.IPPROTO_IP, IP_MINTTL, 0)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'')
try: s.setsockopt(socket.SOL_SOCKET, 27, 0); print('detached')
except OSError as e: assert e.errno == errno.ENOENT, e
assert s.getsockopt(socket.SOL_SOCKET, 26, 200) == b''
# So do an accepted connection, and one that the agent carries.
c, _ = s.accept()
for child in (False, True):
    if child and os.fork(): break
    for level, name, value in asks:
        try: c.setsockopt(level, name, value); print('accepted', child, level, name)
        except OSError as e: assert e.errno == errno.EOPNOTSUPP, (child, level, name, e)
    if child:
        print('credentials', struct.unpack('iii', c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
        c.sendall(b'bye')
        os._exit(0)
os.wait()
c.close()
# An option that cannot be read back is known after exec, too.
s = listener(18151)
s.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, key)
s.set_inheritable(True)
[k.close() for k in kept[:-1]]
sys.stdout.flush()
kept[-1].set_inheritable(True)
os.execv(sys.executable, [sys.executable, sys.argv[0], str(s.fileno())])
";

#[test]
fn a_listener_with_a_restriction_stays_in_the_kernel_and_the_option_is_shown() {
    if !csp_support::is_root("the test sets options of administrators") {
        return;
    }
    let mut stage = Stage::new();
    let program = stage.python(RESTRICTED, &[]);
    stage.proxy.until("the accelerated listener", |p| p.listening(18150).1 == 1);
    for port in 18200..18206 {
        assert_eq!(stage.proxy.listening(port).0, 0, "port {port}");
        assert!(stage.kernel_sockets(program, port) > 0, "port {port}");
    }
    let options = stage.ask(|table| {
        let sockets: Vec<_> = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect();
        let kernel = sockets.iter().filter(|s| s.kind == SocketKind::KernelListener);
        let mut found: Vec<_> = kernel.map(|s| (s.local.port(), s.reason, s.option)).collect();
        found.sort_by_key(|(port, ..)| *port);
        found
    });
    let expected = [(1, 25), (1, 25), (0, 21), (0, 19), (41, 73), (6, 14)];
    let expected: Vec<_> =
        (18200..).zip(expected).map(|(port, option)| (port, Reason::Lacking, Some(option))).collect();
    assert_eq!(options, expected);
    let label = stage.proxy.open(18150, b"", false);
    stage.proxy.until("the connection's end", |p| p.flow(label).ended);
    assert_eq!(stage.proxy.flow(label).received, b"bye");
    let output = stage.succeeds(program);
    assert_eq!(output, "credentials (0, -1, -1)\nafter exec 18151\n");
    assert_eq!(stage.proxy.listening(18151).0, 0);
}

/// Listens on a socket that another program, or another process, bound.
const BOUND: &str = "
import os, socket, sys
if len(sys.argv) > 2:
    s = socket.socket(fileno=int(sys.argv[2]))
    s.listen(4)
    c, _ = s.accept()
    c.sendall(b'from ' + sys.argv[1].encode())
    c.close()
    raise SystemExit(0)
way = sys.argv[1]
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('', 18152))
s.set_inheritable(True)
if way == 'workers':
    # As uvicorn does: the parent binds, each worker listens on the same socket.
    for n in range(2):
        if os.fork() == 0: os.execv(sys.executable, [sys.executable, sys.argv[0], way, str(s.fileno())])
    for n in range(2): assert os.wait()[1] == 0
elif way == 'passed':
    a, b = socket.socketpair()
    if os.fork() == 0:
        s.close()
        _, (fd,), _, _ = socket.recv_fds(b, 1, 1)
        os.set_inheritable(fd, False)
        s = socket.socket(fileno=fd)
        s.listen(4)
        c, _ = s.accept()
        c.sendall(b'from passed')
        os._exit(0)
    socket.send_fds(a, [b'x'], [s.fileno()])
    s.close()
    assert os.wait()[1] == 0
elif way == 'outside':
    # A program without the filter bound it.
    os.execve(sys.executable, [sys.executable, sys.argv[0], 'with', str(s.fileno())],
              {k: v for k, v in os.environ.items() if k != 'CSP_MODE'})
else:
    os.execv(sys.executable, [sys.executable, sys.argv[0], way, str(s.fileno())])
";

/// The tests that bind the script's port run one after another.
static PORT: Mutex<()> = Mutex::new(());

fn check_bound(way: &str, mode: &str, listeners: usize) {
    let _port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stage = Stage::new();
    let script = stage.write("script.py", BOUND.as_bytes());
    let mut command = stage.command("/usr/bin/python3");
    command.arg(script).arg(way).env("CSP_MODE", mode);
    let program = stage.start(command);
    stage.proxy.until("the listeners", |p| p.listening(18152).1 == listeners);
    assert_eq!(stage.kernel_sockets(program, 18152), 0, "{way}: nothing of it is in the kernel");
    for _ in 0..listeners {
        let label = stage.proxy.open(18152, b"", false);
        stage.proxy.until("the end", |p| p.flow(label).ended);
        let from = if way == "outside" { "with" } else { way };
        assert_eq!(stage.proxy.flow(label).received, format!("from {from}").as_bytes());
    }
    stage.succeeds(program);
}

#[test]
fn a_socket_that_another_program_bound_becomes_an_accelerated_listener() {
    check_bound("exec", "strict", 1);
    check_bound("passed", "on", 1);
    check_bound("outside", "off", 1);
}

#[test]
fn workers_that_listen_on_one_inherited_socket_serve_both() {
    check_bound("workers", "on", 2);
}

/// Connects with a socket that another process made and bound, as pure-ftpd's active mode does.
const CONNECTING: &str = "
import os, socket
a, b = socket.socketpair()
if os.fork() == 0:
    s = socket.socket()
    s.bind(('', 18153))
    socket.send_fds(b, [b'x'], [s.fileno()])
    os._exit(0)
_, (fd,), _, _ = socket.recv_fds(a, 1, 1)
s = socket.socket(fileno=fd)
s.connect(('10.76.0.7', 20))
s.sendall(b'the file')
s.close()
";

#[test]
fn a_socket_that_another_process_bound_connects_through_the_cluster() {
    let mut stage = Stage::new();
    let program = stage.python(CONNECTING, &[]);
    stage.proxy.until("a CONNECT", |p| !p.asked.is_empty());
    let asked = stage.proxy.asked.remove(0);
    assert_eq!(asked.remote.to_string(), "10.76.0.7:20");
    assert_eq!(asked.local.map(|local| local.port()), Some(18153));
    let label = stage.proxy.connected(asked);
    stage.proxy.until("the end", |p| p.flow(label).ended);
    assert_eq!(stage.proxy.flow(label).received, b"the file");
    stage.succeeds(program);
}

/// Two listeners for IPv6, one of which also serves IPv4.
const VERSIONS: &str = "
import os, socket, sys
def listener(port, only):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    s.bind(('::', port))
    s.listen(4)
    return s
both, only = listener(18154, 0), listener(18155, 1)
c, peer = both.accept()
assert peer[0] == '::ffff:10.76.0.1', peer
c.sendall(b'both'); c.close()
only.settimeout(0.2)
try: print('accepted', only.accept())
except TimeoutError: pass
";

#[test]
fn a_listener_for_ipv6_only_resets_clients_of_ipv4() {
    let mut stage = Stage::new();
    let program = stage.python(VERSIONS, &[]);
    let [both, only] = [18154, 18155].map(|port| {
        stage.proxy.until("the listener", |p| p.listening(port).0 == 1);
        stage.proxy.open(port, b"", false)
    });
    stage.proxy.until("the answer", |p| p.flow(both).ended);
    assert_eq!(stage.proxy.flow(both).received, b"both");
    assert_eq!(stage.succeeds(program), "");
    stage.proxy.until("the reset", |p| p.flow(only).reset.is_some());
    assert_eq!(stage.proxy.flow(only).received, b"");
}
