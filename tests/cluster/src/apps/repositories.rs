//! git's daemon, and svnserve: the first gives each connection to a program that it executes as standard
//! input and output, the second forks.

use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const GIT_PORT: u16 = 9418;
const SVN_PORT: u16 = 3690;
const LIMIT: Duration = Duration::from_secs(60);

pub const ROWS: [Row; 2] = [
    Row {
        name: "git",
        program: "git daemon",
        version: &["git", "--version"],
        driven: "clones and pushes of a repository with 16 MiB, trees compared",
        ports: &[GIT_PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run: git,
    },
    Row {
        name: "svnserve",
        program: "svnserve",
        version: &["svnserve", "--version"],
        driven: "an import, commits and checkouts of 16 MiB, trees compared",
        ports: &[SVN_PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run: svn,
    },
];

fn git(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let identity = format!(
        "export HOME={dir} GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b"
    );
    stage.hosts.client_shell(&format!(
        "{identity}; cd {dir}; git init -q --bare repositories/r.git; git -C repositories/r.git config daemon.receivepack true; \
         git init -q -b main work; cp www/* work; cd work; git add .; git commit -qm one"
    ))?;
    let (base, port) = (format!("--base-path={dir}/repositories"), format!("--port={GIT_PORT}"));
    let arguments = ["daemon", "--reuseaddr", "--export-all", "--listen=0.0.0.0", &base, &port];
    stage.start("git", "/usr/bin/git", &arguments)?;
    stage.wait_port(GIT_PORT)?;
    let url = format!("git://{VIP}:{GIT_PORT}/r.git");
    stage.hosts.client_shell(&format!(
        "{identity}; cd {dir}/work; git push -q {url} main; for n in 1 2 3; do git clone -q -b main {url} ../clone$n; \
         diff -r -x .git . ../clone$n; echo $n > ../clone$n/more; git -C ../clone$n add more; git -C ../clone$n commit -qm $n; \
         git -C ../clone$n push -q origin main; git pull -q --ff-only {url} main; done; git fsck --no-progress"
    ))?;
    stage.alive()?;
    Ok("4 pushes, 3 clones, 3 pulls".to_owned())
}

fn svn(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    stage.hosts.client_shell(&format!(
        "cd {dir}; svnadmin create svn; printf '[general]\\nanon-access = write\\n' > svn/conf/svnserve.conf"
    ))?;
    let port = SVN_PORT.to_string();
    let arguments = ["-d", "--foreground", "-r", &dir, "--listen-host", "0.0.0.0", "--listen-port", &port];
    stage.start("svnserve", "/usr/bin/svnserve", &arguments)?;
    stage.wait_port(SVN_PORT)?;
    let url = format!("svn://{VIP}:{SVN_PORT}/svn");
    stage.hosts.client_shell(&format!(
        "export HOME={dir}; cd {dir}; svn import -q -m import www {url}/www; for n in 1 2 3; do svn checkout -q {url}/www tree$n; \
         diff -r -x .svn -x 'more*' www tree$n; echo $n > tree$n/more$n; svn add -q tree$n/more$n; svn commit -q -m $n tree$n; done"
    ))?;
    stage.alive()?;
    Ok("an import, 3 checkouts and commits".to_owned())
}
