//! A channel whose messages leave the proxy worker for a handler of `csp-context` on the application's guest,
//! and come back.

use anyhow::{Context, Result, bail};
use csp_cluster::{ADMIN_PORTS, VIP, identities};
use serde_json::Value;

use super::{Machines, NETWORK, PROXY};

/// The channel's port, and that on which the context listens.
const PORT: u16 = 5557;
const CONTEXT_PORT: u16 = 7100;
/// Messages of 600 B.
const COUNT: u64 = 500;

/// Adds the channel and its context to the policy.
pub fn add_channel(policy: &str) -> String {
    format!(
        "{policy}channels:\n  - name: jobs\n    vip: {VIP}\n    port: {PORT}\n    pattern: push\n    path:\n\
         \x20     - {{handler: forward, context: c0}}\n\
         \x20     - {{handler: forward, context: g0}}\n\
         \x20     - {{handler: forward, context: c1}}\n\
         contexts:\n  - {{name: g0, pool: [{{node: an-1, port: {CONTEXT_PORT}}}]}}\n"
    )
}

/// The program that sends and receives.
pub const PIPE: &str = include_str!("../../../cluster/apps/zmq_pipe.py");

impl Machines {
    pub(super) fn start_context(&mut self) -> Result<()> {
        let program = self.options.binaries.join("csp-context").display().to_string();
        self.accelerated("csp-context", &[&program, "--listen", &format!("0.0.0.0:{CONTEXT_PORT}")])
    }

    /// Sends messages from the client to itself. The receiver checks that each arrives once and in order, and
    /// the proxy's figures say that the context had each of them.
    pub(super) fn pass_context(&mut self) -> Result<()> {
        let before = self.rdma_packets()?;
        let script = self.scratch.0.join("zmq_pipe.py").display().to_string();
        let pipe = format!("ip netns exec client /usr/bin/python3 {script}");
        let endpoint = format!("tcp://{VIP}:{PORT}");
        // The receiver's pause is for a gate that it does not have here: it is behind the last message.
        let both = format!(
            "{pipe} push {endpoint} {COUNT} & sender=$!; {pipe} pull {endpoint} {COUNT} {COUNT} /none; wait $sender"
        );
        self.shell(NETWORK, &both)?;
        let processed = self.processed()?;
        if processed != COUNT {
            bail!("the context processed {processed} messages, {COUNT} were sent");
        }
        let sent: Vec<u64> = self.rdma_packets()?.iter().zip(&before).map(|(now, then)| now - then).collect();
        println!("  · {COUNT} messages through csp-context; RDMA packets sent by each guest: {sent:?}");
        // 600 B in packets of 1 KiB, to the context and back.
        let (proxy, application) = (sent.get(PROXY), sent.get(self.application()));
        if self.options.direct()
            && [proxy, application].iter().any(|sent| sent.is_none_or(|n| *n < COUNT / 2))
        {
            bail!("the messages did not go by RDMA");
        }
        Ok(())
    }

    /// Returns how many messages the stage in the context has processed.
    fn processed(&mut self) -> Result<u64> {
        let cspctl = self.options.binaries.join("cspctl");
        let who = identities::cspctl(&self.scratch.0, &format!("10.77.0.4:{}", ADMIN_PORTS[3])).join(" ");
        let text = self.shell(NETWORK, &format!("{} {who} contexts -o json", cspctl.display()))?;
        let view: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let stages = view["nodes"][0]["stages"].as_array().with_context(|| text.clone())?;
        let stage = stages.iter().find(|stage| stage["context"] == "g0").with_context(|| text.clone())?;
        stage["messages_total"].as_u64().with_context(|| text.clone())
    }
}
