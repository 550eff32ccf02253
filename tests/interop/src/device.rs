//! The fault device: a thread with three raw-socket ports that forwards frames as the [`Direction`]s define.
//!
//! It receives MTU-size frames from the kernel (with partial checksums) and answers none itself. It forwards
//! by the Ethernet destination: frames of the client to the server or the engine, all others to the client.
//! Faults apply to TCP only; ARP is delayed, but never lost or reordered.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_lan::{Checksum, Frame, LanPort, LanTransmitter, RECEIVE_BATCH_MAX, TxOffload};
use csp_types::{Duration, Instant, MacAddr};
use serde::Serialize;

use crate::fault::{Direction, FaultConfig, FaultCounters};
use crate::host;
use crate::pcap::Trace;

/// The device's interfaces.
pub const PORTS: [&str; 3] = ["client0", "server0", "engine0"];
const CLIENT: usize = 0;
/// Interval of the checks for commands while no packet is due.
const IDLE: Duration = Duration::from_millis(2);
/// A packet that is due sooner than this is waited for without sleeping, since waking up takes about as long.
const SPIN: Duration = Duration::from_micros(40);
/// Offsets and values in a frame that identify TCP over IPv4.
const IPV4_TCP: [(usize, u8); 3] = [(12, 0x08), (13, 0x00), (23, 6)];

/// Results between two calls of [`Device::configure`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DeviceReport {
    /// The direction from the client.
    pub up: FaultCounters,
    /// The direction to the client.
    pub down: FaultCounters,
    /// Frames that the kernel dropped on reception or refused for transmission, because the device was too
    /// slow. Should be 0.
    pub overrun: u64,
    /// Frames that represented several segments, because offloads were not disabled. Should be 0.
    pub coalesced: u64,
    /// Mean lateness of packets, in microseconds.
    pub late_us_mean: f64,
    /// Largest lateness of a packet, in microseconds.
    pub late_us_max: u64,
    /// Packets that were more than 200 µs late.
    pub late: u64,
}

struct Order {
    up: FaultConfig,
    down: FaultConfig,
    seed: u64,
    trace: Option<PathBuf>,
    reply: Sender<DeviceReport>,
}

/// The device's thread, controlled by commands.
pub struct Device {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts the device in the calling thread's namespace, which contains its interfaces.
    pub fn start() -> Result<Self> {
        let mut ports = Vec::new();
        for name in PORTS {
            ports.push(af_packet::open(&AfPacketConfig::new(name)).with_context(|| format!("port {name}"))?);
        }
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new().name("device".into()).spawn(move || {
            if let Err(error) = host::raise_priority(host::DEVICE_PRIORITY) {
                eprintln!("the device runs without real-time priority: {error:#}");
            }
            Worker::new(ports).run(&inbox);
        })?;
        Ok(Device { orders: Some(orders), thread: Some(thread) })
    }

    /// Changes the faults from now on, which are drawn from `seed`, and drops all packets on the wire. With
    /// `trace`, packets are written to `<trace>-in.pcap` when received and to `<trace>-out.pcap` when
    /// transmitted. Returns the results since the last call.
    pub fn configure(
        &self,
        up: FaultConfig,
        down: FaultConfig,
        seed: u64,
        trace: Option<PathBuf>,
    ) -> Result<DeviceReport> {
        let (reply, answer) = channel();
        let Some(orders) = &self.orders else { bail!("the device was stopped") };
        orders.send(Order { up, down, seed, trace, reply }).ok().context("the device has ended")?;
        answer.recv().context("the device has ended")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Packet {
    bytes: Vec<u8>,
    offload: Option<TxOffload>,
    to: usize,
}

/// Frames in flight in both directions.
struct Wire {
    up: Direction<Packet>,
    down: Direction<Packet>,
    report: DeviceReport,
    late_us_total: u64,
    released: u64,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    trace_in: Option<Trace>,
    trace_out: Option<Trace>,
}

struct Worker {
    ports: Vec<LanPort>,
    macs: [MacAddr; 3],
    wire: Wire,
}

impl Worker {
    fn new(ports: Vec<LanPort>) -> Self {
        let wire = Wire {
            up: Direction::new(FaultConfig::CLEAN, 0),
            down: Direction::new(FaultConfig::CLEAN, 0),
            report: DeviceReport::default(),
            late_us_total: 0,
            released: 0,
            spare: Vec::new(),
            trace_in: None,
            trace_out: None,
        };
        Worker { ports, macs: crate::lane::MACS, wire }
    }

    fn run(&mut self, inbox: &Receiver<Order>) {
        let descriptors: Vec<_> = self.ports.iter().flat_map(|port| port.receiver.fds()).flatten().collect();
        loop {
            match inbox.try_recv() {
                Ok(order) => self.apply(order),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            let received = self.receive();
            self.release();
            if received {
                continue;
            }
            let now = host::now();
            let due = self.wire.next_due();
            if due > now + SPIN {
                // Sleep until half the wake-up time before the packet is due, and spin for the rest.
                host::wait_readable(&descriptors, now + ((due - now) - SPIN / 2));
            }
        }
    }

    fn apply(&mut self, order: Order) {
        for port in &mut self.ports {
            // Adds the receiver's count of overruns, which is cumulative.
            self.wire.report.overrun += port.receiver.counters().overrun;
        }
        let trace = |what| {
            let path = order.trace.as_ref()?;
            Trace::create(&PathBuf::from(format!("{}-{what}.pcap", path.display()))).ok()
        };
        let report = self.wire.reset(order.up, order.down, order.seed);
        (self.wire.trace_in, self.wire.trace_out) = (trace("in"), trace("out"));
        let _ = order.reply.send(report);
    }

    fn receive(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.ports.len() {
            let (wire, macs) = (&mut self.wire, &self.macs);
            let now = host::now();
            let taken = self.ports[at].receiver.receive(&mut |frame| wire.take(now, at, macs, &frame));
            any |= taken > 0;
            debug_assert!(taken <= RECEIVE_BATCH_MAX);
        }
        any
    }

    fn release(&mut self) {
        let now = host::now();
        let mut sent = [false; 3];
        while let Some(packet) = self.wire.release_one(now) {
            sent[packet.to] = true;
            let port: &mut dyn LanTransmitter = &mut *self.ports[packet.to].transmitter;
            if port.transmit(&[&packet.bytes], packet.offload).is_err() {
                self.wire.report.overrun += 1;
            }
            self.wire.spare.push(packet.bytes);
        }
        for (port, sent) in self.ports.iter_mut().zip(sent) {
            if sent {
                port.transmitter.flush();
            }
        }
    }
}

impl Wire {
    fn reset(&mut self, up: FaultConfig, down: FaultConfig, seed: u64) -> DeviceReport {
        let mut report = std::mem::take(&mut self.report);
        (report.up, report.down) = (self.up.counters(), self.down.counters());
        report.late_us_mean = self.late_us_total as f64 / self.released.max(1) as f64;
        (self.late_us_total, self.released) = (0, 0);
        self.up = Direction::new(up, seed);
        self.down = Direction::new(down, seed ^ 0x5555_5555);
        report
    }

    fn take(&mut self, now: Instant, from: usize, macs: &[MacAddr; 3], frame: &Frame<'_>) {
        if frame.gso.is_some() {
            self.report.coalesced += 1;
            return;
        }
        let Some(destination) = frame.bytes.first_chunk::<6>() else { return };
        if let Some(trace) = &mut self.trace_in {
            trace.record(now, frame.bytes);
        }
        let spared = !IPV4_TCP.iter().all(|(at, value)| frame.bytes.get(*at) == Some(value));
        let offload = match frame.checksum {
            Checksum::Partial { start, offset } => {
                let header_len = start + 20;
                Some(TxOffload { checksum_start: start, checksum_offset: offset, gso: None, header_len })
            }
            _ => None,
        };
        for (to, mac) in macs.iter().enumerate() {
            let is_its = MacAddr(*destination) == *mac || destination[0] & 1 == 1;
            // There is no link between server and engine.
            if !is_its || to == from || (to != CLIENT && from != CLIENT) {
                continue;
            }
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame.bytes);
            let direction = if from == CLIENT { &mut self.up } else { &mut self.down };
            direction.offer(now, Packet { bytes, offload, to }, frame.bytes.len(), spared);
        }
    }

    fn release_one(&mut self, now: Instant) -> Option<Packet> {
        let (due, packet) = self.up.take_due(now).or_else(|| self.down.take_due(now))?;
        let late_us = (now - due).as_nanos() as u64 / 1_000;
        self.late_us_total += late_us;
        self.released += 1;
        self.report.late_us_max = self.report.late_us_max.max(late_us);
        self.report.late += u64::from(late_us > 200);
        if let Some(trace) = &mut self.trace_out {
            trace.record(now, &packet.bytes);
        }
        Some(packet)
    }

    fn next_due(&self) -> Instant {
        let idle = host::now() + IDLE;
        [self.up.next_due(), self.down.next_due()].into_iter().flatten().fold(idle, Instant::min)
    }
}
