//! A page with 100 objects in headless Chromium, all by HTTP/2, and a WebSocket of the page's.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, bail};
use serde_json::json;

use super::browser::Browser;
use super::stage::Stage;

/// Objects of the page.
const OBJECTS: usize = 100;

fn page(stage: &Stage) {
    let mut text = "<!doctype html><title>objects</title><link rel=icon href=\"data:,\">".to_owned();
    for at in 0..OBJECTS {
        let picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"8\" height=\"8\"><title>{at}</title></svg>"
        );
        fs::write(stage.path(&format!("www/o{at}.svg")), picture).unwrap();
        let _ = write!(text, "<img src=\"/o{at}.svg\">");
    }
    stage.write("www/objects.html", &text);
}

fn logged(stage: &Stage) -> usize {
    let text = fs::read_to_string(stage.path("web.log")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("/o") && line.ends_with(" 200")).count()
}

fn loads(stage: &Stage, browser: &Browser) -> Result<String> {
    page(stage);
    let before = logged(stage);
    browser.open(&stage.url(true, "/objects.html"))?;
    browser.wait("document.readyState === 'complete'")?;
    let whole = browser
        .script("return [...document.images].filter((i) => i.complete && i.naturalWidth === 8).length")?;
    let protocols = browser.script(
        "const all = [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')];
         return Object.entries(Object.groupBy(all, (e) => e.nextHopProtocol)).map(([k, v]) => [k, v.length])",
    )?;
    let count = logged(stage) - before;
    if whole != json!(OBJECTS) || count != OBJECTS + 1 || protocols != json!([["h2", OBJECTS + 1]]) {
        bail!("{whole} of {OBJECTS} objects shown, {count} requests at nginx, by {protocols}");
    }
    Ok(format!("{OBJECTS} objects shown, {count} requests at nginx, all by h2"))
}

/// The session of HTTP/2 carries the WebSocket, too (RFC 8441).
fn websocket(stage: &Stage, browser: &Browser) -> Result<String> {
    let url = stage.url(true, "/ws").replace("https", "wss");
    let script = format!(
        "window.said = ''; const peer = new WebSocket({});
         peer.onopen = () => peer.send('hello'); peer.onerror = () => window.said = 'error';
         peer.onmessage = (m) => {{ window.said = m.data; peer.close(1000); }}; peer.onclose = (e) => window.said += ` ${{e.code}}`;",
        json!(url)
    );
    browser.script(&script)?;
    let said = browser.wait("window.said.includes(' ') && window.said")?;
    if said != "hello 1000" {
        bail!("{said}");
    }
    let log = fs::read_to_string(stage.path("requests-pn-1.log")).unwrap_or_default();
    let versions: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("\"route\":\"ws\"") && line.contains("Chrome"))
        .map(|line| if line.contains("\"version\":\"2\"") { "HTTP/2" } else { "HTTP/1.1" })
        .collect();
    Ok(format!("echo and close by {versions:?}"))
}

/// Both.
pub fn run(stage: &mut Stage) {
    let browser = match Browser::start(&stage.cluster.client, &stage.cluster.scratch().join("browser")) {
        Ok(browser) => browser,
        Err(error) => return stage.row("Chromium", Err(error)),
    };
    let result = loads(stage, &browser);
    stage.row("Chromium: a page of 100 objects", result);
    let result = websocket(stage, &browser);
    stage.row("Chromium: WebSocket", result);
}
