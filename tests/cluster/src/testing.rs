//! Shared by the cluster tests: whether this machine can run them, where the binaries are, requests to
//! daemons.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{Cluster, Options, San, Tier};
use crate::configs::VIP;
use crate::process::wait_until;

/// Programs that the tests run, with the Debian package of each.
const PROGRAMS: [(&str, &str); 7] = [
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("nginx", "nginx-light"),
    ("etcd", "etcd-server"),
    ("curl", "curl"),
    ("wrk", "wrk"),
    ("/usr/bin/python3", "python3"),
];
/// How long a service may take until it answers after a change.
pub const SERVING_DEADLINE: Duration = Duration::from_secs(15);

/// Returns why this machine cannot run cluster tests; `None` if it can.
pub fn obstacle() -> Option<String> {
    if !csp_support::running_as_root() {
        return Some("needs root: it makes network namespaces".to_owned());
    }
    let missing = PROGRAMS.iter().find(|(program, _)| !csp_support::has(program))?;
    Some(format!("needs {} of the Debian package {}", missing.0, missing.1))
}

/// Returns the folder with the daemons: the parent of the one that holds the test's own binary
/// (`release/deps/x`).
pub fn binaries() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).context("the test's binary has no grandparent")?;
    let needed = Tier::ALL.map(Tier::daemon);
    for name in needed.into_iter().chain(["cspctl", "csp-run", "libcsp_sockfilter.so"]) {
        if !folder.join(name).exists() {
            bail!(
                "{} is not there: `cargo build --workspace` of the same profile first",
                folder.join(name).display()
            );
        }
    }
    Ok(folder.to_owned())
}

/// Creates hosts and configuration files for the test `name`; `None` if this machine cannot run it, and the
/// test is skipped.
///
/// # Panics
/// If the binaries are not built or the hosts cannot be created; for a skip with `CSP_NO_SKIP=1`.
pub fn lay_out(name: &str) -> Option<Cluster> {
    lay_out_over(name, San::Shm)
}

/// As [`lay_out`], over another SAN.
///
/// # Panics
/// As [`lay_out`].
pub fn lay_out_over(name: &str, san: San) -> Option<Cluster> {
    lay_out_as(name, san, false)
}

/// As [`lay_out_over`], with network node and proxy node as one process.
///
/// # Panics
/// As [`lay_out`].
pub fn lay_out_edge(name: &str, san: San) -> Option<Cluster> {
    lay_out_as(name, san, true)
}

fn lay_out_as(name: &str, san: San, edge: bool) -> Option<Cluster> {
    if let Some(obstacle) = obstacle() {
        csp_support::skip(obstacle);
        return None;
    }
    let options = Options {
        binaries: binaries().expect("built binaries"),
        san,
        edge,
        tag: format!("{name}{}", std::process::id()),
    };
    Some(Cluster::lay_out(options).expect("hosts"))
}

impl Cluster {
    /// Starts etcd, the four daemons, nginx with a file `1KiB`, and the upload application; applies the
    /// demo's policy and waits until both services answer.
    pub fn serve(&mut self) -> Result<()> {
        std::fs::write(self.scratch().join("www/1KiB"), pattern(1 << 10))?;
        self.start_daemons()?;
        self.start_nginx()?;
        self.start_upload()?;
        self.apply_policy()?;
        self.wait_served()
    }

    /// Waits until both services answer.
    pub fn wait_served(&self) -> Result<()> {
        for url in [format!("http://{VIP}/1KiB"), format!("http://{VIP}:{}/", crate::configs::UPLOAD_PORT)] {
            self.wait_url(&url)?;
        }
        Ok(())
    }

    /// Waits until the service returns the file `name`.
    pub fn wait_answer(&self, name: &str) -> Result<()> {
        self.wait_url(&format!("http://{VIP}/{name}"))
    }

    fn wait_url(&self, url: &str) -> Result<()> {
        let answers = || self.answers(url).then_some(());
        wait_until(&format!("an answer from {url}"), SERVING_DEADLINE, answers)
            .map_err(|error| error.context(self.all_logs()))
    }

    /// Returns whether `url` answers the client with 200 within 2 s.
    pub fn answers(&self, url: &str) -> bool {
        let arguments = ["-sf", "-m", "2", "-o", "/dev/null", url];
        self.client.output("curl", &arguments).is_ok_and(|output| output.status.success())
    }

    /// Returns the response of a daemon's admin endpoint to `path`.
    pub fn ask(&self, tier: Tier, path: &str) -> Result<String> {
        crate::identities::ask(self.host(tier), self.scratch(), &tier.admin(), path)
    }

    /// Returns a metric of a daemon, summed over all its series whose labels contain `label`; zero if there
    /// is none.
    pub fn metric(&self, tier: Tier, name: &str, label: &str) -> Result<f64> {
        let text = self.ask(tier, "/metrics")?;
        let mut sum = 0.0;
        for line in text.lines().filter(|l| l.starts_with(name) && l.contains(label)) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            if series.split('{').next() == Some(name) {
                sum += value.parse::<f64>().with_context(|| line.to_owned())?;
            }
        }
        Ok(sum)
    }

    /// Returns the last lines of every daemon's and program's log.
    pub fn all_logs(&self) -> String {
        Tier::ALL.iter().map(|tier| self.log_tail(*tier) + "\n").collect()
    }
}

/// openssl's words for a key of ECDSA with P-256.
pub const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

/// Makes a certificate that signs itself, and its key of this kind, as files `NAME.pem` and `NAME.key`;
/// `serial` tells it from a former one. Needs openssl.
///
/// # Errors
/// What openssl says, or the folder.
pub fn certificate(folder: &Path, name: &str, kind: &[&str], serial: u32) -> Result<()> {
    fs::create_dir_all(folder)?;
    let [chain, key] = ["pem", "key"].map(|suffix| folder.join(format!("{name}.{suffix}")));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=test", "-newkey"]).args(kind);
    openssl.args(["-set_serial", &serial.to_string(), "-addext", &format!("subjectAltName=DNS:{name}")]);
    openssl.arg("-out").arg(&chain).arg("-keyout").arg(&key);
    let output = openssl.output().context("openssl")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?)
}

/// Returns `len` bytes in which every 8 differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
        .take(len)
        .collect()
}
