//! Dovecot: its login process inherits the master's listener over fork, dup2 and exec, with an environment of its own,
//! changes its user and its root directory. A session continues in a further process, which receives the connection
//! over a Unix socket.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 143;
const SESSIONS: usize = 10;
const MESSAGES: usize = 8;

pub const ROWS: [Row; 1] = [Row {
    name: "dovecot",
    program: "Dovecot, IMAP",
    version: &["/usr/sbin/dovecot", "--version"],
    driven: "10 IMAP sessions at once: wrong and right passwords, messages of 100 B to 1 MiB there and back",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn config(dir: &str) -> String {
    format!(
        "base_dir = {dir}/dovecot\nstate_dir = {dir}/dovecot\nprotocols = imap\nlisten = 0.0.0.0\nssl = no\n\
         disable_plaintext_auth = no\nauth_mechanisms = plain\nlog_path = {dir}/log/dovecot.error\n\
         mail_location = maildir:{dir}/mail/%u\nfirst_valid_uid = 1\n\
         passdb {{\n  driver = passwd-file\n  args = scheme=plain {dir}/users\n}}\n\
         userdb {{\n  driver = static\n  args = uid=mail gid=mail home={dir}/mail/%u\n}}\n\
         service imap-login {{\n  inet_listener imap {{\n    port = {PORT}\n  }}\n  inet_listener imaps {{\n    port = 0\n  }}\n}}\n"
    )
}

fn drive(stage: &mut Stage) -> Result<String> {
    let users: String = (0..SESSIONS).map(|n| format!("user{n}:secret\n")).collect();
    stage.hosts.write("users", &users)?;
    fs::create_dir_all(stage.hosts.path("mail"))?;
    stage.hosts.app("chown", &["mail:mail", &stage.hosts.path("mail")])?;
    let conf = stage.hosts.write("dovecot.conf", &config(&stage.hosts.dir().to_string_lossy()))?;
    stage.start("dovecot", "/usr/sbin/dovecot", &["-F", "-c", &conf])?;
    stage.wait_port(PORT)?;
    let script = include_str!("../../apps/imap_client.py");
    let (port, sessions, messages) = (PORT.to_string(), SESSIONS.to_string(), MESSAGES.to_string());
    let reported =
        stage.hosts.client_python("imap_client.py", script, &[VIP, &port, &sessions, &messages])?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}
