//! Errors of a daemon's control plane, and the exit codes that all daemons share.

use csp_types::NodeId;

use crate::config::ConfigError;

/// Exit codes of the daemons and tools (sysexits.h where it has one).
pub mod exit_code {
    /// Terminated on request.
    pub const OK: u8 = 0;
    /// Wrong command line (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// A service that the daemon needs is unreachable (EX_UNAVAILABLE).
    pub const UNAVAILABLE: u8 = 69;
    /// A fault of the daemon itself (EX_SOFTWARE).
    pub const INTERNAL: u8 = 70;
    /// Another live node has this id (EX_CANTCREAT).
    pub const ID_TAKEN: u8 = 73;
    /// The configuration is wrong (EX_CONFIG).
    pub const CONFIG: u8 = 78;
}

/// Why the control plane cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another live process is registered under this node's id.
    #[error(
        "node id {id} is taken: {role} incarnation {incarnation} on host {host} is alive; give this node another node.id or stop that one"
    )]
    IdTaken {
        /// The contested id.
        id: NodeId,
        /// Role of the other process.
        role: String,
        /// Incarnation of the other process.
        incarnation: u64,
        /// Host of the other process (kernel boot id).
        host: String,
    },
    /// etcd reported an error or did not answer.
    #[error("etcd: {0}")]
    Etcd(String),
    /// The state directory cannot be used.
    #[error("{path}: {source}")]
    State {
        /// The file or directory.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Part of etcd's message when its database is full (alarm NOSPACE).
const FULL: &str = "database space exceeded";

/// Appends what the operator has to do to etcd's message, where the message does not say it.
pub(crate) fn with_remedy(message: &str) -> String {
    if !message.contains(FULL) {
        return message.to_owned();
    }
    format!(
        "{message}: etcd's database is full, so it refuses every change; nodes go on with the policy they have. \
         Run `etcdctl compact REVISION`, `etcdctl defrag` and `etcdctl alarm disarm`, or raise etcd's \
         --quota-backend-bytes"
    )
}

impl ControlError {
    /// Returns the exit code of a daemon that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            ControlError::IdTaken { .. } => exit_code::ID_TAKEN,
            ControlError::Etcd(_) => exit_code::UNAVAILABLE,
            ControlError::State { .. } => exit_code::INTERNAL,
            ControlError::Config(_) => exit_code::CONFIG,
        }
    }
}
