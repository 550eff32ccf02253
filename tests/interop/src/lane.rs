//! A lane: a client, a device, the kernel's server and the engine's, which together run one measurement at a
//! time. Several lanes run in parallel and share only the machine.

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
/// Name of the interface at each host.
const INTERFACE: &str = "eth0";
/// Time for the remaining packets of a measurement to pass, over a link without faults.
const SETTLE: Duration = Duration::from_millis(50);

/// Settings of both kernels. They prevent that one measurement affects the next, and make the buffers equal
/// on every machine.
const SETTINGS: [(&str, &str); 5] = [
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_rmem", "4096 131072 6291456"),
    ("ipv4/tcp_wmem", "4096 16384 4194304"),
    ("ipv4/tcp_max_syn_backlog", "4096"),
    ("ipv4/ip_local_port_range", "1024 65535"),
];

/// The server under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Server {
    /// csp-tcp.
    Engine,
    /// The kernel's TCP.
    Linux,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Bytes or transactions per second.
    pub per_second: f64,
    /// The device's report.
    pub device: DeviceReport,
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The link.
    pub cell: Cell,
    /// The workload.
    pub workload: Workload,
    /// The duration.
    pub time: Duration,
    /// The seed of the faults.
    pub seed: u64,
    /// Prefix of the names of packet traces.
    pub trace: Option<PathBuf>,
}

/// A lane, as described in the module documentation.
pub struct Lane {
    client: Client,
    device: Device,
    kernel: KernelHost,
    engine: EngineHost,
}

/// A host that is starting on a thread of its own: `set_up` runs when its link exists.
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

/// Configures the interface of a host.
fn set_up_interface(at: usize, with_address: bool) -> Result<()> {
    host::disable_segmentation(INTERFACE)?;
    host::run("ip", &["link", "set", INTERFACE, "address", &MACS[at].to_string(), "up"])?;
    if !with_address {
        return Ok(());
    }
    host::run("ip", &["address", "add", &format!("{}/24", IPS[at]), "dev", INTERFACE])?;
    // ARP over a lossy link would add noise to the results.
    for (ip, mac) in IPS.iter().zip(MACS).filter(|(ip, _)| **ip != IPS[at]) {
        let (ip, mac) = (ip.to_string(), mac.to_string());
        host::run("ip", &["neighbour", "add", &ip, "lladdr", &mac, "dev", INTERFACE, "nud", "permanent"])?;
    }
    SETTINGS.iter().try_for_each(|(name, value)| host::write_setting(name, value))
}

impl Lane {
    /// Creates a lane. Needs root.
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
        // The device starts first, since it creates the links.
        let device = device.start()?;
        let (client, kernel, engine) = (client.start()?, kernel.start()?, engine.start()?);
        Ok(Lane { client, device, kernel, engine })
    }

    /// Runs one measurement.
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

    /// Returns the engine's counters. Ends its connections.
    pub fn engine_counters(&self) -> Result<String> {
        self.engine.reset()
    }

    /// Ends all connections over a link without faults. Returns the device's report of the time before.
    fn settle(&self) -> Result<DeviceReport> {
        let report = self.device.configure(FaultConfig::CLEAN, FaultConfig::CLEAN, 0, None)?;
        self.kernel.reset()?;
        self.engine.reset()?;
        std::thread::sleep(SETTLE);
        Ok(report)
    }
}
