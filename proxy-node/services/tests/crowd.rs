//! A thousand subscribers of libzmq under CURVE, which connect again. It depends on the machine's load: `make
//! test-faults`.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
#[ignore = "a crowd of connections: make test-faults"]
fn a_thousand_subscribers_get_everything_and_again_after_their_connections_have_ended() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    common::tcp::crowd(&[250; 4], 100);
}
