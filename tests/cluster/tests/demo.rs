//! The proofs of `make demo` in a small form: bytes both ways, no kernel TCP, and one transaction traced
//! through all tiers.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::{Fetch, demo, testing, trace};

#[test]
fn the_application_sees_nothing_but_open_data_data_close() {
    let Some(mut cluster) = testing::lay_out("demo") else { return };
    cluster.serve().unwrap();
    let upload = cluster.scratch().join("www/1MiB");
    fs::write(&upload, testing::pattern(1 << 20)).unwrap();
    for file in ["1KiB", "1MiB"] {
        Fetch(&cluster).file(file).unwrap();
    }
    Fetch(&cluster).upload("PUT", &upload).unwrap();
    demo::no_kernel_tcp(&cluster, Duration::ZERO).unwrap();
    // Twice: records of the first transaction must not be mistaken for those of the second.
    for _ in 0..2 {
        trace::transaction(&cluster).unwrap();
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
