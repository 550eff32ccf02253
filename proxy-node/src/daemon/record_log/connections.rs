//! Records of connections.

use std::io::{self, Write};

use csp_api::connections::ConnectionRecord;
use csp_api::time::utc;
use csp_types::Instant;

use super::style::{Style, Times, client};
use super::{Format, Recorded, What};
use crate::ProxyWorker;
use crate::core::{EndedConnection, TlsNote};
use crate::daemon::events::name;

impl Recorded for EndedConnection {
    const WHAT: What = What {
        section: "connection_log",
        name: "connection log",
        kind: "connection",
        file: "connections.log",
        lists_max: 64,
        metrics: [
            "csp_connection_log_records_total",
            "csp_connection_log_lost_total",
            "csp_connection_log_writer_seconds_total",
        ],
    };
    type Room = Vec<EndedConnection>;

    fn records(room: &Self::Room) -> &[Self] {
        room
    }

    fn clear(room: &mut Self::Room) {
        room.clear();
    }

    fn take(worker: &mut ProxyWorker, room: impl FnOnce() -> Self::Room) -> Option<(Self::Room, u64)> {
        worker.core().has_ended_connections().then(|| worker.take_ended_connections(room()))
    }

    fn write(&self, out: &mut dyn Write, style: Style, times: &Times) -> io::Result<()> {
        let record = record(style, times, self);
        match style.format {
            Format::Json => serde_json::to_writer(&mut *out, &record).map_err(io::Error::from),
            Format::Text => text(out, &record),
        }
    }

    fn end(&self) -> (Instant, bool) {
        (self.ended, self.end.is_well())
    }
}

fn record(style: Style, times: &Times, ended: &EndedConnection) -> ConnectionRecord {
    let Style { node, worker, addresses, .. } = style;
    let since = |at: Instant| at.saturating_since(ended.began).as_micros() as u64;
    let measured = |us: u32| (us > 0).then_some(u64::from(us));
    let server = ended.server.map(|(host, port)| name(host, port));
    let note = |text: fn(&TlsNote) -> &str| ended.tls.as_deref().map_or("", text).into();
    ConnectionRecord {
        time: utc(times.unix_ms(ended.ended)),
        proxy: node.to_string().into(),
        worker,
        label: format!("{:08x}", ended.label.to_wire()),
        client: client(ended.tuple.remote, addresses),
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
        server_name: note(|note| &note.server_name),
        client_subject: note(|note| &note.client),
        fault: note(|note| &note.fault),
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
    write!(out, "{} {proxy}/{worker} {} {} ", r.time, word(&r.client), r.service)?;
    write!(out, "{}/{} {handshake}/{wait}/{first}/{total} ", word(&r.server), word(&r.process))?;
    write!(out, "{} {} {} {} {rtt} {}", r.bytes_in, r.bytes_out, r.code, r.retransmits, r.label)
}

#[cfg(test)]
pub(super) mod tests {
    use csp_policy::LogAddresses;
    use csp_tcp::Figures;
    use csp_types::{Duration, FlowLabel, FourTuple};

    use super::*;
    use crate::core::{End, ServerHost};

    /// A connection that the client has reset.
    pub(in super::super) fn ended() -> EndedConnection {
        let began = Instant::from_nanos(1_000_000_000);
        EndedConnection {
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
            tls: None,
        }
    }

    #[test]
    fn a_record_is_a_line_of_json_or_of_words() {
        let ended = ended();
        let times = Times { now: ended.began + Duration::from_millis(12), unix_ms: 1_796_034_137_052 };
        let node = "pn-1".parse().unwrap();
        let with = |format, addresses| {
            let mut out = Vec::new();
            ended.write(&mut out, Style { node, worker: 3, format, addresses }, &times).unwrap();
            String::from_utf8(out).unwrap()
        };
        let line = |format| with(format, LogAddresses::Full);
        let read: ConnectionRecord = serde_json::from_str(&line(Format::Json)).unwrap();
        assert_eq!(
            (read.time.as_str(), read.wait_us, read.first_byte_us),
            ("2026-11-30T10:22:17.042Z", Some(30), None)
        );
        assert_eq!((read.end.as_str(), read.code.as_str(), read.total_us), ("client_reset", "CR", 2000));
        let words = format!(
            "2026-11-30T10:22:17.042Z pn-1/3 10.0.0.2:4242 web an-1:80/- 90/30/-/2000 72 1000 CR 1 80 {:08x}",
            ended.label.to_wire()
        );
        assert_eq!(line(Format::Text), words);
        let network = with(Format::Text, LogAddresses::Prefix);
        assert_eq!(network, words.replace("10.0.0.2:4242", "10.0.0.0/24"));
        assert_eq!(with(Format::Text, LogAddresses::None), words.replace("10.0.0.2:4242", "-"));
        let json: ConnectionRecord = serde_json::from_str(&with(Format::Json, LogAddresses::None)).unwrap();
        assert_eq!((json.client.as_str(), json.vip.as_str()), ("", "10.76.0.100:80"));
    }
}
