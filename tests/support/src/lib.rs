//! Helpers for the tests of several crates. Only tests depend on this crate, by `[dev-dependencies]` or from
//! `tests/`.

pub mod allocation;
mod bpf;
mod documents;
pub mod etcd;
pub mod packets;
mod random;
mod skip;

pub use bpf::{bpf_object, bpf_object_of};
pub use documents::yaml_blocks;
pub use etcd::{EtcdCluster, free_address};
pub use random::Random;
pub use skip::{has, installed, is_root, running_as_root, skip};
