//! Checks of what is installed and on disk: releases, folders of state, room, keys of the SAN and channels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::table::bytes;
use super::finding::{Findings, Level};
use super::host::Space;
use super::{Seen, processes};

/// Free bytes below which state is not written for long.
const FREE_MIN: u64 = 64 << 20;
/// Free bytes below which room becomes scarce, if it is less than a twentieth as well.
const FREE_SCARCE: u64 = 1 << 30;
/// Files of a folder of state that are looked at.
const FILES_MAX: usize = 1_000;
/// Longest state file that is parsed, in bytes.
const STATE_LEN_MAX: u64 = 64 << 20;

/// `versions`: cspctl, the daemons installed and running here, and the cluster's nodes.
pub fn versions(seen: &Seen, findings: &mut Findings) {
    let own = env!("CARGO_PKG_VERSION");
    let mut differing: BTreeSet<String> = BTreeSet::new();
    for daemon in &seen.daemons {
        let mut programs = daemon.programs().into_iter();
        let found = programs.find_map(|program| installed(seen, &program).map(|release| (program, release)));
        let Some((program, installed)) = found else { continue };
        // An edge runs two nodes.
        if installed != own && differing.insert(program.clone()) {
            let why = "cspctl and daemons of one release understand each other's answers whole";
            let remedy = format!("apt install {program} cspctl");
            findings.warning(format!("{program} is {installed}, cspctl {own}"), why, remedy);
        }
        let node = seen.cluster.iter().flat_map(|cluster| &cluster.nodes.nodes);
        let running = node.into_iter().find(|node| node.id == daemon.config.node.id);
        if let Some(running) = running.filter(|running| running.version != installed) {
            findings.warning(
                format!("{} runs {}, and {program} {installed} is installed", running.id, running.version),
                "the daemon was not restarted since its package was replaced",
                format!("systemctl restart {}", daemon.unit(&seen.host)),
            );
        }
    }
    for process in processes::all(&seen.host).iter().filter(|process| process.replaced) {
        findings.warning(
            format!(
                "{} (pid {}) runs from a file that was replaced or removed",
                process.program, process.pid
            ),
            "what is installed is not what runs",
            format!("systemctl restart {}", process.program),
        );
    }
    let Some(cluster) = &seen.cluster else {
        if findings.is_well() {
            findings.ok(format!("cspctl {own}"));
        }
        return findings.not_checked("releases of the cluster's nodes", "no management node answers");
    };
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in &cluster.nodes.nodes {
        by_version.entry(&node.version).or_default().push(&node.id);
    }
    if by_version.len() > 1 {
        let list: Vec<String> =
            by_version.iter().map(|(version, ids)| format!("{version}: {}", ids.join(" "))).collect();
        findings.warning(
            format!("nodes have different releases ({})", list.join("; ")),
            "they work together while an upgrade goes on, and it has not ended",
            "cspctl nodes    # upgrade those that are behind",
        );
    } else if findings.is_well() {
        let nodes = cluster.nodes.nodes.len();
        findings.ok(format!("cspctl {own}; {nodes} nodes have one release"));
    }
}

/// The release of an installed program, which `--version` prints as its last word.
fn installed(seen: &Seen, program: &str) -> Option<String> {
    let ran = seen.host.run(program, &["--version"]).ok().filter(|ran| ran.code == 0)?;
    ran.out.lines().next()?.split_whitespace().last().map(str::to_owned)
}

/// `state`: folders of state and the files in them.
pub fn state(seen: &Seen, findings: &mut Findings) {
    if seen.daemons.is_empty() {
        return findings.ok("no node is configured on this host");
    }
    for daemon in &seen.daemons {
        let folder = daemon.state_dir(&seen.host);
        let shown = folder.display();
        let Some(mode) = seen.host.mode(&folder) else {
            findings.info(
                format!("{shown} is not there, or this user may not look"),
                format!("{} makes it when it starts", daemon.program()),
                "",
            );
            continue;
        };
        if mode & 0o022 != 0 {
            findings.error(
                format!("{shown} can be written by others (mode {mode:o})"),
                "who writes there decides by which policy the node starts while etcd is away",
                format!("chmod 700 {shown}"),
            );
        }
        for name in seen.host.names(&folder).iter().filter(|name| name.ends_with(".json")).take(FILES_MAX) {
            let path = folder.join(name);
            let parsed = seen.host.bytes(&path, STATE_LEN_MAX).map(|text| {
                serde_json::from_slice::<serde::de::IgnoredAny>(&text).map_err(|error| error.to_string())
            });
            if let Some(Err(error)) = parsed {
                findings.error(
                    format!("{} is damaged: {error}", path.display()),
                    "the node does not know what it kept there when it starts while etcd is away",
                    format!(
                        "mv {0} {0}.damaged && systemctl restart {1}",
                        path.display(),
                        daemon.unit(&seen.host)
                    ),
                );
            }
        }
    }
    if findings.is_well() {
        findings.ok(format!("{} folders of state, their files are whole", seen.daemons.len()));
    }
}

/// `disk`: room where state is written.
pub fn disk(seen: &Seen, findings: &mut Findings) {
    let folders: BTreeSet<PathBuf> =
        seen.daemons.iter().map(|daemon| nearest(seen, &daemon.state_dir(&seen.host))).collect();
    let mut file_systems: Vec<Space> = Vec::new();
    for folder in folders {
        let shown = folder.display().to_string();
        let space = match seen.host.space(&folder) {
            Ok(space) => space,
            Err(why) => {
                findings.not_checked(&format!("the room at {shown}"), why);
                continue;
            }
        };
        // Folders of one file system have the same room.
        if file_systems.contains(&space) {
            continue;
        }
        file_systems.push(space);
        let found = format!("{shown}: {} of {} are free", bytes(space.free), bytes(space.total));
        match scarce(&space) {
            Level::Ok => findings.ok(found),
            level => {
                let why = "nodes keep their policy on disk, and a private etcd all that it has";
                findings.add(level, found, why, format!("du --max-depth=2 --human-readable {shown}"));
            }
        }
    }
    if seen.daemons.is_empty() {
        findings.ok("no node of this host has state");
    }
}

fn scarce(space: &Space) -> Level {
    let few = space.inodes > 0 && space.inodes_free < 1_000;
    match space.free {
        free if free < FREE_MIN || few => Level::Error,
        free if free < FREE_SCARCE && free < space.total / 20 => Level::Warning,
        _ => Level::Ok,
    }
}

/// The folder, or the nearest one above it that exists.
fn nearest(seen: &Seen, folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|path| seen.host.exists(path));
    there.unwrap_or(Path::new("/")).to_owned()
}

/// `keys`: keys of the SAN and of channels are their owner's alone.
pub fn keys(seen: &Seen, findings: &mut Findings) {
    if seen.daemons.is_empty() {
        return findings.ok("no node is configured on this host");
    }
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    for daemon in &seen.daemons {
        let own = daemon.key_files(&seen.host);
        if own.is_empty() && daemon.role != csp_types::Role::MgmtNode {
            findings.error(
                format!(
                    "{} has no file of keys ({})",
                    daemon.program(),
                    "cluster_key_file, or /etc/csp/*.key"
                ),
                "peers on the SAN refuse a node that cannot prove that it belongs to the cluster",
                format!("cspctl key derive cluster.key {} {}", daemon.role, daemon.config.node.id),
            );
        }
        files.extend(own);
        if let Some(folder) = daemon.curve_keys() {
            let names = seen.host.names(&folder);
            files.extend(
                names.iter().filter(|name| name.ends_with(".key_secret")).map(|name| folder.join(name)),
            );
        }
    }
    for file in &files {
        if let Some(mode) = seen.host.mode(file).filter(|mode| mode & 0o077 != 0) {
            findings.error(
                format!("{} can be read by others (mode {mode:o})", file.display()),
                "whoever has these keys can take part in the SAN or in a channel",
                format!("chmod 600 {}    # and replace the keys: docs/deployment.md", file.display()),
            );
        }
    }
    if findings.is_well() {
        findings.ok(format!("{} files of keys, readable by their owners only", files.len()));
    }
}
