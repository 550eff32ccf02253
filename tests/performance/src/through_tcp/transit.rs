//! Morphing, Figure 5: a job done in transit, by a channel's path, and by the destination, which then gets
//! every message as it was sent.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use csp_cluster::{Tier, VIP};

use super::bench::{Bench, number, result};
use super::median;
use super::work::Job;
use crate::evaluation::Flights;

/// The port of a channel's first sender; receivers have the next one.
const PORT: u16 = 5700;
const PATIENCE: Duration = Duration::from_secs(90);

/// Where the job is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// By the program that receives the messages, on the application node.
    Destination,
    /// By the path of the channel, in the proxy.
    Transit,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Destination => "at the destination",
            Place::Transit => "in transit",
        })
    }
}

/// Medians of one job at one place. Processor times are in nanoseconds a message that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Transit {
    /// The job.
    pub job: Job,
    /// Where it is done.
    pub place: Place,
    /// Messages a second, as fast as it goes.
    pub rate: f64,
    /// Processor time of the application node: of the receiver and its agent.
    pub app_ns: f64,
    /// The same at a fixed rate, the same for both places.
    pub app_fixed_ns: f64,
    /// That rate, messages a second.
    pub fixed_rate: f64,
    /// Processor time of network node and proxy node.
    pub cluster_ns: f64,
    /// Bytes that the application node gets.
    pub bytes: f64,
    /// Rows that the application has got less those that it should have.
    pub lost: f64,
}

/// One load.
#[derive(Clone, Copy)]
struct Run {
    rate: f64,
    app_ns: f64,
    cluster_ns: f64,
    bytes: f64,
    lost: f64,
}

/// The channel of a job in transit has its path; that of all jobs at the destination has none.
fn channel(at: u16, name: &str, path: &str) -> String {
    let port = PORT + 10 * at;
    format!(
        "  - name: {name}\n    vip: {VIP}\n    port: {port}\n    pattern: push\n    formats: [flight]\n    framing: {{length: {{bytes: 4}}}}\n    \
         header: strip\n    clients: publish\n    queue: {{messages: 4096}}\n    listen:\n      - {{port: {}, framing: {{length: {{bytes: 4}}}}, header: strip, \
         clients: subscribe}}\n{path}",
        port + 1
    )
}

fn policy() -> String {
    let path = |job: Job| {
        let stage = |(name, parameters): (&str, String)| {
            format!("      - {{handler: {name}, parameters: \"{parameters}\"}}\n")
        };
        let stages: String = job.stages().into_iter().map(stage).collect();
        format!("    path:\n{stages}")
    };
    let paths: String =
        Job::ALL.iter().zip(1..).map(|(job, at)| channel(at, &job.to_string(), &path(*job))).collect();
    format!(
        "formats:\n  - name: flight\n    schema: '{}'\n    message: Flight1\nchannels:\n{}{paths}",
        Flights::xml(1),
        channel(0, "whole", "")
    )
}

impl Bench<'_> {
    /// Measures each job at both places, in turn.
    pub fn transit(&mut self, progress: &dyn Fn(&str)) -> Result<Vec<Transit>> {
        self.apply(&policy())?;
        let mut all = Vec::new();
        for job in Job::ALL {
            let (mut runs, mut fixed, mut rates) =
                ([const { Vec::new() }; 2], [const { Vec::new() }; 2], Vec::new());
            for round in 1..=self.plan.rounds {
                for (at, place) in [Place::Destination, Place::Transit].into_iter().enumerate() {
                    progress(&format!("round {round} of {}: {job} flights {place}", self.plan.rounds));
                    let run = self.load(job, place, 0.0)?;
                    runs[at].push(run);
                    let rate = *rates.first().unwrap_or(&(run.rate / 2.0));
                    rates.push(rate);
                    fixed[at].push(self.load(job, place, rate)?);
                }
            }
            for (at, place) in [Place::Destination, Place::Transit].into_iter().enumerate() {
                let of = |figure: fn(&Run) -> f64| median(runs[at].iter().map(figure).collect());
                let lost = runs[at].iter().chain(&fixed[at]).map(|run| run.lost).fold(0.0, f64::max);
                all.push(Transit {
                    job,
                    place,
                    rate: of(|run| run.rate),
                    app_ns: of(|run| run.app_ns),
                    app_fixed_ns: median(fixed[at].iter().map(|run| run.app_ns).collect()),
                    fixed_rate: rates[0],
                    cluster_ns: of(|run| run.cluster_ns),
                    bytes: of(|run| run.bytes),
                    lost,
                });
            }
        }
        Ok(all)
    }

    /// Sends flights through a channel to a program under `csp-run`, `rate` a second or as fast as they are
    /// taken (0).
    fn load(&mut self, job: Job, place: Place, rate: f64) -> Result<Run> {
        self.go_on()?;
        let (channel, at) = match (place, job) {
            (Place::Destination, _) => ("whole".to_owned(), 0),
            (Place::Transit, Job::All) => (job.to_string(), 1),
            (Place::Transit, Job::Select) => (job.to_string(), 2),
        };
        let port = PORT + 10 * at;
        let program = self.cluster.binary("csp-flights");
        let (to, from) = (format!("{VIP}:{port}"), format!("{VIP}:{}", port + 1));
        let name = job.to_string();
        let mut arguments = vec!["receive", &from];
        if place == Place::Destination {
            arguments.push(&name);
        }
        self.cluster.run_accelerated("destination", &program.to_string_lossy(), &arguments)?;
        self.wait_receivers(&channel, 1)?;
        let nodes = [Tier::NetworkNode, Tier::ProxyNode];
        let (cluster, agent) = (self.cpu_ns(&nodes)?, self.cpu_ns(&[Tier::AppNode])?);
        let (seconds, rate) = (self.plan.seconds.to_string(), rate.to_string());
        let arguments = ["send", &to, "--seconds", &seconds, "--rate", &rate];
        let sent = result(&mut self.outside("sender", &program, &arguments, &[])?, PATIENCE);
        let sent = sent.with_context(|| self.cluster.program_logs(10))?;
        let receiver = self.cluster.program("destination").context("it was started")?;
        let received = result(receiver, PATIENCE)?;
        let (cluster, agent) = (self.cpu_ns(&nodes)? - cluster, self.cpu_ns(&[Tier::AppNode])? - agent);
        self.cluster.remove_program("destination");
        let count = number(&sent, "sent")?;
        let expected = match job {
            Job::All => count,
            Job::Select => (count / 4.0).floor(),
        };
        Ok(Run {
            rate: count / number(&received, "seconds")?,
            app_ns: (number(&received, "cpu_ns")? + agent as f64) / count,
            cluster_ns: cluster as f64 / count,
            bytes: number(&received, "bytes")? / count,
            lost: expected - number(&received, "rows")?,
        })
    }
}
