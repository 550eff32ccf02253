//! The demo's part about supplied handlers: a module of Rust runs, gives way to another under load, and a
//! hostile one is stopped.
//!
//! ```text
//!  PUSH ─▶ channel bookings ─▶ anonymise, key 1 … swap … anonymise as built for size, key 2 ─▶ PULL: each message once, in order
//!  PUSH ─▶ channel bookings ─▶ endless: stopped at message 101, passed by from then on      ─▶ PULL: each message once, in order
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::configs::VIP;
use crate::demo::step;
use crate::process::{Process, wait_until};
use crate::schemas::sbe_schema;

const PORT: u16 = 5558;
const DEADLINE: Duration = Duration::from_secs(60);
/// Messages, and how many a second.
const COUNT: u64 = 20_000;
const RATE: u64 = 4_000;
/// Messages of the part with the hostile module.
const HOSTILE_COUNT: u64 = 2_000;
/// What `endless.rs` passes on before it never ends.
const BEFORE_STOP: u64 = 100;
const TARGET: &str = "wasm32-unknown-unknown";

fn schema() -> String {
    sbe_schema(
        r#"package="travel" id="41" version="1""#,
        r#"<type name="Name" primitiveType="char" length="12"/>"#,
        r#"<sbe:message name="Booking" id="1">
          <field name="flight" id="1" type="uint32"/>
          <field name="name" id="2" type="Name"/>
          <field name="document" id="3" type="uint64"/>
        </sbe:message>"#,
    )
}

/// What the demo shows of supplied handlers, in a cluster whose daemons run.
///
/// # Errors
/// The first step that failed, with the reason.
pub fn prove(cluster: &mut Cluster) -> Result<()> {
    fs::write(cluster.scratch().join("zmq_bookings.py"), include_str!("../apps/zmq_bookings.py"))?;
    let [first, second, endless] =
        step("modules of Rust for WebAssembly, checked and compiled by the proxy", || {
            let modules = [("anonymise", "2"), ("anonymise", "s"), ("endless", "2")];
            let build = |(name, level)| put(cluster, &build(cluster.scratch(), name, level)?);
            let [first, second, endless] = modules.map(build);
            Ok([first?, second?, endless?])
        })?;
    let (swapped, top) = step(
        &format!("{COUNT} bookings pass `anonymise`; another module and key take over under load"),
        || swap(cluster, [&first, &second]),
    )?;
    println!("\n{}\ncspctl contexts top, meanwhile\n{top}", gap(&swapped)?);
    let list = step("a module that never ends is stopped; its message and all later ones pass by", || {
        hostile(cluster, &endless)
    })?;
    println!("\n{list}");
    Ok(())
}

/// Builds a module of the sandbox's examples.
fn build(scratch: &Path, name: &str, level: &str) -> Result<PathBuf> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let sandbox = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libcsp/sandbox");
    let sysroot = Command::new(&rustc).args(["--print", "sysroot"]).output().context("rustc")?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(sysroot)?.trim());
    if !sysroot.join("lib/rustlib").join(TARGET).exists() {
        let added = Command::new("rustup").args(["target", "add", TARGET]).output().context("rustup")?;
        ensure!(
            added.status.success(),
            "rustup target add {TARGET}: {}",
            String::from_utf8_lossy(&added.stderr)
        );
    }
    let (guest, module) = (scratch.join("libcsp_guest.rlib"), scratch.join(format!("{name}-{level}.wasm")));
    let compile = |kind: &str, source: PathBuf, to: &Path, more: &[String]| -> Result<()> {
        let mut command = Command::new(&rustc);
        command.args(["--edition", "2024", "--target", TARGET, "-C", "panic=abort", "--crate-type", kind]);
        command.arg("-C").arg(format!("opt-level={level}")).args(more).arg("-o").arg(to).arg(source);
        let output = command.output().context("rustc")?;
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let named = ["--crate-name".to_owned(), "csp_guest".to_owned()];
    compile("rlib", sandbox.join("guest/src/lib.rs"), &guest, &named)?;
    let linked = [
        "--extern",
        &format!("csp_guest={}", guest.display()),
        "-C",
        "link-arg=-zstack-size=16384",
        "-C",
        "strip=debuginfo",
    ];
    let source = sandbox.join("modules").join(format!("{name}.rs"));
    compile("cdylib", source, &module, &linked.map(str::to_owned))?;
    Ok(module)
}

fn put(cluster: &Cluster, file: &Path) -> Result<String> {
    let printed = cluster.cspctl(&["handler", "put", &file.to_string_lossy()])?;
    Ok(printed.lines().next().context("no hash")?.to_owned())
}

/// Puts a channel into force whose path is one module.
fn apply(cluster: &Cluster, module: &str, parameters: &str) -> Result<()> {
    let text = format!(
        "apiVersion: csp/v1\nformats:\n  - name: booking\n    schema: |{}    message: Booking\nhandlers:\n\
         \x20 - {{name: supplied, module: {module}, on_stop: pass}}\nchannels:\n\
         \x20 - {{name: bookings, vip: {VIP}, port: {PORT}, pattern: push, formats: [booking], given_up: pass,\n\
         \x20    path: [{{handler: supplied, parameters: \"{parameters}\"}}]}}\n",
        schema()
    );
    let file = cluster.scratch().join("supplied.yaml");
    fs::write(&file, text)?;
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map(drop)
}

fn start(cluster: &Cluster, pattern: &str, arguments: &[String]) -> Result<Process> {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join("zmq_bookings.py")).arg(pattern).arg(format!("tcp://{VIP}:{PORT}"));
    let name = format!("bookings-{pattern}");
    Process::spawn(
        &name,
        command_with(command, arguments),
        &cluster.scratch().join(format!("log/{name}.log")),
    )
}

fn command_with(mut command: Command, arguments: &[String]) -> Command {
    command.args(arguments);
    command
}

/// Returns what the puller has seen once both programs have ended.
fn ended(mut push: Process, mut pull: Process) -> Result<Value> {
    for process in [&mut push, &mut pull] {
        let status = wait_until("a program ends", DEADLINE, || process.exited())?;
        ensure!(status.success(), "{} ended with {status}: {}", process.name(), process.log_tail(5));
    }
    serde_json::from_str(fs::read_to_string(pull.log())?.trim()).with_context(|| pull.log_tail(5))
}

fn stage(cluster: &Cluster) -> Option<Value> {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["handler", "list", "-o", "json"]).ok()?).ok()?;
    view["nodes"][0]["stages"].as_array()?.last().cloned()
}

/// Returns what the puller has seen, and what `cspctl contexts top` has shown meanwhile.
fn swap(cluster: &Cluster, [first, second]: [&str; 2]) -> Result<(Value, String)> {
    apply(cluster, first, "1")?;
    let pull = start(cluster, "pull", &[COUNT.to_string()])?;
    let push = start(cluster, "push", &[COUNT.to_string(), RATE.to_string()])?;
    wait_until("a quarter of the messages", DEADLINE, || {
        stage(cluster).filter(|stage| stage["calls_total"].as_u64() > Some(COUNT / 4))
    })?;
    apply(cluster, second, "2")?;
    let top = cluster.cspctl(&["contexts", "top", "--once"])?;
    Ok((ended(push, pull)?, top))
}

/// Returns what is said of the swap, after it was checked: all names are blank, documents are hashed with one
/// key and then the other.
fn gap(seen: &Value) -> Result<String> {
    let runs = seen["runs"].as_array().context("no runs")?;
    ensure!(runs.len() == 2, "the key changed not once: {runs:?}");
    let (kinds, counts) = (runs.iter().map(|run| &run["kind"]), runs.iter().map(|run| run["count"].as_u64()));
    ensure!(
        kinds.clone().all(|kind| kind[0] == "blank" && kind[1] != 18_151_210),
        "something is plain: {runs:?}"
    );
    let counts: Vec<u64> = counts.flatten().collect();
    let time = |name: &str| seen[name].as_f64().context("no time");
    Ok(format!(
        "  {} bookings by the first module and {} by the second, each once and in order; none with a name\n  \
         between the last of one and the first of the other the receiver waited {:.0} µs; between others p50 {:.0} µs, p99 {:.0} µs, \
         most {:.0} µs\n",
        counts[0],
        counts[1],
        seen["changes_us"][0].as_f64().context("no gap")?,
        time("p50_us")?,
        time("p99_us")?,
        time("max_us")?
    ))
}

fn hostile(cluster: &Cluster, module: &str) -> Result<String> {
    apply(cluster, module, "")?;
    let pull = start(cluster, "pull", &[HOSTILE_COUNT.to_string()])?;
    let push = start(cluster, "push", &[HOSTILE_COUNT.to_string(), RATE.to_string()])?;
    let seen = ended(push, pull)?;
    ensure!(seen["runs"].as_array().is_some_and(|runs| runs.len() == 1), "{seen}");
    let Some(stage) = stage(cluster) else { bail!("no stage runs a module") };
    let stops = serde_json::json!([{"reason": "fuel", "total": 1}]);
    let passed = HOSTILE_COUNT - BEFORE_STOP - 1;
    ensure!(
        stage["stops"] == stops && stage["state"] == "passed-by" && stage["passed_total"] == passed,
        "{stage}"
    );
    cluster.cspctl(&["handler", "list"])
}
