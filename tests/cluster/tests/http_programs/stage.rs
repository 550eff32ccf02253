//! The cluster, its policy and the rows of the table.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};
use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::{SERVING_DEADLINE, pattern};
use csp_cluster::{Cluster, San, Tier, VIP, testing, wait_until};

/// HTTP/1.1, and HTTP/2 by prior knowledge.
pub const WEB: u16 = 8000;
/// Both by TLS.
pub const SECURE: u16 = 8443;
/// Length of `/big`.
pub const FILE_LEN: usize = 20 << 20;
/// The first port of services with one member each: under the socket filter, and plain.
pub const OF_MEMBERS: u16 = 9100;
/// The certificate's name.
const NAME: &str = "www.csp.test";

/// A line of the table.
#[derive(Debug)]
pub struct Row {
    what: String,
    result: Result<String>,
}

impl Row {
    /// Whether it is as it should be.
    pub const fn is_well(&self) -> bool {
        self.result.is_ok()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match &self.result {
            Ok(text) => text.trim().to_owned(),
            Err(error) => format!("FAILS: {error:#}"),
        };
        write!(f, "| {} | {} |", self.what, text.replace('\n', "; "))
    }
}

/// A program that answers requests and writes a line for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Whether it is no program under the socket filter, but a plain server on the clients' host.
    pub is_plain: bool,
    at: u16,
}

impl Member {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Member> {
        let of = |is_plain| {
            let member = move |(at, name)| Member { name, is_plain, at };
            (0..).zip(["nginx", "apache", "node", "gunicorn"]).map(member)
        };
        of(false).chain(of(true))
    }

    /// Its name among services.
    pub fn service(&self) -> String {
        format!("{}-{}", self.name, if self.is_plain { "plain" } else { "filter" })
    }

    /// The port at which it listens.
    pub const fn port(&self) -> u16 {
        if self.is_plain { 18_100 + self.at } else { 8100 + self.at }
    }

    /// The port of the VIP that leads to it.
    pub const fn front(&self) -> u16 {
        OF_MEMBERS + self.at + if self.is_plain { 10 } else { 0 }
    }

    /// As it stands in records of requests.
    pub fn server(&self) -> String {
        if self.is_plain {
            format!("{CLIENT_ADDRESS}:{}", self.port())
        } else {
            format!("an-1:{}", self.port())
        }
    }
}

fn policy() -> String {
    let routes = "
      h2c: true
      routes:
      - {name: upload, path: {prefix: /upload}, rewrite: {prefix: /}, to: [{service: upload}]}
      - {name: ws, path: {prefix: /ws}, upgrade: true, to: [{service: ws}]}
      - {name: node, path: {prefix: /node}, to: [{service: node-filter}]}
      - {name: web, to: [{service: web}]}
";
    let secure = routes.replace("      h2c: true\n", "");
    let members: String = Member::all()
        .map(|member| {
            let (name, port, front) = (member.service(), member.port(), member.front());
            let of =
                if member.is_plain { format!("address: {CLIENT_ADDRESS}") } else { "node: an-1".to_owned() };
            format!(
                "  - {{name: {name}, pool: [{{{of}, port: {port}}}]}}
  - name: to-{name}
    vip: {VIP}
    port: {front}
    http:
      h2c: true
      request_id: true
      routes: [{{name: all, response_headers: [{{set: X-Member, value: {name}}}], to: [{{service: {name}}}]}}]
"
            )
        })
        .collect();
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, pool: [{{node: an-1, port: 80}}]}}
  - {{name: upload, pool: [{{node: an-1, port: 8080}}]}}
  - {{name: ws, pool: [{{node: an-1, port: 8084}}]}}
  - name: front
    vip: {VIP}
    port: {WEB}
    http:{routes}
  - name: secure
    vip: {VIP}
    port: {SECURE}
    tls: {{certificates: [{NAME}]}}
    http:{secure}
{members}
egress:
  - {{address: 10.76.0.101, destinations: [10.76.0.0/24]}}
http_log: {{}}
"
    )
}

/// The cluster with what it serves, and the rows so far.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    rows: Vec<Row>,
}

impl Stage {
    /// Starts it; `None`: this machine cannot.
    pub fn build() -> Option<Stage> {
        let mut cluster = testing::lay_out_over("httpprograms", San::Shm)?;
        let scratch = cluster.scratch().to_owned();
        make_certificate(&scratch.join("tls"));
        fs::write(scratch.join("www/big"), pattern(FILE_LEN)).unwrap();
        fs::write(scratch.join("www/1KiB"), pattern(1 << 10)).unwrap();
        fs::write(scratch.join("www/index.html"), "<!doctype html><title>CSP</title>").unwrap();
        let conf = scratch.join("nginx.conf");
        let logged = format!(
            "types {{ text/html html; image/svg+xml svg; }}\n  log_format web '$request_uri $status';\n  access_log {}/web.log web;",
            scratch.display()
        );
        let text = fs::read_to_string(&conf).unwrap().replace("access_log off;", &logged);
        fs::write(&conf, text).unwrap();
        cluster.start_daemons().unwrap();
        cluster.start_nginx().unwrap();
        cluster.start_upload().unwrap();
        let mut stage = Stage { cluster, rows: Vec::new() };
        let websocket = stage.write("ws_server.py", include_str!("../../apps/http/ws_server.py"));
        stage.cluster.run_accelerated("ws", "/usr/bin/python3", &[&websocket, "8084"]).unwrap();
        for member in Member::all() {
            super::smuggling::start(&mut stage, member).unwrap();
        }
        let file = stage.write("http.yaml", &policy());
        stage.cluster.cspctl(&["policy", "apply", &file]).unwrap();
        stage.wait_served();
        Some(stage)
    }

    fn wait_served(&self) {
        let mut urls = vec![self.url(false, "/1KiB"), self.url(true, "/1KiB")];
        urls.extend(Member::all().map(|member| format!("http://{VIP}:{}/ready", member.front())));
        for url in urls {
            let get =
                || self.run("curl", &["-sSk", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", &url]);
            // A member without such a file answers 404.
            let answers = || get().is_ok_and(|status| status == "200" || status == "404").then_some(());
            wait_until(&url, SERVING_DEADLINE, answers)
                .unwrap_or_else(|e| panic!("{e}: {:?}\n{}", get(), self.cluster.all_logs()));
        }
    }

    /// The URL of a path, with or without TLS.
    pub fn url(&self, tls: bool, path: &str) -> String {
        if tls { format!("https://{VIP}:{SECURE}{path}") } else { format!("http://{VIP}:{WEB}{path}") }
    }

    /// The authority's certificate.
    pub fn ca(&self) -> String {
        self.path(&format!("tls/{NAME}.pem"))
    }

    /// A file of the scratch folder.
    pub fn path(&self, name: &str) -> String {
        self.cluster.scratch().join(name).to_string_lossy().into_owned()
    }

    /// Writes a file of the scratch folder; returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs a program on the clients' host; returns what it prints.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self.output(program, arguments)?;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let tail: Vec<&str> = text.lines().rev().take(12).collect();
            bail!("{program}: {}: {}", output.status, tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        Ok(text)
    }

    /// Runs a program on the clients' host, for two minutes at most.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        let mut all = vec!["-k", "5", "120", program];
        all.extend_from_slice(arguments);
        self.cluster.client.output("timeout", &all)
    }

    /// Adds a row to the table.
    pub fn row(&mut self, what: impl Into<String>, result: Result<String>) {
        let row = Row { what: what.into(), result };
        println!("{row}");
        self.rows.push(row);
    }

    /// Stops the cluster; returns the rows.
    pub fn end(mut self) -> Vec<Row> {
        let casualties = self.cluster.casualties();
        let lost = self.cluster.metric(Tier::ProxyNode, "csp_http_log_lost_total", "");
        let well = if casualties.is_empty() {
            Ok(format!("{:?} records lost", lost.ok()))
        } else {
            Err(anyhow::anyhow!(casualties))
        };
        self.row("daemons and programs live", well);
        let stopped = self.cluster.stop().map(|()| String::new());
        self.row("daemons stop", stopped);
        self.rows
    }
}

/// Makes a certificate that signs itself and names the VIP, so that clients need no resolver.
fn make_certificate(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let [chain, key] = ["pem", "key"].map(|suffix| folder.join(format!("{NAME}.{suffix}")));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=test", "-newkey"])
        .args(testing::P256);
    openssl.args(["-addext", &format!("subjectAltName=DNS:{NAME},IP:{VIP}")]);
    let output = openssl.arg("-out").arg(&chain).arg("-keyout").arg(&key).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The number in front of `unit` in a program's output.
pub fn number_before(text: &str, unit: &str) -> Result<u64> {
    let at = text.find(unit).with_context(|| format!("no {unit:?} in {text}"))?;
    let word = text[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    word.parse().with_context(|| format!("no number before {unit:?} in {text}"))
}
