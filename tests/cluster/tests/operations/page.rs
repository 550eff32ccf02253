//! The operations page in Chromium on a cluster with two network nodes and three of each other tier: login,
//! live figures, drain and resume, a policy that is applied, a conflict, roll-back, a reader who may not act,
//! requests that fail;
//! axe-core finds nothing wrong with it. `SCREENSHOTS=1` renews those of docs/operations.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_cluster::several::{self, Lans, MGMT_NODE, Several};
use csp_cluster::{Far, Process, San, wait_until};
use serde_json::{Value, json};

use super::browser::{Browser, SOON};

/// Longest screenshot, in bytes.
const SCREENSHOT_LEN_MAX: u64 = 200_000;
/// A wide window, and a telephone.
const WIDE: (u32, u32) = (1280, 900);
const NARROW: (u32, u32) = (360, 800);

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Clients that fetch a page again and again, for figures that move.
fn clients(cluster: &Several) -> Vec<Process> {
    let client = |at: usize| {
        let mut command = cluster.clients[at].command("sh");
        let url = format!("http://{}/", cluster.lans.vip(at));
        let log = cluster.scratch().join(format!("log/fetch-{at}.log"));
        command.args(["-c", "while :; do curl -s -m 2 -o /dev/null $0; sleep 0.1; done", &url]);
        Process::spawn(&format!("fetch-{at}"), command, &log).unwrap()
    };
    (0..cluster.clients.len()).map(client).collect()
}

/// Logs in by a link of cspctl's, as a person does.
fn log_in(cluster: &Several, browser: &Browser, role: &str) {
    let link = cluster.cspctl(&["login", "--role", role]).unwrap();
    browser.open(link.trim()).unwrap();
    browser.click("#agree").unwrap();
    browser.wait("document.getElementById('pulse')?.className === 'pulse live'").unwrap();
    browser.wait(&format!("document.getElementById('session').textContent.includes('{role}')")).unwrap();
}

/// The generation in force.
fn generation(cluster: &Several) -> u64 {
    let view: Value = serde_json::from_str(&cluster.ask(MGMT_NODE, "/api/v1/policy").unwrap()).unwrap();
    view["generation"].as_u64().unwrap()
}

/// The script that ends [`fails`].
const ANSWERS: &str = "window.fetch = window.real";

/// Whether the text box names this generation.
fn replaces(generation: u64) -> String {
    format!("document.getElementById('policy-base').textContent.includes('generation {generation}')")
}

fn says(text: &str) -> String {
    format!("document.getElementById('result').textContent.includes({})", json!(text))
}

/// Puts another time into the policy of the page, and has its differences shown.
fn change_policy(browser: &Browser, from: &str, to: &str) {
    let change = format!(
        "const text = document.getElementById('policy-text');
         text.value = text.value.replace({}, {}); text.dispatchEvent(new Event('input'));",
        json!(from),
        json!(to)
    );
    browser.wait("document.getElementById('policy-text').value.includes('services')").unwrap();
    browser.script(&change).unwrap();
    browser.click("#policy-check").unwrap();
    browser.wait("!document.getElementById('policy-apply').disabled").unwrap();
}

fn drains_and_resumes(cluster: &Several, browser: &Browser) {
    browser.click("[data-act=drain][data-of=pn-2]").unwrap();
    let asked = browser
        .wait("document.getElementById('question').open && document.getElementById('question').textContent");
    let asked = asked.unwrap();
    let asked = asked.as_str().unwrap();
    assert!(
        asked.contains("Drain pn-2?") && asked.contains(&format!("Generation {}", generation(cluster))),
        "{asked}"
    );
    browser.click("#question-cancel").unwrap();
    assert!(!cluster.cspctl(&["nodes"]).unwrap().contains("draining"), "the reader did not agree");

    browser.click("[data-act=drain][data-of=pn-2]").unwrap();
    browser.click("#question-agree").unwrap();
    browser.wait(&says("Drain pn-2: done")).unwrap();
    browser.wait("document.querySelector('[data-act=resume][data-of=pn-2]') !== null").unwrap();
    assert!(cluster.cspctl(&["nodes"]).unwrap().contains("ready, draining"));
    browser.wait("document.querySelector('.topology .node.warn')?.textContent.includes('drains')").unwrap();
    browser.click("[data-act=resume][data-of=pn-2]").unwrap();
    browser.click("#question-agree").unwrap();
    browser.wait(&says("Resume pn-2: done")).unwrap();
    // What others do shows without a reload.
    cluster.cspctl(&["drain", "an-3"]).unwrap();
    browser.wait("document.querySelector('[data-act=resume][data-of=an-3]') !== null").unwrap();
    cluster.cspctl(&["resume", "an-3"]).unwrap();
    browser.wait("document.querySelector('[data-act=drain][data-of=an-3]') !== null").unwrap();
}

fn applies_and_conflicts(cluster: &Several, browser: &Browser) {
    let before = generation(cluster);
    change_policy(browser, "port: 8001", "port: 8091");
    browser.click("#policy-apply").unwrap();
    browser.wait("document.querySelector('#question .diff')?.textContent.includes('+  port: 8091')").unwrap();
    browser.click("#question-agree").unwrap();
    browser.wait(&says(&format!("generation {} is active", before + 1))).unwrap();
    assert_eq!(generation(cluster), before + 1);
    browser.wait(&format!("{} && !edited()", replaces(before + 1))).unwrap();

    // What becomes of a policy cannot be read.
    fails(browser, "wait_s=", 401);
    change_policy(browser, "port: 8091", "port: 8093");
    browser.click("#policy-apply").unwrap();
    browser.click("#question-agree").unwrap();
    browser.wait(&says("It is not known what has become of it")).unwrap();
    browser.script(ANSWERS).unwrap();
    wait_until("the policy", SOON, || (generation(cluster) == before + 2).then_some(())).unwrap();
    browser.wait(&replaces(before + 2)).unwrap();
    discards(browser, "port: 8093");
    browser.wait(&format!("{} && !edited()", replaces(before + 2))).unwrap();
    let others = conflicts(cluster, browser);

    browser.click(&format!("[data-act=rollback][data-of='{before}']")).unwrap();
    browser.click("#question-agree").unwrap();
    browser.wait(&says(&format!("generation {} is active", others + 1))).unwrap();
    let log = cluster.ask(MGMT_NODE, "/api/v1/audit?limit=100").unwrap();
    let log: Value = serde_json::from_str(&log).unwrap();
    let records = log["records"].as_array().unwrap().iter();
    let of_page: Vec<(&Value, &Value)> = records
        .filter(|r| r["by"] == "session" && r["stage"] == "done")
        .map(|r| (&r["method"], &r["status"]))
        .collect();
    let expected =
        [("POST", 202), ("POST", 409), ("POST", 202), ("POST", 202), ("DELETE", 204), ("PUT", 204)];
    assert_eq!(
        of_page,
        expected
            .each_ref()
            .map(|(method, status)| (json!(method), json!(status)))
            .each_ref()
            .map(|(m, s)| (m, s))
    );
}

/// Reloads the policy in force: a changed text is replaced with the reader's consent only.
fn discards(browser: &Browser, changed: &str) {
    let kept = format!(
        "return document.getElementById('policy-text').value.includes({}) && edited()",
        json!(changed)
    );
    for answer in ["#question-cancel", "#question-agree"] {
        assert_eq!(browser.script(&kept).unwrap(), true, "{changed}");
        browser.click("#policy-load").unwrap();
        browser.click(answer).unwrap();
    }
}

/// Another operator applies a policy while this one thinks. Returns its generation.
fn conflicts(cluster: &Several, browser: &Browser) -> u64 {
    change_policy(browser, "port: 8093", "port: 8092");
    browser.click("#policy-apply").unwrap();
    browser.wait("document.getElementById('question').open").unwrap();
    cluster.apply(false).unwrap();
    let others = generation(cluster);
    browser.click("#question-agree").unwrap();
    browser.wait(&says(&format!("generation {others} is in force by now"))).unwrap();
    assert_eq!(generation(cluster), others, "nothing was changed");
    browser.click("[data-act=rebase]").unwrap();
    browser
        .wait(&format!("{} && !document.getElementById('policy-apply').disabled", replaces(others)))
        .unwrap();
    discards(browser, "port: 8092");
    browser.wait(&format!("{} && !edited() && generation() === {others}", replaces(others))).unwrap();
    others
}

/// Requests whose address contains `part` get this status, until [`ANSWERS`].
fn fails(browser: &Browser, part: &str, status: u16) {
    let script = format!(
        "window.real ??= window.fetch;
         window.fetch = (url, options) => String(url).includes({})
           ? Promise.resolve(new Response('{{}}', {{ status: {status} }})) : real(url, options);",
        json!(part)
    );
    browser.script(&script).unwrap();
}

/// What requests that fail do not destroy, or claim.
fn bears_failures(browser: &Browser) {
    fails(browser, "dry_run", 503);
    browser.click("#policy-check").unwrap();
    browser.wait(&says("Show differences: status 503")).unwrap();
    let wrong = "return document.getElementById('policy-diff').textContent.includes('wrong')";
    assert_eq!(browser.script(wrong).unwrap(), false);
    fails(browser, "api/v1/login", 500);
    browser.click("[data-act=logout]").unwrap();
    browser.wait(&says("Not logged out: status 500")).unwrap();
    browser.script(ANSWERS).unwrap();

    browser.script("page.session.role = 'viewer'; refused({ what: 'Drain' }, 403, {})").unwrap();
    browser.wait("operates()").unwrap();
    browser.script("page.offset = 40; refresh()").unwrap();
    browser.wait("page.offset === 0 && document.querySelector('.service') !== null").unwrap();
    browser.script("series.set('service/none', { figures: [] })").unwrap();
    browser.wait("!series.has('service/none')").unwrap();
    let times = "return [8.65e15, Date.now() - 2 * 864e5].map((ms) => timeOf(ms).textContent)";
    let times = browser.script(times).unwrap();
    assert_eq!(times[0], "unknown time");
    assert!(times[1].as_str().unwrap().contains("/20"), "{times}");
}

/// Boxes that scroll keep their place and the focus when they are drawn again.
fn keeps_its_place(browser: &Browser) {
    browser.look(NARROW, "light").unwrap();
    let scroll = "window.box = document.querySelector('[data-key^=\"scroll/\"]');
        box.focus(); box.scrollLeft = 60; return box.scrollLeft";
    assert_eq!(browser.script(scroll).unwrap(), 60);
    browser.wait("!box.isConnected").unwrap();
    let place = "return [document.activeElement.dataset.key, document.activeElement.scrollLeft]";
    assert_eq!(browser.script(place).unwrap(), json!(["scroll/Drawing of the topology", 60]));
    browser.look(WIDE, "light").unwrap();
}

fn looks_right(browser: &Browser, axe: &str, folder: &Path) {
    browser.script("document.querySelector('[data-act=open][data-of=\"service/web-0\"]').click()").unwrap();
    browser.wait("document.querySelectorAll('.chart').length >= 5").unwrap();
    browser.click("[data-act=hush]").unwrap();
    for (name, size, scheme, scroll) in [
        ("page", WIDE, "light", "top"),
        ("services", WIDE, "light", "services-title"),
        ("dark", WIDE, "dark", "nodes-title"),
        ("phone", NARROW, "light", "services-title"),
    ] {
        browser.look(size, scheme).unwrap();
        let view = format!(
            "document.activeElement.blur(); document.getElementById('{scroll}').scrollIntoView(); window.scrollBy(0, -20)"
        );
        browser.script(&view).unwrap();
        let wide = browser.script("return document.documentElement.scrollWidth").unwrap();
        assert!(wide.as_u64() <= Some(size.0.into()), "{name}: {wide} pixels wide");
        let violations = browser.violations(axe).unwrap();
        assert!(violations.is_empty(), "{name}: {violations:#?}");
        let file = folder.join(format!("{name}.png"));
        browser.screenshot(&file).unwrap();
        assert!(fs::metadata(&file).unwrap().len() <= SCREENSHOT_LEN_MAX, "{name}");
        if std::env::var_os("SCREENSHOTS").is_some() {
            fs::copy(&file, root().join("docs/operations").join(format!("{name}.png"))).unwrap();
        }
    }
    browser.look(WIDE, "light").unwrap();
}

#[test]
#[ignore = "needs Chromium and axe-core: make test-operations"]
fn an_operator_acts_on_the_page_and_a_viewer_looks() {
    let axe = fs::read_to_string(root().join("target/operations/axe.min.js"))
        .expect("make test-operations fetches it");
    let san = San::BetweenNodes(Far::Tcp);
    let Some(mut cluster) = several::lay_out("page", san, Lans::Apart) else { return };
    cluster.serve().unwrap();
    let fetching = clients(&cluster);
    let folder = cluster.scratch().join("browser");
    let browser = Browser::start(cluster.host(MGMT_NODE), &folder).unwrap();
    browser.look(WIDE, "light").unwrap();
    log_in(&cluster, &browser, "operator");
    browser.wait("document.querySelectorAll('.topology .node').length === 8").unwrap();
    browser.wait("document.querySelectorAll('.topology .link.good').length === 15").unwrap();

    drains_and_resumes(&cluster, &browser);
    applies_and_conflicts(&cluster, &browser);
    // Figures are read every ten seconds, and a rate needs two.
    wait_until("a line of figures", 2 * SOON, || {
        browser
            .script("return document.querySelector('.service .spark polyline') !== null")
            .ok()?
            .as_bool()?
            .then_some(())
    })
    .unwrap();
    if let Some(hold) = std::env::var("HOLD_S").ok().and_then(|hold| hold.parse().ok()) {
        std::thread::sleep(Duration::from_secs(hold));
    }
    looks_right(&browser, &axe, &folder);
    keeps_its_place(&browser);
    bears_failures(&browser);

    browser.click("[data-act=logout]").unwrap();
    browser.wait("location.pathname === '/login'").unwrap();
    log_in(&cluster, &browser, "viewer");
    browser.wait("document.querySelectorAll('#nodes tr').length > 8").unwrap();
    let offered = "return document.querySelectorAll('[data-act=drain], [data-act=rollback], [data-operators]:not([hidden])').length";
    assert_eq!(browser.script(offered).unwrap(), 0, "a viewer is offered nothing");
    drop((browser, fetching));
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
