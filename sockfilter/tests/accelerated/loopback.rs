//! Programs that reach each other on loopback addresses without the kernel's TCP.

use csp_wire::agent::page::{Reason, SocketKind};

use crate::stage::*;

/// Both ends in one process and one thread, as on the kernel's loopback: connected before anyone accepts.
const BOTH_ENDS: &str = "
import errno, socket, struct
for family, host in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'):
    listener = socket.create_server((host, 0), family=family)
    where = listener.getsockname()[:2]
    client = socket.create_connection(where)
    client.sendall(b'before accept')
    server, who = listener.accept()
    assert who[:2] == client.getsockname()[:2] == server.getpeername()[:2], who
    assert server.getsockname()[:2] == where == client.getpeername()[:2]
    assert server.recv(100) == b'before accept'
    # More than any window, both ways, by turns.
    for a, b in (client, server), (server, client):
        a.setblocking(False)
        sent = 0
        try:
            while True: sent += a.send(b'x' * 65536)
        except BlockingIOError: pass
        assert sent > 200000, sent
        a.setblocking(True)
        got = 0
        while got < sent: got += len(b.recv(1 << 20))
        assert got == sent
    client.shutdown(socket.SHUT_WR)
    assert server.recv(10) == b''
    server.sendall(b'half open')
    server.close()
    assert client.recv(100) == b'half open' and client.recv(100) == b''
    client.close()
    # Unread bytes and a linger of zero reset.
    for linger in False, True:
        client = socket.create_connection(where)
        server, _ = listener.accept()
        client.sendall(b'seen')
        if linger: server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        assert server.recv(4, socket.MSG_PEEK) == b'seen'
        server.close()
        try: client.recv(1); raise SystemExit('no reset')
        except ConnectionResetError: pass
    port = listener.getsockname()[1]
    listener.close()
    try: socket.create_connection((host, port)); raise SystemExit('not refused')
    except ConnectionRefusedError: pass
print('done')
";

#[test]
fn both_ends_in_one_thread() {
    let mut stage = Stage::loopback();
    let program = stage.python(BOTH_ENDS, &[]);
    assert_eq!(stage.succeeds(program), "done\n");
    assert_eq!((stage.proxy.pairs_made(), stage.proxy.pairs_asked()), (6, 8));
    assert_eq!(stage.proxy.flows_left(), 0);
}

const SERVER: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 18110))
while True:
    c, _ = listener.accept()
    while data := c.recv(65536): c.sendall(data)
    c.close()
";

const CLIENT: &str = "
import socket
c = socket.create_connection(('127.0.0.1', 18110))
c.sendall(b'hello')
assert c.recv(5) == b'hello'
c.shutdown(socket.SHUT_WR)
assert c.recv(5) == b''
";

#[test]
fn two_processes_and_the_end_of_one() {
    let mut stage = Stage::loopback();
    let server = stage.python(SERVER, &[]);
    stage.proxy.until("the server", |p| p.listening(18110).1 == 1);
    let kinds = stage.ask(|table| {
        let sockets: Vec<_> = table.pages().iter().flat_map(|(_, page)| page.sockets()).collect();
        sockets.iter().map(|s| (s.kind, s.reason)).collect::<Vec<_>>()
    });
    assert_eq!(kinds, [(SocketKind::Listener, Reason::Accelerated)]);
    for _ in 0..3 {
        let client = stage.write("client.py", CLIENT.as_bytes());
        let mut command = stage.command("/usr/bin/python3");
        command.arg(client);
        let client = stage.start(command);
        stage.succeeds(client);
    }
    signal(stage.pid(server), libc::SIGKILL);
    stage.wait(server);
    stage.proxy.until("the loss", |p| p.listening(18110).0 == 0);
    let client = stage.python(CLIENT, &[]);
    let (code, output) = stage.wait(client);
    assert!(code == Some(1) && output.contains("ConnectionRefusedError"), "{output}");
}

/// One listener for each family on one port, as asyncio and nginx make them, looked at before a client comes
/// or not.
const FAMILIES: &str = "
import select, socket, sys
for turn in range(20):
    four = socket.create_server(('', 0))
    port = four.getsockname()[1]
    six = socket.create_server(('', port), family=socket.AF_INET6)
    poll = select.epoll()
    listeners = {l.fileno(): l for l in (four, six)}
    for l in listeners.values():
        l.listen(100)
        l.setblocking(False)
        poll.register(l, select.EPOLLIN)
    if turn % 2: assert poll.poll(0) == []
    for family, host, listener in (socket.AF_INET, '127.0.0.1', four), (socket.AF_INET6, '::1', six):
        client = socket.socket(family)
        client.connect((host, port))
        client.send(b'xxx')
        ready = poll.poll(5)
        assert ready == [(listener.fileno(), select.EPOLLIN)], (turn, host, ready)
        served, _ = listener.accept()
        served.setblocking(True)
        assert served.recv(10) == b'xxx'
        served.close()
        client.close()
    poll.close()
    six.close()
    four.close()
print('done')
";

#[test]
fn each_family_has_its_listener_on_one_port() {
    let mut stage = Stage::loopback();
    let program = stage.python(FAMILIES, &[]);
    let said = stage.succeeds(program);
    assert!(said.ends_with("done\n"), "{said}");
}
