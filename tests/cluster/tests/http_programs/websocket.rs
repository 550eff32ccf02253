//! WebSocket between both ends of the library websockets.

use super::stage::{SECURE, Stage, WEB};
use csp_cluster::VIP;

/// With and without TLS.
pub fn run(stage: &mut Stage) {
    let script = stage.write("ws_client.py", include_str!("../../apps/http/ws_client.py"));
    for url in [format!("ws://{VIP}:{WEB}/ws"), format!("wss://{VIP}:{SECURE}/ws")] {
        let result = stage.run("/usr/bin/python3", &[&script, &url, &stage.ca()]);
        let scheme = url.split(':').next().unwrap_or_default().to_owned();
        stage.row(format!("websockets ({scheme})"), result);
    }
}
