//! What is compared: nginx reached directly, through the usual proxies, and through this platform.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use csp_cluster::configs::{self, CLIENT_ADDRESS};
use csp_cluster::steady::children;
use csp_cluster::{Cluster, Host, Process, Tier, VIP, cpu_ns_of_all, wait_until};

use super::work::Work;
use super::{Layout, Plan, secure};
use crate::memory::{Resident, kernel_sockets};

const START: Duration = Duration::from_secs(15);
/// The client and the host that it reaches without the platform are joined by a network of their own.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The client and the edge host of contenders that are proxies.
const EDGE_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
/// The application host on the network between hosts.
const APPLICATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// Debian's module of `libnginx-mod-stream`.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// A way to reach nginx.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Contender {
    /// This platform: network node, proxy node, nginx under the socket filter.
    Csp,
    /// This platform in front of an nginx on kernel TCP, as a plain server of a pool.
    CspPlain,
    /// This platform, whose proxy reads HTTP and leads requests to nginx under the socket filter.
    CspHttp,
    /// The same in front of an nginx on kernel TCP.
    CspHttpPlain,
    /// The first, with its cache.
    CspCache,
    /// nginx on kernel TCP, no proxy.
    Direct,
    /// The same with `sendfile off`: what a server costs that has its answers in memory.
    DirectCopied,
    /// HAProxy, mode tcp, one thread.
    HaproxyTcp,
    /// HAProxy, mode tcp, two threads.
    HaproxyTcp2,
    /// HAProxy, mode http, one thread.
    HaproxyHttp,
    /// HAProxy, mode http, two threads.
    HaproxyHttp2,
    /// nginx's stream module, one worker.
    NginxStream,
    /// nginx as a proxy of HTTP with kept connections, one worker.
    NginxHttp,
    /// Varnish, with as many threads as it likes.
    Varnish,
}

impl Contender {
    /// All of them.
    pub const ALL: [Contender; 14] = [
        Contender::Csp,
        Contender::CspPlain,
        Contender::CspHttp,
        Contender::CspHttpPlain,
        Contender::Direct,
        Contender::DirectCopied,
        Contender::HaproxyTcp,
        Contender::HaproxyTcp2,
        Contender::HaproxyHttp,
        Contender::HaproxyHttp2,
        Contender::NginxStream,
        Contender::NginxHttp,
        Contender::CspCache,
        Contender::Varnish,
    ];
    /// Those of the quick bench.
    pub const QUICK: [Contender; 3] = [Contender::Csp, Contender::Direct, Contender::HaproxyTcp];

    /// Returns its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Contender::Csp => "CSP",
            Contender::CspPlain => "CSP, plain server",
            Contender::CspHttp => "CSP HTTP",
            Contender::CspHttpPlain => "CSP HTTP, plain server",
            Contender::Direct => "nginx directly",
            Contender::DirectCopied => "nginx directly, sendfile off",
            Contender::HaproxyTcp => "HAProxy TCP",
            Contender::HaproxyTcp2 => "HAProxy TCP, 2 threads",
            Contender::HaproxyHttp => "HAProxy HTTP",
            Contender::HaproxyHttp2 => "HAProxy HTTP, 2 threads",
            Contender::NginxStream => "nginx stream",
            Contender::NginxHttp => "nginx HTTP",
            Contender::CspCache => "CSP cache",
            Contender::Varnish => "Varnish",
        }
    }

    /// Returns whether a work is asked of it: the second nginx is for answers that are copied.
    #[must_use]
    pub fn does(self, work: Work) -> bool {
        match self {
            Contender::CspCache | Contender::Varnish => work.is_cached(),
            _ if work.is_cached() => false,
            Contender::DirectCopied => work.is_large() && !work.is_secure(),
            _ => self.reads_http() || !(work.is_secure() || work.is_memory()),
        }
    }

    /// Returns whether this is a proxy of HTTP, with TLS and HTTP/2.
    #[must_use]
    pub const fn reads_http(self) -> bool {
        use Contender::{CspHttp, CspHttpPlain, HaproxyHttp, HaproxyHttp2, NginxHttp};
        matches!(self, CspHttp | CspHttpPlain | HaproxyHttp | HaproxyHttp2 | NginxHttp)
    }

    /// Returns whether this is this platform.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        use Contender::{Csp, CspCache, CspHttp, CspHttpPlain, CspPlain};
        matches!(self, Csp | CspPlain | CspHttp | CspHttpPlain | CspCache)
    }

    const fn port(self) -> u16 {
        match self {
            Contender::Csp => 80,
            Contender::CspPlain => 83,
            Contender::Direct => 81,
            Contender::DirectCopied => 82,
            Contender::HaproxyTcp => 91,
            Contender::HaproxyTcp2 => 92,
            Contender::HaproxyHttp => 93,
            Contender::HaproxyHttp2 => 94,
            Contender::NginxStream => 95,
            Contender::NginxHttp => 96,
            Contender::CspHttp => 84,
            Contender::CspHttpPlain => 85,
            Contender::CspCache => 86,
            Contender::Varnish => 97,
        }
    }

    /// Returns the port with TLS.
    const fn secure_port(self) -> u16 {
        self.port() + 400
    }
}

/// A contender that answers.
#[derive(Debug)]
pub struct Running {
    /// Which.
    pub contender: Contender,
    /// Its address and port, as in a URL.
    pub authority: String,
    /// The same with TLS, if it reads HTTP.
    pub secure: String,
    /// Processes whose processor time is a request's, by the tier that they are.
    tiers: Vec<(&'static str, Vec<u32>)>,
    process: Option<Process>,
}

impl Running {
    /// Returns its tiers.
    pub fn tiers(&self) -> impl Iterator<Item = &'static str> {
        self.tiers.iter().map(|(tier, _)| *tier)
    }

    /// Returns the processor time that each tier has used, in nanoseconds.
    ///
    /// # Errors
    /// A process has ended.
    pub fn processor_ns(&self) -> Result<Vec<u64>> {
        let of_tier = |pids: &Vec<u32>| pids.iter().try_fold(0, |sum, pid| Ok(sum + cpu_ns_of_all(*pid)?));
        self.tiers.iter().map(|(_, pids)| of_tier(pids)).collect()
    }

    /// Returns the memory of what stands at the edge, in bytes, with that of the kernel for its sockets.
    ///
    /// # Errors
    /// A process has ended.
    pub fn resident(&self) -> Result<u64> {
        let at_edge = self.tiers.iter().filter(|(tier, _)| !matches!(*tier, "application" | "agent"));
        let mut pids = at_edge.flat_map(|(_, pids)| pids);
        pids.try_fold(0, |sum, pid| Ok(sum + Resident::of(*pid)?.total() + kernel_sockets(*pid)?))
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.stop().map(drop))
    }
}

/// Starts the daemons and every contender, and waits until all answer. Uploads go to the folder that is
/// returned, too.
///
/// # Errors
/// Something does not start or answer.
pub fn start(cluster: &mut Cluster, layout: Layout, plan: &Plan) -> Result<(Vec<Running>, Sink)> {
    let (wanted, sink) = (&plan.contenders, Sink::create()?);
    if let Some(spin) = plan.spin {
        for tier in Tier::ALL.iter().filter(|tier| **tier != Tier::MgmtNode) {
            let path = cluster.config(*tier);
            let text = fs::read_to_string(&path)? + &format!("spin_us: {spin}\n");
            fs::write(path, text)?;
        }
    }
    secure::make_certificate(cluster)?;
    cluster.start_daemons()?;
    let policy = cluster.scratch().join("bench.yaml");
    fs::write(&policy, policy_text())?;
    cluster.cspctl(&["policy", "apply", &policy.to_string_lossy()])?;
    join(cluster, layout)?;
    let conf = nginx_conf(cluster.scratch(), &sink, Contender::Csp)?;
    let spin = plan.spin.map_or("auto".to_owned(), |us| us.to_string());
    let (variable, conf) = (format!("CSP_SPIN_US={spin}"), conf.to_string_lossy().into_owned());
    cluster.run_accelerated("nginx", "/usr/bin/env", &[&variable, "nginx", "-c", &conf])?;
    let mut all = vec![accelerated(cluster, Contender::Csp)?];
    // Proxies lead to this one.
    let direct = plain(cluster, &sink, Contender::Direct)?;
    let server = direct.tiers.clone();
    all.push(direct);
    // The platform leads to this one.
    let behind = match wanted.iter().any(|one| matches!(one, Contender::CspPlain | Contender::CspHttpPlain)) {
        true => Some(behind(cluster, &sink)?),
        false => None,
    };
    for contender in wanted.iter().filter(|one| !matches!(one, Contender::Csp | Contender::Direct)) {
        match contender {
            Contender::DirectCopied => all.push(plain(cluster, &sink, *contender)?),
            Contender::CspPlain => {}
            Contender::CspHttp | Contender::CspCache => all.push(accelerated(cluster, *contender)?),
            Contender::CspHttpPlain => {
                let tiers = behind.as_ref().map(|one| one.tiers.clone()).unwrap_or_default();
                let [authority, secure] =
                    [contender.port(), contender.secure_port()].map(|port| format!("{VIP}:{port}"));
                all.push(Running { contender: *contender, authority, secure, tiers, process: None });
            }
            Contender::NginxStream if !Path::new(STREAM_MODULE).exists() => {
                eprintln!("nginx's stream module is not installed (libnginx-mod-stream): left out");
            }
            _ => all.push(proxy(cluster, layout, *contender, server.clone())?),
        }
    }
    all.extend(behind);
    for running in &all {
        let url = format!("http://{}/100B", running.authority);
        let said = || running.process.as_ref().map(|process| process.log_tail(5)).unwrap_or_default();
        wait_until(&url, START, || cluster.answers(&url).then_some(())).with_context(said)?;
    }
    Ok((all, sink))
}

/// Returns the host of contenders that are proxies: the servers' own, or the one at the edge.
fn proxies_host(cluster: &Cluster, layout: Layout) -> &Host {
    match layout {
        Layout::OneHost => cluster.host(Tier::AppNode),
        Layout::Edge | Layout::Apart => cluster.host(Tier::ProxyNode),
    }
}

fn join(cluster: &Cluster, layout: Layout) -> Result<()> {
    let pair = |name: &str, host: &Host, near: Ipv4Addr, far: Ipv4Addr| {
        cluster.client.join(name, host, name)?;
        cluster.client.address(name, &format!("{near}/24"))?;
        host.address(name, &format!("{far}/24"))
    };
    pair("direct0", cluster.host(Tier::AppNode), CLIENT, SERVER)?;
    pair("edge0", proxies_host(cluster, layout), EDGE_CLIENT, EDGE)
}

/// A folder in memory for what is uploaded, removed when dropped.
#[derive(Debug)]
pub struct Sink(PathBuf);

impl Sink {
    fn create() -> Result<Self> {
        let sink = Sink(PathBuf::from(format!("/dev/shm/csp-bench-{}", std::process::id())));
        fs::create_dir_all(&sink.0).with_context(|| sink.0.display().to_string())?;
        fs::set_permissions(&sink.0, fs::Permissions::from_mode(0o777))?;
        Ok(sink)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes nginx's configuration: one worker, and a place for uploads in memory.
fn nginx_conf(scratch: &Path, sink: &Sink, of: Contender) -> Result<PathBuf> {
    let (port, dir, memory) = (of.port(), scratch.display(), sink.0.display());
    let conf = scratch.join(format!("nginx-{port}.conf"));
    let uploads = format!(
        "location /sink/ {{ alias {memory}/; dav_methods PUT; client_max_body_size 64m; client_body_temp_path {memory}/{port}; }}"
    );
    let text = csp_cluster::nginx_configuration(scratch)
        .replace("worker_processes 2;", "worker_processes 1;\nworker_rlimit_nofile 20000;")
        .replace("worker_connections 1024;", "worker_connections 10000;")
        .replace("keepalive_requests 100000;", "keepalive_requests 100000000;")
        .replace("listen 80;", &format!("listen {port} backlog=4096;\n    {uploads}"))
        .replace(&format!("{dir}/nginx.pid"), &format!("{dir}/nginx-{port}.pid"));
    let text = match of {
        Contender::DirectCopied => text.replace("sendfile on;", "sendfile off;"),
        _ => text,
    };
    fs::write(&conf, text)?;
    Ok(conf)
}

fn worker_of(master: u32) -> Result<u32> {
    wait_until("nginx's worker", START, || children(master, "nginx").first().copied())
}

/// The policy of all works: bytes and HTTP, to nginx under the socket filter and to the one on the LAN.
fn policy_text() -> String {
    let [plain, http, http_plain] =
        [Contender::CspPlain, Contender::CspHttp, Contender::CspHttpPlain].map(Contender::port);
    let front = |name: &str, port: u16, to: &str, cache: &str| {
        let http = format!("http: {{routes: [{{name: all, to: [{{service: {to}}}]{cache}}}]}}");
        let secure = port + 400;
        format!(
            "  - {{name: {name}, vip: {VIP}, port: {port}, {http}}}\n  - {{name: {name}-tls, vip: {VIP}, port: {secure}, \
             tls: {{certificates: [{}]}}, {http}}}\n",
            secure::NAME
        )
    };
    let services = format!(
        "services:\n  - {{name: behind, vip: {VIP}, port: {plain}, pool: [{{address: {CLIENT_ADDRESS}, port: {plain}}}]}}\n{}{}{}",
        front("http", http, "web", ""),
        front("http-plain", http_plain, "behind", ""),
        front("cached", Contender::CspCache.port(), "web", ", cache: {default_ttl_s: 3600}")
    );
    configs::policy().replacen("services:\n", &services, 1)
}

fn accelerated(cluster: &mut Cluster, contender: Contender) -> Result<Running> {
    let master = cluster.program("nginx").map(|process| process.pid()).context("nginx is not there")?;
    let mut tiers = vec![("application", vec![worker_of(master)?])];
    let separate = [("network node", Tier::NetworkNode), ("proxy", Tier::ProxyNode)];
    let edge = [("edge", Tier::NetworkNode)];
    let is_edge = cluster.daemon(Tier::ProxyNode).is_none();
    for (name, tier) in if is_edge { &edge[..] } else { &separate[..] }.iter().copied() {
        let pid = cluster.daemon(tier).map(|process| process.pid()).context("a daemon is not there")?;
        tiers.push((name, vec![pid]));
    }
    let agent = cluster.daemon(Tier::AppNode).map(|process| process.pid()).context("no agent")?;
    tiers.push(("agent", vec![agent]));
    let [authority, secure] = [contender.port(), contender.secure_port()].map(|port| format!("{VIP}:{port}"));
    Ok(Running { contender, authority, secure, tiers, process: None })
}

/// Starts an nginx on kernel TCP.
fn plain(cluster: &Cluster, sink: &Sink, contender: Contender) -> Result<Running> {
    let port = contender.port();
    let conf = nginx_conf(cluster.scratch(), sink, contender)?;
    let mut command = cluster.host(Tier::AppNode).command("nginx");
    command.arg("-c").arg(conf);
    let process = Process::spawn("nginx", command, &cluster.scratch().join(format!("log/nginx-{port}.log")))?;
    let tiers = vec![("application", vec![worker_of(process.pid())?])];
    let (authority, secure) = (format!("{SERVER}:{port}"), String::new());
    Ok(Running { contender, authority, secure, tiers, process: Some(process) })
}

/// Starts an nginx on kernel TCP on the LAN, that is on the client's host, which the platform serves.
fn behind(cluster: &mut Cluster, sink: &Sink) -> Result<Running> {
    let contender = Contender::CspPlain;
    let port = contender.port();
    let conf = nginx_conf(cluster.scratch(), sink, contender)?;
    let mut command = cluster.client.command("nginx");
    command.arg("-c").arg(conf);
    let process = Process::spawn("nginx", command, &cluster.scratch().join(format!("log/nginx-{port}.log")))?;
    let of_platform = accelerated(cluster, contender)?.tiers.into_iter();
    let mut tiers = vec![("application", vec![worker_of(process.pid())?])];
    tiers.extend(of_platform.filter(|(tier, _)| !matches!(*tier, "application" | "agent")));
    let (authority, secure) = (format!("{VIP}:{port}"), String::new());
    Ok(Running { contender, authority, secure, tiers, process: Some(process) })
}

/// Starts a proxy in front of the nginx on kernel TCP, whose tier is the first of its own.
fn proxy(
    cluster: &Cluster,
    layout: Layout,
    contender: Contender,
    mut tiers: Vec<(&'static str, Vec<u32>)>,
) -> Result<Running> {
    let (host, port) = (proxies_host(cluster, layout), contender.port());
    let server = match layout {
        Layout::OneHost => Ipv4Addr::LOCALHOST,
        Layout::Edge | Layout::Apart => APPLICATION,
    };
    let server = format!("{server}:{}", Contender::Direct.port());
    let conf = cluster.scratch().join(format!("proxy-{port}.conf"));
    let (program, text) = match contender {
        Contender::NginxStream => ("nginx", stream_conf(cluster.scratch(), port, &server)),
        Contender::NginxHttp => ("nginx", http_conf(cluster.scratch(), port, &server)),
        Contender::Varnish => ("varnishd", String::new()),
        _ => ("haproxy", haproxy_conf(cluster.scratch(), contender, &server)),
    };
    fs::write(&conf, text)?;
    let mut command = host.command(program);
    match program {
        "nginx" => command.arg("-c").arg(&conf),
        "varnishd" => varnish(&mut command, cluster.scratch(), &server),
        _ => command.arg("-db").arg("-f").arg(&conf),
    };
    let log = cluster.scratch().join(format!("log/proxy-{port}.log"));
    let process = Process::spawn(contender.name(), command, &log)?;
    let pid = match program {
        "nginx" => worker_of(process.pid())?,
        "varnishd" => {
            wait_until("Varnish's child", START, || children(process.pid(), "cache-main").first().copied())?
        }
        _ => process.pid(),
    };
    tiers.push(("proxy", vec![pid]));
    let [authority, secure] = [port, contender.secure_port()].map(|port| format!("{EDGE}:{port}"));
    Ok(Running { contender, authority, secure, tiers, process: Some(process) })
}

/// Adds Varnish's arguments: what says nothing of its age is fresh for an hour, as with this platform's
/// cache.
fn varnish<'a>(command: &'a mut Command, scratch: &Path, server: &str) -> &'a mut Command {
    let listen = format!(":{}", Contender::Varnish.port());
    command.args(["-F", "-j", "none", "-a", &listen, "-b", server, "-t", "3600", "-s", "malloc,64m", "-n"]);
    command.arg(scratch.join("varnish"))
}

fn haproxy_conf(scratch: &Path, contender: Contender, server: &str) -> String {
    let port = contender.port();
    let threads = 1 + u8::from(matches!(contender, Contender::HaproxyTcp2 | Contender::HaproxyHttp2));
    let mode = match contender {
        Contender::HaproxyHttp | Contender::HaproxyHttp2 => "http",
        _ => "tcp",
    };
    // Kept-alive connections to the server, as with the others.
    let reuse = if mode == "http" { "  http-reuse always\n" } else { "" };
    let (secure, both) = (contender.secure_port(), scratch.join("haproxy.pem"));
    let bind = match mode {
        "http" => format!("  bind :{secure} backlog 4096 ssl crt {} alpn h2,http/1.1\n", both.display()),
        _ => String::new(),
    };
    format!(
        "global\n  nbthread {threads}\n  maxconn 9500\ndefaults\n  mode {mode}\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\n{reuse}listen web\n  bind :{port} backlog 4096\n{bind}  server one {server}\n"
    )
}

fn stream_conf(scratch: &Path, port: u16, server: &str) -> String {
    let dir = scratch.display();
    format!(
        "load_module {STREAM_MODULE};\nuser www-data;\nworker_processes 1;\ndaemon off;\npid {dir}/stream.pid;\n\
         error_log {dir}/stream-error.log notice;\nevents {{ worker_connections 20000; }}\n\
         stream {{ server {{ listen {port} backlog=4096; proxy_pass {server}; }} }}\n"
    )
}

fn http_conf(scratch: &Path, port: u16, server: &str) -> String {
    let (dir, secure, name) = (scratch.display(), Contender::NginxHttp.secure_port(), secure::NAME);
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {dir}/{kind}-{port}; "))
        .concat();
    format!(
        "user www-data;\nworker_processes 1;\nworker_rlimit_nofile 20000;\ndaemon off;\npid {dir}/http.pid;\n\
         error_log {dir}/http-error.log notice;\nevents {{ worker_connections 19000; }}\n\
         http {{ access_log off; {temporary}keepalive_requests 100000000; client_max_body_size 64m;\n\
         upstream one {{ server {server}; keepalive 128; keepalive_requests 100000000; }}\n\
         ssl_certificate {dir}/tls/{name}.pem; ssl_certificate_key {dir}/tls/{name}.key; ssl_protocols TLSv1.2 TLSv1.3;\n\
         ssl_session_cache shared:tls:10m;\n\
         server {{ listen {port} backlog=4096; listen {secure} ssl http2 backlog=4096; location / {{ proxy_pass http://one; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; proxy_buffering off; proxy_request_buffering off; }} }} }}\n"
    )
}
