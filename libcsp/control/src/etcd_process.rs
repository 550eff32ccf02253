//! A private etcd for clusters without one: a child process of the management node that ends with it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use csp_identity::{CA, CERTIFICATE, Credentials, KEY, REVOKED};

use crate::client::{EtcdAccess, EtcdClient};
use crate::config::EtcdSection;

/// Timeout for etcd to become ready.
const START_WAIT: Duration = Duration::from_secs(20);
/// Time between SIGTERM and SIGKILL.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Number of bytes of the log's end that are searched for an error message.
const LOG_TAIL_LEN: usize = 4096;

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
    /// Address and port for clients.
    pub client: SocketAddr,
    /// Address and port for other members.
    pub peer: SocketAddr,
    /// Server and client identity; `None` for an etcd without TLS, reachable from this host only.
    pub identity: Option<(PathBuf, Credentials)>,
}

impl EtcdProcessOptions {
    fn scheme(&self) -> &'static str {
        if self.identity.is_some() { "https" } else { "http" }
    }

    /// Returns how this program connects to it.
    pub fn access(&self) -> EtcdAccess {
        let section = EtcdSection { endpoints: vec![format!("{}://{}", self.scheme(), self.client)] };
        EtcdAccess {
            section,
            credentials: self.identity.as_ref().map(|(_, credentials)| credentials.clone()),
        }
    }
}

/// Why a private etcd could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EtcdProcessError {
    /// A directory or file cannot be created.
    #[error("{path}: {source}")]
    File {
        /// Path of it.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The program cannot be started.
    #[error("cannot start {binary}: {source}; install Debian's package etcd-server or name etcd.endpoints")]
    Start {
        /// Path of the program.
        binary: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// One of its addresses is not local, or is in use.
    #[error("private etcd: cannot listen on {address}: {source}")]
    Listen {
        /// The address and port.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It ended before it was ready.
    #[error("etcd ended at start ({status}); the end of its log {log_file}:\n{log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// Its log file.
        log_file: PathBuf,
        /// The log's last lines.
        log: String,
    },
    /// It was not ready in time.
    #[error("etcd does not answer at {client} after {waited_s} s; the end of its log {log_file}:\n{log}")]
    Silent {
        /// Its client address.
        client: SocketAddr,
        /// How long the start took until it was given up, in seconds.
        waited_s: u64,
        /// Its log file.
        log_file: PathBuf,
        /// The log's last lines.
        log: String,
    },
}

/// A running private etcd. Dropping this value sends SIGTERM; etcd also ends whenever this process ends.
#[derive(Debug)]
pub struct EtcdProcess {
    pid: Pid,
    ended: watch::Receiver<Option<String>>,
}

impl EtcdProcess {
    /// Starts etcd and waits until it serves requests, at most 20 s. Requires a tokio runtime.
    pub fn start(options: EtcdProcessOptions) -> BoxFuture<'static, Result<EtcdProcess, EtcdProcessError>> {
        Self::begin(options).boxed()
    }

    async fn begin(options: EtcdProcessOptions) -> Result<EtcdProcess, EtcdProcessError> {
        let command = command(&options)?;
        check_address(options.client)?;
        check_address(options.peer)?;
        let (pid, ended) = spawn(command, &options).await?;
        let mut etcd = EtcdProcess { pid, ended };
        etcd.await_service(&options).await?;
        tracing::info!(client = %options.client, pid = etcd.pid(), "private etcd serves");
        Ok(etcd)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until etcd has ended, which is unexpected unless [`EtcdProcess::shutdown`] was called. Returns
    /// its exit status.
    pub async fn ended(&mut self) -> String {
        let ended = self.ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|status| status.clone()).unwrap_or_else(|| "unknown".to_owned())
    }

    /// Stops etcd: SIGTERM, and SIGKILL after five seconds.
    pub async fn shutdown(mut self) {
        self.signal(Signal::TERM);
        if timeout(STOP_WAIT, self.ended()).await.is_err() {
            tracing::warn!(pid = self.pid(), "etcd does not end, killing it");
            self.signal(Signal::KILL);
            self.ended().await;
        }
    }

    fn signal(&self, signal: Signal) {
        // After it has ended, its process id may belong to another process.
        if self.ended.borrow().is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits until a linearizable read succeeds.
    async fn await_service(&mut self, options: &EtcdProcessOptions) -> Result<(), EtcdProcessError> {
        let access = options.access();
        let log_file = options.log_file.clone();
        let serving = async {
            loop {
                if let Ok(client) = EtcdClient::connect(&access).await
                    && client.health().await.is_ok()
                {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = serving => Ok(()),
            () = sleep(START_WAIT) => {
                let (client, waited_s) = (options.client, START_WAIT.as_secs());
                Err(EtcdProcessError::Silent { client, waited_s, log: log_tail(&log_file), log_file })
            }
            ended = self.ended.wait_for(Option::is_some) => {
                let status = ended.ok().and_then(|status| status.clone()).unwrap_or_default();
                Err(EtcdProcessError::Ended { status, log: log_tail(&log_file), log_file })
            }
        }
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Checks that the address is free: another etcd listening there would be mistaken for this one.
fn check_address(address: SocketAddr) -> Result<(), EtcdProcessError> {
    let tried = std::net::TcpListener::bind(address);
    tried.map(drop).map_err(|source| EtcdProcessError::Listen { address, source })
}

/// Returns the command line. setpriv (util-linux) sets the parent-death signal, so that a management node
/// that is killed leaves no etcd behind that holds its port and data.
fn command(options: &EtcdProcessOptions) -> Result<Command, EtcdProcessError> {
    let file_error = |path: &Path| {
        let path = path.to_owned();
        move |source| EtcdProcessError::File { path, source }
    };
    let binary = options.binary.clone();
    std::fs::metadata(&options.binary).map_err(|source| EtcdProcessError::Start { binary, source })?;
    let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&options.data_dir);
    private.map_err(file_error(&options.data_dir))?;
    let log = OpenOptions::new().create(true).append(true).open(&options.log_file);
    let log = log.map_err(file_error(&options.log_file))?;
    let log_too = log.try_clone().map_err(file_error(&options.log_file))?;
    let scheme = options.scheme();
    let (client, peer) = (format!("{scheme}://{}", options.client), format!("{scheme}://{}", options.peer));
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM"])
        .arg(&options.binary)
        .arg("--name")
        .arg(&options.name)
        .arg("--data-dir")
        .arg(&options.data_dir)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("{}={peer}", options.name), "--initial-cluster-token", "csp"])
        .args(["--logger", "zap", "--log-outputs", "stderr"])
        .args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"])
        // etcd also reads settings from the environment. All settings are above.
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        // Ctrl-C in a terminal must reach the management node only, which stops etcd last.
        .process_group(0);
    if let Some((folder, credentials)) = &options.identity {
        // The JSON gateway would use the server's own certificate for requests of any client.
        command.arg("--enable-grpc-gateway=false").args(tls_arguments(folder, credentials));
    }
    if std::env::consts::ARCH == "aarch64" {
        // etcd 3.4 requires this confirmation on the architecture.
        command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
    }
    Ok(command)
}

/// Returns the arguments for mutual TLS: clients may have any certificate of the cluster, members this one
/// only.
fn tls_arguments(folder: &Path, credentials: &Credentials) -> Vec<OsString> {
    let file = |name: &str| folder.join(name).into_os_string();
    let mut arguments: Vec<OsString> = Vec::new();
    for prefix in ["--", "--peer-"] {
        let ca = format!("{prefix}trusted-ca-file");
        for (flag, name) in [("cert-file", CERTIFICATE), ("key-file", KEY)] {
            arguments.extend([format!("{prefix}{flag}").into(), file(name)]);
        }
        arguments.extend([ca.into(), file(CA), format!("{prefix}client-cert-auth").into()]);
    }
    // etcd refuses every connection if the configured list is missing.
    if folder.join(REVOKED).exists() {
        arguments.extend([
            "--client-crl-file".into(),
            file(REVOKED),
            "--peer-crl-file".into(),
            file(REVOKED),
        ]);
    }
    let name = credentials.current().holder.identity.common_name();
    arguments.extend(["--peer-cert-allowed-cn".into(), name.into()]);
    arguments
}

/// Starts the child from a dedicated thread that lives as long as the child: the parent-death signal is sent
/// when the *thread* that started the child ends.
async fn spawn(
    mut command: Command,
    options: &EtcdProcessOptions,
) -> Result<(Pid, watch::Receiver<Option<String>>), EtcdProcessError> {
    let (ended, ended_receiver) = watch::channel(None);
    let (started, started_receiver) = oneshot::channel();
    let child_thread = move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = started.send(pid.ok_or_else(|| std::io::Error::other("no process id")));
        let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let _ = ended.send(Some(status));
    };
    let thread = std::thread::Builder::new().name("csp-etcd".to_owned()).spawn(child_thread);
    let result = match thread {
        Ok(_detached) => {
            started_receiver.await.unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")))
        }
        Err(error) => Err(error),
    };
    let binary = options.binary.clone();
    result.map(|pid| (pid, ended_receiver)).map_err(|source| EtcdProcessError::Start { binary, source })
}

/// Returns the last lines of the log, for an error message.
fn log_tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL_LEN)..]).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
