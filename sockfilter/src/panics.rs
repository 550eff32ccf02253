//! A panic of the filter ends the process at once, before anything is unwound.
//!
//! The release profile unwinds, for cancelled threads (decision 0018). A panic must not: frames of the
//! program's own language are on the stack, and the engine's lock would remain held. Cancellation is not a
//! panic and does not run the hook.

use core::fmt::{self, Write};
use std::panic::{self, PanicHookInfo};

use crate::sys;

/// Length limit of the line that reports a panic, in bytes.
const LINE_MAX: usize = 400;

/// A line on the stack: the panicking code may hold the allocator's lock.
struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    /// The text written, up to the last whole character.
    fn text(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let slot = self.bytes.get_mut(self.len).ok_or(fmt::Error)?;
            *slot = if byte == b'\n' { b' ' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

/// Makes a panic print one line on standard error and abort. The filter has a standard library of its own, so
/// panics of a program written in Rust are not affected.
pub fn abort_on_panic() {
    panic::set_hook(Box::new(report_and_abort));
}

fn report_and_abort(info: &PanicHookInfo<'_>) {
    let mut line = Line { bytes: [0; LINE_MAX], len: 0 };
    let payload = info.payload();
    let formatted = || payload.downcast_ref::<String>().map(String::as_str);
    let why = payload.downcast_ref::<&str>().copied().or_else(formatted).unwrap_or("no reason given");
    // A line that is too long is truncated.
    let _ = match info.location() {
        Some(at) => write!(line, "panicked at {at}: {why}"),
        None => write!(line, "panicked: {why}"),
    };
    sys::log_line(line.text());
    // SAFETY: takes nothing.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    #[ignore = "ends the process: run by the next test"]
    fn panics() {
        abort_on_panic();
        assert_eq!(1, 2, "of purpose");
    }

    #[test]
    fn a_panic_prints_a_line_and_aborts() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "panics::tests::panics"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(printed.lines().count(), 1, "{printed}");
        let (place, why) = ("csp-sockfilter: panicked at sockfilter/src/panics.rs:", "of purpose");
        assert!(printed.starts_with(place) && printed.contains(why), "{printed}");
    }

    #[test]
    fn a_line_that_is_full_ends_with_a_whole_character() {
        let mut line = Line { bytes: [0; LINE_MAX], len: 0 };
        let _ = write!(line, "a{}", "é\n".repeat(LINE_MAX));
        assert_eq!(line.len, LINE_MAX);
        assert!(line.text().ends_with("é "), "{}", line.text());
    }
}
