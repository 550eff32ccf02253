//! Tests against a real etcd on loopback. Without the program they say so and pass.

mod cluster;
mod disk;
mod faults;
mod history;
mod identities;
mod identity;
mod network;
pub(crate) mod pki;
mod policy;
mod quota;
mod signed;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csp_policy::Policy;
use csp_support::etcd::ETCD;
use csp_support::{EtcdCluster, free_address};
use csp_types::{NodeId, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;

use crate::client::EtcdAccess;
use crate::daemon::{ControlOptions, ControlPlane};
use crate::error::ControlError;
use crate::etcd_process::{EtcdProcess, EtcdProcessOptions};
use crate::registry::NodeRecord;

use crate::{ActivePolicy, ControlStatus, EtcdClient, Membership, PolicyManager};

/// Longest wait for anything in these tests: generous, as machines that run tests are slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// A private etcd with a directory of its own for it and for nodes.
struct TestEtcd {
    options: EtcdProcessOptions,
    process: Option<EtcdProcess>,
    directory: PathBuf,
}

impl TestEtcd {
    /// Starts etcd; `None`, and the test is skipped, where it is not installed.
    async fn start() -> Option<TestEtcd> {
        if !csp_support::installed(ETCD, "etcd-server") {
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("csp-control-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let options = EtcdProcessOptions {
            identity: None,
            binary: PathBuf::from(ETCD),
            data_dir: directory.join("etcd"),
            log_file: directory.join("etcd.log"),
            name: "test".to_owned(),
            client: free_address(),
            peer: free_address(),
        };
        let mut etcd = TestEtcd { options, process: None, directory };
        etcd.restart().await;
        Some(etcd)
    }

    async fn restart(&mut self) {
        self.process = Some(EtcdProcess::start(self.options.clone()).await.unwrap());
    }

    async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.shutdown().await;
        }
    }

    fn section(&self) -> EtcdAccess {
        self.options.access()
    }

    /// Starts the control plane of node `id`.
    async fn node(&self, id: &str, role: Role) -> Result<ControlPlane, ControlError> {
        let options = ControlOptions { start_wait: PATIENCE, ..ControlOptions::default() };
        self.node_with(record(id, role), &self.section(), options).await
    }

    async fn node_with(
        &self,
        record: NodeRecord,
        section: &EtcdAccess,
        options: ControlOptions,
    ) -> Result<ControlPlane, ControlError> {
        let state = self.directory.join(record.id.as_str());
        ControlPlane::start(record, section, &state, options).await
    }
}

impl Drop for TestEtcd {
    fn drop(&mut self) {
        let pid = self.process.as_ref().and_then(|process| Pid::from_raw(process.pid() as i32));
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.process = None;
        if let Some(process) = process {
            // What etcd writes while it ends would survive the directory's removal.
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The configuration of a node that uses this cluster of etcd.
fn section_of(etcd: &EtcdCluster) -> EtcdAccess {
    EtcdAccess { section: crate::EtcdSection { endpoints: etcd.endpoints() }, credentials: None }
}

/// Starts the control plane of node `id` on a cluster of etcd, with a state directory beside etcd's.
async fn node_on(etcd: &EtcdCluster, id: &str, role: Role) -> ControlPlane {
    let options = ControlOptions { start_wait: PATIENCE, ..ControlOptions::default() };
    let state = etcd.directory().join(id);
    ControlPlane::start(record(id, role), &section_of(etcd), &state, options).await.unwrap()
}

async fn manager_on(etcd: &EtcdCluster) -> PolicyManager {
    PolicyManager::new(EtcdClient::connect(&section_of(etcd)).await.unwrap())
}

/// The last-known-good policy in a node's state directory.
fn stored(state: &std::path::Path) -> Option<crate::GenerationRecord> {
    crate::lkg::load(state, &crate::signatures::Verifier::new(None)).map(|kept| kept.record)
}

fn web(port: u16) -> Policy {
    let text = format!(
        "apiVersion: csp/v1\nservices:\n  - {{name: web, vip: 10.76.0.100, port: {port}, pool: [{{node: an-1, port: 80}}]}}\n"
    );
    Policy::parse_yaml(&text, "test.yaml").unwrap()
}

/// A daemon that applies whatever comes unless it serves `broken_port`.
struct FakeDaemon {
    plane: Arc<ControlPlane>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeDaemon {
    fn run(plane: ControlPlane, broken_port: Option<u16>) -> FakeDaemon {
        let plane = Arc::new(plane);
        let applier = Arc::clone(&plane);
        let task = tokio::spawn(async move {
            let mut policies = applier.policy.clone();
            policies.mark_changed();
            while policies.changed().await.is_ok() {
                let Some(active) = policies.borrow_and_update().clone() else { continue };
                let broken = active.policy.services.iter().any(|service| Some(service.port) == broken_port);
                let result = if broken { Err("cannot apply this port".to_owned()) } else { Ok(()) };
                applier.ack_applied(active.generation, result).await;
            }
        });
        FakeDaemon { plane, task }
    }

    async fn has(&self, generation: u64) -> ActivePolicy {
        let mut status = self.plane.status.clone();
        until("the generation is applied", &mut status, |status| status.active_generation == generation)
            .await;
        self.plane.policy.borrow().clone().unwrap()
    }

    async fn status(&self, what: &str, condition: impl FnMut(&ControlStatus) -> bool) -> ControlStatus {
        until(what, &mut self.plane.status.clone(), condition).await
    }

    async fn members(&self, what: &str, condition: impl FnMut(&Membership) -> bool) -> Membership {
        until(what, &mut self.plane.membership.clone(), condition).await
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forgets all of etcd's history but the present; returns its revision.
async fn compact(client: &EtcdClient) -> i64 {
    let revision = client.get("x", None).await.unwrap().header().unwrap().revision();
    let options = etcd_client::CompactionOptions::new().with_physical();
    client.inner.kv_client().compact(revision, Some(options)).await.unwrap();
    revision
}

fn record(id: &str, role: Role) -> NodeRecord {
    NodeRecord::new(node_id(id), role, "http://127.0.0.1:9102".to_owned())
}

pub(crate) fn node_id(id: &str) -> NodeId {
    id.parse().unwrap()
}

/// Waits until the watched value fulfils `condition`; a copy of it.
async fn until<T: Clone + std::fmt::Debug>(
    what: &str,
    receiver: &mut watch::Receiver<T>,
    condition: impl FnMut(&T) -> bool,
) -> T {
    if let Ok(value) = tokio::time::timeout(PATIENCE, receiver.wait_for(condition)).await {
        return value.expect("the sender lives").clone();
    }
    panic!("waited in vain until {what}; the last value is {:?}", *receiver.borrow())
}
