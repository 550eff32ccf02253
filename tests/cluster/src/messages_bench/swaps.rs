//! How long messages wait while the policy replaces the supplied handler through which they go: two modules
//! take turns, each writes its version into the messages' last byte.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::sample::middle;
use super::{Bench, Broker, compile, policy_text};
use crate::VIP;

const PORT: u16 = 5559;
/// Between two messages.
const INTERVAL_US: u32 = 200;

/// What replacing a handler does to messages. Times are in microseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Swaps {
    /// Replacements.
    pub count: u32,
    /// Between the last message of one version and the first of the next: median and longest. Messages are
    /// sent every 200 us.
    pub gap_us: [f64; 2],
    /// The longest time from send to receive among 64 messages before and 64 after a replacement: median and
    /// longest.
    pub longest_us: [f64; 2],
    /// Median time from send to receive of all messages.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
    /// Messages that did not arrive.
    pub lost: f64,
    /// Messages that arrived twice or after a later one.
    pub disordered: f64,
}

/// The client, which prints a line for each replacement that it has seen.
struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Bench<'_> {
    /// Replaces the handler `count` times.
    pub(super) fn swaps(&mut self, count: u32, progress: &impl Fn(&str)) -> Result<Swaps> {
        progress(&format!("{count} replacements of a supplied handler"));
        let modules = [self.put(1)?, self.put(2)?];
        self.apply(&modules[0])?;
        let mut client = self.start_swaps(count)?;
        client.line()?;
        let mut rounds = Vec::new();
        for at in 1..=count {
            self.go_on()?;
            self.apply(&modules[at as usize % 2])?;
            rounds.push(client.line()?);
        }
        let all = client.line()?;
        client.child.wait()?;
        let of = |key: &str| {
            let values = || rounds.iter().filter_map(|round| round[key].as_f64());
            [middle(values()), values().fold(f64::NAN, f64::max)]
        };
        let figure = |key: &str| all[key].as_f64().with_context(|| format!("{key} of {all}"));
        Ok(Swaps {
            count,
            gap_us: of("gap_us"),
            longest_us: of("longest_us"),
            p50_us: figure("p50_us")?,
            p99_us: figure("p99_us")?,
            lost: figure("lost")?,
            disordered: figure("disordered")?,
        })
    }

    /// Gives the module of a version to the proxy. Returns its name in a policy.
    fn put(&self, version: u8) -> Result<String> {
        let file = self.cluster.scratch().join(format!("version-{version}.wasm"));
        fs::write(&file, wat::parse_str(module(version))?)?;
        let printed = self.cluster.cspctl(&["handler", "put", &file.to_string_lossy()])?;
        Ok(printed.lines().next().context("the module's hash")?.to_owned())
    }

    fn apply(&self, module: &str) -> Result<()> {
        let file = self.cluster.scratch().join("swaps.yaml");
        let channel = format!(
            "  - {{name: swapped, vip: {VIP}, port: {PORT}, pattern: push, path: [{{handler: stamp}}]}}\n"
        );
        let handlers = format!("handlers:\n  - {{name: stamp, module: {module}}}\n");
        fs::write(&file, format!("{}{channel}{handlers}", policy_text()))?;
        self.cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).map(drop)
    }

    fn start_swaps(&self, count: u32) -> Result<Client> {
        let program = compile(self.cluster.scratch(), "zmq_swaps", include_str!("../../apps/zmq_swaps.c"))?;
        let mut command = self.cluster.client.command(&program.to_string_lossy());
        command.args([Broker::Csp.sends_to(PORT), Broker::Csp.receives_from(PORT)]);
        command.args([INTERVAL_US.to_string(), count.to_string()]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("zmq_swaps")?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        Ok(Client { child, lines })
    }
}

impl Client {
    fn line(&mut self) -> Result<Value> {
        match self.lines.next() {
            Some(line) => Ok(serde_json::from_str(&line?)?),
            None => bail!("zmq_swaps has ended early: {:?}", self.child.wait()?),
        }
    }
}

/// A module that writes its version into the last byte of each message, in a buffer of its own at 256.
fn module(version: u8) -> String {
    // Its declaration: messages of 64 bytes at most, a buffer of 64 bytes at 256, no state.
    let words: [u32; 10] = [40, 1, 64, 0, 256, 64, 0, 0, 0, 0];
    let declaration: String =
        words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    format!(
        r#"(module
            (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (data (i32.const 0) "{declaration}")
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "csp_declaration") (result i32) i32.const 0)
            (func (export "on_message") (param $format i32) (param $len i32) (param i32) (result i32)
                (i32.store8 (i32.add (i32.const 255) (local.get $len)) (i32.const {version}))
                (call $emit (i32.const 0) (local.get $format) (i32.const 256) (local.get $len))))"#
    )
}
