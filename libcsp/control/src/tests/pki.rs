//! A cluster's authority in a test's directory.

use std::path::{Path, PathBuf};

use csp_authority::{Authority, Request, Timestamp};
use csp_identity::{Credentials, IdentityRole};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Pki(pub(crate) PathBuf);

impl Pki {
    /// Makes the authority of the cluster `test` in `directory`/pki, valid since two days.
    pub(crate) fn create(directory: &Path) -> Self {
        let pki = directory.join("pki");
        Authority::create(&pki, node_id("test"), 20 * DAY, Timestamp::now().minus(2 * DAY)).unwrap();
        Pki(pki)
    }

    pub(crate) fn issue(&self, role: IdentityRole, id: &str) -> Credentials {
        self.issue_at(role, id, Timestamp::now())
    }

    /// Issues a certificate of an hour as if it was `now`.
    pub(crate) fn issue_at(&self, role: IdentityRole, id: &str, now: Timestamp) -> Credentials {
        let mut request = Request::new(role, node_id(id)).lifetime(HOUR);
        request.force = true;
        if role.serves() {
            request = request.address(Ipv4Addr::LOCALHOST.into());
        }
        let issued = self.open().issue(&request, now).unwrap();
        Credentials::open(&issued.folder).unwrap()
    }

    /// A management node's certificate that ended yesterday.
    pub(crate) fn ended(&self, id: &str) -> Credentials {
        self.issue_at(IdentityRole::MgmtNode, id, Timestamp::now().minus(DAY))
    }

    pub(crate) fn open(&self) -> Authority {
        Authority::open(&self.0, Timestamp::now()).unwrap()
    }

    /// Has another authority issue certificates from now on. All folders trust both.
    pub(crate) fn rotate(&self) {
        let mut authority = self.open();
        authority.rotate_start(20 * DAY, Timestamp::now()).unwrap();
        authority.rotate_switch(Timestamp::now()).unwrap();
    }

    pub(crate) fn revoke(&self, role: IdentityRole, id: &str) {
        self.open().revoke(role, node_id(id), Timestamp::now()).unwrap();
    }
}
