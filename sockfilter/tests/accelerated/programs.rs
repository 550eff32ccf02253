//! Programs under the filter with nothing accelerated: their behaviour and output are exactly those without
//! it.

use std::process::{Command, Output};

use std::os::unix::process::CommandExt;
use std::time::Duration;

use crate::stage::{Stage, filter, pattern};

/// Runs a program plain and preloaded (agent absent, and mode off), and compares.
fn check_same(program: &str, arguments: &[&str]) {
    let run = |preload: bool, mode: &str| -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env_remove("LD_PRELOAD");
        if preload {
            command
                .env("LD_PRELOAD", filter())
                .env("CSP_MODE", mode)
                .env("CSP_AGENT", "/nonexistent/agent.sock");
        }
        command.output().unwrap()
    };
    let plain = run(false, "on");
    for mode in ["on", "off"] {
        let preloaded = run(true, mode);
        assert_eq!(preloaded.status, plain.status, "{program} {mode}: {preloaded:?}");
        assert_eq!(preloaded.stdout, plain.stdout, "{program} {mode}");
        let complaint = String::from_utf8_lossy(&preloaded.stderr);
        let own: Vec<&str> = complaint.lines().filter(|l| l.starts_with("csp-sockfilter:")).collect();
        assert!(own.len() <= 1 && (mode == "on" || own.is_empty()), "{complaint}");
    }
    // Attached, and the agent's rules leave everything to the kernel.
    let mut stage = Stage::passive();
    let mut command = stage.command(program);
    command.args(arguments).process_group(0);
    let child = stage.start(command);
    let (status, output) = stage.wait_at_most(child, Duration::from_secs(60));
    assert_eq!(status, Some(plain.status), "{output}");
    assert_eq!(output, String::from_utf8_lossy(&plain.stdout), "{program} attached");
}

/// Sockets of every kind, waits of every kind, descriptors of every kind; prints what happened.
const SOCKETS: &str = "
import array, asyncio, concurrent.futures, errno, fcntl, os, select, selectors, socket, struct, subprocess, sys, tempfile, threading
out = []
for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    try: server = socket.create_server((host, 0), family=family)
    except OSError as e: out.append(e.errno); continue
    client = socket.create_connection(server.getsockname()[:2])
    peer, _ = server.accept()
    client.sendall(b'a' * 100000)
    peer.settimeout(5)
    total = 0
    while total < 100000: total += len(peer.recv(65536))
    out.append(total)
    with tempfile.TemporaryFile() as f:
        f.write(b'file' * 5000); f.flush(); f.seek(0)
        out.append(client.sendfile(f))
    got = 0
    while got < 20000: got += len(peer.recv(65536))
    ready = select.select([peer], [peer], [], 0)
    out.append((len(ready[0]), len(ready[1])))
    p = select.poll(); p.register(peer, select.POLLIN | select.POLLOUT); out.append([e for _, e in p.poll(0)])
    e = select.epoll(); e.register(peer, select.EPOLLIN | select.EPOLLET | select.EPOLLOUT); out.append([v for _, v in e.poll(0)])
    out.append([v for _, v in e.poll(0)])
    client.shutdown(socket.SHUT_WR)
    out.append([v for _, v in e.poll(1)])
    out.append(peer.recv(10))
    d = peer.dup(); peer.close(); d.send(b'dup'); out.append(client.recv(10))
    d.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); d.close()
    try: client.recv(10)
    except OSError as x: out.append(x.errno)
    for call in (lambda: client.getpeername(), lambda: socket.socket().recv(1), lambda: socket.socket().listen() or 'listens'):
        try: out.append(str(call())[:10])
        except OSError as x: out.append(x.errno)
try:
    s = socket.socket(); s.connect(('127.0.0.1', 1))
except OSError as x: out.append(x.errno)
a, b = socket.socketpair()
socket.send_fds(a, [b'fd'], [1]); m = socket.recv_fds(b, 10, 1); out.append(m[0]); os.close(m[1][0])
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.sendto(b'udp', u.getsockname()); out.append(u.recvfrom(10)[0])
r, w = os.pipe(); os.write(w, b'pipe'); out.append(os.read(r, 10)); out.append(os.readv(r, []) if False else None)
os.dup2(w, 300); os.close(300)
try: os.write(300, b'x')
except OSError as x: out.append(x.errno)
out.append(subprocess.run(['/bin/echo', 'child'], capture_output=True, close_fds=True).stdout)
pid = os.fork()
if pid == 0: os.closerange(3, 1000); os._exit(7)
out.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
async def conversation():
    async def serve(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    async def ask(n):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b'%d\\n' % n); answer = await reader.read(); writer.close(); return answer
    return await asyncio.gather(*(ask(n) for n in range(20)))
out.append(asyncio.run(conversation()))
with concurrent.futures.ThreadPoolExecutor(4) as pool: out.append(list(pool.map(lambda n: n * n, range(5))))
print(out)
";

#[test]
fn python_is_the_same() {
    check_same("/usr/bin/python3", &["-c", SOCKETS]);
}

#[test]
fn shell_tools_are_the_same() {
    let file = std::env::temp_dir().join(format!("csp-same-{}", std::process::id()));
    std::fs::write(&file, pattern(200_000)).unwrap();
    let path = file.display();
    for script in [
        format!(
            "sha256sum < {path}; dd if={path} bs=1000 count=3 2>/dev/null | wc -c; cat {path} | tail -c 7 | od -c"
        ),
        "exec 9</etc/passwd; head -1 <&9; exec 9<&-; (echo sub; exit 3); echo $?".to_owned(),
        "for i in 1 2 3; do echo $i & done | sort; wait; sort --parallel=2 /etc/group | tail -3".to_owned(),
    ] {
        check_same("/bin/sh", &["-c", &script]);
    }
    std::fs::remove_file(&file).unwrap();
}
