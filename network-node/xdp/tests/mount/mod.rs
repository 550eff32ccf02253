//! A BPF file system for a test.
#![allow(clippy::unwrap_used, reason = "a test's module")]

use std::sync::atomic::{AtomicU32, Ordering};

/// A BPF file system of its own, unmounted when dropped.
pub struct Mount(pub std::path::PathBuf);

impl Mount {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("csp-xdp-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let status =
            std::process::Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&folder).status().unwrap();
        assert!(status.success(), "mount -t bpf");
        Mount(folder)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}
