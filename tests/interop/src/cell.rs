//! The cells of the matrix and the workloads that run in them.

use csp_types::Duration;
use serde::Serialize;

use crate::fault::FaultConfig;

/// The bottleneck's queue holds the bytes of one round trip, but at least this many.
const QUEUE_LEN_MIN: u64 = 64 * 1024;
/// Range of the further delay of reordered packets, independent of the round-trip time.
const HOLD: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(3));
/// Largest number of flows of a bulk measurement.
const FLOWS_MAX: u32 = 64;

/// A kind of link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Cell {
    /// Round-trip time of an empty link in milliseconds.
    pub rtt_ms: u32,
    /// Packets lost in each direction, per million.
    pub loss_ppm: u32,
    /// Packets reordered in each direction, per million.
    pub reorder_ppm: u32,
    /// Rate of the bottleneck in each direction, in Mbit/s.
    pub rate_mbit: u32,
}

/// The kinds of measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Bulk data to the client.
    Download,
    /// Bulk data from the client.
    Upload,
    /// Repeated transactions on the same connections: 100 bytes to the server, 4 KiB back.
    Request,
    /// One connection for each transfer of 8 KiB.
    Short,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 4] = [Workload::Download, Workload::Upload, Workload::Request, Workload::Short];

    /// Returns whether the result is in bytes rather than transactions per second.
    pub fn is_bulk(self) -> bool {
        matches!(self, Workload::Download | Workload::Upload)
    }

    /// Returns the length of the answer to one request in bytes; unlimited for bulk data.
    pub fn answer_len(self) -> u64 {
        match self {
            Workload::Download | Workload::Upload => u64::MAX,
            Workload::Request => 4 * 1024,
            Workload::Short => 8 * 1024,
        }
    }
}

impl Cell {
    /// Returns the device's configuration of each direction.
    pub fn faults(&self) -> FaultConfig {
        let rate_bps = u64::from(self.rate_mbit) * 1_000_000;
        FaultConfig {
            rate_bps: Some(rate_bps),
            queue_len: (rate_bps / 8 * u64::from(self.rtt_ms) / 1_000).max(QUEUE_LEN_MIN),
            delay: Duration::from_micros(u64::from(self.rtt_ms) * 500),
            loss_ppm: self.loss_ppm,
            reorder_ppm: self.reorder_ppm,
            hold: HOLD,
        }
    }

    /// Returns the rate that a flow can be expected to reach at this loss, in Mbit/s (Mathis et al. 1997).
    fn flow_mbit(&self) -> f64 {
        let loss = f64::from(self.loss_ppm) / 1e6;
        1.22 * 1_448.0 * 8.0 / (f64::from(self.rtt_ms) / 1e3) / loss.sqrt() / 1e6
    }

    /// Returns the number of simultaneous connections: enough to average over the losses, too few to fill the
    /// link despite them.
    pub fn flows(&self, workload: Workload) -> u32 {
        // By round-trip time: about 1, 20 and 100 ms.
        let by_rtt = |short, middle, long| match self.rtt_ms {
            ..5 => short,
            5..50 => middle,
            _ => long,
        };
        match (workload, self.loss_ppm) {
            (Workload::Download | Workload::Upload, 0) => 1,
            (Workload::Download | Workload::Upload, loss) => {
                // Below 5 ms timeouts limit a flow, which the formula does not include.
                let least = match loss {
                    0..5_000 => 1,
                    5_000..20_000 => 2,
                    _ => 8,
                };
                ((0.8 * f64::from(self.rate_mbit) / self.flow_mbit()) as u32).clamp(least, FLOWS_MAX)
            }
            (Workload::Request, ..5_000) => by_rtt(8, 32, 64),
            (Workload::Request, _) => by_rtt(32, 64, 128),
            (Workload::Short, 0) => by_rtt(4, 32, 64),
            (Workload::Short, ..5_000) => by_rtt(16, 64, 128),
            (Workload::Short, ..20_000) => by_rtt(64, 128, 256),
            (Workload::Short, _) => 256,
        }
    }

    /// Returns the approximate load of the workload on the link, in Mbit/s.
    pub fn load_mbit(&self, workload: Workload) -> u32 {
        let all = f64::from(self.rate_mbit);
        let flows = f64::from(self.flows(workload));
        let per_flow = match workload {
            _ if workload.is_bulk() => self.flow_mbit(),
            // One answer in one or two round trips; stalls are ignored.
            _ => 8.0 * 4_500.0 / (f64::from(self.rtt_ms) + 20.0 * f64::from(self.loss_ppm) / 1e4) / 1e3,
        };
        (flows * per_flow).min(all).ceil() as u32
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |ppm: u32| f64::from(ppm) / 1e4;
        let (loss, reorder) = (percent(self.loss_ppm), percent(self.reorder_ppm));
        write!(f, "{:>3} ms {loss:>3} % loss {reorder} % reordered", self.rtt_ms)
    }
}
