//! The kernel's HTB beside the flows: a veth of the same capacity with the same shares for three senders of
//! datagrams.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{NAMES, PAPER, PORT, Plan, Row, SETTLE_S, Scenario, parse, row};
use crate::{Host, Process, wait_until};

const SENDER: &str = "10.79.0.1";
const RECEIVER: &str = "10.79.0.2";
/// What a datagram has on the wire beside its payload: UDP, IP and Ethernet headers.
const HEADERS: u32 = 42;

/// Shares of the paper's 500 Mb/s, and what is sent.
const CASES: [(&str, [f64; 3], [f64; 3]); 2] = [
    // B comes first beyond the shares, as under PAR.
    ("HTB, B first", [330.0; 3], [85.0, 330.0, 85.0]),
    // Nobody comes first: what is left is divided as the shares are, which is weighted fair sharing, 1 : 4
    // : 1.
    ("HTB, fair", [500.0; 3], [PAPER / 6.0, PAPER * 4.0 / 6.0, PAPER / 6.0]),
];
const SHARES: [f64; 3] = [50.0, 200.0, 50.0];

fn ip(arguments: &str) -> Result<()> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().context("ip (Debian package iproute2)")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Two hosts joined by veth.
fn hosts() -> Result<[Host; 2]> {
    let tag = format!("htb{}", std::process::id());
    let hosts = [Host::new(&tag, "s")?, Host::new(&tag, "r")?];
    let [sender, receiver] = [hosts[0].namespace(), hosts[1].namespace()];
    ip(&format!("link add out0 netns {sender} type veth peer name in0 netns {receiver}"))?;
    for (host, device, address) in [(&hosts[0], "out0", SENDER), (&hosts[1], "in0", RECEIVER)] {
        host.ip(&["addr", "add", &format!("{address}/24"), "dev", device])?;
        host.ip(&["link", "set", device, "up"])?;
    }
    Ok(hosts)
}

/// Puts classes before the sender's device: each has its share, and may have all that others leave.
fn set_classes(host: &Host, plan: &Plan, b_first: bool) -> Result<()> {
    let tc = |arguments: &str| host.run("tc", &arguments.split(' ').collect::<Vec<_>>()).map(drop);
    let _ = tc("qdisc del dev out0 root"); // of the case before
    tc("qdisc add dev out0 root handle 1: htb default 10")?;
    let all = f64::from(plan.link_mbps) * 1e3;
    tc(&format!("class add dev out0 parent 1: classid 1:1 htb rate {all}kbit ceil {all}kbit"))?;
    for (at, share) in (0u16..).zip(SHARES) {
        let (class, kbit) = (10 + at, share / PAPER * all);
        let prio = if b_first && at != 1 { 1 } else { 0 };
        tc(&format!(
            "class add dev out0 parent 1:1 classid 1:{class} htb rate {kbit}kbit ceil {all}kbit prio {prio}"
        ))?;
        tc(&format!("qdisc add dev out0 parent 1:{class} pfifo limit 256"))?;
        let port = PORT + at;
        tc(&format!(
            "filter add dev out0 parent 1: protocol ip u32 match ip dport {port} 0xffff flowid 1:{class}"
        ))?;
    }
    Ok(())
}

fn start(
    host: &Host,
    script: &Path,
    name: &str,
    arguments: &[String],
) -> Result<(Process, std::path::PathBuf)> {
    let mut command = host.command("/usr/bin/python3");
    command.arg(script).args(arguments);
    let log = script.with_file_name(format!("{name}.log"));
    let _ = fs::remove_file(&log); // of the case before
    Ok((Process::spawn(name, command, &log)?, log))
}

pub(super) fn run(plan: &Plan, progress: &impl Fn(&str)) -> Result<Vec<Row>> {
    let folder = std::env::temp_dir().join(format!("csp-htb-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let script = folder.join("udp_flows.py");
    fs::write(&script, include_str!("../../apps/udp_flows.py"))?;
    let hosts = hosts()?;
    let mut rows = Vec::new();
    for (at, (scheme, sent, expected)) in CASES.into_iter().enumerate() {
        progress(scheme);
        set_classes(&hosts[0], plan, at == 0)?;
        rows.push(measure(
            &hosts,
            &script,
            plan,
            Scenario { figure: "–", scheme, sent, promised: [0.0; 3], expected },
        )?);
    }
    fs::remove_dir_all(&folder)?;
    Ok(rows)
}

fn measure(hosts: &[Host; 2], script: &Path, plan: &Plan, scenario: Scenario) -> Result<Row> {
    let part = f64::from(plan.link_mbps) / PAPER;
    let seconds = plan.seconds + SETTLE_S;
    // A datagram has the length of a message on the wire, as far as an Ethernet frame has.
    let size = plan.size.min(1_514) - HEADERS;
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for (name, port) in NAMES.iter().zip(PORT..) {
        let arguments = ["receive".to_owned(), port.to_string(), (seconds + 2).to_string()];
        receivers.push(start(&hosts[1], script, &format!("receive-{name}"), &arguments)?);
    }
    for ((name, port), rate) in NAMES.iter().zip(PORT..).zip(scenario.sent) {
        let rate = (rate * part).to_string();
        let arguments = ["send", RECEIVER, &port.to_string(), &size.to_string(), &rate, &seconds.to_string()];
        senders.push(start(&hosts[0], script, &format!("send-{name}"), &arguments.map(str::to_owned))?);
    }
    let deadline = Duration::from_secs(u64::from(seconds) + 60);
    let mut seen = Vec::new();
    for (process, log) in &mut receivers {
        let status = wait_until("a receiver ends", deadline, || process.exited())?;
        let text = fs::read_to_string(log)?;
        if !status.success() {
            bail!("a receiver: {text}");
        }
        seen.push(parse(&text)?);
    }
    for (process, _) in &mut senders {
        wait_until("a sender ends", deadline, || process.exited())?;
    }
    Ok(row(&scenario, part, &seen))
}
