//! Servers that answer and close while bytes of the client are unread, have shut down, or close with
//! SO_LINGER 0: their last words reach the client through the cluster as they do through a kernel, which is
//! asked in the same test.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use csp_cluster::configs::UPLOAD_PORT;
use csp_cluster::{Far, Process, San, Tier, VIP, testing, wait_until};

/// Workers accept; a request says how its connection ends.
const SERVER: &str = r#"
import ctypes, os, signal, socket, struct, sys

def end_with_parent():
    """This process is killed when its parent ends: the test may be killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

def fork():
    parent, child = os.getpid(), os.fork()
    if child == 0:
        end_with_parent()
        if os.getppid() != parent: os._exit(0)
    return child

end_with_parent()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(64)

def end(s, how, shut, linger, size):
    s.sendall(b'z' * size)
    if shut >= 0: s.shutdown(shut)
    if linger: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    if how in (b'exit', b'forked-exit'): os._exit(0)
    if how in (b'kill', b'forked-kill'): os.kill(os.getpid(), signal.SIGKILL)
    s.close()

def serve(s):
    line = b''
    while not line.endswith(b'\n'):
        byte = s.recv(1)
        if not byte: return s.close()
        line += byte
    how, *rest = line.split()
    if how == b'GET':
        while not line.endswith(b'\r\n\r\n'): line += s.recv(1)
        s.sendall(b'HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n')
        return s.close()
    numbers = [int(number) for number in rest]
    if how.startswith(b'forked'):
        child = fork()
        if child == 0:
            end(s, how, *numbers)
            os._exit(0)
        s.close()
        return os.waitpid(child, 0)
    end(s, how, *numbers)

while True:
    worker = fork()
    if worker == 0:
        while True: serve(listener.accept()[0])
    os.waitpid(worker, 0)
"#;

/// Prints for each way to end how many bytes arrived, and what followed them, with the number of tries.
const CLIENT: &str = r#"
import collections, itertools, socket, sys
host, port, tries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = [('close', shut, linger) for shut in (-1, 0, 1, 2) for linger in (0, 1)]
ends += [(how, shut, 0) for how in ('exit', 'kill', 'forked', 'forked-exit', 'forked-kill') for shut in (-1, 1)]
for (how, shut, linger), size, body in itertools.product(ends, (6, 60000), (0, 100, 1000000)):
    found = collections.Counter()
    for _ in range(tries):
        s = socket.create_connection((host, port), 10)
        request = b'%s %d %d %d\n' % (how.encode(), shut, linger, size)
        try: s.sendall(request + b'b' * body)
        except OSError: pass
        got, last = 0, 'EOF'
        try:
            while chunk := s.recv(65536): got += len(chunk)
        except OSError as error: last = type(error).__name__
        found[got, last] += 1
        s.close()
    print(how, shut, linger, size, body, dict(found), sep='|')
"#;

/// The lines of the client by the way to end.
fn outcomes(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| line.rsplit_once('|').map(|(way, found)| (way.to_owned(), found.to_owned()));
    text.lines().filter_map(line).collect()
}

fn compare(kernel: &str, cluster: &str, what: &str) {
    let (kernel, found) = (outcomes(kernel), outcomes(cluster));
    assert_eq!((kernel.len(), found.len()), (108, 108), "{what}");
    for (way, found) in &found {
        let fields: Vec<&str> = way.split('|').collect();
        let (how, shut, size, body) = (fields[0], fields[1], fields[3], fields[4]);
        // A process that ends without closing leaves FIN behind, and a connection that the agent carries no
        // word of a FIN that was followed by a close at once: the bytes are the same. A client that still
        // sends may learn of the reset there, and then reads the end.
        let exact = how == "close" && body != "1000000";
        let whole = found.starts_with(&format!("{{({size}, ")) && found.matches('(').count() == 1;
        let either = found.matches(&format!("({size}, ")).count() == found.matches('(').count();
        assert!(
            if exact { *found == kernel[way] } else { whole || either },
            "{what}: {way}: {found}, {shut}"
        );
    }
}

#[test]
fn a_server_s_last_words_reach_its_clients_as_by_a_kernel() {
    check("refuse", San::Shm);
}

#[test]
fn a_server_s_last_words_reach_its_clients_through_its_agent() {
    check("rrefuse", San::Apart(Far::Tcp));
}

fn check(name: &str, san: San) {
    let Some(mut cluster) = testing::lay_out_over(name, san) else { return };
    cluster.serve().unwrap();
    let (server, client) = (cluster.scratch().join("server.py"), cluster.scratch().join("client.py"));
    fs::write(&server, SERVER).unwrap();
    fs::write(&client, CLIENT).unwrap();
    let (server, client) = (server.to_string_lossy().into_owned(), client.to_string_lossy().into_owned());
    let python = "/usr/bin/python3";
    cluster.program("upload").unwrap().stop().unwrap();
    cluster.remove_program("upload");
    let port = UPLOAD_PORT.to_string();
    cluster.run_accelerated("refusing", python, &[&server, "0.0.0.0", &port]).unwrap();
    cluster.wait_served().unwrap();
    // The kernel: the same server and client on the client's host.
    let mut plain = cluster.client.command(python);
    plain.args([&server, "127.0.0.1", &port]);
    let plain = Process::spawn("a plain server", plain, &cluster.scratch().join("log/plain.log")).unwrap();
    let ready = || cluster.answers(&format!("http://127.0.0.1:{port}/")).then_some(());
    wait_until("the plain server", Duration::from_secs(10), ready).unwrap();
    let kernel = cluster.client.run(python, &[&client, "127.0.0.1", &port, "2"]).unwrap();
    drop(plain);
    let vip = VIP.to_string();
    let through = cluster.client.run(python, &[&client, &vip, &port, "2"]);
    compare(&kernel, &through.map_err(|error| error.context(cluster.all_logs())).unwrap(), "through the VIP");
    let (run, agent) = (cluster.binary("csp-run"), cluster.scratch().join("run/agent.sock"));
    let (run, agent) = (run.to_string_lossy().into_owned(), agent.to_string_lossy().into_owned());
    let between =
        cluster.host(Tier::AppNode).run(&run, &["--agent", &agent, python, &client, &vip, &port, "2"]);
    compare(
        &kernel,
        &between.map_err(|error| error.context(cluster.all_logs())).unwrap(),
        "between programs",
    );
    assert_eq!(cluster.metric(Tier::ProxyNode, "csp_tcp_resets_overdue_total", "").unwrap(), 0.0);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
