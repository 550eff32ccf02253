//! Connections that the agent carries: what the processes that share one set on it.

use crate::stage::*;

/// Options that a child sets on a connection that it shares: some in its own process, some in a program that it executes.
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
