//! Requests that two programs read differently: each server sees just the requests that the proxy's log says
//! went to it, told by the id that the proxy gives each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use csp_api::http::HttpRecord;
use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::{VIP, wait_until};
use serde_json::Value;

use super::stage::{Member, Stage};

const PYTHON: &str = "/usr/bin/python3";
/// How long logs may take to be complete.
const SETTLED: Duration = Duration::from_secs(30);

/// Starts a member, with a log of ids.
pub fn start(stage: &mut Stage, member: Member) -> Result<()> {
    let (name, port) = (member.service(), member.port().to_string());
    let log = log_of(stage, member);
    fs::write(&log, "")?;
    // Members change their user.
    fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    let dir = stage.path("");
    let (program, arguments) = match member.name {
        "nginx" => (
            "nginx",
            vec!["-c".to_owned(), stage.write(&format!("{name}.conf"), &nginx(&dir, &name, &port, &log))],
        ),
        "apache" => {
            let conf = stage.write(&format!("{name}.conf"), &apache(&dir, &name, &port, &log));
            ("apache2", vec!["-D".to_owned(), "FOREGROUND".to_owned(), "-f".to_owned(), conf])
        }
        "node" => {
            let script = stage.write("member.js", include_str!("../../apps/http/member.js"));
            ("node", vec![script, port, log])
        }
        _ => {
            stage.write("member.py", include_str!("../../apps/http/member.py"));
            let options = format!(
                "-m gunicorn -w 2 -k gthread --threads 16 --keep-alive 60 -b 0.0.0.0:{port} -e LOG={log} --chdir {dir} member"
            );
            (PYTHON, options.split(' ').map(str::to_owned).collect())
        }
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if member.is_plain {
        let mut command = stage.cluster.client.command(program);
        command.args(&arguments);
        return stage.cluster.spawn(&name, command);
    }
    stage.cluster.run_accelerated(&name, program, &arguments)
}

fn log_of(stage: &Stage, member: Member) -> String {
    stage.path(&format!("seen-{}.log", member.service()))
}

fn nginx(dir: &str, name: &str, port: &str, log: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {dir}/{name}-{kind};\n"))
        .concat();
    format!(
        "user www-data;\nworker_processes 2;\ndaemon off;\npid {dir}/{name}.pid;\nerror_log {dir}/{name}-error.log notice;\n\
         events {{ worker_connections 512; }}\nhttp {{\n  log_format ids '$http_x_request_id $request_method $request_uri $status';\n  \
         access_log {log} ids;\n{temporary}  server {{\n    listen {port};\n    location / {{ return 200 ok; }}\n  }}\n}}\n"
    )
}

fn apache(dir: &str, name: &str, port: &str, log: &str) -> String {
    let load = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    format!(
        "{}{}ServerRoot {dir}\nServerName {VIP}\nDefaultRuntimeDir {dir}/run\nPidFile {dir}/{name}.pid\nErrorLog {dir}/log/{name}.error\n\
         User www-data\nGroup www-data\nListen {port}\nDocumentRoot {dir}/www\nLogFormat \"%{{X-Request-Id}}i %r %>s\" ids\nCustomLog {log} ids\n\
         <Directory {dir}/www>\n  Require all granted\n</Directory>\n",
        load("mpm_event"),
        load("authz_core")
    )
}

/// Requests by id.
type Ids = BTreeMap<String, u32>;

/// The ids of a member's log, and its lines without one.
fn seen(stage: &Stage, member: Member) -> (Ids, Vec<String>) {
    let text = fs::read(log_of(stage, member)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (mut ids, mut others) = (Ids::new(), Vec::new());
    for line in text.lines() {
        let id = line.split(' ').next().unwrap_or_default();
        match id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
            true => *ids.entry(id.to_owned()).or_default() += 1,
            false => others.push(line.to_owned()),
        }
    }
    // gunicorn writes what it cannot read in its own log.
    let own = fs::read(stage.path(&format!("log/{}.log", member.service()))).unwrap_or_default();
    let own = String::from_utf8_lossy(&own).into_owned();
    others.extend(own.lines().filter(|line| line.contains("Invalid")).map(str::to_owned));
    (ids, others)
}

/// The requests that the proxy's log says went to each server.
fn sent(log: &Path) -> BTreeMap<String, Vec<HttpRecord>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let mut all = BTreeMap::<String, Vec<HttpRecord>>::new();
    for record in text.lines().filter_map(|line| serde_json::from_str::<HttpRecord>(line).ok()) {
        all.entry(record.server.to_string()).or_default().push(record);
    }
    all
}

/// Requests that a server refuses before it reads the id: of methods that nginx or Node do not know, and
/// `OPTIONS *` at nginx. Its log has a line without an id for each.
fn is_unread(record: &HttpRecord) -> bool {
    matches!(&*record.method, "get" | "FROB" | "ET") || (&*record.method, &*record.path) == ("OPTIONS", "*")
}

/// Where the member's log and the proxy's differ.
fn differences(records: &[HttpRecord], (ids, others): &(Ids, Vec<String>)) -> Vec<String> {
    let mut found = Vec::new();
    let of_proxy: BTreeMap<&str, &HttpRecord> = records.iter().map(|r| (&*r.request_id, r)).collect();
    for (id, count) in ids {
        match of_proxy.get(id.as_str()) {
            None => found.push(format!("seen, and not in the proxy's log: {id}")),
            Some(record) if *count > record.attempts.into() => {
                found.push(format!("seen {count} times, sent {}: {record:?}", record.attempts));
            }
            Some(_) => {}
        }
    }
    let unseen = of_proxy.iter().filter(|(id, _)| !ids.contains_key(**id));
    let (unread, unseen): (Vec<&HttpRecord>, Vec<&HttpRecord>) =
        unseen.map(|(_, r)| *r).partition(|r| is_unread(r));
    if unread.len() != others.len() {
        let unread: Vec<String> = unread.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
        found.push(format!("without an id the server saw {others:?}, the proxy sent {unread:?}"));
    }
    found.extend(
        unseen.iter().map(|r| {
            format!("not seen: {} {} {} {} {:?}", r.method, r.path, r.status, r.code, r.first_byte_us)
        }),
    );
    found
}

/// Whether the client's answers are those that the corpus asks for: how many of them came of the member.
fn judged(line: &Value, member: Member) -> Result<(), String> {
    let words: Vec<&str> = line["outcome"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let (name, end) = (line["name"].as_str().unwrap(), line["end"].as_str().unwrap());
    let behind = u64::from(name.ends_with("+1"));
    // Node answers methods that it does not know by closing the connection; the proxy, with 502.
    let refuses = member.name == "node" && name.starts_with("method-");
    let (least, most) = match words[..] {
        ["ok"] => (2, 2), // HTTP/2: the one behind it, too
        ["ok", "none", "keep"] if refuses => (behind, behind),
        ["ok", "none", "keep"] => (1 + behind, 1 + behind),
        ["ok", "none", "close"] => (1, 1),
        ["ok", ..] => (0, 4),
        ["body"] => (0, 1),
        // HTTP/2: other streams of the connection go on.
        ["fault"] => (u64::from(line["behind"] == true), u64::from(line["behind"] == true)),
        _ => (0, 0),
    };
    // The rest of a head may still come; so may that of a preface of HTTP/2, which these services speak.
    let may_wait = words[0] == "ok" || matches!(words[0], "truncated-head" | "http2-preface");
    let of_member = line["of_member"].as_u64().unwrap();
    if (least..=most).contains(&of_member) && (may_wait || end != "open") {
        return Ok(());
    }
    Err(format!("{line} (answers of the member: {least} to {most})"))
}

fn drive(stage: &Stage, member: Member, script: &str, arguments: &[&str]) -> Result<(usize, Vec<String>)> {
    let mut all = vec![script, VIP];
    all.extend_from_slice(arguments);
    let said = stage.run(PYTHON, &all)?;
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let faults: Vec<String> = lines.iter().filter_map(|line| judged(line, member).err()).collect();
    if lines.len() < 50 {
        bail!("only {} lines: {said}", lines.len());
    }
    Ok((lines.len(), faults))
}

fn one(stage: &Stage, member: Member, scripts: &[String; 2], files: &[&str]) -> Result<String> {
    let port = member.front().to_string();
    let of_one = [&[&*port], files].concat();
    let (http1, mut faults) = drive(stage, member, &scripts[0], &of_one)?;
    let (http2, more) = drive(stage, member, &scripts[1], &[&port])?;
    faults.extend(more);
    let log = stage.cluster.scratch().join("requests-pn-1.log");
    // Records come at the end of requests, the last ones when their clients are gone.
    let compare = || {
        let records = sent(&log).remove(&member.server()).unwrap_or_default();
        let seen = seen(stage, member);
        (differences(&records, &seen), records.len(), seen.0.values().sum::<u32>() as usize + seen.1.len())
    };
    let _ = wait_until("logs", SETTLED, || compare().0.is_empty().then_some(()));
    let (mut differ, of_proxy, of_member) = compare();
    println!(
        "  {}: {http1} of HTTP/1, {http2} of HTTP/2; proxy {of_proxy}, member {of_member}",
        member.service()
    );
    differ.append(&mut faults);
    if differ.is_empty() {
        return Ok(format!(
            "{} connections; {of_proxy} requests by the proxy's log, {of_member} by the server's",
            http1 + http2
        ));
    }
    bail!("{} differences (proxy {of_proxy}, server {of_member}):\n{}", differ.len(), differ.join("\n"))
}

/// Two requests that no proxy has sent, with an id and without: the comparison finds both.
fn control(stage: &Stage) -> Result<String> {
    let member = Member::all().find(|member| member.is_plain).context("a member")?;
    let url = format!("http://{CLIENT_ADDRESS}:{}/", member.port());
    let differ = |count| {
        let records = sent(&stage.cluster.scratch().join("requests-pn-1.log"))
            .remove(&member.server())
            .unwrap_or_default();
        let found = differences(&records, &seen(stage, member));
        (found.len() == count).then_some(()).with_context(|| format!("{count} differences, not {found:?}"))
    };
    differ(0)?;
    stage.run("curl", &["-sS", &url])?;
    wait_until("the request without an id", SETTLED, || differ(1).ok())?;
    stage.run("curl", &["-sS", "-H", "X-Request-Id: 00112233445566778899aabbccddeeff", &url])?;
    wait_until("the request with an id", SETTLED, || differ(2).ok())?;
    Ok("2 of 2 found".to_owned())
}

/// Every member, with all requests of both versions.
pub fn run(stage: &mut Stage) {
    let scripts = [
        stage.write("corpus1.py", include_str!("../../apps/http/corpus1.py")),
        stage.write("corpus2.py", include_str!("../../apps/http/corpus2.py")),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files =
        [root.join("../../proxy-node/http/tests/corpus/requests.txt"), root.join("apps/http/more.txt")];
    let files = files.map(|file| file.to_string_lossy().into_owned());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    for member in Member::all() {
        let result = one(stage, member, &scripts, &files);
        stage.row(format!("corpus to {}", member.service()), result);
    }
    let result = control(stage);
    stage.row("control: requests past the proxy are differences", result);
}
