//! Privileges that a daemon needs to start only.

use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

use crate::DaemonError;

/// What opens ports and loads programs into the kernel. CAP_SYS_ADMIN and CAP_PERFMON stand for the others in
/// some calls (capabilities(7)).
const OF_PORTS: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN);

/// Gives up the capabilities by which ports are opened, for this thread and all that it starts from now on,
/// programs included; they cannot be had again. Call it before the first thread is started.
///
/// # Errors
/// The kernel refuses it.
pub fn give_up_ports() -> Result<(), DaemonError> {
    give_up(OF_PORTS)
}

/// Has no program that this process starts from now on inherit its capabilities. Call it before the first
/// thread is started.
///
/// # Errors
/// The kernel refuses it.
pub fn keep_to_this_process() -> Result<(), DaemonError> {
    give_up(CapabilitySet::empty())
}

/// Gives up `lost`, and every capability that a program started from here would inherit.
fn give_up(lost: CapabilitySet) -> Result<(), DaemonError> {
    let of = |error: rustix::io::Errno| std::io::Error::from(error);
    // Or a program that root starts would have all of the bounding set.
    set_no_new_privs(true).map_err(of)?;
    clear_ambient_capability_set().map_err(of)?;
    let mut sets = capabilities(None).map_err(of)?;
    sets.effective.remove(lost);
    sets.permitted.remove(lost);
    sets.inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, sets).map_err(of)?)
}
