//! A management node with an identity, and the authority that gave it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Authority, Request, Timestamp};
use csp_identity::IdentityRole;

use super::{Scratch, daemon, free_address};

/// Creates a cluster's authority in `pki`, and starts mgmt-1 with its certificate, at `api` and with an own
/// etcd at `etcd`.
pub fn start(scratch: &Scratch, api: SocketAddr, etcd: SocketAddr) -> Child {
    let (name, peer) = ("demo".parse().expect("name"), free_address());
    Authority::create(&scratch.0.join("pki"), name, AUTHORITY_LIFETIME_DEFAULT, Timestamp::now())
        .expect("authority");
    let identity = issue(scratch, IdentityRole::MgmtNode, "mgmt-1", None);
    let config = format!(
        "node: {{id: mgmt-1, state_dir: \"{}\", identity: \"{}\"}}\nadmin: {{listen: \"{api}\"}}\n\
         private_etcd: {{client: \"{etcd}\", peer: \"{peer}\"}}\n",
        scratch.0.join("state").display(),
        identity.display()
    );
    let log = std::fs::File::create(scratch.0.join("log")).expect("log file");
    daemon(&scratch.file("mgmt.yaml", &config)).stderr(log).spawn().expect("csp-mgmt-node starts")
}

/// Has the authority in `pki` issue a certificate, and returns its folder.
pub fn issue(scratch: &Scratch, role: IdentityRole, id: &str, lifetime: Option<Duration>) -> PathBuf {
    let mut request = Request::new(role, id.parse().expect("id"));
    if role.serves() {
        request = request.address([127, 0, 0, 1].into());
    }
    if let Some(lifetime) = lifetime {
        request = request.lifetime(lifetime);
    }
    let now = Timestamp::now();
    let mut authority = Authority::open(&scratch.0.join("pki"), now).expect("authority");
    authority.issue(&request, now).expect("certificate").folder
}
