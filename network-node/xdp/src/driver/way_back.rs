//! The way back to the kernel: frames that are written to a TAP device arrive at a LAN port, as if they had not left the host's stack.

use aya::programs::{SchedClassifier, TcAttachType, tc};
use aya::{Ebpf, EbpfLoader};

use super::DriverError;

/// The program at a TAP device. It ends with this value, or with the device.
pub struct WayBack {
    _program: Ebpf,
}

impl core::fmt::Debug for WayBack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("WayBack")
    }
}

impl WayBack {
    /// Has frames that are written to a TAP device arrive at the interface `port`. Needs CAP_BPF and CAP_NET_ADMIN; the calling thread's
    /// network namespace has both interfaces.
    ///
    /// # Errors
    /// The program was not loaded, or not attached: the kernel has no programs at its traffic control (NET_XGRESS, NET_CLS_BPF).
    pub fn open(tap: &str, port: u32) -> Result<Self, DriverError> {
        let mut program = EbpfLoader::new().override_global("port", &port, true).load(crate::BACK)?;
        let back = program.program_mut("csp_back").ok_or(DriverError::Missing("csp_back"))?;
        let back: &mut SchedClassifier = back.try_into()?;
        back.load()?;
        // Kernels before 6.6 attach it to this queueing discipline; later ones do not need it.
        let _ = tc::qdisc_add_clsact(tap);
        back.attach(tap, TcAttachType::Ingress)?;
        Ok(WayBack { _program: program })
    }
}
