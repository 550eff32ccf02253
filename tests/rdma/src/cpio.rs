//! Archives in cpio's newc format, which the kernel unpacks as its initial root (kernel documentation:
//! initramfs buffer format).

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_FILE: u32 = 0o100_755;
/// The name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory. `path` has no leading slash.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, MODE_DIRECTORY, &[]);
    }

    /// Adds an executable file.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, MODE_FILE, contents);
    }

    /// Ends the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let len = u32::try_from(contents.len()).expect("files of an initramfs are below 4 GiB");
        // inode, mode, uid, gid, links, mtime, length, device (2), rdevice (2), length of the name, checksum
        let name_len = path.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    /// Pads names and contents to a multiple of 4 bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn busybox_unpacks_what_was_packed() {
        if !csp_support::installed("busybox", "busybox-static") {
            return;
        }
        let mut archive = Archive::default();
        archive.directory("folder");
        archive.file("folder/odd", b"12345");
        archive.file("empty", b"");
        let mut child = Command::new("busybox")
            .args(["cpio", "-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("busybox");
        child.stdin.take().expect("piped").write_all(&archive.finish()).expect("write");
        let output = child.wait_with_output().expect("output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with(" folder"), "{text}");
        assert!(lines[1].starts_with("-rwxr-xr-x") && lines[1].contains(" 5 "), "{text}");
    }
}
