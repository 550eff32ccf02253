//! A record as a line.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use csp_api::connections::ConnectionRecord;
use csp_api::time::utc;
use csp_daemon::clock;
use csp_types::{Instant, NodeId};

use super::Format;
use crate::core::EndedConnection;
use crate::daemon::events::name;

/// Converts the workers' clock to that of the day.
pub(super) struct Times {
    now: Instant,
    unix_ms: u64,
}

impl Times {
    /// Returns the conversion for records up to `now`.
    pub(super) fn new(now: Instant) -> Times {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = clock::now().saturating_since(now).as_millis();
        Times { now, unix_ms: u64::try_from(unix.as_millis()).unwrap_or(0).saturating_sub(age as u64) }
    }

    fn unix_ms(&self, at: Instant) -> u64 {
        self.unix_ms.saturating_sub(self.now.saturating_since(at).as_millis() as u64)
    }
}

/// Writes one record.
pub(super) fn write(
    out: &mut dyn Write,
    format: Format,
    (node, worker): (NodeId, u8),
    times: &Times,
    ended: &EndedConnection,
) -> io::Result<()> {
    let record = record((node, worker), times, ended);
    match format {
        Format::Json => serde_json::to_writer(&mut *out, &record)?,
        Format::Text => text(out, &record)?,
    }
    out.write_all(b"\n")
}

fn record((node, worker): (NodeId, u8), times: &Times, ended: &EndedConnection) -> ConnectionRecord {
    let since = |at: Instant| at.saturating_since(ended.began).as_micros() as u64;
    let measured = |us: u32| (us > 0).then_some(u64::from(us));
    let server = ended.server.map(|(host, port)| name(host, port));
    ConnectionRecord {
        time: utc(times.unix_ms(ended.ended)),
        proxy: node.to_string().into(),
        worker,
        label: format!("{:08x}", ended.label.to_wire()),
        client: ended.tuple.remote.to_string(),
        vip: ended.tuple.local.to_string(),
        service: (*ended.service).into(),
        server: server.unwrap_or_default().into(),
        process: ended.process.as_str().into(),
        bytes_in: ended.bytes.0,
        bytes_out: ended.bytes.1,
        handshake_us: measured(ended.handshake_us),
        wait_us: ended.opened.map(since),
        first_byte_us: ended.first_byte.map(since),
        total_us: since(ended.ended),
        retransmits: ended.figures.retransmits,
        rtt_us: measured(ended.figures.srtt_us),
        end: ended.end.as_str().into(),
        code: ended.end.code().into(),
    }
}

/// `TIME PROXY/WORKER CLIENT SERVICE SERVER/PROCESS HANDSHAKE/WAIT/FIRST_BYTE/TOTAL IN OUT CODE RETRANSMITS
/// RTT LABEL`, times in microseconds, `-` for what is not known.
fn text(out: &mut dyn Write, r: &ConnectionRecord) -> io::Result<()> {
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let word = |text: &str| if text.is_empty() { "-".to_owned() } else { text.replace(' ', "_") };
    let (handshake, wait, first, rtt) =
        (number(r.handshake_us), number(r.wait_us), number(r.first_byte_us), number(r.rtt_us));
    let (proxy, worker, total) = (&r.proxy, r.worker, r.total_us);
    write!(out, "{} {proxy}/{worker} {} {} ", r.time, r.client, r.service)?;
    write!(out, "{}/{} {handshake}/{wait}/{first}/{total} ", word(&r.server), word(&r.process))?;
    write!(out, "{} {} {} {} {rtt} {}", r.bytes_in, r.bytes_out, r.code, r.retransmits, r.label)
}

#[cfg(test)]
mod tests {
    use csp_tcp::Figures;
    use csp_types::{Duration, FlowLabel, FourTuple};

    use super::*;
    use crate::core::{End, ServerHost};

    #[test]
    fn a_record_is_a_line_of_json_or_of_words() {
        let began = Instant::from_nanos(1_000_000_000);
        let ended = EndedConnection {
            label: FlowLabel::new(5, 0),
            tuple: FourTuple { local: ([10, 76, 0, 100], 80).into(), remote: ([10, 0, 0, 2], 4242).into() },
            service: "web".into(),
            server: Some((ServerHost::Node("an-1".parse().unwrap()), 80)),
            process: Default::default(),
            bytes: (72, 1000),
            handshake_us: 90,
            began,
            opened: Some(began + Duration::from_micros(30)),
            first_byte: None,
            ended: began + Duration::from_millis(2),
            figures: Figures { srtt_us: 80, retransmits: 1 },
            end: End::ClientReset,
        };
        let times = Times { now: began + Duration::from_millis(12), unix_ms: 1_796_034_137_052 };
        let line = |format| {
            let mut out = Vec::new();
            write(&mut out, format, ("pn-1".parse().unwrap(), 3), &times, &ended).unwrap();
            String::from_utf8(out).unwrap()
        };
        let read: ConnectionRecord = serde_json::from_str(&line(Format::Json)).unwrap();
        assert_eq!(
            (read.time.as_str(), read.wait_us, read.first_byte_us),
            ("2026-11-30T10:22:17.042Z", Some(30), None)
        );
        assert_eq!((read.end.as_str(), read.code.as_str(), read.total_us), ("client_reset", "CR", 2000));
        let words = format!(
            "2026-11-30T10:22:17.042Z pn-1/3 10.0.0.2:4242 web an-1:80/- 90/30/-/2000 72 1000 CR 1 80 {:08x}\n",
            ended.label.to_wire()
        );
        assert_eq!(line(Format::Text), words);
    }
}
