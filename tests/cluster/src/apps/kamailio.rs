//! Kamailio, SIP over TCP: one process accepts, and passes connections to its workers and back through Unix
//! sockets.

use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 5060;

pub const ROWS: [Row; 1] = [Row {
    name: "kamailio",
    program: "Kamailio, SIP",
    version: &["dpkg-query", "-W", "kamailio"],
    driven: "OPTIONS on 8 connections at once, kept and a connection a request",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let conf = format!(
        "fork=yes\nlog_stderror=yes\ndebug=1\nchildren=2\ntcp_children=2\nlisten=tcp:0.0.0.0:{PORT}\nauto_aliases=no\n\
         loadmodule \"kex.so\"\nloadmodule \"corex.so\"\nloadmodule \"sl.so\"\nloadmodule \"pv.so\"\n\
         request_route {{\n  sl_send_reply(\"200\", \"OK\");\n}}\n"
    );
    let conf = stage.hosts.write("kamailio.cfg", &conf)?;
    let arguments = ["-DD", "-E", "-f", &conf, "-Y", &dir, "-P", &format!("{dir}/kamailio.pid")];
    stage.start("kamailio", "/usr/sbin/kamailio", &arguments)?;
    stage.wait_port(PORT)?;
    let script = include_str!("../../apps/sip_client.py");
    let reported =
        stage.hosts.client_python("sip_client.py", script, &[VIP, &PORT.to_string(), "8", "100"])?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}
