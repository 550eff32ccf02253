//! Log lines on standard error.

use std::cell::Cell;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operator's filter is no filter.
    #[error(
        "log level {level:?}: {reason}; allowed are error, warn, info, debug, trace or a filter such as info,csp_control=debug"
    )]
    Level {
        /// What was given.
        level: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Logging runs already.
    #[error("logging was started twice")]
    Twice,
}

/// A daemon with a thread that is gone half-way is worse than one that is started anew: whichever thread panics, the process
/// ends (SIGABRT), after the message.
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
    /// A panic of this thread is caught by a caller of [`without_abort`].
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that catches the panics of a library itself: they are reported, and the process goes on. For readers of files that others
/// wrote, which hold nothing that a panic leaves half-way.
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

/// Starts logging to standard error for the rest of the process, which from then on ends with the first panic. `level` is a level's name or a filter directive of
/// tracing-subscriber.
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
