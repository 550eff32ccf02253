//! A channel with keys over the whole path: pairs from cspctl, the secret one in the proxy's folder, programs
//! of ZeroMQ that the policy lets in, refuses, and no longer knows.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};

const PORT: u16 = 5556;
const DEADLINE: Duration = Duration::from_secs(90);

/// A cluster with a folder for keys at the proxy, and pairs of the channel and of three clients beside it.
struct Keys {
    cluster: Cluster,
    /// Public keys of the channel, a publisher, a subscriber.
    public: Vec<String>,
}

impl Keys {
    fn start() -> Option<Keys> {
        let mut cluster = testing::lay_out("keys")?;
        let scratch = cluster.scratch().to_owned();
        fs::create_dir(scratch.join("curve")).unwrap();
        let config = scratch.join(format!("{}.yaml", Tier::ProxyNode.daemon()));
        let mut text = fs::read_to_string(&config).unwrap();
        text.push_str(&format!("messages:\n  curve_keys: {}\n", scratch.join("curve").display()));
        fs::write(&config, text).unwrap();
        fs::write(scratch.join("zmq_keys.py"), include_str!("../apps/zmq_keys.py")).unwrap();
        cluster.start_daemons().unwrap();
        let pair = |name: &&str| {
            let base = scratch.join(name);
            cluster.cspctl(&["channel-key", &base.to_string_lossy()]).unwrap().trim().to_owned()
        };
        let public = ["ticks", "feed", "reader", "stranger"].iter().map(pair).collect();
        Some(Keys { cluster, public })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cluster.scratch().join(name)
    }

    /// Applies a policy in which the feed may publish, and the reader subscribe if it is known.
    fn apply(&self, knows_reader: bool) -> anyhow::Result<String> {
        let [server, feed, reader, ..] = &self.public[..] else { unreachable!() };
        let reader = match knows_reader {
            true => format!("        - {{key: \"{reader}\", may: [subscribe]}}\n"),
            false => String::new(),
        };
        let text = format!(
            "apiVersion: csp/v1\nchannels:\n  - name: ticks\n    vip: {VIP}\n    port: {PORT}\n    curve:\n      \
             server_key: \"{server}\"\n      clients:\n        - {{key: \"{feed}\", may: [publish]}}\n{reader}"
        );
        fs::write(self.file("keys.yaml"), text).unwrap();
        self.cluster.cspctl(&["policy", "apply", &self.file("keys.yaml").to_string_lossy()])
    }

    fn program(&self, what: &str, pair: &str) -> Process {
        let mut command = self.cluster.client.command("/usr/bin/python3");
        command.arg(self.file("zmq_keys.py")).arg(what).arg(format!("tcp://{VIP}:{PORT}"));
        command.arg(self.file("ticks.key")).arg(self.file(&format!("{pair}.key_secret")));
        let log = self.file("log").join(format!("{what}-{pair}.log"));
        Process::spawn(&format!("{what}-{pair}"), command, &log).unwrap()
    }

    /// Waits until a program has printed `line`.
    fn prints(&self, process: &Process, line: &str) {
        let printed = || (fs::read_to_string(process.log()).ok()?.trim() == line).then_some(());
        wait_until(line, DEADLINE, printed).unwrap_or_else(|error| {
            panic!("{error}: {}\n{}", process.log_tail(20), self.cluster.all_logs());
        });
    }

    /// Waits until so many peers were refused for a reason.
    fn refused(&self, reason: &str, count: f64) {
        let label = format!("reason=\"{reason}\"");
        let found = || {
            let value =
                self.cluster.metric(Tier::ProxyNode, "csp_message_peers_refused_total", &label).ok()?;
            (value == count).then_some(())
        };
        wait_until(reason, DEADLINE, found).unwrap();
    }
}

#[test]
fn programs_with_keys_are_let_in_refused_and_disconnected_as_the_policy_says() {
    let Some(mut keys) = Keys::start() else { return };
    let error = keys.apply(true).unwrap_err().to_string();
    let server = &keys.public[0];
    assert!(error.contains(&format!("this proxy has no secret key for {server}")), "{error}");
    fs::copy(keys.file("ticks.key_secret"), keys.file("curve/ticks.key_secret")).unwrap();
    keys.apply(true).unwrap();
    Tier::ALL.iter().for_each(|tier| keys.cluster.wait_ready(*tier).unwrap());
    let mut feed = keys.program("publish", "feed");
    let mut reader = keys.program("subscribe", "reader");
    keys.prints(&reader, "tick");
    let stranger = keys.program("outcome", "stranger");
    keys.prints(&stranger, "EVENT_HANDSHAKE_FAILED_AUTH 400");
    keys.refused("unknown_key", 1.0);
    let feed_reads = keys.program("outcome", "feed");
    keys.prints(&feed_reads, "EVENT_HANDSHAKE_FAILED_AUTH 400");
    keys.refused("may_not_subscribe", 1.0);
    keys.apply(false).unwrap();
    keys.refused("rights_removed", 1.0);
    // It tries again, is refused, and libzmq gives up.
    keys.refused("unknown_key", 2.0);
    for process in [&mut feed, &mut reader] {
        assert!(process.exited().is_none(), "{} goes on", process.name());
        process.stop().unwrap();
    }
    assert_eq!(keys.cluster.casualties(), "");
    keys.cluster.stop().unwrap();
}
