//! Programs that connect: curl and Python, through the proxy or directly.

use std::net::SocketAddr;

use csp_app_node::agent::ProxyEntry;
use csp_wire::agent::Destination;

use crate::proxy::Connect;
use crate::stage::*;

/// Waits for a CONNECT.
fn asked(stage: &mut Stage) -> Connect {
    stage.proxy.until("a CONNECT", |p| !p.asked.is_empty());
    stage.proxy.asked.remove(0)
}

#[test]
fn curl_fetches_through_the_proxy() {
    let mut stage = Stage::new();
    let mut command = stage.command("/usr/bin/curl");
    command.args(["-s", "-m", "15", "-w", " %{remote_ip} %{local_port}", "http://10.76.0.9:8080/x"]);
    let curl = stage.start(command);
    let request = asked(&mut stage);
    assert_eq!(request.remote, SocketAddr::from(([10, 76, 0, 9], 8080)));
    let label = stage.proxy.connected(request);
    stage.proxy.until("the request", |p| p.flow(label).received.ends_with(b"\r\n\r\n"));
    assert!(stage.proxy.flow(label).received.starts_with(b"GET /x HTTP/1.1\r\n"));
    let body = pattern(300_000).iter().map(|b| b'a' + b % 26).collect::<Vec<u8>>();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stage.proxy.write(label, head.as_bytes());
    stage.proxy.write(label, &body);
    let output = stage.succeeds(curl);
    assert!(
        output == format!("{} 10.76.0.9 50000", String::from_utf8(body).unwrap()),
        "{} bytes",
        output.len()
    );
}

#[test]
fn options_set_before_the_connection_is_there_reach_the_proxy() {
    let mut stage = Stage::new();
    let script = "
import errno, socket, select
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.setblocking(False)
assert s.connect_ex(('10.76.0.9', 9001)) == errno.EINPROGRESS
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000)
select.select([], [s], [])
s.setblocking(True)
s.sendall(b'x')
assert s.recv(1) == b''
";
    let program = stage.python(script, &[]);
    let request = asked(&mut stage);
    let label = stage.proxy.connected(request);
    stage.proxy.until("a byte", |p| p.flow(label).received == b"x");
    assert_eq!(stage.proxy.flow(label).options, [(1, 1), (3, 4_000)]);
    stage.proxy.shutdown(label);
    stage.succeeds(program);
}

#[test]
fn curl_reports_that_a_connection_is_refused() {
    let mut stage = Stage::new();
    let mut command = stage.command("/usr/bin/curl");
    command.args(["-s", "-m", "15", "http://10.76.0.9:8080/x"]);
    let curl = stage.start(command);
    let request = asked(&mut stage);
    stage.proxy.connect_refused(request, libc::ECONNREFUSED);
    assert_eq!(stage.wait(curl).0, Some(7), "curl: could not connect");
}

#[test]
fn a_blocking_connect_waits_and_sends_everything() {
    let mut stage = Stage::new();
    let script = "
import socket, sys
s = socket.socket()
s.connect(('10.76.0.9', 9000))
assert s.getpeername() == ('10.76.0.9', 9000), s.getpeername()
assert s.getsockname() == ('10.76.0.101', 50000)
s.sendall(b'x' * 1000000)
s.shutdown(socket.SHUT_WR)
assert s.recv(100) == b'thanks'
assert s.recv(100) == b''
";
    let program = stage.python(script, &[]);
    let request = asked(&mut stage);
    let label = stage.proxy.connected(request);
    stage.proxy.until("the end", |p| p.flow(label).ended);
    assert_eq!(stage.proxy.flow(label).received.len(), 1_000_000);
    stage.proxy.write(label, b"thanks");
    stage.proxy.shutdown(label);
    stage.succeeds(program);
}

#[test]
fn a_socket_may_be_in_an_epoll_set_before_it_connects() {
    let mut stage = Stage::new();
    let script = "
import select, socket
s = socket.socket()
s.setblocking(False)
e = select.epoll()
e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP)
e.poll(0)
try: s.connect(('10.76.0.9', 9000))
except BlockingIOError: pass
assert e.poll(0.05) == [], 'not connected yet'
print('looked', flush=True)
assert e.poll(10) == [(s.fileno(), select.EPOLLOUT)]
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
s.send(b'hi')
assert e.poll(10)[0][1] & select.EPOLLIN
assert s.recv(10) == b'there'
";
    let program = stage.python(script, &[]);
    let request = asked(&mut stage);
    while !stage.has_said(program, "looked") {
        stage.proxy.run_for(std::time::Duration::from_millis(5));
    }
    let label = stage.proxy.connected(request);
    stage.proxy.until("the greeting", |p| p.flow(label).received == b"hi");
    stage.proxy.write(label, b"there");
    stage.succeeds(program);
}

#[test]
fn destinations_outside_the_rule_and_loopback_stay_in_the_kernel() {
    let mut stage = Stage::new();
    stage.directory().send_modify(|d| {
        d.connect = vec![Destination { prefix: "192.0.2.0/24".parse().unwrap(), except: false }];
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let script = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(b'kernel')
print(s.getpeername()[0])
";
    let program = stage.python(script, &[&port]);
    let (mut socket, _) = listener.accept().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut socket, &mut text).unwrap();
    assert_eq!(text, "kernel");
    assert_eq!(stage.succeeds(program), "127.0.0.1\n");
    assert!(stage.proxy.asked.is_empty());
}

/// As many destinations as a policy may have, and many proxies, come in one message to a process that runs.
#[test]
fn a_long_list_of_destinations_reaches_a_running_process() {
    let mut stage = Stage::new();
    let script = "
import errno, socket, time
error = None
while error != errno.ENETUNREACH:
    s = socket.socket(); s.setblocking(False)
    error = s.connect_ex(('10.76.0.200', 9))
    s.close()
    time.sleep(0.01)
";
    let file = stage.write("error.py", script.as_bytes());
    let mut command = stage.command("/usr/bin/unshare");
    command.env_remove("LD_PRELOAD").args(["-n", "/usr/bin/env"]);
    command.arg(format!("LD_PRELOAD={}", filter().display())).arg("python3").arg(file);
    let program = stage.start(command);
    asked(&mut stage);
    let path = stage.folder.join("nobody-at-all.sock").display().to_string();
    stage.directory().send_modify(|d| {
        let prefix =
            |n: u8, except| Destination { prefix: format!("10.76.0.{n}/32").parse().unwrap(), except };
        d.connect.extend((100..226).map(|n| prefix(n, n >= 200)));
        let template = d.proxies[0].clone();
        d.proxies.extend((1..40).map(|worker| ProxyEntry { worker, path: path.clone(), ..template.clone() }));
    });
    stage.succeeds(program);
}

/// An address of the host's own may lie in a prefix of the rule: servers at it are in the kernel. So may an
/// exception of the policy: without a route to it the kernel reports an error.
#[test]
fn addresses_of_the_host_itself_and_exceptions_stay_in_the_kernel() {
    let mut stage = Stage::new();
    stage.directory().send_modify(|d| {
        d.connect.push(Destination { prefix: "10.76.0.128/25".parse().unwrap(), except: true });
    });
    let script = "
import errno, socket
assert socket.socket().connect_ex(('10.76.0.77', 9)) == errno.ECONNREFUSED
assert socket.socket().connect_ex(('10.76.0.200', 9)) == errno.ENETUNREACH
print('refused by the kernel')
";
    let file = stage.write("own.py", script.as_bytes());
    let line = format!(
        "ip link set lo up && ip address add 10.76.0.77/32 dev lo && LD_PRELOAD={} exec python3 {}",
        filter().display(),
        file.display()
    );
    let mut command = stage.command("/usr/bin/unshare");
    command.env_remove("LD_PRELOAD").args(["-n", "/bin/sh", "-c", &line]);
    let program = stage.start(command);
    assert_eq!(stage.succeeds(program), "refused by the kernel\n");
    assert!(stage.proxy.asked.is_empty());
}
