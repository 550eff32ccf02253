//! Dovecot: its login process inherits the master's listener over fork, dup2 and exec, with an environment of
//! its own, changes its user and its root directory. A session continues in a further process, which receives
//! the connection over a Unix socket.

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

/// The configuration of Dovecot 2.3 (Debian 12).
fn config_2_3(dir: &str) -> String {
    format!(
        "base_dir = {dir}/dovecot\nstate_dir = {dir}/dovecot\nprotocols = imap\nlisten = 0.0.0.0\nssl = no\n\
         disable_plaintext_auth = no\nauth_mechanisms = plain\nlog_path = {dir}/log/dovecot.error\n\
         mail_location = maildir:{dir}/mail/%u\nfirst_valid_uid = 1\n\
         passdb {{\n  driver = passwd-file\n  args = scheme=plain {dir}/users\n}}\n\
         userdb {{\n  driver = static\n  args = uid=mail gid=mail home={dir}/mail/%u\n}}\n\
         service imap-login {{\n  inet_listener imap {{\n    port = {PORT}\n  }}\n  inet_listener imaps {{\n    port = 0\n  }}\n}}\n"
    )
}

/// The same of Dovecot 2.4 (Debian 13), which names the version that a configuration is written for.
fn config_2_4(dir: &str) -> String {
    format!(
        "dovecot_config_version = 2.4.0\ndovecot_storage_version = 2.4.0\n\
         base_dir = {dir}/dovecot\nstate_dir = {dir}/dovecot\nprotocols {{\n  imap = yes\n}}\nlisten = 0.0.0.0\nssl = no\n\
         auth_allow_cleartext = yes\nauth_mechanisms {{\n  plain = yes\n}}\nlog_path = {dir}/log/dovecot.error\n\
         mail_driver = maildir\nmail_path = {dir}/mail/%{{user}}\nfirst_valid_uid = 1\n\
         passdb passwd-file {{\n  passwd_file_path = {dir}/users\n  default_password_scheme = plain\n}}\n\
         userdb static {{\n  fields {{\n    uid = mail\n    gid = mail\n    home = {dir}/mail/%{{user}}\n  }}\n}}\n\
         service imap-login {{\n  inet_listener imap {{\n    port = {PORT}\n  }}\n  inet_listener imaps {{\n    port = 0\n  }}\n}}\n"
    )
}

/// The configuration for what `dovecot --version` prints, such as "2.4.1-4 (7d8c0e5759)".
fn config(version: &str, dir: &str) -> String {
    let mut numbers = version.split(['.', '-', ' ']).map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) >= (Some(2), Some(4)) { config_2_4(dir) } else { config_2_3(dir) }
}

fn drive(stage: &mut Stage) -> Result<String> {
    let users: String = (0..SESSIONS).map(|n| format!("user{n}:secret\n")).collect();
    stage.hosts.write("users", &users)?;
    fs::create_dir_all(stage.hosts.path("mail"))?;
    stage.hosts.app("chown", &["mail:mail", &stage.hosts.path("mail")])?;
    let version = stage.hosts.app("/usr/sbin/dovecot", &["--version"])?;
    let conf = stage.hosts.write("dovecot.conf", &config(&version, &stage.hosts.dir().to_string_lossy()))?;
    stage.start("dovecot", "/usr/sbin/dovecot", &["-F", "-c", &conf])?;
    stage.wait_port(PORT)?;
    let script = include_str!("../../apps/imap_client.py");
    let (port, sessions, messages) = (PORT.to_string(), SESSIONS.to_string(), MESSAGES.to_string());
    let reported =
        stage.hosts.client_python("imap_client.py", script, &[VIP, &port, &sessions, &messages])?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_that_of_the_version() {
        for (version, new) in [
            ("2.3.19.1 (9b53102964)", false),
            ("2.3.21", false),
            ("2.4.0", true),
            ("2.4.1-4 (7d8c0e5759)", true),
            ("2.10.0", true),
            ("3.0.0", true),
            ("", false),
        ] {
            assert_eq!(config(version, "/x").starts_with("dovecot_config_version"), new, "{version}");
        }
    }
}
