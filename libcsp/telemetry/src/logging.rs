//! Log lines on standard error.

use std::cell::Cell;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

pub use csp_types::options::LogFormat;

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The configured filter is invalid.
    #[error(
        "log level {level:?}: {reason}; allowed are error, warn, info, debug, trace or a filter such as info,csp_control=debug"
    )]
    Level {
        /// The filter as configured.
        level: String,
        /// What is wrong with the filter.
        reason: String,
    },
    /// Logging was already initialised.
    #[error("logging was started twice")]
    Twice,
}

/// Makes a panic of any thread end the process (SIGABRT) after the panic message is printed. A daemon that
/// continued without one of its threads would be worse than one that is restarted.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !EXPECTED.get() {
            std::process::abort()
        }
    }));
}

thread_local! {
    /// Whether a caller of [`without_abort`] catches panics of this thread.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `read`, whose panics the caller or a library catches: they are logged, and the process continues.
/// For parsers of untrusted files; they hold no state that a panic could leave inconsistent.
pub fn without_abort<T>(read: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            EXPECTED.set(self.0);
        }
    }
    let _restore = Restore(EXPECTED.replace(true));
    read()
}

/// Starts logging to standard error. From then on a panic of any thread ends the process. `level` is the name
/// of a level or a filter directive of tracing-subscriber.
pub fn init_logging(level: &str, format: LogFormat) -> Result<(), LogError> {
    abort_on_panic();
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| LogError::Level { level: level.to_owned(), reason: error.to_string() })?;
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let started = match format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    started.map_err(|_| LogError::Twice)
}
