//! What can go wrong in `cspctl`, and the exit code of each.

use std::path::PathBuf;

use csp_api::mgmt::FieldError;
use csp_authority::PkiError;

/// Why a command failed. The codes follow sysexits.h where it has one.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The cluster refused it.
    #[error("{0}")]
    Failed(String),
    /// `policy diff` found differences, which are printed already.
    #[error("the policies differ")]
    Differs,
    /// `doctor` has findings worth this exit code, which are printed already.
    #[error("there are findings")]
    Found(u8),
    /// The command line is wrong in a way clap cannot see.
    #[error("{0}")]
    Usage(String),
    /// The policy is wrong.
    #[error("{}", list(.0))]
    BadPolicy(Vec<FieldError>),
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    NoInput {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    CannotCreate {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No server, or one that cannot serve at this time.
    #[error("{0}")]
    Unavailable(String),
    /// The cluster's state forbids it at this time.
    #[error("{0}")]
    NotNow(String),
    /// The server's answer is not understood.
    #[error("{0}")]
    Protocol(String),
    /// The CA folder refuses it.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

fn list(errors: &[FieldError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl CliError {
    /// The process's exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            CliError::Failed(_) | CliError::Differs => 1,
            CliError::Found(code) => *code,
            CliError::Usage(_) => 64,
            CliError::BadPolicy(_) => 65,
            CliError::NoInput { .. } => 66,
            CliError::Unavailable(_) => 69,
            CliError::Protocol(_) => 70,
            CliError::CannotCreate { .. } => 73,
            CliError::NotNow(_) => 75,
            CliError::Pki(error) => match error {
                PkiError::Request(_) => 64,
                PkiError::Damaged { .. } | PkiError::Exposed { .. } => 65,
                PkiError::Missing { .. } | PkiError::Read { .. } => 66,
                PkiError::Write { .. } | PkiError::Foreign { .. } => 73,
                PkiError::Busy { .. } => 75,
                _ => 1,
            },
        }
    }

    /// The whole message for standard error, ending in a newline; empty when there is none. `reads`: the
    /// command only reads.
    pub fn message(&self, reads: bool) -> String {
        match self {
            CliError::Differs | CliError::Found(_) => String::new(),
            CliError::BadPolicy(errors) => {
                let noun = if errors.len() == 1 { "mistake" } else { "mistakes" };
                let note = if reads { "" } else { "; nothing was changed" };
                format!("{self}\ncspctl: {} {noun} in the policy{note}\n", errors.len())
            }
            _ => format!("cspctl: {self}\n"),
        }
    }
}
