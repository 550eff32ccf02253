//! Events by webhook and syslog: receivers that fail, hang, redirect, refuse and are away; the receiver of
//! docs/operations/events.md as it stands there; another management node that goes on.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "waits for programs")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use csp_api::events::{Page, What};
use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Authority, Timestamp};
use csp_control::NodeRecord;
use csp_daemon::Events;
use csp_identity::{CA, IdentityRole};
use csp_types::Role;
use rustix::process::Signal;
use support::{Mgmt, SOON, Scratch, eventually, free_address};

/// What a receiver does with a request.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Takes,
    Fails(u16),
    Redirects,
    Hangs,
    /// 413 for more than so many events.
    Large(usize),
    /// 422 for bodies with this generation.
    Refuses(u64),
}

#[derive(Default)]
struct Seen {
    /// What to do, in order; then everything is taken.
    script: Vec<Answer>,
    always: Option<Answer>,
    requests: usize,
    pages: Vec<Page>,
    ids: Vec<String>,
    elsewhere: usize,
}

#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Seen>>);

impl Receiver {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("nobody panics with it")
    }

    async fn start(script: &[Answer]) -> (Receiver, String) {
        let receiver = Receiver::default();
        receiver.seen().script = script.iter().rev().copied().collect();
        let (one, other) = (receiver.clone(), receiver.clone());
        let router = Router::new()
            .route(
                "/hook",
                post(async move |headers: HeaderMap, body: Bytes| one.take(&headers, &body).await),
            )
            .route("/elsewhere", post(async move || other.seen().elsewhere += 1));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, url)
    }

    async fn take(&self, headers: &HeaderMap, body: &Bytes) -> Response {
        let page: Page = serde_json::from_slice(body).expect("a page of events");
        let answer = {
            let mut seen = self.seen();
            seen.requests += 1;
            seen.script.pop().or(seen.always).unwrap_or(Answer::Takes)
        };
        let has = |wanted: u64| page.events.iter().any(|event| event.fields["generation"] == wanted);
        match answer {
            Answer::Fails(status) => StatusCode::from_u16(status).expect("a status").into_response(),
            Answer::Redirects => {
                (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response()
            }
            Answer::Hangs => std::future::pending().await,
            Answer::Large(most) if page.events.len() > most => StatusCode::PAYLOAD_TOO_LARGE.into_response(),
            Answer::Refuses(wanted) if has(wanted) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            _ => {
                let mut seen = self.seen();
                seen.pages.push(page);
                seen.ids.push(headers["webhook-id"].to_str().expect("text").to_owned());
                StatusCode::NO_CONTENT.into_response()
            }
        }
    }

    /// The generations that arrived, in order, and what was missed.
    fn got(&self) -> (Vec<u64>, u64) {
        let seen = self.seen();
        let events = seen.pages.iter().flat_map(|page| &page.events);
        let generations = events.filter_map(|event| event.fields["generation"].as_u64()).collect();
        (generations, seen.pages.iter().map(|page| page.missed).sum())
    }
}

fn section(url: &str) -> String {
    format!("events: {{webhooks: [{{name: hook, url: \"{url}\", kinds: [policy_staged_here]}}]}}\n")
}

fn recording(to: &[&Mgmt]) -> Events {
    let record = NodeRecord::new("pn-9".parse().expect("an id"), Role::ProxyNode, String::new());
    let events = Events::of(&record);
    tokio::spawn(csp_daemon::events::push(events.clone(), record.id, support::membership(to), None));
    events
}

fn record(events: &Events, generations: std::ops::RangeInclusive<u64>) {
    generations.for_each(|generation| events.record(&What::PolicyStagedHere { generation }));
}

/// Waits until the outlet has begun: what arrives before is not for it.
async fn begun(mgmt: &Mgmt) {
    let etcd = csp_control::EtcdAccess::bare(format!("http://{}", mgmt.etcd));
    let client = csp_control::EtcdClient::connect(&etcd).await.expect("a client");
    eventually("a place in etcd", async || client.outlet_place("hook").await.ok().flatten()).await;
}

async fn metric(mgmt: &Mgmt, name: &str) -> Option<f64> {
    let metrics = mgmt.get("/metrics").await?;
    let line = metrics.as_str()?.lines().find(|line| line.starts_with(name))?.to_owned();
    line.split(' ').nth(1)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_in_all_ways_gets_each_event_in_order() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let script = [
        Answer::Fails(500),
        Answer::Redirects,
        Answer::Hangs,
        Answer::Large(10),
        Answer::Large(10),
        Answer::Refuses(7),
    ];
    let (receiver, url) = Receiver::start(&script).await;
    let mgmt = Mgmt::start_with(&section(&url)).await;
    begun(&mgmt).await;
    let events = recording(&[&mgmt]);
    record(&events, 1..=120);
    eventually("the outlet is known to fail", async || {
        let ready = mgmt.get("/readyz").await?.to_string();
        ready.contains("events are not taken: no answer within 10 s").then_some(())
    })
    .await;
    assert_eq!(metric(&mgmt, "csp_events_outlet_failing{outlet=\"hook\"}").await, Some(1.0));
    eventually("all events", async || (receiver.got().0.len() >= 120).then_some(())).await;
    let (got, missed) = receiver.got();
    assert_eq!((got, missed), ((1..=120).collect::<Vec<_>>(), 0), "each, in order");
    let seen = {
        let seen = receiver.seen();
        assert_eq!(seen.elsewhere, 0, "redirects are not followed");
        assert!(seen.pages.iter().all(|page| page.events.iter().all(|e| e.kind == *"policy_staged_here")));
        assert_eq!(seen.ids.iter().collect::<BTreeSet<_>>().len(), seen.ids.len());
        seen.requests
    };
    assert!(seen > 6);
    eventually("it is well again", async || {
        (metric(&mgmt, "csp_events_outlet_failing{outlet=\"hook\"}").await? == 0.0).then_some(())
    })
    .await;
    // One event that is never taken does not hold up those after it.
    receiver.seen().always = Some(Answer::Refuses(121));
    record(&events, 121..=123);
    eventually("those after it", async || (receiver.got().0.last() == Some(&123)).then_some(())).await;
    let (got, missed) = receiver.got();
    assert_eq!((&got[120..], missed), (&[122, 123][..], 1), "what is left out is said");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_longer_kept_is_said_in_the_next_body() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let (receiver, url) = Receiver::start(&[]).await;
    receiver.seen().always = Some(Answer::Fails(503));
    let mgmt = Mgmt::start_with(&section(&url)).await;
    begun(&mgmt).await;
    let events = recording(&[&mgmt]);
    // In parts, so that none is lost on the way to the management node.
    for part in 0..10 {
        record(&events, part * 1_000 + 1..=(part + 1) * 1_000);
        let latest = (part + 1) * 1_000;
        eventually("they arrive", async || {
            let page = mgmt.get("/api/v1/events?kind=policy_staged_here&limit=1").await?;
            (page["events"][0]["fields"]["generation"] == latest).then_some(())
        })
        .await;
    }
    receiver.seen().always = None;
    eventually("the latest", async || (receiver.got().0.last() == Some(&10_000)).then_some(())).await;
    let (got, missed) = receiver.got();
    let first = 10_000 - 8_192 + 1;
    assert_eq!((got, missed), ((first..=10_000).collect::<Vec<_>>(), first - 1));
    assert_eq!(metric(&mgmt, "csp_events_outlet_missed_total").await, Some((first - 1) as f64));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_where_the_former_was() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let (receiver, url) = Receiver::start(&[]).await;
    let first = Mgmt::start_with(&section(&url)).await;
    begun(&first).await;
    let second = Mgmt::join_with(&first, "mgmt-2", &section(&url)).await;
    let events = recording(&[&first, &second]);
    record(&events, 1..=50);
    eventually("the first ones", async || (receiver.got().0.len() >= 50).then_some(())).await;
    assert_eq!(receiver.got().0, (1..=50).collect::<Vec<_>>(), "one node sends");
    // Its etcd runs on.
    first.signal(Signal::STOP);
    record(&events, 51..=80);
    eventually("those after it", async || (receiver.got().0.last() == Some(&80)).then_some(())).await;
    first.signal(Signal::CONT);
    let (got, missed) = receiver.got();
    let once: BTreeSet<u64> = got.iter().copied().collect();
    assert_eq!((once.into_iter().collect::<Vec<_>>(), missed), ((1..=80).collect(), 0), "at least once");
}

/// Debian's interpreter.
const PYTHON: &str = "/usr/bin/python3";

/// The receiver in the documentation; with TLS if there is an identity for it.
fn program(identity: Option<&Path>) -> String {
    let page = include_str!("../../docs/operations/events.md");
    let programs = page.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    let program = programs.into_iter().find(|program| program.contains("webhook-signature"));
    let program = program.expect("a receiver in the page");
    let Some(folder) = identity else { return program.to_owned() };
    let folder = folder.display();
    let wrap = format!(
        "import ssl; tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); \
         tls.load_cert_chain('{folder}/certificate.pem', '{folder}/key.pem'); \
         server.socket = tls.wrap_socket(server.socket, server_side=True)\nserver.serve_forever()"
    );
    let wrapped = program.replace("server.serve_forever()", &wrap);
    assert_ne!(wrapped, program);
    wrapped
}

struct Program(Child, mpsc::Receiver<String>);

impl Program {
    fn start(port: u16, secret: &Path, identity: Option<&Path>) -> Program {
        let mut command = Command::new(PYTHON);
        command.args(["-c", &program(identity), &port.to_string()]).arg(secret).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        let (lines, got) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| _ = lines.send(line));
        });
        Program(child, got)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn secret(scratch: &Scratch, name: &str, text: &str, mode: u32) -> PathBuf {
    let file = scratch.file(name, text);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("a mode");
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_of_the_documentation_checks_signatures_over_tls() {
    if !csp_support::installed("etcd", "etcd-server") || !Path::new(PYTHON).exists() {
        return;
    }
    let files = Scratch::new();
    Authority::create(
        &files.0.join("pki"),
        "demo".parse().expect("a name"),
        AUTHORITY_LIFETIME_DEFAULT,
        Timestamp::now(),
    )
    .expect("an authority");
    let identity = support::identities::issue(&files, IdentityRole::ProxyNode, "hook", None);
    let good = secret(&files, "good", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 0o600);
    let bad = secret(&files, "bad", "whsec_AAAQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 0o600);
    let (good_at, bad_at, plain_at) = (free_address(), free_address(), free_address());
    let receives = Program::start(good_at.port(), &good, Some(&identity));
    let refuses = Program::start(bad_at.port(), &bad, Some(&identity));
    let plain = Program::start(plain_at.port(), &good, None);
    let ca = files.0.join("pki").join(CA);
    let hook = |name: &str, url: String| {
        let (secret, ca) = (good.display(), ca.display());
        format!(
            "{{name: {name}, url: \"{url}\", secret_file: {secret}, ca_file: {ca}, min_severity: warning}}"
        )
    };
    let plain_url = secret(&files, "plain-url", &format!("http://{plain_at}/events\n"), 0o600);
    let list = [
        hook("hook", format!("https://{good_at}/events")),
        hook("bad", format!("https://{bad_at}/events")),
        hook("plain", format!("http://{plain_at}/events")).replace(
            &format!("url: \"http://{plain_at}/events\""),
            &format!("url_file: {}", plain_url.display()),
        ),
        // Its certificate is not of the authorities that the system trusts.
        format!("{{name: stranger, url: \"https://{good_at}/events\"}}"),
    ];
    let mgmt = Mgmt::start_with(&format!("events: {{webhooks: [{}]}}\n", list.join(", "))).await;
    begun(&mgmt).await;
    let events = recording(&[&mgmt]);
    let down = |reason: &str| What::ServerDown {
        service: "web".into(),
        server: "10.0.0.1:80".into(),
        reason: reason.into(),
    };
    events.record(&What::PolicyStagedHere { generation: 1 });
    events.record(&down("refused"));
    for program in [&receives, &plain] {
        let line = program.1.recv_timeout(SOON).expect("an event");
        assert_eq!(line, "pn-9 2 server 10.0.0.1:80 of service web is down: refused");
    }
    for (name, words) in [("bad", "status 401"), ("stranger", "certificate")] {
        let condition = eventually("a receiver that is not well", async || {
            let ready = mgmt.get("/readyz").await?;
            let all = ready["conditions"].as_array()?.clone();
            let of = all.into_iter().find(|c| c["name"] == format!("outlet-{name}"))?;
            (of["state"] == "degraded").then_some(of)
        })
        .await;
        assert!(condition["reason"].to_string().contains(words), "{condition}");
    }
    assert!(refuses.1.recv_timeout(Duration::ZERO).is_err());
}

/// The next message that a socket gets.
async fn message(socket: &tokio::net::UnixDatagram) -> String {
    let mut room = vec![0; 16 << 10];
    let len = tokio::time::timeout(SOON, socket.recv(&mut room)).await.expect("in time").expect("a message");
    String::from_utf8(room[..len].to_vec()).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_syslog_gets_each_event_with_its_fields_though_it_was_away() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let files = Scratch::new();
    let path = files.0.join("log");
    let receiver = tokio::net::UnixDatagram::bind(&path).expect("a socket");
    let section = format!(
        "events: {{syslog: {{to: {}, facility: local0, kinds: [server_down, policy_staged_here]}}}}\n",
        path.display()
    );
    let mgmt = Mgmt::start_with(&section).await;
    let etcd = csp_control::EtcdAccess::bare(format!("http://{}", mgmt.etcd));
    let client = csp_control::EtcdClient::connect(&etcd).await.expect("a client");
    eventually("a place in etcd", async || client.outlet_place("syslog").await.ok().flatten()).await;
    let events = recording(&[&mgmt]);
    events.record(&What::ServerDown {
        service: "web".into(),
        server: "10.0.0.1:80".into(),
        reason: "closed\n<0>1 - forged \"quoted\" \\ ]".into(),
    });
    let first = message(&receiver).await;
    println!("{first}");
    assert!(first.starts_with("<132>1 20"), "{first}");
    let (_, rest) =
        first.split_once("Z pn-9 csp - server_down [csp@32473 origin=\"pn-9\" ").expect("a header");
    let data = r#"sequence="1" object="server/web/10.0.0.1:80" reason="closed <0>1 - forged \"quoted\" \\ \]" server="10.0.0.1:80" service="web"] server 10.0.0.1:80 of service web is down: closed <0>1 - forged "quoted" \ ]"#;
    assert!(rest.ends_with(data), "{first}");
    // Away, and back: at least once, in order.
    drop(receiver);
    std::fs::remove_file(&path).expect("it was there");
    record(&events, 1..=250);
    eventually("it fails", async || {
        (metric(&mgmt, "csp_events_outlet_failures_total{outlet=\"syslog\"}").await? >= 1.0).then_some(())
    })
    .await;
    let receiver = tokio::net::UnixDatagram::bind(&path).expect("a socket");
    let mut last = 0;
    while last < 250 {
        let message = message(&receiver).await;
        let generation = message.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        assert!(generation <= last + 1, "{message} after {last}");
        last = last.max(generation);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_webhook_is_said_before_the_daemon_runs() {
    let files = Scratch::new();
    let readable = secret(&files, "readable", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", 0o644);
    for (section, words) in [
        ("{name: A, url: \"http://x/\"}".to_owned(), "events.webhooks[0].name: \"A\" is no name"),
        ("{name: a, url: \"ftp://secret/\"}".to_owned(), "events.webhooks[0].url: is no URL of HTTP"),
        ("{name: a}".to_owned(), "allowed is one of both: url, or url_file"),
        (format!("{{name: a, url_file: {}}}", readable.display()), "url_file"),
        (
            "{name: a, url: \"http://x/\"}, {name: a, url: \"http://x/\"}".to_owned(),
            "the name of another outlet",
        ),
        ("{name: a, url: \"http://x/\", kinds: [\"Bad one\"]}".to_owned(), "is no kind of events"),
        ("{name: a, url: \"http://x/\", min_severity: bad}".to_owned(), "min_severity"),
        (
            format!("{{name: a, url: \"http://x/\", secret_file: {}}}", readable.display()),
            "lets others than its owner at it",
        ),
        (
            "{name: a, url: \"https://x/\", ca_file: /dev/null}".to_owned(),
            "ca_file: /dev/null has no certificate",
        ),
    ] {
        let rest =
            format!("etcd: {{endpoints: [\"http://127.0.0.1:1\"]}}\nevents: {{webhooks: [{section}]}}\n");
        let text = support::config_text(&files, "mgmt-1", free_address(), &rest);
        let config = files.file("mgmt.yaml", &text);
        let mut daemon = support::daemon(&config);
        if !section.contains("_file") {
            daemon.arg("--check");
        }
        let ran = support::Ran::of(daemon.output().expect("it runs"));
        assert!(ran.err.contains(words), "{section}: {ran:?}");
        assert!(!ran.err.contains("secret/"), "{ran:?}");
    }
}
