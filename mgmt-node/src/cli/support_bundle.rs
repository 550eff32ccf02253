//! `cspctl support-bundle`: one file with what helps others to find out what is wrong, without secrets.
//!
//! A part that cannot be had is noted in the bundle's MANIFEST; only the file itself must be written. Texts
//! pass [`Secrets`] before they are added.

mod archive;
mod secrets;
#[cfg(test)]
mod tests;
mod values;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use csp_authority::Timestamp;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;

use super::args::Cli;
use super::doctor::{Host, NotRun, Ran, Report, Seen, look};
use super::error::CliError;
use super::{Context, identity, show_as};
use crate::fanout::{Fanout, Target};
use crate::policy_view;

use archive::{Archive, Keep, PART_LEN_MAX};
use secrets::{Origin, Secrets};

/// Most nodes whose metrics are asked for.
const NODES_MAX: usize = 256;
/// Nodes that are asked at once.
const AT_ONCE: usize = 8;
/// Lines of the journal.
const JOURNAL_LINES: &str = "20000";
/// Most files of one kind.
const FILES_MAX: usize = 64;

/// Arguments of `cspctl support-bundle`.
#[derive(Debug, Args)]
pub struct SupportBundleArgs {
    /// The file to write; one that is there already is not touched. Default: csp-support-HOST-TIME.tar.gz
    #[arg(long, short, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Take this host's files from below this folder, such as a mounted image
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

/// The result, for `--output json`.
#[derive(Serialize)]
struct Written {
    /// The file.
    file: PathBuf,
    /// Its length in bytes.
    bytes: u64,
    /// Files in it.
    files: usize,
    /// What is missing, with the reasons.
    missing: Vec<String>,
}

/// Routes of the management node, and the files that their answers become.
const ROUTES: [(&str, &str); 10] = [
    ("cluster/overview.json", "/api/v1/overview"),
    ("cluster/nodes.json", "/api/v1/nodes"),
    ("cluster/services.json", "/api/v1/services"),
    ("cluster/vip-groups.json", "/api/v1/vip-groups"),
    ("cluster/channels.json", "/api/v1/channels"),
    ("cluster/contexts.json", "/api/v1/contexts"),
    ("cluster/quality.json", "/api/v1/quality"),
    ("cluster/plugins.json", "/api/v1/plugins"),
    ("cluster/policy-history.json", "/api/v1/policy/history"),
    ("cluster/events.json", "/api/v1/events"),
];

/// Files of a host that say what it is like.
const HOST_FILES: [&str; 8] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/mounts",
    "/proc/loadavg",
    "/proc/net/dev",
    "/proc/net/snmp",
];

/// Programs whose output says what it is like.
const HOST_PROGRAMS: [(&str, &str, &[&str]); 5] = [
    ("host/addresses.json", "ip", &["-json", "address", "show"]),
    ("host/routes.json", "ip", &["-json", "route", "show", "table", "all"]),
    ("host/sockets.txt", "ss", &["--tcp", "--listening", "--numeric", "--processes"]),
    ("host/firewall.json", "nft", &["--json", "list", "ruleset"]),
    ("host/units.txt", "systemctl", &["--no-pager", "--full", "status", "csp-*"]),
];

/// `cspctl support-bundle`.
pub(super) async fn bundle(cli: &Cli, args: &SupportBundleArgs) -> Result<(), CliError> {
    let (seen, context) = look(cli, &args.root).await?;
    let now = Timestamp::now();
    let time: String = now.to_string().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let host: String = seen.host.name().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let name = format!("csp-support-{host}-{time}");
    let path = args.output_file.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let cannot = |source| CliError::CannotCreate { path: path.clone(), source };
    let archive = Archive::create(&path, &name, now).map_err(cannot)?;
    let mut bundle = Bundle { archive, secrets: Secrets::of(&seen) };
    let head = format!(
        "Support bundle of {}, made by cspctl {} at {now}",
        seen.host.name(),
        env!("CARGO_PKG_VERSION")
    );
    let collected = bundle.collect(&seen, context.as_ref()).await;
    let (files, missing) = (bundle.archive.files + 1, bundle.archive.missing.clone());
    let written = collected.and_then(|()| bundle.archive.finish(&head));
    let bytes = written.map_err(|source| {
        Archive::abandon(&path);
        cannot(source)
    })?;
    show_as(cli.output, &Written { file: path.clone(), bytes, files, missing }, text)
}

fn text(written: &Written) -> String {
    let mut text = format!(
        "{}: {} files, {}; secrets were removed, look into it before you pass it on\n",
        written.file.display(),
        written.files,
        super::table::bytes(written.bytes)
    );
    for missing in &written.missing {
        let _ = writeln!(text, "  missing: {missing}");
    }
    text
}

struct Bundle {
    archive: Archive,
    secrets: Secrets,
}

impl Bundle {
    async fn collect(&mut self, seen: &Seen, context: Option<&Context>) -> std::io::Result<()> {
        let report = serde_json::to_value(Report::of(seen, &[])).unwrap_or_default();
        self.add_json("doctor.json", report)?;
        self.add_json("versions.json", versions(seen))?;
        // A large cluster fills the bundle: what only this host has comes first.
        self.configuration(seen)?;
        self.host(&seen.host)?;
        self.journal(&seen.host)?;
        match context {
            Some(context) => {
                self.cluster(context).await?;
                self.nodes(seen).await?;
            }
            None => self.archive.missing("cluster", seen.no_cluster()),
        }
        Ok(())
    }

    fn add_json(&mut self, name: &str, value: Value) -> std::io::Result<()> {
        let value = self.secrets.json(value);
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        self.archive.add(name, &text, Keep::Beginning)
    }

    fn add_text(&mut self, name: &str, text: &str, origin: Origin, keep: Keep) -> std::io::Result<()> {
        let text = self.secrets.text(text, origin);
        self.archive.add(name, &text, keep)
    }

    /// What the management node shows to a viewer.
    async fn cluster(&mut self, context: &Context) -> std::io::Result<()> {
        for (name, path) in ROUTES {
            match context.client.get::<Value>(path, &[]).await {
                Ok(value) => self.add_json(name, value)?,
                Err(CliError::Protocol(why)) if why.contains("404") => {
                    self.archive.missing(name, "the management node has no such route");
                }
                Err(error) => self.archive.missing(name, &error.to_string()),
            }
        }
        let name = "cluster/policy.yaml";
        match super::edit::active(context).await {
            // An operator gets the policy with its keys.
            Ok((_, policy)) => {
                let yaml = policy_view::yaml(&policy.redacted());
                self.add_text(name, &yaml, Origin::Api, Keep::Beginning)
            }
            Err(error) => {
                self.archive.missing(name, &error.to_string());
                Ok(())
            }
        }
    }

    /// Metrics and conditions of each node, from its admin endpoint.
    async fn nodes(&mut self, seen: &Seen) -> std::io::Result<()> {
        let credentials = identity::open(seen.identity()).ok().flatten();
        let fanout = Fanout::new(credentials.as_ref());
        let nodes = seen.cluster.iter().flat_map(|cluster| &cluster.nodes.nodes);
        let targets: Vec<Target> = nodes
            .map(|node| Target { id: node.id.clone(), role: node.role.clone(), admin: node.admin.clone() })
            .collect();
        if let Some(more) = targets.len().checked_sub(NODES_MAX).filter(|more| *more > 0) {
            self.archive
                .missing("nodes", &format!("{more} nodes beyond the first {NODES_MAX} were not asked"));
        }
        for some in targets[..targets.len().min(NODES_MAX)].chunks(AT_ONCE) {
            for (path, file) in
                [("/readyz", "readyz.json"), ("/v1/node", "node.json"), ("/metrics", "metrics.txt")]
            {
                let answers = some.iter().map(|target| fanout.get(target, path, &[]));
                for (target, answer) in some.iter().zip(join_all(answers).await) {
                    let name = format!("nodes/{}/{file}", plain(&target.id));
                    match answer {
                        // A node that is not ready says why with 503.
                        Ok((200 | 503, body)) => {
                            let body = String::from_utf8_lossy(&body);
                            match serde_json::from_str::<Value>(&body) {
                                Ok(value) => self.add_json(&name, value)?,
                                Err(_) => self.add_text(&name, &body, Origin::Api, Keep::Beginning)?,
                            }
                        }
                        Ok((status, _)) => {
                            self.archive.missing(&name, &format!("it answered with status {status}"))
                        }
                        Err(error) => self.archive.missing(&name, &error.to_string()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Configuration files, drop-ins of units, and certificates. Files of keys are never opened here.
    fn configuration(&mut self, seen: &Seen) -> std::io::Result<()> {
        let host = &seen.host;
        let mut files: Vec<PathBuf> = ending(host, Path::new("/etc/csp"), ".yaml");
        let defaults = host.names("/etc/default");
        files.extend(
            defaults
                .iter()
                .filter(|name| name.starts_with("csp-"))
                .map(|name| Path::new("/etc/default").join(name)),
        );
        let units = Path::new("/etc/systemd/system");
        for unit in host.names(units).iter().filter(|name| name.starts_with("csp-") && name.ends_with(".d")) {
            files.extend(ending(host, &units.join(unit), ".conf"));
        }
        for folder in secrets::identities(seen) {
            let public = [csp_identity::CERTIFICATE, csp_identity::CA, csp_identity::REVOKED];
            files.extend(public.map(|file| folder.join(file)));
        }
        files.sort();
        files.dedup();
        for file in files.iter().filter(|file| host.exists(file)) {
            let name = format!("configuration/{}", plain(&file.display().to_string()));
            match host.bytes(file, PART_LEN_MAX as u64) {
                Some(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    let (text, origin) = match file.extension().and_then(|extension| extension.to_str()) {
                        // Certificates have hex digits nowhere, and serial numbers are no secrets.
                        Some("pem") => (certificates(&text), Origin::Api),
                        Some("yaml") => (text.into_owned(), Origin::Yaml),
                        _ => (text.into_owned(), Origin::Settings),
                    };
                    self.add_text(&name, &text, origin, Keep::Beginning)?;
                }
                None => self.archive.missing(&name, "this user may not read it"),
            }
        }
        Ok(())
    }

    fn host(&mut self, host: &Host) -> std::io::Result<()> {
        for file in HOST_FILES {
            let name = format!("host/{}", plain(file));
            match host.text(file) {
                Some(text) => self.add_text(&name, &text, Origin::Host, Keep::Beginning)?,
                None => self.archive.missing(&name, "it cannot be read"),
            }
        }
        for (name, program, arguments) in HOST_PROGRAMS {
            self.program(name, program, host.run(program, arguments), Keep::Beginning)?;
        }
        Ok(())
    }

    fn journal(&mut self, host: &Host) -> std::io::Result<()> {
        let arguments =
            ["--no-pager", "--output=short-iso-precise", "--unit=csp-*", "--lines", JOURNAL_LINES];
        self.program("journal.txt", "journalctl", host.run_to_end("journalctl", &arguments), Keep::End)
    }

    fn program(
        &mut self,
        name: &str,
        program: &str,
        ran: Result<Ran, NotRun>,
        keep: Keep,
    ) -> std::io::Result<()> {
        match ran {
            Ok(ran) if ran.out.is_empty() => {
                let why = ran.err.lines().next().unwrap_or("it wrote nothing");
                self.archive.missing(name, &format!("{program}: {}", self.secrets.text(why, Origin::Host)));
                Ok(())
            }
            Ok(ran) => self.add_text(name, &ran.out, Origin::Host, keep),
            Err(why) => {
                self.archive.missing(name, &why.to_string());
                Ok(())
            }
        }
    }
}

/// Releases: of cspctl, of installed programs, of nodes.
fn versions(seen: &Seen) -> Value {
    let installed: serde_json::Map<String, Value> =
        ["network-node", "proxy-node", "edge-node", "app-node", "mgmt-node"]
            .iter()
            .filter_map(|role| {
                let program = format!("csp-{role}");
                let ran = seen.host.run(&program, &["--version"]).ok()?;
                Some((program, ran.out.trim().into()))
            })
            .collect();
    let nodes = seen.cluster.iter().flat_map(|cluster| &cluster.nodes.nodes);
    let nodes: serde_json::Map<String, Value> =
        nodes.map(|node| (node.id.clone(), node.version.as_str().into())).collect();
    serde_json::json!({ "cspctl": env!("CARGO_PKG_VERSION"), "installed": installed, "nodes": nodes })
}

fn ending(host: &Host, folder: &Path, end: &str) -> Vec<PathBuf> {
    let names = host.names(folder).into_iter().filter(|name| name.ends_with(end));
    names.take(FILES_MAX).map(|name| folder.join(name)).collect()
}

/// The PEM blocks of a file of certificates; whatever stands beside them is left out.
fn certificates(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let begins = line.starts_with("-----BEGIN ");
        inside |= begins;
        let shown = inside;
        inside &= !line.starts_with("-----END ");
        shown
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// A name without what leads out of a folder of the archive.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('/').replace("..", "--");
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .collect()
}
