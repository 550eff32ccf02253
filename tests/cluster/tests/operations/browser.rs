//! A headless Chromium on a host of the cluster, driven through chromedriver (W3C WebDriver) by curl.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use csp_cluster::{Host, Process, wait_until};
use serde_json::{Value, json};

/// Where chromedriver listens, on the host's loopback.
const DRIVER: &str = "http://127.0.0.1:9515";
/// How long anything on the page may take that should happen soon.
pub const SOON: Duration = Duration::from_secs(30);

/// The browser; it ends when dropped.
pub struct Browser {
    host: Host,
    session: String,
    folder: PathBuf,
    _driver: Process,
}

impl Browser {
    /// Starts it. Its files go to `folder`.
    pub fn start(host: &Host, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut command = host.command("chromedriver");
        command.arg("--port=9515").env("HOME", folder);
        let driver = Process::spawn("chromedriver", command, &folder.join("chromedriver.log"))?;
        let mut browser = Browser {
            host: host.borrow(),
            session: String::new(),
            folder: folder.to_owned(),
            _driver: driver,
        };
        wait_until("chromedriver", SOON, || browser.call("GET", "/status", &Value::Null).ok())?;
        let options =
            json!({"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]});
        let always = json!({"acceptInsecureCerts": true, "goog:chromeOptions": options});
        let session = browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": always}}))?;
        browser.session = format!("/session/{}", session["sessionId"].as_str().context("a session")?);
        Ok(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let url = format!("{DRIVER}{path}");
        let file = self.folder.join("request.json");
        let mut arguments = vec!["-sS", "-m", "60", "-X", method, &url];
        let data = format!("@{}", file.display());
        if !body.is_null() {
            fs::write(&file, body.to_string())?;
            arguments.extend(["-H", "content-type: application/json", "--data-binary", &data]);
        }
        let answer: Value = serde_json::from_str(&self.host.run("curl", &arguments)?)?;
        if let Some(error) = answer["value"]["error"].as_str() {
            bail!("{path}: {error}: {}", answer["value"]["message"]);
        }
        Ok(answer["value"].clone())
    }

    fn in_session(&self, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    /// Loads a page.
    pub fn open(&self, url: &str) -> Result<()> {
        self.in_session("/url", &json!({ "url": url })).map(drop)
    }

    /// Executes a script; returns what it returns.
    pub fn script(&self, script: &str) -> Result<Value> {
        self.in_session("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true on the page; returns its value.
    pub fn wait(&self, expression: &str) -> Result<Value> {
        let script = format!("return {expression}");
        let true_value =
            |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != 0;
        wait_until(expression, SOON, || self.script(&script).ok().filter(true_value)).with_context(|| {
            format!("result: {:?}", self.script("return document.getElementById('result')?.textContent"))
        })
    }

    /// Clicks what a selector finds, as a person does: it must be visible and not covered.
    pub fn click(&self, selector: &str) -> Result<()> {
        self.wait(&format!("document.querySelector({}) !== null", json!(selector)))?;
        // The page draws anew every two seconds: the element found may be gone when it is clicked.
        wait_until(&format!("a click at {selector}"), SOON, || {
            let found =
                self.in_session("/element", &json!({"using": "css selector", "value": selector})).ok()?;
            let id = found.as_object()?.values().next()?.as_str()?.to_owned();
            self.in_session(&format!("/element/{id}/click"), &json!({})).ok()
        })
        .map(drop)
    }

    /// Returns what axe-core (the text of axe.min.js) finds wrong with the page.
    pub fn violations(&self, axe: &str) -> Result<Vec<Value>> {
        self.script(&format!("{axe}; window.axe = axe;"))?;
        let run = "const done = arguments[arguments.length - 1];
            axe.run().then((r) => done(r.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200))])))";
        let found = self.in_session("/execute/async", &json!({"script": run, "args": []}))?;
        Ok(found.as_array().cloned().unwrap_or_default())
    }

    /// Sets the window's size, and whether the reader prefers dark pages.
    pub fn look(&self, (width, height): (u32, u32), scheme: &str) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &feature).map(drop)
    }

    /// Saves what the window shows as a PNG.
    pub fn screenshot(&self, file: &Path) -> Result<()> {
        let shot = self.devtools("Page.captureScreenshot", &json!({"format": "png"}))?;
        let mut decode = Command::new("base64");
        let mut child = decode.arg("-d").stdin(Stdio::piped()).stdout(fs::File::create(file)?).spawn()?;
        child.stdin.take().context("a pipe")?.write_all(shot["data"].as_str().context("data")?.as_bytes())?;
        if !child.wait()?.success() {
            bail!("{}: no base64", file.display());
        }
        Ok(())
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Result<Value> {
        self.in_session("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.call("DELETE", &self.session, &Value::Null);
    }
}
