//! OpenSSH's sshd: a session, and copies of 64 MiB.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;
use crate::testing::pattern;

const PORT: u16 = 22;

pub const ROWS: [Row; 1] = [Row {
    name: "sshd",
    program: "OpenSSH sshd",
    version: &["ssh", "-V"],
    driven: "a session; 64 MiB by scp there and back",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let hosts = stage.hosts.clone();
    for key in ["host_key", "user_key"] {
        hosts.client("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &hosts.path(key)])?;
    }
    fs::create_dir_all("/run/sshd")?;
    let text = format!(
        "Port {PORT}\nListenAddress 0.0.0.0\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
         PidFile none\nSubsystem sftp internal-sftp\n",
        hosts.path("host_key"),
        hosts.path("user_key.pub")
    );
    let conf = hosts.write("sshd_config", &text)?;
    stage.start("sshd", "/usr/sbin/sshd", &["-D", "-e", "-f", &conf])?;
    stage.wait_port(PORT)?;
    let (key, known) = (hosts.path("user_key"), format!("UserKnownHostsFile={}", hosts.path("known")));
    let common =
        ["-F", "none", "-i", &key, "-o", &known, "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"];
    let with =
        |more: &[&'static str]| -> Vec<&str> { common.iter().copied().chain(more.iter().copied()).collect() };
    let mut session = with(&[]);
    let there = format!("root@{VIP}");
    session.extend([there.as_str(), "seq 1 200000 | sha256sum"]);
    let (reported, wanted) =
        (hosts.client("ssh", &session)?, hosts.client_shell("seq 1 200000 | sha256sum")?);
    if reported != wanted {
        bail!("the session reported {reported:?}, not {wanted:?}");
    }
    fs::write(hosts.path("64MiB"), pattern(64 << 20))?;
    let (file, copy, back) = (hosts.path("64MiB"), hosts.path("copy"), hosts.path("back"));
    let remote = format!("{there}:{copy}");
    for (from, to, got) in [(&file, &remote, &copy), (&remote, &back, &back)] {
        let mut arguments = with(&["-q"]);
        arguments.extend([from.as_str(), to.as_str()]);
        hosts.client("scp", &arguments)?;
        same(got, &file)?;
    }
    stage.alive()?;
    Ok("a session, 64 MiB there and back".to_owned())
}
