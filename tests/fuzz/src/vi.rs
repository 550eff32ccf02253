//! The set-up messages of VIs, from an untrusted peer.

use csp_vi::shm::rendezvous::Packet;
use csp_vi::{PRIVATE_DATA_LEN_MAX, tcp, ucx, verbs};

use crate::Target;

/// A packet on the rendezvous socket.
pub static SHM_RENDEZVOUS: Target = Target::plain("shm_rendezvous", shm_rendezvous, Vec::new);
/// The stream of a VI of the tcp provider.
pub static TCP_STREAM: Target = Target::plain("tcp_stream", tcp_stream, Vec::new);
/// A message of the ucx provider.
pub static UCX_FRAME: Target = Target::plain("ucx_frame", ucx_frame, Vec::new);
/// A message of the verbs provider.
pub static VERBS_FRAME: Target = Target::plain("verbs_frame", verbs_frame, Vec::new);

/// A packet on the rendezvous socket of the shm provider.
fn shm_rendezvous(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        assert!(packet.config.check().is_ok() && packet.private_data.len() <= PRIVATE_DATA_LEN_MAX);
        assert!(bytes.ends_with(&packet.private_data));
    }
}

/// The stream of a VI of the tcp provider: where it is cut makes no difference.
fn tcp_stream(bytes: &[u8]) {
    assert_eq!(tcp::frames_of(bytes, 1), tcp::frames_of(bytes, bytes.len()));
}

/// A message of the ucx provider: header and body.
fn ucx_frame(bytes: &[u8]) {
    let (header, body) = bytes.split_at(bytes.len().min(20));
    ucx::is_well_formed(header, body);
}

/// A hello or control message of the verbs provider.
fn verbs_frame(bytes: &[u8]) {
    verbs::is_well_formed(bytes);
}
