//! C-CORE, Figure 3: the same handler in a context of the proxy worker and in one of another program, by the
//! length of messages.

use std::time::Duration;

use anyhow::{Context as _, Result};
use csp_cluster::{Tier, VIP, wait_until};
use serde_json::Value;

use super::bench::{Bench, number, result};
use super::median;
use crate::evaluation::{Bar, Figure};

/// The port of a channel's sender; its receiver has the next one.
const PORT: u16 = 5900;
/// Where `csp-context` listens.
const CONTEXT_PORT: u16 = 7100;
const PATIENCE: Duration = Duration::from_secs(90);
/// Lengths of messages in bytes.
const LENGTHS: [u32; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Name of the program's process.
const CONTEXT: &str = "context";

/// Medians of one context and one length of messages.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// `c0` or `g0`.
    pub context: &'static str,
    /// Bytes of a message.
    pub len: u32,
    /// Messages a second, as fast as it goes.
    pub rate: f64,
    /// Processor time of the proxy node a message, in nanoseconds.
    pub proxy_ns: f64,
    /// The same of the program that is the context.
    pub context_ns: f64,
    /// Messages that were sent and did not arrive.
    pub lost: f64,
}

fn policy() -> String {
    let channel = |(at, context): (u16, &str)| {
        let port = PORT + 10 * at;
        format!(
            "  - name: by-{context}\n    vip: {VIP}\n    port: {port}\n    pattern: push\n    message_kib: 128\n    framing: {{length: {{bytes: 4}}}}\n    \
             header: strip\n    clients: publish\n    queue: {{messages: 4096}}\n    listen:\n      - {{port: {}, framing: {{length: {{bytes: 4}}}}, header: strip, \
             clients: subscribe}}\n    path: [{{handler: forward, context: {context}}}]\n",
            port + 1
        )
    };
    let channels: String = (0..).zip(["c0", "g0"]).map(channel).collect();
    format!(
        "contexts:\n  - {{name: g0, pool: [{{node: an-1, port: {CONTEXT_PORT}}}]}}\nchannels:\n{channels}"
    )
}

impl Bench<'_> {
    /// Measures each length in each context, in turn.
    pub fn contexts(&mut self, progress: &dyn Fn(&str)) -> Result<Vec<Placed>> {
        self.apply(&policy())?;
        let program = self.cluster.binary("csp-context").to_string_lossy().into_owned();
        let address = format!("0.0.0.0:{CONTEXT_PORT}");
        self.cluster.run_accelerated(CONTEXT, &program, &["--listen", &address])?;
        wait_until("the context to be connected", PATIENCE, || self.is_connected().then_some(()))?;
        let mut all = Vec::new();
        for len in LENGTHS {
            let mut runs = [const { Vec::new() }; 2];
            for round in 1..=self.plan.rounds {
                for (at, context) in (0u16..).zip(["c0", "g0"]) {
                    progress(&format!("round {round} of {}: {len} B through {context}", self.plan.rounds));
                    runs[usize::from(at)].push(self.pass(at, context, len)?);
                }
            }
            for (runs, context) in runs.iter().zip(["c0", "g0"]) {
                let of = |figure: fn(&Placed) -> f64| median(runs.iter().map(figure).collect());
                all.push(Placed {
                    context,
                    len,
                    rate: of(|run| run.rate),
                    proxy_ns: of(|run| run.proxy_ns),
                    context_ns: of(|run| run.context_ns),
                    lost: runs.iter().map(|run| run.lost).fold(0.0, f64::max),
                });
            }
        }
        self.cluster.program(CONTEXT).context("it was started")?.stop()?;
        self.cluster.remove_program(CONTEXT);
        Ok(all)
    }

    fn is_connected(&self) -> bool {
        let view = self.cluster.cspctl(&["contexts", "-o", "json"]).ok();
        let view: Option<Value> = view.and_then(|text| serde_json::from_str(&text).ok());
        let is_it = |context: &Value| context["name"] == "g0" && context["place"] == "connected";
        view.is_some_and(|view| {
            view["nodes"][0]["contexts"].as_array().is_some_and(|all| all.iter().any(is_it))
        })
    }

    /// Sends messages of a length through a context, from one program under `csp-run` to another.
    fn pass(&mut self, at: u16, context: &'static str, len: u32) -> Result<Placed> {
        self.go_on()?;
        let port = PORT + 10 * at;
        let program = self.cluster.binary("csp-flights").to_string_lossy().into_owned();
        let (to, from) = (format!("{VIP}:{port}"), format!("{VIP}:{}", port + 1));
        self.cluster.run_accelerated("destination", &program, &["receive", &from])?;
        self.wait_receivers(&format!("by-{context}"), 1)?;
        let (proxy, program_ns) = (self.cpu_ns(&[Tier::ProxyNode])?, self.context_ns()?);
        let (seconds, len_text) = (self.plan.seconds.to_string(), len.to_string());
        let arguments = ["send", &to, "--seconds", &seconds, "--len", &len_text];
        self.cluster.run_accelerated("sender", &program, &arguments)?;
        let sent = result(self.cluster.program("sender").context("it was started")?, PATIENCE)?;
        let received = result(self.cluster.program("destination").context("it was started")?, PATIENCE)?;
        let (proxy, program_ns) = (self.cpu_ns(&[Tier::ProxyNode])? - proxy, self.context_ns()? - program_ns);
        self.cluster.remove_program("sender");
        self.cluster.remove_program("destination");
        let count = number(&sent, "sent")?;
        Ok(Placed {
            context,
            len,
            rate: count / number(&received, "seconds")?,
            proxy_ns: proxy as f64 / count,
            context_ns: program_ns as f64 / count,
            lost: count - number(&received, "rows")?,
        })
    }

    fn context_ns(&mut self) -> Result<u64> {
        let pid = self.cluster.program(CONTEXT).context("it was started")?.pid();
        csp_cluster::cpu_ns_of_all(pid)
    }
}

/// Returns the figure of what was measured.
pub fn figure(all: &[Placed]) -> Figure {
    let name = |len: u32| if len < 1 << 10 { format!("{len} B") } else { format!("{} KiB", len >> 10) };
    let bar = |placed: &Placed| Bar {
        name: format!("{}, {}", name(placed.len), placed.context),
        value: placed.rate,
        cells: vec![
            format!("{:.0}", 1e9 / placed.rate),
            format!("{:.0}", placed.rate * f64::from(placed.len) * 8.0 / 1e6),
            format!("{:.0}", placed.proxy_ns),
            format!("{:.0}", placed.context_ns),
            format!("{:.0}", placed.lost),
        ],
    };
    let ratio = |pair: &[Placed]| pair[0].rate / pair[1].rate;
    let ratios: Vec<f64> = all.chunks_exact(2).map(ratio).collect();
    let (least, most) =
        (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(0.0, f64::max));
    let first = all.chunks_exact(2).next().map_or(0.0, |pair| pair[1].proxy_ns - pair[0].proxy_ns);
    let verdict = if least > 1.0 { "met" } else { "missed" };
    let findings = vec![format!(
        "The paper: the handler is faster in a context on the communication core, c, than in one on the host, g, at every length. Here: a message through c0 takes \
         {least:.2} to {most:.2} times as many a second as through g0 (the goal is more than 1 at every length: {verdict}). At {} the crossing costs the proxy \
         {first:.0} ns a message.",
        name(LENGTHS[0])
    )];
    Figure {
        file: "c-core-contexts",
        title: "C-CORE, Figure 3: a context of the proxy worker beside one of another program",
        unit: "messages/s",
        columns: &["ns a message", "Mb/s", "proxy node ns", "context's program ns", "lost"],
        bars: all.iter().map(bar).collect(),
        method: "One program under `csp-run` pushes messages of one length to another, which reads plain TCP with a length before each message: no TCP of the cluster lies between \
                 them. The channel's path is one handler, `forward`, in `c0` (the proxy worker) or in `g0` (`csp-context` on the application node, over the SAN), so that what \
                 differs is the crossing. Nothing is dropped: a sender is held back. “ns” are processor time a message. The sender, the receiver, the proxy and the context share \
                 the machine's processors.",
        findings,
    }
}
