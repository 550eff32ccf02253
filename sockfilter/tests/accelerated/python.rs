//! Python's http.server and small Python programs: blocking, time-outs, selectors, threads, fork.

use crate::stage::*;

#[test]
fn http_server_serves_files_over_a_channel() {
    let mut stage = Stage::new();
    let body = pattern(100_000);
    stage.write("file.bin", &body);
    let mut command = stage.command("/usr/bin/python3");
    command.args(["-u", "-m", "http.server", "18080"]);
    let server = stage.start(command);
    for _ in 0..3 {
        let response = stage.proxy.exchange(18080, b"GET /file.bin HTTP/1.0\r\n\r\n");
        let (head, found) = split_response(&response);
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(found == body, "{} of {} bytes", found.len(), body.len());
    }
    assert_eq!(stage.kernel_sockets(server, 18080), 0, "nothing of it is in the kernel");
}

/// Looks at its listener, does something else, then accepts.
const HESITATES: &str = "
import os, select, socket, time
listener = socket.create_server(('', 18191))
listener.setblocking(False)
poll = select.poll()
poll.register(listener, select.POLLIN)
assert poll.poll() == [(listener.fileno(), select.POLLIN)]
print('ready', flush=True)
while not os.path.exists('go'): time.sleep(0.002)
while True:
    try: connection, _ = listener.accept()
    except BlockingIOError: poll.poll()
    else: break
print(connection.recv(10).decode())
";

#[test]
fn an_offer_that_was_withdrawn_before_accept_is_not_accepted() {
    let mut stage = Stage::new();
    let program = stage.python(HESITATES, &[]);
    let withdrawn = stage.proxy.open(18191, b"lost", false);
    let output = stage.folder.join("output.0");
    stage.proxy.until("the offer to be seen", |_| std::fs::read_to_string(&output).unwrap() == "ready\n");
    stage.proxy.reset(withdrawn);
    stage.write("go", b"");
    stage.proxy.open(18191, b"kept", false);
    assert_eq!(stage.succeeds(program), "ready\nkept\n");
}

/// A server that reads until the end of the stream and answers length and digest.
const UPLOADS: &str = "
import hashlib, http.server
class Upload(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        left, digest = int(self.headers['Content-Length']), hashlib.sha256()
        while left:
            part = self.rfile.read(min(left, 65536))
            left -= len(part)
            digest.update(part)
        text = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(('', 18090), Upload).serve_forever()
";

#[test]
fn a_threading_server_takes_uploads_at_once() {
    let mut stage = Stage::new();
    stage.python(UPLOADS, &[]);
    let body = vec![b'u'; 2 << 20];
    let mut request = format!("POST /x HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(&body);
    let labels: Vec<u32> = (0..8).map(|_| stage.proxy.open(18090, &request, false)).collect();
    stage.proxy.until("all answers", |p| labels.iter().all(|l| p.flow(*l).closed));
    let mut answers: Vec<_> =
        labels.iter().map(|l| split_response(&stage.proxy.flow(*l).received).1).collect();
    assert_eq!(answers[0].len(), 64, "a digest");
    answers.dedup();
    assert_eq!(answers.len(), 1, "all digests are the same");
}

/// An echo server with each kind of waiting, selected by its argument.
const ECHO: &str = "
import select, selectors, socket, sys
kind = sys.argv[1]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('', int(sys.argv[2])))
listener.listen(16)
assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
def echo(connection):
    data = connection.recv(65536)
    if data:
        connection.sendall(data)
    return bool(data)
if kind == 'blocking':
    for _ in range(3):
        connection, peer = listener.accept()
        assert peer[0] == '10.76.0.1', peer
        while echo(connection):
            pass
        connection.close()
elif kind == 'select':
    waiting, done = [listener], 0
    while done < 3:
        for ready in select.select(waiting, [], [], 5)[0]:
            if ready is listener:
                waiting.append(listener.accept()[0])
            elif not echo(ready):
                ready.close(); waiting.remove(ready); done += 1
else:
    selector, done = getattr(selectors, kind)(), 0
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    while done < 3:
        for key, events in selector.select(5):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            elif not echo(key.fileobj):
                selector.unregister(key.fileobj); key.fileobj.close(); done += 1
";

fn check_echo(kind: &str, port: u16) {
    let mut stage = Stage::new();
    let program = stage.python(ECHO, &[kind, &port.to_string()]);
    for n in 0..3 {
        let label = stage.proxy.open(port, b"one ", false);
        stage.proxy.until("the first echo", |p| p.flow(label).received == b"one ");
        stage.proxy.write(label, b"two");
        stage.proxy.shutdown(label);
        stage.proxy.until("the close", |p| p.flow(label).closed);
        assert_eq!(stage.proxy.flow(label).received, b"one two", "connection {n}");
    }
    stage.succeeds(program);
}

#[test]
fn blocking_calls_echo() {
    check_echo("blocking", 18091);
}

#[test]
fn select_echoes() {
    check_echo("select", 18092);
}

#[test]
fn poll_echoes() {
    check_echo("PollSelector", 18093);
}

#[test]
fn epoll_echoes() {
    check_echo("EpollSelector", 18094);
}

/// Everything a program can look at, in one connection.
const DETAILS: &str = "
import array, fcntl, os, select, socket, struct, termios, threading, time
listener = socket.socket()
listener.bind(('', 18095))
listener.listen(16)
c, peer = listener.accept()
assert peer == ('10.76.0.1', peer[1]) and c.getsockname() == ('10.76.0.100', 18095)
# Peeking, counting, waiting for all.
assert c.recv(4, socket.MSG_PEEK) == b'abcd'
count = array.array('i', [0])
fcntl.ioctl(c, termios.FIONREAD, count)
assert count[0] == 10, count
assert c.recv(10, socket.MSG_WAITALL) == b'abcdefghij'
# Non-blocking and time-outs.
c.setblocking(False)
try: c.recv(1); raise SystemExit('no data, no error')
except BlockingIOError: pass
c.settimeout(0.05)
began = time.monotonic()
try: c.recv(1); raise SystemExit('no time-out')
except TimeoutError: assert 0.04 < time.monotonic() - began < 2
c.setblocking(True)
c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50000))
try: c.recv(1); raise SystemExit('no SO_RCVTIMEO')
except BlockingIOError: pass
c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 0))
# Duplicates share the connection; it ends with the last one.
d = c.dup()
c.close()
d.sendmsg([b'gather ', b'', b'these'])
os.dup2(d.fileno(), 200)
d.close()
s = socket.socket(fileno=200)
assert os.fstat(200).st_mode & 0o170000 == 0o140000, 'a socket'
# A thread that waits for data is woken by it.
found = []
t = threading.Thread(target=lambda: found.append(s.recv(100)))
t.start()
s.send(b'!')
t.join(10)
assert found == [b'late'], found
# One that waits when its descriptor is replaced waits on, and the connection ends with that.
t = threading.Thread(target=lambda: found.append(s.recv(100)))
t.start()
quiet = 0
while quiet < 20:
    state = open(f'/proc/self/task/{t.native_id}/stat').read().rsplit(')')[1].split()[0]
    quiet = quiet + 1 if state == 'S' else 0
    time.sleep(0.001)
e = os.dup(200)
os.dup2(os.open('/dev/null', os.O_RDONLY), 200)
os.write(e, b'?')
os.close(e)
t.join(10)
assert found[1:] == [b'more'], found
print('done')
";

#[test]
fn details_are_as_the_kernel_has_them() {
    let mut stage = Stage::new();
    let program = stage.python(DETAILS, &[]);
    let label = stage.proxy.open(18095, b"abcdefghij", false);
    stage.proxy.until("the greeting", |p| p.flow(label).received == b"gather these!");
    stage.proxy.write(label, b"late");
    stage.proxy.until("the replacement", |p| p.flow(label).received == b"gather these!?");
    assert!(!stage.proxy.flow(label).closed);
    stage.proxy.write(label, b"more");
    stage.proxy.until("the close", |p| p.flow(label).closed);
    assert_eq!(stage.succeeds(program), "done\n");
}

/// A parent that listens, children that accept: each has links of its own.
const FORKING: &str = "
import os, socket
listener = socket.socket()
listener.bind(('', 18096))
listener.listen(16)
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        for _ in range(2):
            c, _ = listener.accept()
            c.sendall(b'%d' % n)
            c.recv(10)
            c.close()
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
";

#[test]
fn forked_children_accept_from_the_inherited_listener() {
    let mut stage = Stage::new();
    let program = stage.python(FORKING, &[]);
    stage.proxy.until("three children", |p| p.listening(18096).1 == 3);
    let labels: Vec<u32> = (0..6).map(|_| stage.proxy.open(18096, b"", false)).collect();
    stage
        .proxy
        .until("all greetings", |p| labels.iter().filter(|l| p.flow(**l).received.len() == 1).count() >= 3);
    labels.iter().for_each(|l| stage.proxy.shutdown(*l));
    stage.proxy.until("all greetings", |p| labels.iter().all(|l| p.flow(*l).closed));
    let mut who: Vec<u8> = labels.iter().map(|l| stage.proxy.flow(*l).received[0]).collect();
    who.sort_unstable();
    assert_eq!(who, b"001122");
    stage.succeeds(program);
}

/// Writes what is taken at once, and ends without closing anything.
const SUDDEN: &str = "
import os, signal, socket, sys
listener = socket.socket()
listener.bind(('', 18098))
listener.listen(16)
c, _ = listener.accept()
c.setblocking(False)
sent = 0
try:
    while True: sent += c.send(b'x' * 50000)
except BlockingIOError: pass
open('sent', 'w').write(str(sent))
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == 'kill' else os._exit(0)
";

#[test]
fn what_write_took_arrives_though_the_process_ends() {
    for way in ["exit", "kill"] {
        let mut stage = Stage::new();
        let program = stage.python(SUDDEN, &[way]);
        let label = stage.proxy.open(18098, b"", false);
        stage.proxy.until("the end", |p| p.flow(label).closed);
        let sent: usize = std::fs::read_to_string(stage.folder.join("sent")).unwrap().parse().unwrap();
        assert!(sent > 50_000, "{sent}");
        assert_eq!(stage.proxy.flow(label).received.len(), sent, "{way}");
        stage.wait(program);
    }
}

#[test]
fn ctrl_c_interrupts_a_waiting_server_and_idle_costs_nothing() {
    let mut stage = Stage::new();
    let mut command = stage.command("/usr/bin/python3");
    // Whoever runs the tests in the background may have made them ignore SIGINT, which Python then does, too.
    let server = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); \
                  runpy.run_module('http.server', run_name='__main__')";
    command.args(["-u", "-c", server, "18097"]);
    let server = stage.start(command);
    stage.proxy.until("the server", |p| p.listening(18097).1 == 1);
    let used = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = used(stage.pid(server));
    stage.proxy.run_for(std::time::Duration::from_secs(2));
    assert!(used(stage.pid(server)) - before <= 5, "an idle server used the processor");
    signal(stage.pid(server), libc::SIGINT);
    let (code, output) = stage.wait(server);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("Keyboard interrupt"), "{output}");
}

/// What a program sets reaches the proxy, and what it asks is answered from there.
const OPTIONS: &str = "
import socket, struct
listener = socket.create_server(('', 18130))
c, _ = listener.accept()
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
rtt, cwnd = struct.unpack_from('I', info, 68)[0], struct.unpack_from('I', info, 80)[0]
print(info[0], rtt, cwnd, c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
c.close()
";

/// What a listener has is what it accepts has, at the proxy too.
const LISTENERS_OPTIONS: &str = "
import socket
listener = socket.create_server(('', 18131))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
c, _ = listener.accept()
print(c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
c.close()
";

#[test]
fn options_of_a_listener_reach_the_proxy() {
    let mut stage = Stage::new();
    let program = stage.python(LISTENERS_OPTIONS, &[]);
    let label = stage.proxy.open(18131, b"", false);
    stage.proxy.until("the close", |p| p.flow(label).closed);
    let mut options = stage.proxy.flow(label).options.clone();
    options.dedup();
    assert_eq!(options, [(2, 30_000), (1, 1)]);
    assert_eq!(stage.succeeds(program), "30 1\n");
}

#[test]
fn options_reach_the_proxy_and_its_figures_come_back() {
    let mut stage = Stage::new();
    let program = stage.python(OPTIONS, &[]);
    let label = stage.proxy.open(18130, b"", false);
    stage.proxy.until("the close", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).options, [(1, 1), (2, 60_000), (3, 5_000), (4, 7_000), (5, 4)]);
    assert_eq!(stage.succeeds(program), "1 1234 10 60\n");
}

/// As Varnish does it: binds as root, listens as another user.
const WITHOUT_ROOT: &str = "
import os, socket
listener = socket.socket()
listener.bind(('', 918))
os.setgid(65534); os.setuid(65534)
listener.listen(5)
assert listener.getsockname()[1] == 918
c, _ = listener.accept()
c.sendall(c.recv(100).upper())
";

#[test]
fn a_port_below_1024_is_listened_on_without_the_rights_to_bind_it() {
    if !csp_support::is_root("the test binds a port below 1024") {
        return;
    }
    let mut stage = Stage::new();
    let server = stage.python(WITHOUT_ROOT, &[]);
    stage.proxy.until("the listener", |p| p.listening(918).1 == 1);
    assert_eq!(stage.kernel_sockets(server, 918), 0);
    let label = stage.proxy.open(918, b"question", false);
    stage.proxy.until("the end", |p| p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"QUESTION");
    stage.succeeds(server);
}
