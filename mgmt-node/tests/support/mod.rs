//! Real management nodes with a private etcd on loopback, and nodes that are real on the control network
//! (registration, acknowledgements) and scripted at their admin endpoint.
// Each test file uses its own part of this.
#![allow(dead_code)]
// Starts processes, waits for sockets.
#![allow(clippy::disallowed_types)]

pub mod identities;
pub mod node;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use csp_api::TraceEntry;
use csp_control::{ControlOptions, ControlPlane, EtcdAccess, NodeRecord};
use csp_telemetry::{AdminOptions, AdminServer, Exposition, MetricWriter};
use csp_types::{FlowLabel, Instant, Role, TraceEvent, TraceKind};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;

/// How long anything may take that should happen soon.
pub const SOON: Duration = Duration::from_secs(30);

/// A loopback address whose port is free: none that the system gives to outgoing connections, as one of those
/// could take it before etcd does.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = std::process::id().wrapping_mul(17).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from(([127, 0, 0, 1], 10_000 + (offset % 10_000) as u16));
        // Not by listening there: a program that another test starts at this moment would have a copy of the
        // socket for a while, and accept connections by it.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
}

/// A directory that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-mgmt-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("scratch directory");
        Scratch(path)
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `check` gives something, or panics with what it waited for.
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + SOON;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited {SOON:?} in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A membership of these management nodes, mgmt-1 and so on, for as long as the test runs.
pub fn membership(of: &[&Mgmt]) -> tokio::sync::watch::Receiver<csp_control::Membership> {
    let member = |(at, mgmt): (usize, &&Mgmt)| {
        let id = format!("mgmt-{}", at + 1).parse().expect("an id");
        let record = NodeRecord::new(id, Role::MgmtNode, mgmt.url());
        (id, csp_control::Member { record, state: csp_control::MemberState::Live })
    };
    let nodes = of.iter().enumerate().map(member).collect();
    let (sender, receiver) =
        tokio::sync::watch::channel(csp_control::Membership { revision: 1, synced: true, nodes });
    std::mem::forget(sender);
    receiver
}

/// A running csp-mgmt-node.
pub struct Mgmt {
    pub scratch: Scratch,
    pub api: SocketAddr,
    pub etcd: SocketAddr,
    pub child: Child,
}

impl Mgmt {
    /// A management node with a private etcd.
    pub async fn start() -> Self {
        Mgmt::start_with("").await
    }

    /// The same with these sections in its configuration.
    pub async fn start_with(sections: &str) -> Self {
        let (api, etcd, peer) = (free_address(), free_address(), free_address());
        let rest = format!("private_etcd: {{client: \"{etcd}\", peer: \"{peer}\"}}\n{sections}");
        Mgmt::spawn("mgmt-1", api, etcd, &rest).await
    }

    /// A further management node on the etcd of `first`.
    pub async fn join(first: &Mgmt, id: &str) -> Self {
        Mgmt::join_with(first, id, "").await
    }

    /// The same with these sections in its configuration.
    pub async fn join_with(first: &Mgmt, id: &str, sections: &str) -> Self {
        let rest = format!("etcd: {{endpoints: [\"http://{}\"]}}\n{sections}", first.etcd);
        Mgmt::spawn(id, free_address(), first.etcd, &rest).await
    }

    /// A management node on a cluster of etcd that the test keeps.
    pub async fn on(etcd: &csp_support::EtcdCluster) -> Self {
        let endpoints = etcd.endpoints().join("\", \"");
        let rest = format!("etcd: {{endpoints: [\"{endpoints}\"]}}\n");
        Mgmt::spawn("mgmt-1", free_address(), etcd.addresses()[0], &rest).await
    }

    async fn spawn(id: &str, api: SocketAddr, etcd: SocketAddr, rest: &str) -> Self {
        let scratch = Scratch::new();
        let config = config_text(&scratch, id, api, rest);
        let config = scratch.file("mgmt.yaml", &config);
        let log = std::fs::File::create(scratch.0.join("log")).expect("log file");
        let child = daemon(&config).stderr(log).spawn().expect("csp-mgmt-node starts");
        let mut mgmt = Mgmt { scratch, api, etcd, child };
        eventually("the API", async || {
            if let Some(status) = mgmt.child.try_wait().expect("wait") {
                panic!("csp-mgmt-node ended ({status}):\n{}", mgmt.log());
            }
            mgmt.get("/healthz").await
        })
        .await;
        eventually("a leader", async || {
            (!mgmt.get("/api/v1/nodes").await?["leader"].is_null()).then_some(())
        })
        .await;
        mgmt
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The body of a GET as JSON (text where it is none); none without an answer.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let client = http().no_proxy().timeout(Duration::from_secs(10)).build().ok()?;
        let body = client.get(self.url() + path).send().await.ok()?.text().await.ok()?;
        Some(serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Runs cspctl against this node.
    pub async fn cspctl(&self, arguments: &[&str]) -> Ran {
        let mut command = cspctl();
        command.arg("--server").arg(self.url()).args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        Ran::of(output.expect("task").expect("cspctl runs"))
    }

    /// The process id of the private etcd.
    pub fn etcd_pid(&self) -> Option<Pid> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let children =
            tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
        let pids: Vec<i32> = children
            .flat_map(|c| c.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.into_iter().find_map(Pid::from_raw)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            kill_process(pid, signal).expect("signal");
        }
    }

    /// Ends it with SIGTERM; the exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let status = eventually("the end", async || self.child.try_wait().expect("wait")).await;
        status.code()
    }
}

impl Drop for Mgmt {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of csp-mgmt-node:\n{}", self.log());
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            // A stopped etcd would keep the daemon waiting.
            if let Some(pid) = self.etcd_pid() {
                let _ = kill_process(pid, Signal::CONT);
            }
            self.signal(Signal::TERM);
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn config_text(scratch: &Scratch, id: &str, api: SocketAddr, rest: &str) -> String {
    let state = scratch.0.join("state");
    format!("node: {{id: {id}, state_dir: \"{}\"}}\nadmin: {{listen: \"{api}\"}}\n{rest}", state.display())
}

pub fn daemon(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csp-mgmt-node"));
    command.arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

pub fn cspctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cspctl"));
    command.env_remove("CSP_SERVER").env("COLUMNS", "100").stdin(Stdio::null());
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Panics unless the exit code is `code`.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// What a fake node does with policies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Policies {
    /// Takes every one, except those with a service named `unwanted`.
    Follow,
    /// Says nothing.
    Ignore,
}

/// A node that is registered and answers at its admin endpoint as scripted.
pub struct FakeNode {
    pub plane: Arc<ControlPlane>,
    pub admin: Option<AdminServer>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeNode {
    pub async fn start(mgmt: &Mgmt, id: &str, role: Role, policies: Policies, answers: Value) -> Self {
        let metrics = Exposition::new();
        metrics.register(|out: &mut MetricWriter| {
            out.drops(&[("bad_checksum", 3), ("unknown_label", 0)]);
            out.table("flows", 2, 100);
        });
        let options = AdminOptions { metrics, routes: routes(answers), ..AdminOptions::default() };
        let admin =
            AdminServer::start("127.0.0.1:0".parse().expect("address"), options).await.expect("admin");
        let record = NodeRecord::new(id.parse().expect("id"), role, format!("http://{}", admin.address()));
        let etcd = EtcdAccess::bare(format!("http://{}", mgmt.etcd));
        let options = ControlOptions {
            follow_policy: policies == Policies::Follow,
            check: Arc::new(|policy| match policy.services.iter().any(|s| s.name == "unwanted") {
                true => Err("no room for it".to_owned()),
                false => Ok(()),
            }),
            ..ControlOptions::default()
        };
        let state = mgmt.scratch.0.join(id);
        let plane = Arc::new(ControlPlane::start(record, &etcd, &state, options).await.expect("registered"));
        let mut policy = plane.policy.clone();
        let applier = plane.clone();
        let task = tokio::spawn(async move {
            loop {
                let generation = policy.borrow_and_update().as_ref().map(|p| p.generation);
                if let Some(generation) = generation {
                    applier.ack_applied(generation, Ok(())).await;
                }
                if policy.changed().await.is_err() {
                    return;
                }
            }
        });
        FakeNode { plane, admin: Some(admin), task }
    }

    /// Closes the admin endpoint; the node stays registered.
    pub async fn close_admin(&mut self) {
        if let Some(admin) = self.admin.take() {
            admin.shutdown().await;
        }
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Each key of `answers` is a path, its value the body.
fn routes(answers: Value) -> Router {
    let mut router = Router::new();
    for (path, body) in answers.as_object().cloned().unwrap_or_default() {
        router = router.route(&path, get(move || async move { Json(body) }));
    }
    router
}

/// A policy with one service.
pub fn policy(name: &str, port: u16) -> String {
    format!(
        "apiVersion: csp/v1\nservices:\n  - name: {name}\n    vip: 10.76.0.100\n    port: {port}\n    \
         pool: [{{node: an-1, port: 80}}]\n"
    )
}

/// An event of flow 0040001f as a worker records it.
pub fn event(t_ns: u64, kind: TraceKind, flags: u8, len: u32) -> TraceEvent {
    let (at, label) = (Instant::from_nanos(t_ns), FlowLabel::new(0x1f, 1));
    TraceEvent { at, label, kind, tcp_flags: flags, len, ..TraceEvent::default() }
}

/// A node's answer to `/v1/trace`.
pub fn trace(node: &str, events: &[TraceEvent]) -> Value {
    body(events.iter().map(|event| TraceEntry::new(event, node, 0)).collect::<Vec<_>>())
}

/// A body as JSON.
pub fn body(body: impl Serialize) -> Value {
    serde_json::to_value(body).expect("a body is JSON")
}

/// A client of plain HTTP. The library has no TLS of its own here: it must be given one.
pub fn http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().tls_backend_preconfigured(csp_identity::client_config(
        None,
        csp_identity::ExpectedServer::Management,
    ))
}
