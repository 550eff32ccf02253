//! A process's memory and processor time, as reported by the kernel.

use anyhow::{Context, Result};

/// Resident memory of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Bytes that belong to the process alone.
    pub anonymous: u64,
    /// Bytes of memory shared with others, such as rings of the SAN.
    pub shared: u64,
}

impl Resident {
    /// Reads the memory of a running process.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).context(path)?;
        Ok(Resident { anonymous: kibibytes(&text, "RssAnon:"), shared: kibibytes(&text, "RssShmem:") })
    }

    /// Returns the sum of both.
    pub fn total(self) -> u64 {
        self.anonymous + self.shared
    }
}

/// Returns the processor time of a process, all its threads, in seconds; the kernel counts in steps of 10 ms.
///
/// # Errors
/// If there is no such process.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).context(path)?;
    // The name in parentheses may contain anything; utime and stime are the 12th and 13th field after it.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / 100.0)
}

/// Returns the field's value in bytes; 0 if there is none.
fn kibibytes(status: &str, field: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
    value.and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "VmRSS:\t 12 kB\nRssAnon:\t     104 kB\nRssFile:\t 1 kB\n";
        assert_eq!((kibibytes(text, "RssAnon:"), kibibytes(text, "RssShmem:")), (104 * 1024, 0));
    }
}
