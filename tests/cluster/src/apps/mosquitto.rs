//! mosquitto, a broker of MQTT.

use std::time::Duration;

use anyhow::{Result, bail};

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 1883;
const SUBSCRIBERS: usize = 8;
const MESSAGES: usize = 5000;

pub const ROWS: [Row; 1] = [Row {
    name: "mosquitto",
    program: "mosquitto, MQTT",
    version: &["dpkg-query", "-W", "mosquitto"],
    driven: "8 subscribers and a publisher of 5,000 messages of QoS 1, compared line by line",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let conf = format!("listener {PORT} 0.0.0.0\nallow_anonymous true\nmax_queued_messages 0\nuser root\n");
    let conf = stage.hosts.write("mosquitto.conf", &conf)?;
    stage.start("mosquitto", "/usr/sbin/mosquitto", &["-c", &conf])?;
    stage.wait_port(PORT)?;
    let dir = stage.hosts.path("");
    // Each subscriber receives a retained message as soon as its subscription is active.
    stage.hosts.client_shell(&format!(
        "cd {dir}; seq {MESSAGES} > lines; mosquitto_pub -h {VIP} -p {PORT} -t t/ready -m ready -r -q 1; \
         for n in $(seq {SUBSCRIBERS}); do mosquitto_sub -h {VIP} -p {PORT} -t 't/#' -q 1 -C {count} > got$n & done; \
         for n in $(seq {SUBSCRIBERS}); do until grep -q ready got$n; do sleep 0.05; done; done; \
         mosquitto_pub -h {VIP} -p {PORT} -t t/lines -q 1 -l < lines; wait",
        count = MESSAGES + 1
    ))?;
    let wanted = format!("ready\n{}", std::fs::read_to_string(stage.hosts.path("lines"))?);
    for n in 1..=SUBSCRIBERS {
        if std::fs::read_to_string(stage.hosts.path(&format!("got{n}")))? != wanted {
            bail!("subscriber {n} received other messages than were sent");
        }
    }
    stage.alive()?;
    Ok(format!("{MESSAGES} messages to {SUBSCRIBERS} subscribers"))
}
