//! Why a daemon ended, and its exit code.

use std::path::Path;

use csp_control::{ConfigError, ControlError, exit_code};
use csp_telemetry::{AdminError, LogError};

/// Why a daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is invalid although its syntax is correct.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log level is invalid.
    #[error("log.level: {0}")]
    Log(#[from] LogError),
    /// A resource that the daemon needs is not available: an interface, an address, a provider, a program.
    /// The text names the setting that requires it.
    #[error("{0}")]
    Unavailable(String),
    /// Another process uses the state directory.
    #[error("{0}")]
    Taken(String),
    /// The admin endpoint cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The control plane refused this daemon.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused a basic operation.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl DaemonError {
    /// The error for a field of a configuration file that is right by itself and does not fit another file.
    pub fn config(file: &Path, field: &str, fault: String) -> Self {
        DaemonError::Config(ConfigError::new(&file.display().to_string(), field, fault))
    }

    /// The error for the SAN provider `provider`, with the provider's reason.
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
