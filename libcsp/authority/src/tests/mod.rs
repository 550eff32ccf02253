//! Tests that look inside: crashes between two writes, damaged files. `tests/` has those that use the crate
//! as others do.

mod crash;
mod hostile;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csp_identity::IdentityRole;
use csp_types::NodeId;

use crate::{AUTHORITY_LIFETIME_DEFAULT, Authority, Request, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// A moment; nothing here depends on which.
fn start() -> Timestamp {
    Timestamp::from_unix_s(1_800_000_000)
}

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn proxy(name: &str) -> Request {
    Request::new(IdentityRole::ProxyNode, id(name)).address([10, 77, 0, 3].into()).name("pn-1.example")
}

fn authority(dir: &Path) -> Authority {
    Authority::create(dir, id("demo"), AUTHORITY_LIFETIME_DEFAULT, start()).unwrap()
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-authority-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
