//! A client, a device, the kernel's server and the engine's: everything one measurement needs. Several lanes measure
//! at once and share nothing but the machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use csp_types::MacAddr;
use serde::Serialize;

use crate::cell::{Cell, Workload};
use crate::client::{Client, Job};
use crate::device::{Device, DeviceReport, PORTS};
use crate::engine::{self, EngineHost, Place};
use crate::fault::FaultConfig;
use crate::host;
use crate::kernel::KernelHost;
use crate::session::Tally;

/// Hardware addresses of client, server and engine.
pub const MACS: [MacAddr; 3] =
    [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3])];
const IPS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 3)];
const PORT: u16 = 5_000;
/// The hosts' end of their link.
const INTERFACE: &str = "eth0";
/// How long what is left of a measurement has to pass over a link without faults.
const SETTLE: Duration = Duration::from_millis(50);

/// Settings of both kernels, so that nothing carries over from one measurement to the next, and buffers are the same
/// on every machine.
const SETTINGS: [(&str, &str); 5] = [
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_rmem", "4096 131072 6291456"),
    ("ipv4/tcp_wmem", "4096 16384 4194304"),
    ("ipv4/tcp_max_syn_backlog", "4096"),
    ("ipv4/ip_local_port_range", "1024 65535"),
];

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Server {
    /// csp-tcp.
    Engine,
    /// The kernel.
    Linux,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Bytes or transactions per second.
    pub per_second: f64,
    /// What the device did.
    pub device: DeviceReport,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The link.
    pub cell: Cell,
    /// What to do over it.
    pub workload: Workload,
    /// For how long.
    pub time: Duration,
    /// The faults' seed.
    pub seed: u64,
    /// Beginning of the names of packet traces.
    pub trace: Option<PathBuf>,
}

/// See the module.
pub struct Lane {
    client: Client,
    device: Device,
    kernel: KernelHost,
    engine: EngineHost,
}

/// Starts something on a thread that is a host of its own: `set_up` runs when its link is there.
struct Pending<T> {
    thread_id: String,
    go: mpsc::Sender<()>,
    started: std::thread::JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Pending<T> {
    fn new(set_up: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (go, gone) = mpsc::channel();
        let (entered, has_entered) = mpsc::channel();
        let started = std::thread::spawn(move || {
            let result = host::enter_new_network().map(|()| host::thread_id());
            let _ = entered.send(result);
            gone.recv().context("the lane was given up")?;
            set_up()
        });
        Ok(Pending { thread_id: has_entered.recv().context("a host")??, go, started })
    }

    fn start(self) -> Result<T> {
        let _ = self.go.send(());
        self.started.join().map_err(|_| anyhow::anyhow!("a host's thread panicked"))?
    }
}

/// Configures a host's interface.
fn set_up_interface(at: usize, with_address: bool) -> Result<()> {
    host::disable_segmentation(INTERFACE)?;
    host::run("ip", &["link", "set", INTERFACE, "address", &MACS[at].to_string(), "up"])?;
    if !with_address {
        return Ok(());
    }
    host::run("ip", &["address", "add", &format!("{}/24", IPS[at]), "dev", INTERFACE])?;
    // Asking for addresses over a lossy link would add to the noise.
    for (ip, mac) in IPS.iter().zip(MACS).filter(|(ip, _)| **ip != IPS[at]) {
        let (ip, mac) = (ip.to_string(), mac.to_string());
        host::run("ip", &["neighbour", "add", &ip, "lladdr", &mac, "dev", INTERFACE, "nud", "permanent"])?;
    }
    SETTINGS.iter().try_for_each(|(name, value)| host::write_setting(name, value))
}

impl Lane {
    /// Sets everything up. Needs root.
    pub fn new(seed: u64) -> Result<Self> {
        let tally = Arc::new(Tally::default());
        let (client_tally, kernel_tally) = (Arc::clone(&tally), Arc::clone(&tally));
        let client = Pending::new(move || {
            set_up_interface(0, true)?;
            Client::start(client_tally)
        })?;
        let kernel = Pending::new(move || {
            set_up_interface(1, true)?;
            KernelHost::start(SocketAddr::new(IpAddr::V4(IPS[1]), PORT), kernel_tally)
        })?;
        let engine = Pending::new(move || {
            set_up_interface(2, false)?;
            let place = Place { interface: INTERFACE.to_owned(), mac: MACS[2], ip: IPS[2], port: PORT };
            EngineHost::start(place, engine::stack_config(seed), tally)
        })?;
        let hosts = [client.thread_id.clone(), kernel.thread_id.clone(), engine.thread_id.clone()];
        let device = Pending::new(move || {
            for (port, thread_id) in PORTS.iter().zip(&hosts) {
                let far = ["type", "veth", "peer", "name", INTERFACE, "netns", thread_id];
                host::run("ip", &[&["link", "add", port], &far[..]].concat())?;
                host::disable_segmentation(port)?;
                host::run("ip", &["link", "set", port, "up"])?;
            }
            Device::start()
        })?;
        // The device first: it makes the links.
        let device = device.start()?;
        let (client, kernel, engine) = (client.start()?, kernel.start()?, engine.start()?);
        Ok(Lane { client, device, kernel, engine })
    }

    /// Measures once.
    pub fn measure(&self, experiment: &Experiment, server: Server) -> Result<Measurement> {
        self.settle()?;
        let Experiment { cell, workload, time, seed, .. } = *experiment;
        let faults = cell.faults();
        self.device.configure(faults, faults, seed, experiment.trace.clone())?;
        let ip = if server == Server::Engine { IPS[2] } else { IPS[1] };
        let job = Job {
            target: SocketAddr::new(IpAddr::V4(ip), PORT),
            workload,
            flows: cell.flows(workload),
            time,
            spread: Duration::from_millis(u64::from(cell.rtt_ms) * 2),
        };
        let measured = self.client.run(job);
        let device = self.settle()?;
        let per_second = measured.with_context(|| format!("{cell}, {workload:?} with {server:?}"))?;
        Ok(Measurement { per_second, device })
    }

    /// What the engine counted so far.
    pub fn engine_counters(&self) -> Result<String> {
        self.engine.reset()
    }

    /// Ends all connections over a link without faults; says what the device did before.
    fn settle(&self) -> Result<DeviceReport> {
        let report = self.device.configure(FaultConfig::CLEAN, FaultConfig::CLEAN, 0, None)?;
        self.kernel.reset()?;
        self.engine.reset()?;
        std::thread::sleep(SETTLE);
        Ok(report)
    }
}
