//! Connections that the agent carries: what the processes that share one set on it.

use crate::stage::*;

/// Options that a child sets on a connection that it shares: some in its own process, some in a program that
/// it executes.
const TUNING: &str = "
import os, socket
listener = socket.create_server(('', 18143))
c, _ = listener.accept()
os.set_inheritable(c.fileno(), True)
if os.fork() == 0:
    listener.close()
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 40)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 50)
    again = 'import socket; c = socket.socket(fileno=%d); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1);' \
            'c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0); c.recv(1)' % c.fileno()
    os.execv('/usr/bin/python3', ['python3', '-c', again])
c.close()
os.wait()
";

#[test]
fn options_that_a_child_sets_on_a_shared_connection_are_in_force() {
    let mut stage = Stage::new();
    let program = stage.python(TUNING, &[]);
    let label = stage.proxy.open(18143, b"", false);
    let expected = [(2, 40_000), (4, 7_000), (2, 50_000), (1, 1), (2, 0)];
    stage.proxy.until("all options", |p| p.flow(label).options.len() == expected.len());
    assert_eq!(stage.proxy.flow(label).options, expected);
    stage.proxy.write(label, b"x");
    stage.succeeds(program);
}

/// Passes a socket that is still connecting, while another thread serves a client.
const PASSING_EARLY: &str = "
import os, socket, threading
listener = socket.create_server(('', 18144))
c, _ = listener.accept()
early = socket.socket()
early.setblocking(False)
assert early.connect_ex(('10.76.0.9', 80)) == 115
a, b = socket.socketpair()
passing = threading.Thread(target=lambda: socket.send_fds(a, [b'x'], [early.fileno()]))
passing.start()
def sleeps():
    # The call waits in ppoll.
    with open(f'/proc/self/task/{passing.native_id}/syscall') as call: return call.read().startswith('271 ')
while not sleeps(): pass
c.sendall(c.recv(100).upper())
passed = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
passed.setblocking(True)
passed.sendall(b'passed')
assert passed.recv(100) == b'answer'
passing.join()
";

#[test]
fn other_threads_go_on_while_a_connecting_socket_is_passed() {
    let mut stage = Stage::new();
    let program = stage.python(PASSING_EARLY, &[]);
    let label = stage.proxy.open(18144, b"meanwhile", false);
    stage.proxy.until("the request", |p| !p.asked.is_empty());
    // With the lock held during the wait the answer would come after the wait's limit, and the passed socket
    // would not be connected.
    stage.proxy.until("the other thread's answer", |p| p.flow(label).received == b"MEANWHILE");
    let asked = stage.proxy.asked.remove(0);
    let passed = stage.proxy.connected(asked);
    stage.proxy.until("bytes of the passed socket", |p| p.flow(passed).received == b"passed");
    assert_eq!(stage.proxy.flow(passed).handovers, 1);
    stage.proxy.write(passed, b"answer");
    stage.succeeds(program);
}
