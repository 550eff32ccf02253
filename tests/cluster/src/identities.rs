//! The cluster's authority, and everybody's certificates, in the scratch folder.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use csp_authority::{Authority, Request, Timestamp};
use csp_identity::IdentityRole;
use csp_types::NodeId;

use crate::host::Host;

/// The id of the tests' own administrator.
pub const ADMIN: &str = "tests";
const LIFETIME: Duration = Duration::from_secs(2 * 24 * 3600);

/// Returns the folder of an identity.
pub fn folder(scratch: &Path, role: IdentityRole, id: &str) -> PathBuf {
    scratch.join("pki/issued").join(role.as_str()).join(id)
}

/// Makes an authority, and certificates for these nodes, for an administrator and for etcd's root.
pub fn create(scratch: &Path, nodes: &[(IdentityRole, &str, IpAddr)]) -> Result<()> {
    let pki = scratch.join("pki");
    let now = Timestamp::now();
    let mut authority = Authority::create(&pki, "demo".parse()?, LIFETIME, now)
        .with_context(|| format!("an authority in {}", pki.display()))?;
    let id = |id: &str| id.parse::<NodeId>().with_context(|| id.to_owned());
    let people = [(IdentityRole::Admin, ADMIN), (IdentityRole::EtcdRoot, "root")];
    let mut requests = Vec::new();
    for (role, name) in people {
        requests.push(Request::new(role, id(name)?));
    }
    for (role, name, address) in nodes {
        requests.push(Request::new(*role, id(name)?).address(*address));
    }
    for request in requests {
        authority.issue(&request.lifetime(LIFETIME), now)?;
    }
    Ok(())
}

/// Returns the response of the admin endpoint at `admin` to the administrator's request from `host`.
pub fn ask(host: &Host, scratch: &Path, admin: &str, path: &str) -> Result<String> {
    let url = format!("https://{admin}{path}");
    let credentials = curl(scratch);
    let mut arguments = vec!["-sSf", "-m", "5", &url];
    arguments.extend(credentials.iter().map(String::as_str));
    host.run("curl", &arguments)
}

/// Arguments by which curl is the administrator.
pub fn curl(scratch: &Path) -> [String; 6] {
    let folder = folder(scratch, IdentityRole::Admin, ADMIN);
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let flag = str::to_owned;
    [
        flag("--cacert"),
        file(csp_identity::CA),
        flag("--cert"),
        file(csp_identity::CERTIFICATE),
        flag("--key"),
        file(csp_identity::KEY),
    ]
}

/// Arguments by which cspctl is the administrator, at the management node whose admin endpoint is at `admin`.
pub fn cspctl(scratch: &Path, admin: &str) -> [String; 4] {
    let folder = folder(scratch, IdentityRole::Admin, ADMIN).to_string_lossy().into_owned();
    ["--server".to_owned(), format!("https://{admin}"), "--identity".to_owned(), folder]
}

/// Arguments by which cspctl gives etcd its users.
pub fn etcd_setup(scratch: &Path, nodes: &[(IdentityRole, &str)]) -> Vec<String> {
    let root = folder(scratch, IdentityRole::EtcdRoot, "root").to_string_lossy().into_owned();
    let endpoint = "https://10.77.0.4:2379";
    let mut arguments =
        ["etcd", "setup", "--identity", &root, "--endpoint", endpoint].map(str::to_owned).to_vec();
    for (role, id) in nodes {
        arguments.extend(["--node".to_owned(), format!("{role}/{id}")]);
    }
    arguments
}
