//! Real clusters of etcd on loopback, whose members a test stops, kills, wipes and puts back to an earlier
//! state.
//!
//! They speak plain HTTP without authentication. A member dies with the thread that started it.
#![allow(clippy::disallowed_types, reason = "asks etcd over HTTP")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Debian's etcd.
pub const ETCD: &str = "/usr/bin/etcd";

/// How long a member may take to serve, or to end: generous, as machines that run tests are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a loopback address whose port is free: none that the system gives to outgoing connections, as one
/// of those could take it before a server does.
#[must_use]
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = std::process::id().wrapping_mul(17).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from(([127, 0, 0, 1], 20_000 + (offset % 10_000) as u16));
        // Not by listening there: a program that another test starts at this moment would have a copy of the
        // socket for a while, and accept connections by it.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
}

/// A cluster of etcd. Dropping it kills its members and removes their directory.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    arguments: Vec<String>,
    directory: PathBuf,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: SocketAddr,
    peer: SocketAddr,
    data: PathBuf,
    child: Option<Child>,
}

impl EtcdCluster {
    /// Starts a cluster of `count` members with further `arguments`, and waits until it serves. Returns
    /// `None`, and the calling test is skipped, where etcd is not installed.
    ///
    /// # Panics
    /// When etcd does not start.
    pub fn start(count: usize, arguments: &[&str]) -> Option<EtcdCluster> {
        if !crate::installed(ETCD, "etcd-server") {
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("csp-etcd-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for etcd");
        let member = |at: usize| {
            let (name, client, peer) = (format!("etcd-{}", at + 1), free_address(), free_address());
            Member { data: directory.join(&name), name, client, peer, child: None }
        };
        let members = (0..count).map(member).collect();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut cluster = EtcdCluster { members, arguments, directory };
        for at in 0..count {
            cluster.spawn(at);
        }
        for at in 0..count {
            cluster.await_service(at);
        }
        Some(cluster)
    }

    /// Returns the addresses where clients connect, one of each member.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    /// Returns the client URLs of all members.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://{}", member.client)).collect()
    }

    /// Returns a directory that goes with the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts member `at`, on what its directory holds. Does not wait until it serves.
    ///
    /// # Panics
    /// When it runs already, or the program does not start.
    pub fn spawn(&mut self, at: usize) {
        let peers: Vec<String> =
            self.members.iter().map(|member| format!("{}=http://{}", member.name, member.peer)).collect();
        let arguments = self.arguments.clone();
        let log = self.directory.join("etcd.log");
        let log = fs::OpenOptions::new().create(true).append(true).open(log).expect("a log for etcd");
        let member = &mut self.members[at];
        assert!(member.child.is_none(), "{} runs already", member.name);
        let (client, peer) = (format!("http://{}", member.client), format!("http://{}", member.peer));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", ETCD, "--name", &member.name, "--data-dir"]).arg(&member.data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-token", "csp-test"]);
        command.args(["--heartbeat-interval", "100", "--election-timeout", "1000"]);
        command.args(["--logger", "zap", "--log-outputs", "stderr"]).args(arguments);
        if std::env::consts::ARCH == "aarch64" {
            // etcd 3.4 asks for a flag that this is on purpose.
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        member.child = Some(child.expect("etcd starts"));
    }

    /// Starts member `at` and waits until it serves, for which a majority must run.
    ///
    /// # Panics
    /// When it does not.
    pub fn restart(&mut self, at: usize) {
        self.spawn(at);
        self.await_service(at);
    }

    /// Waits until member `at` serves: it knows a leader.
    ///
    /// # Panics
    /// When it does not.
    pub fn await_service(&mut self, at: usize) {
        let deadline = Instant::now() + PATIENCE;
        while !is_healthy(self.members[at].client) {
            let member = &mut self.members[at];
            let ended = member.child.as_mut().and_then(|child| child.try_wait().expect("wait for etcd"));
            let (in_time, name) = (Instant::now() < deadline, member.name.clone());
            assert!(ended.is_none() && in_time, "{name} does not serve ({ended:?}): {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends member `at` by SIGTERM, and waits until it has ended.
    pub fn stop(&mut self, at: usize) {
        let Some(child) = &self.members[at].child else { return };
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -TERM {pid}");
        let mut child = self.members[at].child.take().expect("a child");
        child.wait().expect("wait for etcd");
    }

    /// Kills member `at` by SIGKILL.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().expect("kill etcd");
            child.wait().expect("wait for etcd");
        }
    }

    /// Removes all data of member `at`, which must not run.
    pub fn wipe(&self, at: usize) {
        fs::remove_dir_all(&self.members[at].data).expect("the data of etcd");
    }

    /// Copies the data of member `at`, which must not run, to `name` in the directory.
    pub fn back_up(&self, at: usize, name: &str) {
        copy(&self.members[at].data, &self.directory.join(name));
    }

    /// Replaces the data of member `at`, which must not run, by that of a copy made by
    /// [`back_up`](Self::back_up).
    pub fn put_back(&self, at: usize, name: &str) {
        self.wipe(at);
        copy(&self.directory.join(name), &self.members[at].data);
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.join("etcd.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of etcd's log:\n{}", self.log());
        }
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Whether etcd's `/health` reports that it is well.
fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory for the copy");
    for entry in fs::read_dir(from).expect("a directory to copy").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().expect("the type of a file").is_dir() {
            true => copy(&source, &target),
            false => drop(fs::copy(&source, &target).expect("a file to copy")),
        }
    }
}
