//! dnsmasq, which answers by TCP only if its connection's local address is one of its host: the VIP is on
//! `lo`, as described in docs/operations.md. Bound once to all addresses, once to the VIP alone.

use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 53;
const NAME: &str = "host.example.test";
const ADDRESS: &str = "192.0.2.33";

pub const ROWS: [Row; 1] = [Row {
    name: "dnsmasq",
    program: "dnsmasq, VIP on lo",
    version: &["/usr/sbin/dnsmasq", "--version"],
    driven: "queries by TCP on 8 connections at once, one after another and four at a time; bound to all addresses, then to the VIP",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    stage.vip_on_lo()?;
    let (port, record) = (format!("--port={PORT}"), format!("--address=/{NAME}/{ADDRESS}"));
    let listen = format!("--listen-address={VIP}");
    let common = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--user=nobody",
        &port,
        &record,
    ];
    let script = include_str!("../../apps/dns_client.py");
    let mut figures = String::new();
    for (name, more) in [("dnsmasq", &[][..]), ("dnsmasq-vip", &[&listen, "--bind-interfaces"])] {
        stage.start(name, "/usr/sbin/dnsmasq", &[&common, more].concat())?;
        stage.wait_port(PORT)?;
        let arguments = [VIP, &PORT.to_string(), NAME, ADDRESS, "40", "25"];
        figures = stage.hosts.client_python("dns_client.py", script, &arguments)?;
        stage.alive()?;
        stage.end(name)?;
    }
    Ok(format!("twice {}", figures.trim()))
}
