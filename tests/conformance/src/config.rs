//! `config key=value …`: the configuration of a script's engine and peer.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_tcp::{CongestionControl, EcnMode, StackConfig, SynCookies};
use csp_types::FourTuple;

use crate::parse::value;

/// The configuration that a script runs with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub stack: StackConfig,
    pub ipv6: bool,
    /// Tolerance of the time at which an expected segment is sent.
    pub tolerance: Duration,
    /// The peer's initial sequence number, shortly before the wrap, so that every script crosses it.
    pub peer_isn: u32,
    /// Pass segments to the engine by label once the network node knows it, as the tunnel does.
    pub labels: bool,
}

impl Default for Config {
    fn default() -> Self {
        let stack = StackConfig {
            connections: 16,
            half_open: 8,
            time_wait_entries: 16,
            listeners: 4,
            replies: 16,
            blocks: 2_048,
            range_sets: 32,
            isn_secret: *b"packet scripts' ",
            pacing: false, // sending depends on windows only, unless a script enables pacing
            ..StackConfig::default()
        };
        Config {
            stack,
            ipv6: false,
            // Two ticks of the engine's timers.
            tolerance: Duration::from_millis(2),
            peer_isn: 0xffff_fa00,
            labels: true,
        }
    }
}

impl Config {
    /// Returns the addresses of connection `peer`. The engine's port is always 80.
    pub fn tuple(&self, peer: u16) -> FourTuple {
        let (local, remote): (IpAddr, IpAddr) = match self.ipv6 {
            false => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::new(198, 51, 100, 2).into()),
            true => {
                let host = |n| Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, n);
                (host(1).into(), host(2).into())
            }
        };
        FourTuple { local: SocketAddr::new(local, 80), remote: SocketAddr::new(remote, 40_000 + peer) }
    }

    /// Sets one key.
    ///
    /// # Errors
    /// The valid values, or why the value is not valid.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let stack = &mut self.stack;
        match key {
            "ip" => self.ipv6 = choice(text, &[("4", false), ("6", true)])?,
            "tolerance" => self.tolerance = value::duration(text)?,
            "peer_isn" => self.peer_isn = number(text)?,
            "labels" => self.labels = on_off(text)?,
            "connections" => stack.connections = number(text)?,
            "half_open" => stack.half_open = number(text)?,
            "time_wait_entries" => stack.time_wait_entries = number(text)?,
            "replies" => stack.replies = number(text)?,
            "replies_per_second" => stack.replies_per_second = number(text)?,
            "blocks" => stack.blocks = number(text)?,
            "block_len" => stack.block_len = number(text)?,
            "range_sets" => stack.range_sets = number(text)?,
            "receive_window" => stack.receive_window_max = number(text)?,
            "send_buffer" => (stack.send_buffer_max, stack.send_buffer_min) = (number(text)?, number(text)?),
            "mss_v4" => stack.mss_v4 = number(text)?,
            "mss_v6" => stack.mss_v6 = number(text)?,
            "initial_window" => stack.initial_window_segments = number(text)?,
            "congestion" => {
                let choices = [("newreno", CongestionControl::NewReno), ("cubic", CongestionControl::Cubic)];
                stack.congestion = choice(text, &choices)?;
            }
            "syn_cookies" => {
                let choices =
                    [("off", SynCookies::Off), ("auto", SynCookies::Auto), ("always", SynCookies::Always)];
                stack.syn_cookies = choice(text, &choices)?;
            }
            "rto_initial" => stack.rto_initial = value::duration(text)?,
            "rto_min" => stack.rto_min = value::duration(text)?,
            "rto_max" => stack.rto_max = value::duration(text)?,
            "syn_ack_retries" => stack.syn_ack_retries = number(text)?,
            "syn_retries" => stack.syn_retries = number(text)?,
            "retries" => stack.retries = number(text)?,
            "delayed_ack" => stack.delayed_ack = value::duration(text)?,
            "quick_acks" => stack.quick_acks = number(text)?,
            "time_wait" => stack.time_wait = value::duration(text)?,
            "fin_wait_2" => stack.fin_wait_2 = value::duration(text)?,
            "reset_wait" => stack.reset_wait = value::duration(text)?,
            "reset_stall" => stack.reset_stall = value::duration(text)?,
            "keepalive" => stack.keepalive_idle = optional(text)?,
            "keepalive_interval" => stack.keepalive_interval = value::duration(text)?,
            "keepalive_probes" => stack.keepalive_probes = number(text)?,
            "challenge_interval" => stack.challenge_interval = value::duration(text)?,
            "nagle" => stack.nagle = on_off(text)?,
            "pacing" => stack.pacing = on_off(text)?,
            "ecn" => {
                let choices =
                    [("off", EcnMode::Off), ("passive", EcnMode::Passive), ("active", EcnMode::Active)];
                stack.ecn = choice(text, &choices)?;
            }
            _ => return Err(format!("unknown key; known keys are {KEYS}")),
        }
        Ok(())
    }
}

const KEYS: &str = "ip, tolerance, peer_isn, labels, connections, half_open, time_wait_entries, replies, \
    replies_per_second, blocks, block_len, range_sets, receive_window, send_buffer, mss_v4, mss_v6, \
    initial_window, congestion, syn_cookies, rto_initial, rto_min, rto_max, syn_retries, syn_ack_retries, retries, \
    delayed_ack, quick_acks, time_wait, fin_wait_2, reset_wait, reset_stall, keepalive, keepalive_interval, keepalive_probes, \
    challenge_interval, nagle, pacing, ecn";

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in range"))
}

pub(crate) fn on_off(text: &str) -> Result<bool, String> {
    choice(text, &[("on", true), ("off", false)])
}

/// Parses a duration or `off`.
pub(crate) fn optional(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" { Ok(None) } else { value::duration(text).map(Some) }
}

fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| format!("`{text}` is not one of {}", names.join(", ")))
}
