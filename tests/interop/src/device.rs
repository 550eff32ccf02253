//! The fault device: a thread with three raw-socket ports that passes frames on as a [`Direction`] says.
//!
//! It takes MTU-size frames as the kernel hands them over (checksums left partial), answers nothing itself, and knows
//! of Ethernet only the destination: the client's frames go to the server or to the engine, everybody else's go to the
//! client. Only TCP suffers; ARP is delayed like the rest and never lost.

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

/// The device's ends of the links.
pub const PORTS: [&str; 3] = ["client0", "server0", "engine0"];
const CLIENT: usize = 0;
/// Nothing is due: how long to sleep until orders are looked for again.
const IDLE: Duration = Duration::from_millis(2);
/// What is due sooner than this is waited for without sleeping: waking up takes about as long.
const SPIN: Duration = Duration::from_micros(40);
/// TCP's number in the protocol field, and where that is in a frame.
const IPV4_TCP: [(usize, u8); 3] = [(12, 0x08), (13, 0x00), (23, 6)];

/// What the device did between two calls of [`Device::configure`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DeviceReport {
    /// From the client.
    pub up: FaultCounters,
    /// To the client.
    pub down: FaultCounters,
    /// Frames the kernel dropped on the way to us, or refused from us: the device was too slow. Should be 0.
    pub overrun: u64,
    /// Frames that stood for several segments: offloads are not off. Should be 0.
    pub coalesced: u64,
    /// How late packets left: the mean, in microseconds.
    pub late_us_mean: f64,
    /// The latest of them, in microseconds.
    pub late_us_max: u64,
    /// Packets that left more than 200 µs late.
    pub late: u64,
}

struct Order {
    up: FaultConfig,
    down: FaultConfig,
    seed: u64,
    trace: Option<PathBuf>,
    reply: Sender<DeviceReport>,
}

/// The device's thread, steered from outside.
pub struct Device {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts the device in the calling thread's namespace, where its links are.
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

    /// From now on, other faults, drawn from `seed`; packets on the wire are forgotten. With `trace`, packets are
    /// written to `<trace>-in.pcap` as they come and to `<trace>-out.pcap` as they go on. Returns what was since the
    /// last call.
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

/// Frames on their way in both directions.
struct Wire {
    up: Direction<Packet>,
    down: Direction<Packet>,
    report: DeviceReport,
    late_us_total: u64,
    released: u64,
    /// Buffers to use again.
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
        let descriptors: Vec<_> = self.ports.iter().filter_map(|port| port.receiver.fd()).collect();
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
                // Early by half of what waking up takes; the rest is spun away.
                host::wait_readable(&descriptors, now + ((due - now) - SPIN / 2));
            }
        }
    }

    fn apply(&mut self, order: Order) {
        for port in &mut self.ports {
            // Read and reset by the kernel, so that each report has its own.
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
            // Between server and engine there is no link.
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
