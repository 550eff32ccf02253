//! BIND's named: libuv, with a listener of SO_REUSEPORT for each thread, and transfers of whole zones.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 53;
const ZONE: &str = "example.test";
const RECORDS: usize = 20_000;

pub const ROWS: [Row; 1] = [Row {
    name: "named",
    program: "BIND named, 2 threads",
    version: &["named", "-v"],
    driven: "queries by TCP on 8 connections at once; transfers of a zone of 20,000 records",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn zone() -> String {
    let mut text =
        "$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A 192.0.2.1\nhost A 192.0.2.33\n"
            .to_owned();
    for number in 0..RECORDS {
        let _ = writeln!(text, "n{number} A 10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    }
    text
}

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    stage.hosts.write("zone", &zone())?;
    let conf = format!(
        "options {{ directory \"{dir}\"; pid-file \"{dir}/named.pid\"; session-keyfile \"{dir}/session.key\"; listen-on {{ !127.0.0.1; any; }}; \
         listen-on-v6 {{ none; }}; recursion no; allow-transfer {{ any; }}; managed-keys-directory \"{dir}\"; dnssec-validation no; }};\n\
         controls {{ }};\nzone \"{ZONE}\" {{ type primary; file \"zone\"; }};\n"
    );
    let conf = stage.hosts.write("named.conf", &conf)?;
    stage.start("named", "/usr/sbin/named", &["-f", "-n", "2", "-c", &conf])?;
    stage.wait_port(PORT)?;
    // It answers SERVFAIL until it has read the zone.
    let name = format!("host.{ZONE}");
    stage.wait("the zone", |hosts| {
        let answer = hosts.client("dig", &["+tcp", "+short", &format!("@{VIP}"), &name, "A"]);
        answer.is_ok_and(|text| text.trim() == "192.0.2.33")
    })?;
    let arguments = [VIP, &PORT.to_string(), "host.example.test", "192.0.2.33", "40", "25"];
    let reported =
        stage.hosts.client_python("dns_client.py", include_str!("../../apps/dns_client.py"), &arguments)?;
    for _ in 0..3 {
        let lines =
            stage.hosts.client("dig", &["+tcp", "+noall", "+answer", &format!("@{VIP}"), ZONE, "AXFR"])?;
        // The SOA stands at either end.
        if lines.lines().count() != RECORDS + 5 {
            bail!("a transfer of {} records", lines.lines().count());
        }
    }
    stage.alive()?;
    Ok(format!("{}, 3 transfers", reported.trim()))
}
