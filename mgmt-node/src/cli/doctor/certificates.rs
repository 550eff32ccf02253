//! Check of identities: certificates of this host's nodes and of the caller.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_identity::{CERTIFICATE, Folder, IdentityRole, KEY, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::super::table::span;
use super::Seen;
use super::configuration::Daemon;
use super::finding::Findings;

/// Validity left below which a certificate is to be renewed.
const RENEW: Duration = Duration::from_secs(14 * 86_400);

/// `certificates`: validity, names, modes.
pub fn check(seen: &Seen, findings: &mut Findings) {
    let mut folders: BTreeMap<PathBuf, Vec<&Daemon>> = BTreeMap::new();
    for daemon in &seen.daemons {
        match daemon.identity(&seen.host) {
            Some(folder) => folders.entry(folder).or_default().push(daemon),
            None => findings.info(
                format!("{} has no identity", daemon.program()),
                "it is reached from its own host only",
                format!("cspctl pki issue {} {}", daemon.role, daemon.config.node.id),
            ),
        }
    }
    let own = seen.identity.iter().map(|path| (path.clone(), Vec::new()));
    let mut all: BTreeMap<PathBuf, Vec<&Daemon>> = own.collect();
    all.extend(folders);
    if all.is_empty() && findings.is_well() {
        findings.info(
            "no certificate is configured here",
            "https://… management nodes ask for one",
            "cspctl pki issue operator NAME",
        );
    }
    for (folder, daemons) in all {
        match place(seen, &folder) {
            Ok(path) => folder_of(&path, &daemons, findings),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                unusable(format!("{}/{CERTIFICATE}: {error}", folder.display()), findings);
            }
            Err(error) => findings.not_checked(&folder.display().to_string(), error),
        }
    }
}

/// Returns where a folder is whose files are all in it. Those of another root than `/` may be links to files
/// of the running host.
fn place(seen: &Seen, folder: &Path) -> std::io::Result<PathBuf> {
    let path = seen.host.path(folder)?;
    let mut names = seen.host.names(folder).into_iter();
    let link = names.find(|name| !seen.host.path(folder.join(name)).is_ok_and(|at| at == path.join(name)));
    match link {
        Some(name) => Err(std::io::Error::other(format!("its {name} is a link"))),
        None => Ok(path),
    }
}

fn unusable(found: String, findings: &mut Findings) {
    let why = "its holder cannot prove to peers who it is";
    findings.error(found, why, "cspctl pki issue ROLE ID    # and copy the folder");
}

fn folder_of(path: &Path, daemons: &[&Daemon], findings: &mut Findings) {
    let shown = path.display();
    let folder = match Folder::read(path) {
        Ok(folder) => folder,
        Err(error) if is_denied(path) => return findings.not_checked(&format!("{shown}"), error),
        Err(error) => return unusable(error.to_string(), findings),
    };
    let holder = &folder.holder;
    let issue = format!("cspctl pki issue {} {}", holder.identity.role, holder.identity.id);
    if let Some(mode) = mode(&path.join(KEY)).filter(|mode| mode & 0o077 != 0) {
        let why = "whoever reads the key can be this holder";
        let remedy = format!("chmod 600 {shown}/{KEY}    # and: {issue}");
        findings.error(format!("{shown}/{KEY} can be read by others (mode {mode:o})"), why, remedy);
    }
    let now = UnixTime::now();
    let left = holder.life_left(now);
    let begins = u64::try_from(holder.not_before).unwrap_or(0);
    let who = format!("{} ({shown})", holder.identity);
    let why = "peers refuse each connection of a certificate that is not valid";
    if begins > now.as_secs() {
        findings.error(
            format!("{who} is not valid yet"),
            why,
            "chronyc tracking    # the clock of this host or of the authority's",
        );
    } else if left.is_zero() {
        findings.error(format!("{who} has expired"), why, issue);
    } else if left < RENEW {
        let left = span(left.as_millis() as u64);
        findings.warning(format!("{who} expires in {left}"), why, issue);
    } else {
        findings.ok(format!("{who} is valid for {}", span(left.as_millis() as u64)));
    }
    for daemon in daemons {
        names(daemon, &folder, findings);
    }
}

/// Compares what the certificate names with the node that has it.
fn names(daemon: &Daemon, folder: &Folder, findings: &mut Findings) {
    let (role, id) = (daemon.role, &daemon.config.node.id);
    let holder = &folder.holder;
    if Some(holder.identity.role) != IdentityRole::of_node(role) || holder.identity.id.as_str() != id {
        findings.error(
            format!("{} is {role}/{id}, and its certificate is that of {}", daemon.file, holder.identity),
            "the daemon does not start with the certificate of another",
            format!("cspctl pki issue {role} {id}"),
        );
    }
    let Some(listen) = daemon.config.admin.listen else { return };
    let named = addresses(&holder.certificate);
    if !named.contains(&listen.ip()) && !listen.ip().is_loopback() {
        findings.info(
            format!("the certificate of {role}/{id} does not name {}, where it listens", listen.ip()),
            "nodes know each other by role and id; browsers, curl and Prometheus compare the address",
            format!("cspctl pki issue {role} {id} --address {}", listen.ip()),
        );
    }
}

/// The IP addresses that a certificate names.
fn addresses(der: &[u8]) -> Vec<IpAddr> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
                16 => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

fn is_denied(path: &Path) -> bool {
    let opened = std::fs::File::open(path.join(KEY));
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

fn mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().ok().map(|metadata| metadata.mode() & 0o7777)
}
