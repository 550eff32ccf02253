//! Hosts as network namespaces, joined by veth.

use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::process::ending_with_parent;

/// A network namespace, removed when dropped.
#[derive(Debug)]
pub struct Host {
    namespace: String,
    borrowed: bool,
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("ip (Debian package iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Host {
    /// Creates the namespace `csp-<tag>-<name>` with its loopback up.
    pub fn new(tag: &str, name: &str) -> Result<Self> {
        let namespace = format!("csp-{tag}-{name}");
        ip(&["netns", "add", &namespace])?;
        let host = Host { namespace, borrowed: false };
        host.ip(&["link", "set", "lo", "up"])?;
        Ok(host)
    }

    /// Returns the namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns another handle to the same host. The namespace exists as long as `self`.
    pub fn borrow(&self) -> Host {
        Host { namespace: self.namespace.clone(), borrowed: true }
    }

    /// Returns the ids of the processes inside.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let output = Command::new("ip").args(["netns", "pids", &self.namespace]).output().context("ip")?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect())
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        let mut all = vec!["-n", &self.namespace];
        all.extend_from_slice(arguments);
        ip(&all)
    }

    /// Returns a command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = ending_with_parent("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Runs a command inside to its end; returns its output, whatever its exit status.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        self.command(program)
            .args(arguments)
            .output()
            .with_context(|| format!("{program} on {}", self.namespace))
    }

    /// Runs a command inside; returns its standard output, or an error with its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self.output(program, arguments)?;
        if !output.status.success() {
            bail!(
                "{program} {}: {}\n{}{}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Joins two hosts by a veth pair: `near` here, `far` there, both up.
    pub fn join(&self, near: &str, other: &Host, far: &str) -> Result<()> {
        ip(&[
            "link",
            "add",
            near,
            "netns",
            &self.namespace,
            "type",
            "veth",
            "peer",
            "name",
            far,
            "netns",
            &other.namespace,
        ])?;
        self.ip(&["link", "set", near, "up"])?;
        other.ip(&["link", "set", far, "up"])
    }

    /// Adds an address with prefix length to an interface.
    pub fn address(&self, interface: &str, address: &str) -> Result<()> {
        self.ip(&["address", "add", address, "dev", interface])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.borrowed {
            let _ = ip(&["netns", "delete", &self.namespace]);
        }
    }
}
