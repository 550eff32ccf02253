//! What is asked of every contender: by wrk, and by [`offer`](super::offer) at a rate that does not wait for
//! answers.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use csp_cluster::{Cluster, Digest, WRK_PATIENCE, testing, wait_until};

use super::contender::Running;
use super::hold::Protocol;
use super::offer::Offered;
use super::report::Sample;
use super::secure::{self, AT_ONCE};
use super::{h2load, own_folder};

/// Files that are asked for: name and length in bytes.
const FILES: [(&str, usize); 5] =
    [("100B", 100), ("1KiB", 1 << 10), ("16KiB", 16 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)];
/// Length of an upload.
const UPLOAD_LEN: usize = 16 << 20;
/// Connections that are held open and idle beside 64 active ones.
const IDLE: u32 = 1000;
/// Idle connections whose memory is measured: HAProxy wants two descriptors for each, of 20,000.
const HELD_MANY: u32 = 9000;
/// Connections of the open loop.
const OPEN_LOOP_CONNECTIONS: u32 = 64;
/// SPECweb99's static files: the share of each class in requests (of 1,000), and the length of its smallest
/// file. Each class has nine files of 1 to 9 times that length.
const CLASSES: [(u32, usize); 4] = [(350, 102), (500, 1024), (140, 10_240), (10, 102_400)];
/// How often each of a class' nine files is asked for, of 1,000 (SPECweb99's access distribution within a
/// class).
const WITHIN_CLASS: [u32; 9] = [39, 59, 88, 177, 353, 118, 71, 50, 45];
const IDLE_DEADLINE: Duration = Duration::from_secs(60);

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A file again and again on each of so many kept connections.
    Kept(&'static str, u32),
    /// A file on a new connection for each request, so many at a time.
    Each(&'static str, u32),
    /// PUT of 16 MiB on so many connections.
    Upload(u32),
    /// 64 kept connections beside a thousand idle ones.
    BesideIdle,
    /// SPECweb99's static mix on so many kept connections.
    Mix(u32),
    /// Requests at a fixed rate, half of what HAProxy does at most, whatever is answered.
    OpenLoop,
    /// As `Kept`, over TLS.
    TlsKept(&'static str, u32),
    /// A connection with TLS for each request, its handshake full or resumed.
    Handshakes(secure::Kind),
    /// HTTP/2 over TLS: so many connections with so many streams each.
    Http2(&'static str, u32, u32),
    /// The memory of idle connections.
    Memory(Protocol),
    /// As `Kept`, of caches that have the file.
    Cached(&'static str, u32),
}

impl Work {
    /// The smallest answer on 64 connections.
    pub const KEPT_SMALL: Work = Work::Kept("100B", 64);
    /// All of them.
    pub const ALL: [Work; 11] = [
        Work::KEPT_SMALL,
        Work::Kept("100B", 256),
        Work::Kept("16KiB", 64),
        Work::Kept("64KiB", 32),
        Work::Kept("1MiB", 16),
        Work::Upload(8),
        Work::Each("100B", 64),
        Work::Kept("100B", 1),
        Work::BesideIdle,
        Work::Mix(64),
        Work::OpenLoop,
    ];
    /// Those of TLS and HTTP/2, of contenders that read HTTP.
    pub const SECURE: [Work; 8] = [
        Work::TlsKept("100B", 64),
        Work::TlsKept("1MiB", 16),
        Work::Http2("100B", 8, 100),
        Work::Handshakes(secure::Kind::Full),
        Work::Handshakes(secure::Kind::Resumed),
        Work::Memory(Protocol::Http1),
        Work::Memory(Protocol::Tls),
        Work::Memory(Protocol::Http2),
    ];
    /// Those of caches.
    pub const CACHED: [Work; 2] = [Work::Cached("1KiB", 64), Work::Cached("16KiB", 64)];
    /// Those of the quick bench.
    pub const QUICK: [Work; 6] = [
        Work::KEPT_SMALL,
        Work::Kept("16KiB", 64),
        Work::Kept("1MiB", 16),
        Work::Upload(8),
        Work::Each("100B", 64),
        Work::Kept("100B", 1),
    ];

    /// Returns its name in reports.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Work::Kept(file, 1) => format!("{file}, 1 connection"),
            Work::Kept(file, connections) => format!("{file}, {connections} kept"),
            Work::Each(file, at_once) => format!("{file}, a connection each, {at_once} at once"),
            Work::Upload(connections) => format!("upload of 16 MiB, {connections} connections"),
            Work::BesideIdle => format!("100B, 64 kept beside {IDLE} idle"),
            Work::Mix(connections) => format!("SPECweb99 static mix, {connections} kept"),
            Work::OpenLoop => "100B, open loop at half of HAProxy's peak".to_owned(),
            Work::TlsKept(file, connections) => format!("{file} over TLS, {connections} kept"),
            Work::Handshakes(kind) => {
                format!("100B over TLS, a connection each, {} handshakes, {AT_ONCE} at once", kind.name())
            }
            Work::Http2(file, connections, streams) => {
                format!("{file} by HTTP/2 over TLS, {connections} connections of {streams} streams")
            }
            Work::Memory(protocol) => format!("memory of {HELD_MANY} idle connections, {}", protocol.name()),
            Work::Cached(file, connections) => format!("{file} of the cache, {connections} kept"),
        }
    }

    /// Returns the word that chooses it on the command line.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Work::Kept(file, connections) => format!("{file}-{connections}").to_lowercase(),
            Work::Each(file, _) => format!("{file}-each").to_lowercase(),
            Work::Upload(_) => "upload".to_owned(),
            Work::BesideIdle => "idle".to_owned(),
            Work::Mix(_) => "mix".to_owned(),
            Work::OpenLoop => "open-loop".to_owned(),
            Work::TlsKept(file, connections) => format!("tls-{file}-{connections}").to_lowercase(),
            Work::Handshakes(kind) => format!("handshakes-{}", kind.name()),
            Work::Http2(file, _, streams) => format!("h2-{file}-{streams}").to_lowercase(),
            Work::Memory(protocol) => format!("memory-{}", protocol.key()),
            Work::Cached(file, connections) => format!("cached-{file}-{connections}").to_lowercase(),
        }
    }

    /// Returns whether its answers are so large that copying them is what it costs.
    #[must_use]
    pub fn is_large(self) -> bool {
        matches!(self, Work::Kept("16KiB" | "64KiB" | "1MiB", _) | Work::Mix(_))
    }

    /// Returns whether it goes over TLS, or by HTTP/2.
    #[must_use]
    pub fn is_secure(self) -> bool {
        Work::SECURE.contains(&self) && self != Work::Memory(Protocol::Http1)
    }

    /// Returns whether memory is measured, which a second round would find already there.
    #[must_use]
    pub fn is_memory(self) -> bool {
        matches!(self, Work::Memory(_))
    }

    /// Returns whether it is for caches.
    #[must_use]
    pub fn is_cached(self) -> bool {
        matches!(self, Work::Cached(..))
    }

    pub(super) fn is_open_loop(self) -> bool {
        self == Work::OpenLoop
    }

    /// Fetches what the work asks for once, and compares every byte with the file.
    ///
    /// # Errors
    /// The contender answers something else.
    pub(super) fn verify(self, cluster: &Cluster, running: &Running) -> Result<()> {
        let www = cluster.scratch().join("www");
        let to = cluster.scratch().join("verified");
        let mut files = match self {
            Work::Kept(file, _)
            | Work::Each(file, _)
            | Work::TlsKept(file, _)
            | Work::Http2(file, ..)
            | Work::Cached(file, _) => vec![file.to_owned()],
            Work::BesideIdle | Work::OpenLoop | Work::Handshakes(_) | Work::Memory(_) => {
                vec!["100B".to_owned()]
            }
            Work::Mix(_) => mix().map(|(name, ..)| name).collect(),
            Work::Upload(_) => {
                let sent = cluster.scratch().join("upload");
                let url = format!("http://{}/sink/verified", running.authority);
                let path = sent.to_string_lossy();
                cluster.client.run("curl", &["-sSf", "-m", "30", "-T", &path, &url])?;
                let back = format!("http://{}/sink/verified", running.authority);
                cluster.client.run("curl", &["-sSf", "-m", "30", "-o", &to.to_string_lossy(), &back])?;
                return same(running, &to, &sent);
            }
        };
        for file in files.drain(..) {
            let url = format!("{}/{file}", self.base(running));
            let version = if matches!(self, Work::Http2(..)) { "--http2" } else { "--http1.1" };
            let path = to.to_string_lossy();
            cluster.client.run("curl", &["-sSfk", version, "-m", "30", "-o", &path, &url])?;
            same(running, &to, &www.join(&file))?;
        }
        Ok(())
    }

    /// Returns how the contender's URLs begin.
    fn base(self, running: &Running) -> String {
        match self.is_secure() {
            true => format!("https://{}", running.secure),
            false => format!("http://{}", running.authority),
        }
    }

    /// Loads a contender for so many seconds; `rate` is the open loop's, in requests a second.
    ///
    /// # Errors
    /// The load generator cannot run, or a process of the contender has ended.
    pub(super) fn run(
        self,
        cluster: &Cluster,
        running: &Running,
        seconds: u32,
        rate: Option<u32>,
    ) -> Result<Sample> {
        let held = match self {
            Work::BesideIdle => Some(Held::open(cluster, &running.authority, IDLE, Protocol::Http1)?),
            Work::Memory(protocol) => return self.memory(cluster, running, protocol),
            _ => None,
        };
        let before = running.processor_ns()?;
        let mut sample = match (self, rate) {
            (Work::OpenLoop, Some(rate)) => self.offer(cluster, running, seconds, rate)?,
            (Work::Handshakes(kind), _) => secure::ask(cluster, running, seconds, kind)?,
            (Work::Http2(file, connections, streams), _) => {
                let url = format!("{}/{file}", self.base(running));
                h2load::run(cluster, &url, seconds, connections, streams)?
            }
            _ => self.wrk(cluster, running, seconds)?,
        };
        let requests = (sample.requests_per_second * f64::from(seconds)).max(1.0);
        let used = running.processor_ns()?.into_iter().zip(before).map(|(after, before)| after - before);
        sample.processor_us =
            running.tiers().map(str::to_owned).zip(used.map(|ns| ns as f64 / 1e3 / requests)).collect();
        if let Some(held) = held {
            held.close()?;
        }
        Ok(sample)
    }

    /// Holds connections, and divides the memory of the contender's processes at the edge by their number.
    fn memory(self, cluster: &Cluster, running: &Running, protocol: Protocol) -> Result<Sample> {
        let authority = if self.is_secure() { &running.secure } else { &running.authority };
        let held = Held::open(cluster, authority, HELD_MANY, protocol)?;
        let resident = running.resident()?;
        held.close()?;
        Ok(Sample { memory: Some(resident as f64 / f64::from(HELD_MANY)), ..Sample::default() })
    }

    fn wrk(self, cluster: &Cluster, running: &Running, seconds: u32) -> Result<Sample> {
        let script = cluster.scratch().join(format!("{}.lua", self.key()));
        let (path, connections, lua) = match self {
            Work::Kept(file, connections)
            | Work::TlsKept(file, connections)
            | Work::Cached(file, connections) => (file, connections, None),
            Work::Each(file, at_once) => {
                (file, at_once, Some("wrk.headers[\"Connection\"] = \"close\"\n".to_owned()))
            }
            Work::Upload(connections) => ("sink/uploaded", connections, Some(upload_script(cluster))),
            // The last three have tools of their own.
            Work::BesideIdle | Work::OpenLoop | Work::Handshakes(_) | Work::Http2(..) | Work::Memory(_) => {
                ("100B", 64, None)
            }
            Work::Mix(connections) => ("", connections, Some(mix_script())),
        };
        let (connections, duration) = (format!("-c{connections}"), format!("-d{seconds}s"));
        let url = format!("{}/{path}", self.base(running));
        let mut arguments = vec!["-t1", &connections, &duration, WRK_PATIENCE, "--latency"];
        let script_path = script.to_string_lossy().into_owned();
        if let Some(lua) = lua {
            fs::write(&script, lua)?;
            arguments.extend(["-s", &script_path]);
        }
        arguments.push(&url);
        let report = cluster.client.run("wrk", &arguments)?;
        Sample::of_wrk(&report).with_context(|| report.clone())
    }

    fn offer(self, cluster: &Cluster, running: &Running, seconds: u32, rate: u32) -> Result<Sample> {
        let tool = own_folder()?.join("csp-bench").to_string_lossy().into_owned();
        let (rate, seconds) = (rate.to_string(), seconds.to_string());
        let connections = OPEN_LOOP_CONNECTIONS.to_string();
        let arguments = ["offer", &running.authority, "/100B", &rate, &seconds, &connections];
        let text = cluster.client.run(&tool, &arguments)?;
        Ok(serde_json::from_str::<Offered>(&text).with_context(|| text.clone())?.into())
    }
}

fn same(running: &Running, got: &Path, wanted: &Path) -> Result<()> {
    let (digest, expected) = (Digest::of_file(got)?, Digest::of_file(wanted)?);
    fs::remove_file(got)?;
    if digest != expected {
        bail!("{} answers other bytes than {}", running.contender.name(), wanted.display());
    }
    Ok(())
}

/// Writes the files that are asked for below `www`, and what is uploaded beside it.
pub(super) fn write_files(www: &Path) -> Result<()> {
    for (name, len) in
        FILES.map(|(name, len)| (name.to_owned(), len)).into_iter().chain(mix().map(|m| (m.0, m.1)))
    {
        fs::write(www.join(name), testing::pattern(len))?;
    }
    let upload = www.with_file_name("upload");
    Ok(fs::write(upload, testing::pattern(UPLOAD_LEN))?)
}

/// Returns the files of SPECweb99's static mix: name, length, and its share of requests (of a million).
fn mix() -> impl Iterator<Item = (String, usize, u32)> {
    CLASSES.iter().enumerate().flat_map(|(class, (share, len))| {
        WITHIN_CLASS
            .iter()
            .enumerate()
            .map(move |(at, within)| (format!("class{class}_{}", at + 1), len * (at + 1), share * within))
    })
}

/// Returns a script for wrk that asks for the mix in a fixed order that looks random.
fn mix_script() -> String {
    let mut lua = String::from("local names, shares = {}, {}\n");
    let mut sum = 0;
    for (name, _, share) in mix() {
        sum += share;
        let _ = writeln!(lua, "table.insert(names, \"/{name}\") table.insert(shares, {sum})");
    }
    // wrk knows its Host header when it calls `init`.
    let _ = write!(
        lua,
        "local requests, last = {{}}, 0\n\
         function init()\n  math.randomseed(1999)\n  for i = 1, 10000 do\n    local drawn, at = math.random({sum}), 1\n    \
         while shares[at] < drawn do at = at + 1 end\n    requests[i] = wrk.format(\"GET\", names[at])\n  end\nend\n\
         function request()\n  last = last % 10000 + 1\n  return requests[last]\nend\n"
    );
    lua
}

fn upload_script(cluster: &Cluster) -> String {
    let path = cluster.scratch().join("upload");
    format!(
        "local file = io.open(\"{}\", \"rb\")\nwrk.method = \"PUT\"\nwrk.body = file:read(\"*a\")\nfile:close()\n",
        path.display()
    )
}

/// Idle connections, each of which has been answered once.
struct Held(Child);

impl Held {
    fn open(cluster: &Cluster, authority: &str, count: u32, protocol: Protocol) -> Result<Self> {
        let tool = own_folder()?.join("csp-bench");
        let ready = cluster.scratch().join("held");
        let _ = fs::remove_file(&ready);
        let mut command = cluster.client.command(&tool.to_string_lossy());
        command.args(["hold", authority, "/100B", &count.to_string()]).arg(&ready).arg(protocol.key());
        let held = Held(command.stdin(Stdio::piped()).spawn()?);
        let began = Instant::now();
        wait_until("idle connections", IDLE_DEADLINE, || ready.exists().then_some(()))
            .with_context(|| format!("{:.1} s", began.elapsed().as_secs_f64()))?;
        Ok(held)
    }

    fn close(mut self) -> Result<()> {
        if let Some(mut input) = self.0.stdin.take() {
            input.write_all(b"\n")?;
        }
        let status = self.0.wait()?;
        if !status.success() {
            bail!("idle connections ended: {status}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_the_mean_of_its_specification() {
        let (bytes, shares) = mix().fold((0.0, 0), |(bytes, shares), (_, len, share)| {
            (bytes + len as f64 * f64::from(share), shares + share)
        });
        assert_eq!(shares, 1_000_000);
        // The paper's simulation uses a mean of 14,384 B for it.
        let mean = bytes / f64::from(shares);
        assert!((14_000.0..15_500.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_work_is_chosen_by_a_key_of_its_own() {
        let mut keys: Vec<String> =
            Work::ALL.iter().chain(&Work::SECURE).chain(&Work::CACHED).map(|work| work.key()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), Work::ALL.len() + Work::SECURE.len() + Work::CACHED.len());
    }
}
