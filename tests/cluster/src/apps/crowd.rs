//! Many connections at once: each HTTP program serves 64, 256 and 1,000 connections behind the whole path,
//! over three SANs, and on kernel TCP with the same configuration.
//!
//! Each load runs for a fixed time, first on one, then on the other. A row fails if CSP has more failures
//! than the kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Row;
use super::apache;
use super::cell::{Cell, Load, Offers, Tally};
use super::hosts::Hosts;
use super::http::PORT;
use super::nginx;
use super::stage::{BESIDE_ADDRESS, Stage};
use crate::client::WRK_PATIENCE;
use crate::cluster::{Far, San, Tier};
use crate::configs::{self, VIP};

const PYTHON: &str = "/usr/bin/python3";
const FILE: &str = "1KiB";
/// The arrangements of the SAN; in the last one processes reach the proxy through their agent.
const SANS: &[San] = &[San::Shm, San::BetweenNodes(Far::Tcp), San::Apart(Far::Tcp)];
/// Time limit of a row's run over one SAN.
const LIMIT: Duration = Duration::from_secs(150);
/// Length of a load in seconds, and its length in a quick run.
const SECONDS: u64 = 3;
const QUICK_SECONDS: u64 = 2;

const KEPT: bool = true;
const ANEW: bool = false;
/// Connections at once, and whether they are kept.
const LOADS: [Load; 6] =
    [LOADS_KEPT[0], LOADS_KEPT[1], LOADS_KEPT[2], LOADS_ANEW[0], LOADS_ANEW[1], LOADS_ANEW[2]];
const LOADS_KEPT: [Load; 3] = [Load::of(64, KEPT), Load::of(256, KEPT), Load::of(1000, KEPT)];
/// Used also for programs that close every connection after one response.
const LOADS_ANEW: [Load; 3] = [Load::of(64, ANEW), Load::of(256, ANEW), Load::of(1000, ANEW)];
/// Only as many kept connections as Apache has threads: beyond that it closes them itself, on kernel TCP too.
const LOADS_APACHE: [Load; 4] =
    [Load::of(64, KEPT), Load::of(64, ANEW), Load::of(256, ANEW), Load::of(1000, ANEW)];
const LOADS_LARGE: [Load; 2] = [Load::of(4000, KEPT), Load::of(4000, ANEW)];
/// The only numbers of connections in a quick run.
const QUICK_CONNECTIONS: [u32; 2] = [1000, 4000];

/// The port of HAProxy's backend.
const BACKEND_PORT: u16 = 8001;

/// Starts a program by name, with its path and arguments.
type Start = fn(&mut Stage, &str, &str, &[&str]) -> Result<()>;
/// Returns a program's path and arguments, for a configuration in a folder of its own that serves its `www`.
type Prepare = fn(&Hosts, &str) -> Result<(&'static str, Vec<String>)>;

const fn row(
    name: &'static str,
    program: &'static str,
    version: &'static [&'static str],
    run: fn(&mut Stage) -> Result<String>,
) -> Row {
    let driven = "wrk with 64, 256 and 1,000 connections at once, kept and a connection a request, over shm, tcp and through the \
                  agent; beside kernel TCP";
    Row { name, program, version, driven, ports: &[PORT], sans: SANS, limit: LIMIT, run }
}

pub const ROWS: [Row; 11] = [
    row("crowd-nginx", "nginx, 2 workers", nginx::VERSION, |stage| drive(stage, nginx_4096, &LOADS)),
    Row {
        driven: "wrk with 4,000 connections at once, kept and a connection a request, over shm, tcp and through the agent; \
                 beside kernel TCP",
        ..row("crowd-nginx-4000", "nginx, 2 workers, 8,192 connections each", nginx::VERSION, |stage| {
            drive(stage, nginx_8192, &LOADS_LARGE)
        })
    },
    row("crowd-apache", "Apache httpd, event with 25 threads a process", apache::VERSION, |stage| {
        drive(stage, apache_narrow, &LOADS_APACHE)
    }),
    row("crowd-apache-kept", "Apache httpd, event with 1,000 threads a process", apache::VERSION, |stage| {
        drive(stage, apache_wide, &LOADS_KEPT)
    }),
    row("crowd-lighttpd", "lighttpd", &["/usr/sbin/lighttpd", "-v"], |stage| drive(stage, lighttpd, &LOADS)),
    row("crowd-haproxy", "HAProxy, 2 threads", &["/usr/sbin/haproxy", "-v"], |stage| {
        backends(stage)?;
        drive(stage, haproxy, &LOADS)
    }),
    row("crowd-gunicorn", "gunicorn, 2 workers", &[PYTHON, "-m", "gunicorn", "--version"], |stage| {
        drive(stage, gunicorn, &LOADS_ANEW)
    }),
    row("crowd-http-server", "Python, http.server", &[PYTHON, "--version"], |stage| {
        drive(stage, http_server, &LOADS_ANEW)
    }),
    row("crowd-asyncio", "Python, asyncio", &[PYTHON, "--version"], |stage| drive(stage, asyncio, &LOADS)),
    row("crowd-node", "Node.js, one process", &["node", "--version"], |stage| drive(stage, node, &LOADS)),
    row("crowd-java", "Java, HttpServer with 8 threads", &["java", "-version"], |stage| {
        drive(stage, java, &LOADS)
    }),
];

fn nginx_with(hosts: &Hosts, dir: &str, connections: u32) -> Result<(&'static str, Vec<String>)> {
    let text = configs::nginx(Path::new(dir))
        .replace("worker_connections 1024;", &format!("worker_connections {connections};"));
    Ok(("/usr/sbin/nginx", vec!["-c".to_owned(), written(hosts, dir, "nginx.conf", &text)?]))
}

fn nginx_4096(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    nginx_with(hosts, dir, 4096)
}

fn nginx_8192(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    nginx_with(hosts, dir, 8192)
}

fn apache_with(hosts: &Hosts, dir: &str, sizes: &str) -> Result<(&'static str, Vec<String>)> {
    let conf = written(hosts, dir, "apache.conf", &configs::apache(Path::new(dir), "event", sizes))?;
    Ok(("/usr/sbin/apache2", vec!["-f".to_owned(), conf, "-DFOREGROUND".to_owned()]))
}

fn apache_narrow(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    apache_with(hosts, dir, "StartServers 4\nMaxRequestWorkers 400\n")
}

fn apache_wide(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    apache_with(hosts, dir, &configs::apache_wide(1000))
}

fn lighttpd(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    let text = format!(
        "server.document-root = \"{dir}/www\"\nserver.port = {PORT}\nserver.username = \"www-data\"\n\
         server.groupname = \"www-data\"\nserver.max-keep-alive-requests = 100000\nserver.max-fds = 8192\n\
         server.max-connections = 4096\nmimetype.assign = ( \"\" => \"application/octet-stream\" )\n"
    );
    let conf = written(hosts, dir, "lighttpd.conf", &text)?;
    Ok(("/usr/sbin/lighttpd", vec!["-D".to_owned(), "-f".to_owned(), conf]))
}

/// Starts a plain nginx on the loopback interface of either host, for [`haproxy`].
fn backends(stage: &mut Stage) -> Result<()> {
    let _raised = Descriptors::raise()?;
    for (name, start) in [("backend", Stage::start_plain as Start), ("backend-beside", Stage::start_beside)] {
        let dir = folder(&stage.hosts, name)?;
        let text = configs::nginx(Path::new(&dir))
            .replace("listen 80;", &format!("listen 127.0.0.1:{BACKEND_PORT};"))
            .replace("worker_connections 1024;", "worker_connections 4096;");
        let conf = written(&stage.hosts, &dir, "nginx.conf", &text)?;
        start(stage, name, "/usr/sbin/nginx", &["-c", &conf])?;
    }
    Ok(())
}

fn haproxy(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    let text = format!(
        "global\n  nbthread 2\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 30s\n  timeout client 30s\n  \
         timeout server 30s\n  retries 0\nfrontend web\n  bind 0.0.0.0:{PORT}\n  default_backend inside\n\
         backend inside\n  server inside 127.0.0.1:{BACKEND_PORT}\n"
    );
    let conf = written(hosts, dir, "haproxy.cfg", &text)?;
    Ok(("/usr/sbin/haproxy", vec!["-db".to_owned(), "-f".to_owned(), conf]))
}

fn gunicorn(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    written(hosts, dir, "wsgi.py", include_str!("../../apps/wsgi.py"))?;
    let words = format!("-m gunicorn -w 2 -b 0.0.0.0:{PORT} --chdir {dir} -e WWW={dir}/www wsgi");
    Ok((PYTHON, words.split(' ').map(str::to_owned).collect()))
}

fn http_server(_: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    let words = format!("-m http.server {PORT} --bind 0.0.0.0 --directory {dir}/www");
    Ok((PYTHON, words.split(' ').map(str::to_owned).collect()))
}

/// Returns the arguments of a script that gets port and folder, and `more`.
fn script(hosts: &Hosts, dir: &str, name: &str, text: &str, more: &[&str]) -> Result<Vec<String>> {
    let file = written(hosts, dir, name, text)?;
    let own = [file, PORT.to_string(), format!("{dir}/www")];
    Ok(own.into_iter().chain(more.iter().map(|&word| word.to_owned())).collect())
}

fn asyncio(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    let text = include_str!("../../apps/asyncio_server.py");
    Ok((PYTHON, script(hosts, dir, "asyncio_server.py", text, &[])?))
}

fn node(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    Ok(("node", script(hosts, dir, "cluster.js", include_str!("../../apps/cluster.js"), &["0"])?))
}

fn java(hosts: &Hosts, dir: &str) -> Result<(&'static str, Vec<String>)> {
    let text = include_str!("../../apps/FileServer.java");
    // Java's HttpServer closes kept connections beyond 200, even with a request in transit. It sends a
    // response in two parts, and on kernel TCP the second one waits for a delayed acknowledgement.
    let properties =
        ["-Xmx512m", "-Dsun.net.httpserver.maxIdleConnections=8192", "-Dsun.net.httpserver.nodelay=true"];
    let mut arguments: Vec<String> = properties.map(str::to_owned).into();
    arguments.extend(script(hosts, dir, "FileServer.java", text, &[])?);
    Ok(("java", arguments))
}

fn written(hosts: &Hosts, dir: &str, name: &str, text: &str) -> Result<String> {
    let path = Path::new(dir).join(name);
    hosts.write(&path.to_string_lossy(), text)
}

/// Raises the soft limit of descriptors to the hard one, for programs started afterwards. Dropping restores
/// the soft limit.
struct Descriptors(Rlimit);

impl Descriptors {
    fn raise() -> Result<Self> {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before })
            .context("the limit of descriptors")?;
        Ok(Descriptors(before))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

/// Creates a folder for one of the two sides, with the files that both serve.
fn folder(hosts: &Hosts, name: &str) -> Result<String> {
    let dir = hosts.path(name);
    for sub in ["log", "run"] {
        fs::create_dir_all(Path::new(&dir).join(sub))?;
    }
    symlink(hosts.path("www"), Path::new(&dir).join("www")).context(dir.clone())?;
    Ok(dir)
}

fn drive(stage: &mut Stage, prepare: Prepare, loads: &[Load]) -> Result<String> {
    let _raised = Descriptors::raise()?;
    // A client needs a port for each connection; ports of connections that it closed first are free again
    // after a second.
    let ports =
        "echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range; echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse";
    stage.hosts.client_shell(ports)?;
    let (program, arguments) = prepare(&stage.hosts, &folder(&stage.hosts, "accelerated")?)?;
    stage.start("accelerated", program, &borrowed(&arguments))?;
    let (program, arguments) = prepare(&stage.hosts, &folder(&stage.hosts, "beside")?)?;
    stage.start_beside("beside", program, &borrowed(&arguments))?;
    for address in [VIP, BESIDE_ADDRESS] {
        let url = format!("http://{address}:{PORT}/{FILE}");
        stage.wait(&format!("an answer from {url}"), |hosts| {
            hosts.client("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]).is_ok()
        })?;
    }
    let quick = stage.quick();
    let begin = offers(stage)?;
    let (mut before, mut worse) = (begin.clone(), Vec::new());
    for load in loads.iter().filter(|load| !quick || QUICK_CONNECTIONS.contains(&load.connections)) {
        let seconds = if quick { QUICK_SECONDS } else { SECONDS };
        let csp = wrk(&stage.hosts, VIP, *load, seconds)?;
        let kernel = wrk(&stage.hosts, BESIDE_ADDRESS, *load, seconds)?;
        stage.alive()?;
        let after = offers(stage)?;
        let cell = Cell { san: stage.san(), load: *load, csp, kernel, offers: after.since(&before) };
        if cell.worse() {
            worse.push(cell.to_string());
        }
        stage.cells.push(cell);
        before = after;
    }
    let all = before.since(&begin);
    if !worse.is_empty() {
        bail!("CSP fails more often than the kernel: {}; {all}", worse.join("; "));
    }
    Ok(all.to_string())
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn offers(stage: &Stage) -> Result<Offers> {
    Ok(Offers::read(&stage.ask(Tier::ProxyNode, "/metrics")?))
}

fn wrk(hosts: &Hosts, address: &str, load: Load, seconds: u64) -> Result<Tally> {
    let (connections, duration) = (format!("-c{}", load.connections), format!("-d{seconds}s"));
    let url = format!("http://{address}:{PORT}/{FILE}");
    let mut arguments = vec!["-t1", &connections, &duration, WRK_PATIENCE];
    if !load.kept {
        arguments.extend(["-H", "Connection: close"]);
    }
    arguments.push(&url);
    let report = hosts.client("wrk", &arguments)?;
    Tally::read(&report).with_context(|| format!("wrk printed:\n{report}"))
}
