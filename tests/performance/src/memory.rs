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

/// Objects that the kernel keeps for a TCP socket that a program has: the socket, its inode, its file, its
/// directory entry, and that it is watched by epoll. Buffers are not counted: an idle connection has none.
const SOCKET_OBJECTS: [&str; 5] = ["TCP", "sock_inode_cache", "filp", "dentry", "eventpoll_epi"];

/// Returns the memory that the kernel keeps for the sockets of a process, in bytes: their number times the
/// sizes in /proc/slabinfo, which root may read.
///
/// # Errors
/// If there is no such process, or the kernel does not say the sizes.
pub fn kernel_sockets(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/fd");
    let files = std::fs::read_dir(&folder).context(folder)?;
    let is_socket = |file: &std::fs::DirEntry| {
        std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let count = files.filter_map(Result::ok).filter(is_socket).count() as u64;
    let slabs = std::fs::read_to_string("/proc/slabinfo").context("/proc/slabinfo")?;
    Ok(count * socket_len(&slabs)?)
}

/// Returns the bytes of the objects of a socket.
fn socket_len(slabs: &str) -> Result<u64> {
    let size = |name: &&str| {
        let line = slabs.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let size = line.and_then(|rest| rest.split_whitespace().nth(2)?.parse::<u64>().ok());
        size.with_context(|| format!("/proc/slabinfo has no {name}"))
    };
    SOCKET_OBJECTS.iter().map(size).sum()
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
    fn the_objects_of_a_socket_are_summed() {
        let line = |name: &str, size: u32| format!("{name:<18} 104 156 {size} 13 8 : tunables 0 0 0\n");
        let objects =
            [("TCPv6", 9_999), ("TCP", 2_368), ("sock_inode_cache", 832), ("filp", 192), ("dentry", 192)];
        let mut text: String = objects.iter().map(|(name, size)| line(name, *size)).collect();
        assert!(socket_len(&text).unwrap_err().to_string().contains("eventpoll_epi"));
        text += &line("eventpoll_epi", 128);
        assert_eq!(socket_len(&text).unwrap(), 3_712);
    }

    #[test]
    fn fields_are_found_by_name() {
        let text = "VmRSS:\t 12 kB\nRssAnon:\t     104 kB\nRssFile:\t 1 kB\n";
        assert_eq!((kibibytes(text, "RssAnon:"), kibibytes(text, "RssShmem:")), (104 * 1024, 0));
    }
}
