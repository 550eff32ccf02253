//! The cluster of a measurement, and its programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use csp_cluster::{Cluster, Options, Process, San, Tier, configs, wait_until};
use serde_json::Value;

use super::Plan;

const DEADLINE: Duration = Duration::from_secs(60);

/// A cluster on which one load after the other is measured.
pub struct Bench<'a> {
    pub plan: &'a Plan,
    pub cluster: Cluster,
    ended: Arc<AtomicBool>,
}

impl<'a> Bench<'a> {
    pub fn set_up(plan: &'a Plan) -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&ended))?;
        }
        let tag = format!("tt{}", std::process::id());
        let mut cluster =
            Cluster::lay_out(Options { binaries: plan.binaries.clone(), san: San::Shm, edge: false, tag })?;
        cluster.start_daemons()?;
        Ok(Bench { plan, cluster, ended })
    }

    /// Returns an error if the measurement is to end.
    pub fn go_on(&self) -> Result<()> {
        match self.ended.load(Ordering::Relaxed) {
            true => bail!("ended by a signal"),
            false => Ok(()),
        }
    }

    /// Puts a policy with these formats, channels and queries into force.
    pub fn apply(&mut self, more: &str) -> Result<()> {
        let file = self.cluster.scratch().join("through-tcp.yaml");
        fs::write(&file, format!("{}{more}", configs::policy()))?;
        self.cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])?;
        Tier::ALL.iter().try_for_each(|tier| self.cluster.wait_ready(*tier))
    }

    /// Starts a program on the clients' host; its output goes to a log.
    pub fn outside(
        &self,
        name: &str,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Process> {
        let mut command = self.cluster.client.command(&program.to_string_lossy());
        command.args(arguments).envs(environment.iter().copied());
        Process::spawn(name, command, &self.cluster.scratch().join("log").join(format!("{name}.log")))
    }

    /// Returns a figure of a channel.
    pub fn channel(&self, name: &str, figure: &str) -> Result<u64> {
        let view: Value = serde_json::from_str(&self.cluster.cspctl(&["channels", "-o", "json"])?)?;
        let mut channels = view["channels"].as_array().into_iter().flatten();
        let channel =
            channels.find(|channel| channel["name"] == name).with_context(|| format!("no channel {name}"))?;
        channel[figure].as_u64().with_context(|| format!("no {figure} in {channel}"))
    }

    /// Waits until a channel has so many receivers.
    pub fn wait_receivers(&self, channel: &str, count: u64) -> Result<()> {
        let has = || self.channel(channel, "receivers").is_ok_and(|known| known == count).then_some(());
        wait_until(&format!("{count} receivers of {channel}"), DEADLINE, has)
    }

    /// Returns the processor time of daemons in nanoseconds.
    pub fn cpu_ns(&mut self, tiers: &[Tier]) -> Result<u64> {
        let mut sum = 0;
        for tier in tiers {
            let pid = self.cluster.daemon(*tier).context("it was started")?.pid();
            sum += csp_cluster::cpu_ns_of_all(pid)?;
        }
        Ok(sum)
    }

    pub fn stop(mut self) -> Result<()> {
        let casualties = self.cluster.casualties();
        if !casualties.is_empty() {
            bail!("{casualties}");
        }
        self.cluster.stop()
    }
}

/// Waits for the end of a program; returns the last line that it has printed.
pub fn result(process: &mut Process, patience: Duration) -> Result<Value> {
    let name = process.name().to_owned();
    let ended = wait_until(&format!("{name} to end"), patience, || process.exited());
    let status = ended.with_context(|| process.log_tail(20))?;
    if !status.success() {
        bail!("{name} has ended with {status}: {}", process.log_tail(20));
    }
    let text = fs::read_to_string(process.log())?;
    let line = text.lines().last().with_context(|| format!("{name} has printed nothing"))?;
    serde_json::from_str(line).with_context(|| format!("{name}: {line}"))
}

/// Returns a number of a program's result.
pub fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("no {key} in {value}"))
}

/// Compiles a C program with libzmq.
pub fn compile(folder: &Path, name: &str, source: &str) -> Result<PathBuf> {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&file, source)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).args([&program, &file]).arg("-lzmq").stdin(Stdio::null());
    let output = command.output().context("cc")?;
    if !output.status.success() {
        bail!("{name}.c (it needs libzmq3-dev): {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}
