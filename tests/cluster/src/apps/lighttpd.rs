//! lighttpd.

use std::time::Duration;

use anyhow::Result;

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};

pub const ROWS: [Row; 1] = [Row {
    name: "lighttpd",
    program: "lighttpd",
    version: &["/usr/sbin/lighttpd", "-v"],
    driven: "files by curl; wrk and a checking client; early refusals",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let text = format!(
        "server.document-root = \"{dir}www\"\nserver.port = {}\nserver.errorlog = \"{dir}log/lighttpd.error\"\n\
         server.username = \"www-data\"\nserver.groupname = \"www-data\"\nserver.max-keep-alive-requests = 65535\nserver.max-request-size = 32768\n\
         mimetype.assign = ( \"\" => \"application/octet-stream\" )\n",
        http::PORT
    );
    // It writes its log as user www-data.
    let log = stage.hosts.write("log/lighttpd.error", "")?;
    stage.hosts.app("chown", &["www-data", &log])?;
    let conf = stage.hosts.write("lighttpd.conf", &text)?;
    stage.start("lighttpd", "/usr/sbin/lighttpd", &["-D", "-f", &conf])?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 413)?;
    Ok(format!("{}; {refused}", http::under_load(stage, http::SHORT, 0, |_| Ok(()))?))
}
