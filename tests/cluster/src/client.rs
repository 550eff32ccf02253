//! Clients on the LAN: fetch, upload, measure. curl and wrk do the work.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cluster::Cluster;
use crate::configs::VIP;

/// Without this option wrk counts a response that took longer than 2 s as a socket error.
pub const WRK_PATIENCE: &str = "--timeout=30s";

/// A SHA-256 in hex.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digest(pub String);

impl Digest {
    /// Returns the digest of a file's bytes.
    pub fn of_file(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let (mut hasher, mut part) = (Sha256::new(), vec![0; 1 << 16]);
        loop {
            match file.read(&mut part)? {
                0 => return Ok(Digest(hex(&hasher.finalize()))),
                n => hasher.update(&part[..n]),
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Latencies of single requests, in seconds, sorted.
#[derive(Clone, Debug)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Returns the given percentile, in microseconds.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        let at = ((self.0.len() as f64 - 1.0) * percent / 100.0).round() as usize;
        self.0.get(at).copied().unwrap_or(f64::NAN) * 1e6
    }
}

/// Requests to the demo's services from the client host.
#[derive(Debug)]
pub struct Fetch<'a>(pub &'a Cluster);

impl Fetch<'_> {
    /// Fetches `file` of the web service and compares its digest with that of the file on disk.
    pub fn file(&self, file: &str) -> Result<()> {
        let path = self.0.scratch().join("fetched");
        let url = format!("http://{VIP}/{file}");
        self.0.client.run("curl", &["-sS", "-f", "-m", "60", "-o", &path.to_string_lossy(), &url])?;
        if !path.exists() {
            File::create(&path)?; // curl creates no file for an empty body
        }
        let (got, wanted) =
            (Digest::of_file(&path)?, Digest::of_file(&self.0.scratch().join("www").join(file))?);
        std::fs::remove_file(&path)?;
        if got != wanted {
            bail!("{url}: SHA-256 is {}, the file's is {}", got.0, wanted.0);
        }
        Ok(())
    }

    /// Uploads a file by `method` and compares the digest that the application returns.
    pub fn upload(&self, method: &str, file: &Path) -> Result<()> {
        let url = format!("http://{VIP}:{}/", crate::configs::UPLOAD_PORT);
        let body = format!("@{}", file.display());
        let arguments =
            ["-sS", "-f", "-m", "60", "-X", method, "-H", "Expect:", "--data-binary", &body, &url];
        let answer = self.0.client.run("curl", &arguments)?;
        let wanted = Digest::of_file(file)?;
        if answer.trim() != wanted.0 {
            bail!("{method} {url}: the application received {}, the file is {}", answer.trim(), wanted.0);
        }
        Ok(())
    }

    /// Sends `count` HTTP/1.0 requests one after another, on a connection each.
    pub fn sequential(&self, file: &str, count: u32) -> Result<Latencies> {
        let url = format!("http://{VIP}/{file}?[1-{count}]");
        let arguments = [
            "-sS",
            "--http1.0",
            "-H",
            "Connection: close",
            "-m",
            "120",
            "-w",
            "%{http_code} %{time_total}\n",
            "-o",
            "/dev/null",
            &url,
        ];
        let text = self.0.client.run("curl", &arguments)?;
        let mut seconds = Vec::new();
        for line in text.lines() {
            let Some(("200", time)) = line.split_once(' ') else { bail!("{url}: answered {line:?}") };
            seconds.push(time.parse::<f64>().with_context(|| line.to_owned())?);
        }
        if seconds.len() != count as usize {
            bail!("{url}: {} of {count} requests were answered", seconds.len());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Latencies(seconds))
    }

    /// Runs wrk with `connections` kept-alive connections for `seconds`. Returns its report; fails if wrk
    /// counted errors.
    pub fn wrk(&self, file: &str, connections: u32, seconds: u32) -> Result<String> {
        self.wrk_with(file, connections, seconds, &[])
    }

    /// Runs wrk with further options.
    pub fn wrk_with(&self, file: &str, connections: u32, seconds: u32, more: &[&str]) -> Result<String> {
        let (connections, duration) = (format!("-c{connections}"), format!("-d{seconds}s"));
        // With the port as a number: a bare machine has no /etc/services to look "http" up in.
        let url = format!("http://{VIP}:80/{file}");
        let options = ["-t1", &connections, &duration, WRK_PATIENCE, "--latency"];
        let report = self.0.client.run("wrk", &[&options, more, &[url.as_str()]].concat())?;
        if report.contains("Socket errors") || report.contains("Non-2xx") || !report.contains("Requests/sec")
        {
            bail!("wrk reports errors:\n{report}");
        }
        Ok(report)
    }
}

/// Parses a time as printed by wrk; in microseconds.
pub fn micros(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    units.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}
