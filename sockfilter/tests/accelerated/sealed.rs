//! Connections that programs without the filter would take for local ones: they never get them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::stage::*;

/// As exim does with `-bs`: a client that getpeername does not name as one of the Internet is local, and may
/// relay.
const MAILER: &str = r#"
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    int local = getpeername(0, (struct sockaddr *)&a, &len) || (a.ss_family != AF_INET && a.ss_family != AF_INET6);
    char line[100];
    if (read(0, line, sizeof line) > 0) dprintf(1, local ? "250 relayed" : "550 refused");
    return 0;
}
"#;

/// Gives each connection to the program, in one way.
const INETD: &str = "
import os, socket, subprocess, sys
way, program, preload = sys.argv[1:4]
environment = dict(os.environ)
if preload != 'kept': environment['LD_PRELOAD'] = preload
listener = socket.create_server(('', 18160))
c, _ = listener.accept()
listener.close()
if way == 'fork':
    if os.fork() == 0:
        os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1); c.close()
        # A failed exec leaves the connection as it was.
        try: os.execve('/nonexistent', ['x'], environment)
        except FileNotFoundError: pass
        assert socket.socket(fileno=os.dup(0)).getpeername()[0] == '10.76.0.1'
        assert socket.socket(fileno=os.dup(0)).recv(1, socket.MSG_PEEK) == b'M'
        os.execve(program, [program], environment)
    c.close()
    os.wait()
elif way == 'exec':
    os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1); c.close()
    os.execve(program, [program], environment)
elif way == 'vfork':
    # Python 3.13 calls posix_spawn instead, which refuses what exec seals.
    try: subprocess.run([program], stdin=c, stdout=c, env=environment)
    except PermissionError: c.close()
elif way == 'spawn':
    actions = [(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, c.fileno(), 1)]
    try: os.waitpid(os.posix_spawn(program, [program], environment, file_actions=actions), 0)
    except PermissionError: c.close()
elif way == 'passed':
    a, b = socket.socketpair()
    b.set_inheritable(True)
    child = subprocess.Popen([program, str(b.fileno())], env=environment, close_fds=False)
    socket.send_fds(a, [b'x'], [c.fileno()])
    c.close()
    child.wait()
";

fn compile(stage: &Stage, name: &str, flags: &[&str]) -> PathBuf {
    let source = stage.write("mailer.c", MAILER.as_bytes());
    let program = stage.folder.join(name);
    let compiled = Command::new("gcc").args(flags).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    program
}

/// The program's answer to a client of the kernel.
fn by_kernel(program: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.write_all(b"MAIL").unwrap();
    let (served, _) = listener.accept().unwrap();
    let end = || Stdio::from(OwnedFd::from(served.try_clone().unwrap()));
    let mut command = Command::new(program);
    assert!(command.stdin(end()).stdout(end()).status().unwrap().success());
    drop((command, served));
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// The tests that bind the script's port run one after another.
static PORT: Mutex<()> = Mutex::new(());

/// Checks the answer that a client gets over the cluster.
fn check(way: &str, make: impl Fn(&Stage) -> PathBuf, preload: &str, expected: &str) {
    let _port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stage = Stage::new();
    std::fs::set_permissions(&stage.folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = make(&stage);
    if preload == "kept" {
        assert_eq!(by_kernel(&program), "550 refused");
    }
    let inetd = stage.python(INETD, &[way, program.to_str().unwrap(), preload]);
    let label = stage.proxy.open(18160, b"MAIL", false);
    stage.proxy.until("the end", |p| p.flow(label).ended || p.flow(label).closed);
    let answer = String::from_utf8_lossy(&stage.proxy.flow(label).received).into_owned();
    let (_, output) = stage.wait(inetd);
    assert_eq!(answer, expected, "{way} {}: {output}", program.display());
    assert!(!output.contains("Error"), "{output}");
}

const WAYS: [&str; 4] = ["exec", "fork", "vfork", "spawn"];

#[test]
fn a_program_with_the_filter_knows_the_client() {
    for way in WAYS {
        check(way, |stage| compile(stage, "dynamic", &[]), "kept", "550 refused");
    }
}

#[test]
fn a_static_program_gets_no_connection() {
    for way in WAYS {
        check(way, |stage| compile(stage, "static", &["-static"]), "kept", "");
    }
}

#[test]
fn a_program_with_another_preload_gets_no_connection() {
    for way in WAYS {
        check(way, |stage| compile(stage, "dynamic", &[]), "", "");
    }
}

#[test]
fn a_set_user_id_program_gets_no_connection() {
    if !csp_support::is_root("the test makes a program that changes its user") {
        return;
    }
    let set_user_id = |stage: &Stage| {
        // The kernel obeys the bit on file systems that are not mounted with `nosuid`, as /tmp often is.
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("set-user-id-{}", std::process::id()));
        std::fs::copy(compile(stage, "set-user-id", &[]), &program).unwrap();
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        program
    };
    for way in WAYS {
        check(way, set_user_id, "kept", "");
    }
}

/// Spawns `./mailer` with actions that change the folder.
const CHANGES_FOLDER: &str = "
import ctypes, os, socket, sys
c_library = ctypes.CDLL(None)
listener = socket.create_server(('', 18160))
c, _ = listener.accept()
listener.close()
actions = ctypes.create_string_buffer(256)
assert c_library.posix_spawn_file_actions_init(actions) == 0
for fd in 0, 1: assert c_library.posix_spawn_file_actions_adddup2(actions, c.fileno(), fd) == 0
assert c_library.posix_spawn_file_actions_addchdir_np(actions, b'/') == 0
assert c_library.posix_spawn_file_actions_addchdir_np(actions, os.getcwd().encode()) == 0
if sys.argv[1] == 'chdir':
    assert c_library.posix_spawn_file_actions_addchdir_np(actions, b'sub') == 0
else:
    sub = os.open('sub', os.O_PATH)
    assert c_library.posix_spawn_file_actions_addfchdir_np(actions, sub) == 0
program = sys.argv[2].encode()
words = [f'{name}={value}'.encode() for name, value in os.environ.items()] + [None]
arguments, environment = (ctypes.c_char_p * 2)(program, None), (ctypes.c_char_p * len(words))(*words)
child = ctypes.c_int()
failed = c_library.posix_spawn(ctypes.byref(child), program, actions, None, arguments, environment)
if failed: c.close()
else: os.waitpid(child.value, 0)
print(failed)
";

#[test]
fn the_program_is_examined_in_the_folder_where_it_is_executed() {
    let _port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    let (dynamic, fixed) = (&[][..], &["-static"][..]);
    for (how, own, sub, absolute, expected) in [
        ("chdir", dynamic, fixed, false, ""),
        ("chdir", fixed, dynamic, false, "550 refused"),
        // A folder that a descriptor names is not known; an absolute path needs none.
        ("fchdir", dynamic, fixed, false, ""),
        ("fchdir", fixed, dynamic, true, "550 refused"),
    ] {
        let mut stage = Stage::new();
        std::fs::create_dir(stage.folder.join("sub")).unwrap();
        compile(&stage, "mailer", own);
        let inside = compile(&stage, "sub/mailer", sub);
        let program = if absolute { inside.to_str().unwrap().to_owned() } else { "./mailer".to_owned() };
        let spawning = stage.python(CHANGES_FOLDER, &[how, &program]);
        let label = stage.proxy.open(18160, b"MAIL", false);
        stage.proxy.until("the end", |p| p.flow(label).ended || p.flow(label).closed);
        let answer = String::from_utf8_lossy(&stage.proxy.flow(label).received).into_owned();
        let output = stage.succeeds(spawning);
        let failed = if expected.is_empty() { libc::EPERM } else { 0 };
        assert!(output.ends_with(&format!("{failed}\n")), "{how}: {output}");
        assert_eq!(answer, expected, "{how}: {output}");
    }
}

/// Receives a descriptor, and treats its client as the mailer does.
const RECEIVER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **arguments) {
    char byte, line[100];
    union { char room[CMSG_SPACE(4)]; struct cmsghdr header; } control;
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(atoi(arguments[1]), &m, 0) != 1) return 1;
    int fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&m));
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    int local = getpeername(fd, (struct sockaddr *)&a, &len) || (a.ss_family != AF_INET && a.ss_family != AF_INET6);
    if (read(fd, line, sizeof line) > 0) dprintf(fd, local ? "250 relayed" : "550 refused");
    return 0;
}
"#;

#[test]
fn a_connection_that_is_passed_is_of_use_to_a_program_with_the_filter_only() {
    let _port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    for (flags, expected) in [(&[][..], "550 refused"), (&["-static"][..], "")] {
        let mut stage = Stage::new();
        let source = stage.write("receiver.c", RECEIVER.as_bytes());
        let program = stage.folder.join("receiver");
        let compiled = Command::new("gcc").args(flags).arg("-o").arg(&program).arg(&source).status().unwrap();
        assert!(compiled.success());
        let passing = stage.python(INETD, &["passed", program.to_str().unwrap(), "kept"]);
        let label = stage.proxy.open(18160, b"MAIL", false);
        stage.proxy.until("the end", |p| p.flow(label).ended || p.flow(label).closed);
        assert_eq!(String::from_utf8_lossy(&stage.proxy.flow(label).received), expected, "{flags:?}");
        stage.succeeds(passing);
    }
}

/// As Dante does it: one process begins to connect, another one gets the socket before the connection is
/// established.
const CONNECTING: &str = "
import os, select, socket
a, b = socket.socketpair()
if os.fork() == 0:
    _, (fd,), _, _ = socket.recv_fds(b, 1, 1)
    s = socket.socket(fileno=fd)
    assert select.select([], [s], [], 10)[1] == [s]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert s.getpeername() == ('10.76.0.9', 25), s.getpeername()
    s.setblocking(True)
    s.sendall(b'from the other')
    os._exit(0)
s = socket.socket()
s.setblocking(False)
assert s.connect_ex(('10.76.0.9', 25)) != 0
socket.send_fds(a, [b'x'], [s.fileno()])
s.close()
assert os.wait()[1] == 0
";

#[test]
fn a_connection_is_passed_when_it_is_established() {
    let mut stage = Stage::new();
    let program = stage.python(CONNECTING, &[]);
    stage.proxy.until("a CONNECT", |p| !p.asked.is_empty());
    // The program waits in sendmsg meanwhile.
    stage.proxy.run_for(std::time::Duration::from_millis(50));
    let asked = stage.proxy.asked.remove(0);
    let label = stage.proxy.connected(asked);
    stage.proxy.until("the end", |p| p.flow(label).ended || p.flow(label).closed);
    assert_eq!(stage.proxy.flow(label).received, b"from the other");
    stage.succeeds(program);
}
