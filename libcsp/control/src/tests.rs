//! Tests against a real etcd on loopback. Without the program they say so and pass.

mod faults;
mod identities;
mod identity;
mod policy;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csp_types::{NodeId, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;

use crate::client::EtcdAccess;
use crate::daemon::{ControlOptions, ControlPlane};
use crate::error::ControlError;
use crate::etcd_process::{EtcdProcess, EtcdProcessOptions};
use crate::registry::NodeRecord;

/// Longest wait for anything in these tests: generous, as machines that run tests are slow.
const PATIENCE: Duration = Duration::from_secs(30);

const ETCD: &str = "/usr/bin/etcd";

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
        ControlPlane::start(record, section, state, options).await
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

fn record(id: &str, role: Role) -> NodeRecord {
    NodeRecord::new(node_id(id), role, "http://127.0.0.1:9102".to_owned())
}

fn node_id(id: &str) -> NodeId {
    id.parse().unwrap()
}

/// A loopback address whose port is free: none that the system gives to outgoing connections, as one of those could
/// take it before etcd does.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = std::process::id().wrapping_mul(17).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 20_000 + (offset % 10_000) as u16));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
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
