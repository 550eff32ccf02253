//! Prosody, an XMPP server in Lua.

use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 5222;
const DOMAIN: &str = "xmpp.test";
const PAIRS: usize = 4;

pub const ROWS: [Row; 1] = [Row {
    name: "prosody",
    program: "Prosody, XMPP",
    version: &["dpkg-query", "-W", "prosody"],
    driven: "4 pairs of clients, messages of 1 B to 8 KiB both ways, compared in order",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let conf = format!(
        "run_as_root = true\ndata_path = '{dir}/prosody'\npidfile = '{dir}/prosody.pid'\nlog = {{ warn = '{dir}/log/prosody.error' }}\n\
         network_backend = 'epoll'\nauthentication = 'internal_plain'\nc2s_require_encryption = false\n\
         allow_unencrypted_plain_auth = true\nmodules_enabled = {{ 'roster', 'saslauth', 'presence', 'message' }}\n\
         modules_disabled = {{ 's2s', 'tls', 'limits' }}\nc2s_interfaces = {{ '0.0.0.0' }}\nc2s_ports = {{ {PORT} }}\n\
         VirtualHost '{DOMAIN}'\n"
    );
    let conf = stage.hosts.write("prosody.cfg.lua", &conf)?;
    for user in 0..2 * PAIRS {
        let arguments = ["--root", "--config", &conf, "register", &format!("u{user}"), DOMAIN, "secret"];
        stage.hosts.app("prosodyctl", &arguments)?;
    }
    stage.start("prosody", "/usr/bin/prosody", &["-F", "--root", "--config", &conf])?;
    stage.wait_port(PORT)?;
    let script = include_str!("../../apps/xmpp_client.py");
    let arguments = [VIP, &PORT.to_string(), DOMAIN, &PAIRS.to_string(), "100"];
    let reported = stage.hosts.client_python("xmpp_client.py", script, &arguments)?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}
