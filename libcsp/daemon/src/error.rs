//! Why a daemon ended, and the exit code that says so.

use csp_control::{ConfigError, ControlError, exit_code};
use csp_telemetry::{AdminError, LogError};

/// Why a daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong beyond its syntax.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log level is wrong.
    #[error("log.level: {0}")]
    Log(#[from] LogError),
    /// Something that the daemon needs cannot be had: an interface, an address, a provider, a program. Tells
    /// what asks for it.
    #[error("{0}")]
    Unavailable(String),
    /// The state directory is another process' already.
    #[error("{0}")]
    Taken(String),
    /// The admin endpoint cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The control plane refused us.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused something basic.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl DaemonError {
    /// What the SAN provider `provider` refuses, in its words.
    pub fn provider(provider: csp_vi::ProviderKind, reason: &csp_vi::ViError) -> Self {
        DaemonError::Unavailable(format!("san.provider: {provider} does not work here: {reason}"))
    }

    /// The exit code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::Config(_) | DaemonError::Log(_) => exit_code::CONFIG,
            DaemonError::Unavailable(_) | DaemonError::Admin(_) => exit_code::UNAVAILABLE,
            DaemonError::Taken(_) => exit_code::ID_TAKEN,
            DaemonError::Control(error) => error.exit_code(),
            DaemonError::System(_) => exit_code::INTERNAL,
        }
    }
}
