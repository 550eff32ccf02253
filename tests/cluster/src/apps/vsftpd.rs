//! vsftpd in passive mode: control and data connections.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 21;
/// The ports of data connections.
const PASSIVE: [u16; 4] = [30_000, 30_001, 30_002, 30_003];
const ROUNDS: usize = 3;

pub const ROWS: [Row; 1] = [Row {
    name: "vsftpd",
    program: "vsftpd",
    version: &["dpkg-query", "-W", "vsftpd"],
    driven: "passive mode by curl: lists, downloads and uploads of 16 MiB",
    ports: &[PORT, PASSIVE[0], PASSIVE[1], PASSIVE[2], PASSIVE[3]],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

/// vsftpd creates sessions by a raw clone in namespaces of their own, except the network's: the agent is
/// reached by a path.
fn config(dir: &str) -> String {
    format!(
        "listen=YES\nlisten_port={PORT}\nbackground=NO\nisolate_network=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={dir}/ftp\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_umask=022\nport_enable=NO\npasv_address={VIP}\n\
         pasv_min_port={}\npasv_max_port={}\nsecure_chroot_dir={dir}/empty\nxferlog_enable=YES\n\
         vsftpd_log_file={dir}/log/vsftpd.error\n",
        PASSIVE[0],
        PASSIVE[PASSIVE.len() - 1]
    )
}

fn drive(stage: &mut Stage) -> Result<String> {
    let file = stage.hosts.path("www/16MiB");
    for folder in ["ftp", "ftp/up", "empty"] {
        fs::create_dir_all(stage.hosts.path(folder))?;
    }
    fs::copy(&file, stage.hosts.path("ftp/16MiB"))?;
    stage.hosts.app("chown", &["ftp", &stage.hosts.path("ftp/up")])?;
    let conf = stage.hosts.write("vsftpd.conf", &config(&stage.hosts.dir().to_string_lossy()))?;
    stage.start("vsftpd", "/usr/sbin/vsftpd", &[&conf])?;
    stage.wait_port(PORT)?;
    for round in 0..ROUNDS {
        let (got, up) = (stage.hosts.path("got"), format!("ftp://{VIP}:{PORT}/up/{round}"));
        let list = stage.hosts.client("curl", &["-sS", "-m", "20", &format!("ftp://{VIP}:{PORT}/")])?;
        if !list.contains("16MiB") {
            bail!("the list lacks 16MiB:\n{list}");
        }
        stage.hosts.client("curl", &["-sS", "-m", "20", "-o", &got, &format!("ftp://{VIP}:{PORT}/16MiB")])?;
        same(&got, &file)?;
        stage.hosts.client("curl", &["-sS", "-m", "20", "-T", &file, &up])?;
        same(&stage.hosts.path(&format!("ftp/up/{round}")), &file)?;
    }
    stage.alive()?;
    Ok(format!("{ROUNDS} lists, downloads and uploads"))
}
