//! Privileges that a daemon needs to start only.

use rustix::thread::{CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities};

use crate::DaemonError;

/// What opens ports and loads programs into the kernel. CAP_SYS_ADMIN and CAP_PERFMON stand for the others in
/// some calls (capabilities(7)).
const OF_PORTS: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN);

/// Gives up the capabilities by which ports are opened, for this thread and all that it starts from now on;
/// they cannot be had again. Call it before the first thread is started.
///
/// # Errors
/// The kernel refuses it.
pub fn give_up_ports() -> Result<(), DaemonError> {
    let of = |error: rustix::io::Errno| std::io::Error::from(error);
    let mut sets = capabilities(None).map_err(of)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(OF_PORTS);
    }
    // What is not inheritable any more is not ambient either; without ambient capabilities this is no change.
    clear_ambient_capability_set().map_err(of)?;
    Ok(set_capabilities(None, sets).map_err(of)?)
}
