//! What both programs share: files of costs, forms of output, exit codes.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use thiserror::Error;

use crate::costs::{self, CostError, Costs, FILE_BYTES_MAX};
use crate::scenario::ScenarioError;

/// Exit codes, for `--help`; those of cspctl.
pub const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   a number differs from the paper's by more than 10 %
  64  wrong arguments
  65  the file of costs is wrong
  66  it cannot be read
  73  a result cannot be written";

/// Form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for people.
    Table,
    /// One JSON document.
    Json,
}

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// Numbers differ too much; which ones was printed.
    #[error("{0} numbers differ from the paper's by more than 10 %")]
    Differs(usize),
    /// Arguments that cannot be simulated.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A wrong file of costs.
    #[error("{path}: {error}")]
    Costs {
        /// The file.
        path: String,
        /// What is wrong.
        error: CostError,
    },
    /// A file that cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("{path}: {error}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A page without the place for results.
    #[error("{path}: no line \"{mark}\"")]
    NoPlace {
        /// The page.
        path: PathBuf,
        /// The line that is missing.
        mark: &'static str,
    },
}

impl CommandError {
    /// The process's exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            CommandError::Differs(_) => 1,
            CommandError::Scenario(_) => 64,
            CommandError::Costs { .. } => 65,
            CommandError::Read { .. } => 66,
            CommandError::Write { .. } | CommandError::NoPlace { .. } => 73,
        }
    }
}

/// Reads costs: `paper`, `bench`, or a file.
pub fn costs(name: &str) -> Result<Costs, CommandError> {
    let text = match name {
        "paper" => costs::PAPER.to_owned(),
        "bench" => costs::BENCH.to_owned(),
        path => read(Path::new(path))?,
    };
    Costs::parse(&text).map_err(|error| CommandError::Costs { path: name.to_owned(), error })
}

fn read(path: &Path) -> Result<String, CommandError> {
    let failed = |error| CommandError::Read { path: path.to_owned(), error };
    let mut text = String::new();
    // One byte more than a file may have, so that the parser refuses it.
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Parses the process's arguments, runs, and maps what happened to an exit code.
pub fn main<A: Parser>(command: impl FnOnce(A) -> Result<(), CommandError>) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    match command(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
