//! Connections and listeners that move between processes: over fork, exec, vfork and Unix sockets.

use crate::stage::*;

/// Accepts, lets a child serve, and goes on; what the parent has read and what is unread must both count.
const FORKING: &str = "
import os, socket, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server(('', 18170))
while True:
    c, peer = listener.accept()
    head = c.recv(4)
    if head == b'stop': break
    if os.fork() == 0:
        listener.close()
        assert c.getpeername() == peer, (c.getpeername(), peer)
        assert c.getsockname()[1] == 18170
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        total = bytearray(head)
        while part := c.recv(65536): total += part
        c.sendall(bytes(reversed(total)))
        os._exit(0)
    c.close()
";

#[test]
fn a_child_serves_what_its_parent_accepted() {
    let mut stage = Stage::new();
    let server = stage.python(FORKING, &[]);
    for len in [5, 100_000, 3_000_000] {
        let sent = pattern(len);
        let labels: Vec<u32> = (0..3).map(|_| stage.proxy.open(18170, &sent, true)).collect();
        for label in labels {
            stage.proxy.until("the child's answer", |p| p.flow(label).ended && p.flow(label).closed);
            let flow = stage.proxy.take_flow(label);
            assert_eq!((flow.handovers, flow.reset), (1, None));
            let expected: Vec<u8> = sent.iter().rev().copied().collect();
            assert!(flow.received == expected, "{} of {len} bytes", flow.received.len());
        }
    }
    stage.proxy.open(18170, b"stop", true);
    stage.succeeds(server);
}

/// Gives up root's identity, as servers do, before a child gets the connection.
const DROPPING: &str = "
import os, socket
listener = socket.create_server(('', 18133))
c, _ = listener.accept()
os.setgid(65534)
os.setuid(65534)
pid = os.fork()
if pid == 0:
    c.sendall(b'from a child of nobody')
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
c.close()
";

#[test]
fn a_process_that_is_no_longer_root_shares_a_connection() {
    let mut stage = Stage::new();
    let program = stage.python(DROPPING, &[]);
    let label = stage.proxy.open(18133, b"", false);
    stage.proxy.until("the end", |p| p.flow(label).ended);
    let flow = stage.proxy.take_flow(label);
    assert_eq!(
        (flow.received.as_slice(), flow.handovers, flow.reset),
        (&b"from a child of nobody"[..], 1, None)
    );
    stage.succeeds(program);
}

/// Both hold it, both write; the client sees the end when both have closed it.
const SHARED: &str = "
import os, socket
listener = socket.create_server(('', 18111))
c, _ = listener.accept()
pid = os.fork()
if pid == 0:
    c.sendall(b'child ')
    assert c.recv(100) == b'to the child'
    os._exit(0)
os.waitpid(pid, 0)
c.sendall(b'parent')
c.close()
";

#[test]
fn two_processes_share_a_connection_until_both_have_closed_it() {
    let mut stage = Stage::new();
    let program = stage.python(SHARED, &[]);
    let label = stage.proxy.open(18111, b"", false);
    stage.proxy.until("the child's word", |p| p.flow(label).received == b"child ");
    assert!(!stage.proxy.flow(label).ended);
    stage.proxy.write(label, b"to the child");
    stage.proxy.until("the end", |p| p.flow(label).ended);
    assert_eq!(stage.proxy.flow(label).received, b"child parent");
    stage.succeeds(program);
}

/// Executes a program with the connection as its standard input and output.
const EXECUTING: &str = "
import os, socket, sys
listener = socket.create_server(('', 18112))
c, _ = listener.accept()
os.dup2(c.fileno(), 0)
os.dup2(c.fileno(), 1)
c.close(); listener.close()
arguments = sys.argv[1:]
if arguments[0] == 'plain': os.execve(arguments[1], arguments[1:], {'LD_PRELOAD': ''})
os.execv(arguments[0], arguments)
";

#[test]
fn a_program_is_executed_with_a_connection_with_and_without_the_filter() {
    let names = "import socket; s = socket.socket(fileno=0); assert s.getpeername()[0] == '10.76.0.1', s.getpeername(); \
                 assert s.getsockname() == ('10.76.0.100', 18112); s.settimeout(10); s.sendall(s.recv(100).upper())";
    let cases: [(&[&str], &[u8], &[u8]); 3] = [
        (&["/bin/cat"], b"through cat", b"through cat"),
        (&["plain", "/bin/cat"], b"without the filter", b""),
        (&["/usr/bin/python3", "-c", names], b"names", b"NAMES"),
    ];
    for (arguments, sent, expected) in cases {
        let mut stage = Stage::new();
        let program = stage.python(EXECUTING, arguments);
        let label = stage.proxy.open(18112, sent, true);
        stage.proxy.until("the end", |p| p.flow(label).closed);
        let received = stage.proxy.flow(label).received.clone();
        let output = stage.succeeds(program);
        assert_eq!(received, expected, "{arguments:?} {output}");
    }
}

/// A listener that outlives exec, as systemd hands them over and nginx does when its binary is changed.
const LISTENING: &str = "
import os, socket, sys
if len(sys.argv) == 1:
    listener = socket.create_server(('', 18113), backlog=7)
    os.dup2(listener.fileno(), 40)
    # An environment of its own, as nginx gives one to a new binary: the filter stays with the listener.
    os.execve('/usr/bin/python3', ['python3', sys.argv[0], 'again'], {'PATH': '/usr/bin'})
listener = socket.socket(fileno=40)
assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
assert listener.getsockname()[1] == 18113
listener.listen(7)
c, _ = listener.accept()
c.sendall(c.recv(100) + b' again')
";

#[test]
fn a_listener_outlives_exec() {
    let mut stage = Stage::new();
    let program = stage.python(LISTENING, &[]);
    stage.proxy.until("the first image to go", |p| p.listening(18113).1 == 1);
    assert_eq!(stage.kernel_sockets(program, 18113), 0);
    let label = stage.proxy.open(18113, b"once", false);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"once again");
    stage.succeeds(program);
}

/// Connections, and a listener, go to another process by a Unix socket.
const PASSING: &str = "
import os, socket
a, b = socket.socketpair()
if os.fork() == 0:
    a.close()
    for n in range(3):
        _, (fd,), _, _ = socket.recv_fds(b, 1, 1)
        c = socket.socket(fileno=fd)
        assert c.getpeername()[0] == '10.76.0.1'
        # The last is answered when the parent listens no more: the next is for this process.
        if n == 2: _, (fd,), _, _ = socket.recv_fds(b, 1, 1)
        if n == 2: assert b.recv(1) == b'c'
        c.sendall(c.recv(100).upper())
        c.close()
    c, _ = socket.socket(fileno=fd).accept()
    c.sendall(b'accepted by the other')
    c.close()
    os._exit(0)
b.close()
listener = socket.create_server(('', 18114))
for _ in range(3):
    c, _ = listener.accept()
    socket.send_fds(a, [b'x'], [c.fileno()])
    c.close()
socket.send_fds(a, [b'x'], [listener.fileno()])
listener.close()
a.send(b'c')
status = os.waitstatus_to_exitcode(os.wait()[1])
assert status == 0, status
";

#[test]
fn connections_and_listeners_pass_through_unix_sockets() {
    let mut stage = Stage::new();
    let program = stage.python(PASSING, &[]);
    for _ in 0..3 {
        let label = stage.proxy.open(18114, b"passed", false);
        stage.proxy.until("the end", |p| p.flow(label).closed);
        assert_eq!(stage.proxy.flow(label).received, b"PASSED");
    }
    let label = stage.proxy.open(18114, b"", false);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"accepted by the other");
    stage.succeeds(program);
}

/// Python makes the children of `subprocess` with vfork.
const SPAWNING: &str = "
import socket, subprocess
listener = socket.create_server(('', 18115))
c, _ = listener.accept()
print(subprocess.run(['/bin/cat'], stdin=c, stdout=c).returncode)
c.close()
";

#[test]
fn a_child_of_vfork_gets_a_connection() {
    let mut stage = Stage::new();
    let program = stage.python(SPAWNING, &[]);
    let sent = pattern(500_000);
    let label = stage.proxy.open(18115, &sent, true);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert!(stage.proxy.flow(label).received == sent, "{}", stage.proxy.flow(label).received.len());
    assert_eq!(stage.succeeds(program), "0\n");
}

/// A child that does not care for the parent's connections, as redis makes it to save.
const SAVING: &str = "
import os, select, socket
listener = socket.create_server(('', 18116))
c, _ = listener.accept()
e = select.epoll(); e.register(c, select.EPOLLIN)
for _ in range(3):
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    e.poll()
    c.sendall(c.recv(100).upper())
c.close()
";

#[test]
fn connections_that_are_waited_for_by_epoll_stay_with_the_parent_over_fork() {
    let mut stage = Stage::new();
    let program = stage.python(SAVING, &[]);
    let label = stage.proxy.open(18116, b"", false);
    let mut expected = Vec::new();
    for word in [b"one", b"two", b"thr"] {
        stage.proxy.write(label, word);
        expected.extend(word.to_ascii_uppercase());
        stage.proxy.until("the answer", |p| p.flow(label).received == expected);
    }
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).handovers, 0);
    stage.succeeds(program);
}

/// Calls by their numbers; a child by a raw clone serves the connection, as vsftpd makes its sessions.
const NUMBERS: &str = "
import ctypes, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*(ctypes.c_long(a) for a in arguments))
    return result if result >= 0 else -ctypes.get_errno()
listener = socket.create_server(('', 18119))
fd = call(43, listener.fileno(), 0, 0)
assert fd > 2, fd
buffer = ctypes.create_string_buffer(100)
address = ctypes.addressof(buffer)
assert call(0, fd, address, 100) == 4 and buffer.raw[:4] == b'ping'
pid = call(56, int(signal.SIGCHLD), 0, 0, 0, 0)
if pid == 0:
    buffer.raw = b'pong' + bytes(96)
    assert call(1, fd, address, 4) == 4
    assert call(45, fd, address, 100, 0, 0, 0) == 3 and buffer.raw[:3] == b'end'
    assert call(48, fd, 1) == 0
    os._exit(0)
assert call(3, fd) == 0
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert call(425, 8, address) == -38
print(call(3, 900), call(39) == os.getpid())
";

#[test]
fn calls_by_number_are_the_functions_and_a_raw_clone_is_a_fork() {
    let mut stage = Stage::new();
    let program = stage.python(NUMBERS, &[]);
    let label = stage.proxy.open(18119, b"ping", false);
    stage.proxy.until("the child's answer", |p| p.flow(label).received == b"pong");
    stage.proxy.write(label, b"end");
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.succeeds(program), "-9 True\n");
}

/// The C library's streams on a connection.
const STREAMS: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(18117)};
    int l = socket(AF_INET, SOCK_STREAM, 0), c;
    if (bind(l, (void *)&a, sizeof a) || listen(l, 5) || (c = accept(l, NULL, NULL)) < 0) return 1;
    FILE *in = fdopen(c, "r"), *out = fdopen(dup(c), "w");
    char line[100];
    while (fgets(line, sizeof line, in)) fprintf(out, "%zu %s", strlen(line), line);
    return fclose(out) || fclose(in);
}
"#;

#[test]
fn streams_of_the_c_library_read_and_write_a_connection() {
    let mut stage = Stage::new();
    let source = stage.write("streams.c", STREAMS.as_bytes());
    let binary = stage.folder.join("streams");
    let compiled = std::process::Command::new("gcc").args(["-o"]).arg(&binary).arg(&source).status().unwrap();
    assert!(compiled.success());
    let program = stage.start(stage.command(binary.to_str().unwrap()));
    let label = stage.proxy.open(18117, b"one\nfour\n", true);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"4 one\n5 four\n");
    stage.succeeds(program);
}

/// Waits for an event that never occurs; prints what it saw instead.
const WAITING: &str = "
import os, socket, sys
listener = socket.create_server(('', 18118))
c, _ = listener.accept()
if os.fork() == 0:
    c.sendall(b'ready')
    for _ in range(2):
        try: print(c.recv(10))
        except OSError as e: print(e.errno)
    sys.stdout.flush()
    os._exit(0)
c.close()
os.wait()
";

#[test]
fn when_the_agent_goes_its_connections_are_reset_and_nobody_hangs() {
    let mut stage = Stage::new();
    let program = stage.python(WAITING, &[]);
    let label = stage.proxy.open(18118, b"", false);
    stage.proxy.until("the child", |p| p.flow(label).received == b"ready");
    stage.restart_agent();
    assert_eq!(stage.succeeds(program), "104\nb''\n");
}

/// Reads a connection to its end in a child, and reports how it ended.
const ENDING: &str = "
import os, socket, sys
listener = socket.create_server(('', 18132))
c, _ = listener.accept()
if os.fork() == 0:
    if sys.argv[1] == 'half-closed': c.shutdown(socket.SHUT_WR)
    if sys.argv[1] == 'closed for reading':
        print(c.recv(10))
        c.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        try:
            while part := c.recv(10): print(part, flush=True)
            print('end')
        except OSError as e: print(e.errno)
    sys.stdout.flush()
    os._exit(0)
c.close()
os.wait()
";

#[test]
fn a_carried_connection_distinguishes_a_reset_from_the_end_of_the_stream() {
    let cases = [
        ("reset", "b'data'\n104\nend\n"),
        ("ended", "b'data'\nend\nend\n"),
        ("half-closed", "b'data'\nend\nend\n"),
        ("closed for reading", "b'data'\nend\nend\n"),
    ];
    for (case, expected) in cases {
        let mut stage = Stage::new();
        let program = stage.python(ENDING, &[case]);
        let label = stage.proxy.open(18132, b"data", false);
        stage.proxy.until("the program to leave it", |p| p.flow(label).handovers == 1);
        if case == "half-closed" {
            stage.proxy.until("the program's end", |p| p.flow(label).ended);
        }
        match case {
            "reset" => {
                while !stage.has_said(program, "data") {
                    stage.proxy.run_for(std::time::Duration::from_millis(5));
                }
                stage.proxy.reset(label);
            }
            "closed for reading" => {}
            _ => stage.proxy.shutdown(label),
        }
        assert_eq!(stage.succeeds(program), expected, "{case}");
    }
}

/// As an FTP server does it: listens where the control connection is, in a process that shares it and has
/// shut itself in.
const DATA_LISTENER: &str = "
import errno, os, socket, sys
listener = socket.create_server(('', 18171))
c, _ = listener.accept()
address = c.getsockname()[0]
assert address == '10.76.0.100', address
try:
    socket.socket().bind(('10.76.0.99', 18172))
    assert False, 'nobody has that address'
except OSError as error:
    assert error.errno == errno.EADDRNOTAVAIL, error
if os.fork() == 0:
    if os.geteuid() == 0: os.chroot(sys.argv[1])
    data = socket.socket()
    data.bind((address, 18172))
    assert data.getsockname() == (address, 18172)
    data.listen(1)
    d, _ = data.accept()
    d.sendall(b'the file')
    os._exit(0)
c.close()
pid, status = os.wait()
assert status == 0, status
";

#[test]
fn a_service_listens_on_its_connections_own_address() {
    let mut stage = Stage::new();
    let empty = stage.folder.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let server = stage.python(DATA_LISTENER, &[&empty.to_string_lossy()]);
    let control = stage.proxy.open(18171, b"PASV", false);
    let data = stage.proxy.open(18172, b"", false);
    stage.proxy.until("the file", |p| p.flow(data).ended && p.flow(control).ended);
    assert_eq!(stage.proxy.take_flow(data).received, b"the file");
    stage.succeeds(server);
}

/// As Dovecot does it: a login process, executed with the listener and no environment, writes which socket
/// its client's is, and passes it to a process that compares.
const INODES: &str = "
import os, socket, struct, sys
if len(sys.argv) == 1:
    listener = socket.create_server(('', 18136))
    listener.set_inheritable(True)
    os.environ.clear()
    os.execv('/usr/bin/python3', ['python3', sys.argv[0], str(listener.fileno())])
near, far = socket.socketpair()
if os.fork() == 0:
    inode, (fd,), _, _ = socket.recv_fds(far, 8, 1)
    same = struct.unpack('q', inode)[0] == os.fstat(fd).st_ino
    socket.socket(fileno=fd).sendall(b'the same' if same else b'another')
    os._exit(0)
listener = socket.socket(fileno=int(sys.argv[1]))
c, _ = listener.accept()
inode = os.fstat(c.fileno()).st_ino
assert inode == os.stat(c.fileno()).st_ino
socket.send_fds(near, [struct.pack('q', inode)], [c.fileno()])
c.close()
assert os.wait()[1] == 0
";

#[test]
fn a_connection_keeps_its_inode_when_it_goes_to_another_process() {
    let mut stage = Stage::new();
    let program = stage.python(INODES, &[]);
    stage.proxy.until("the listener", |p| p.listening(18136).1 == 1);
    let label = stage.proxy.open(18136, b"", false);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"the same");
    stage.succeeds(program);
}
