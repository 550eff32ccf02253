//! Records of HTTP requests.

use std::fmt::Write as _;
use std::io::{self, Write};

use csp_api::http::HttpRecord;
use csp_api::time::utc;
use csp_daemon::clock;
use csp_gateway::{CacheResult, Record, Records};
use csp_http::head::Version;
use csp_policy::LogAddresses;
use csp_types::{Duration, Instant};

use super::style::{Style, Times, client, client_address};
use super::{Format, Recorded, What};
use crate::ProxyWorker;
use crate::daemon::events::name;

impl Recorded for Record {
    const WHAT: What = What {
        section: "http_log",
        name: "HTTP log",
        kind: "http",
        file: "requests.log",
        lists_max: 8,
        metrics: [
            "csp_http_log_records_total",
            "csp_http_log_lost_total",
            "csp_http_log_writer_seconds_total",
        ],
    };
    type Room = Records;

    fn records(room: &Self::Room) -> &[Self] {
        room.as_slice()
    }

    /// Their memory is used for further ones.
    fn clear(_: &mut Self::Room) {}

    fn take(worker: &mut ProxyWorker, room: impl FnOnce() -> Self::Room) -> Option<(Self::Room, u64)> {
        let gateway = worker.gateway_mut();
        gateway.has_records().then(|| gateway.take_records(room()))
    }

    fn write(&self, out: &mut dyn Write, style: Style, times: &Times) -> io::Result<()> {
        match style.format {
            Format::Json => {
                let record = record(style.node.as_str(), style.worker, style.addresses, times, self);
                serde_json::to_writer(out, &record).map_err(io::Error::from)
            }
            Format::Text => combined(out, style, times, self),
        }
    }

    fn end(&self) -> (Instant, bool) {
        (self.ended(), self.is_well())
    }
}

fn version(of: &Record) -> &'static str {
    match of.version {
        _ if of.is_http2 => "2",
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    }
}

/// Returns a request of a proxy's worker that has ended just now.
pub fn http_record(node: &str, worker: u8, addresses: LogAddresses, of: &Record) -> HttpRecord {
    record(node, worker, addresses, &Times::new(clock::now()), of)
}

fn record(node: &str, worker: u8, addresses: LogAddresses, times: &Times, of: &Record) -> HttpRecord {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let us = |time: Duration| time.as_micros() as u64;
    let given = of.request_id.as_ref().map(|id| hex(id));
    HttpRecord {
        time: utc(times.unix_ms(of.ended())),
        proxy: node.into(),
        worker,
        label: format!("{:08x}", of.flow.to_wire()),
        client: client(of.client, addresses),
        source: match of.source == of.client.ip() {
            true => String::new(),
            false => client_address(of.source, addresses),
        },
        service: (*of.service).into(),
        route: of.rule.as_deref().unwrap_or_default().into(),
        host: text(of.host()),
        method: text(of.method()),
        path: text(of.path()),
        version: version(of).into(),
        status: of.status,
        code: of.code().into(),
        cache: of.cache.map_or("", CacheResult::name).into(),
        bytes_in: of.received,
        bytes_out: of.sent,
        server: of.member.map(|(host, port)| name(host, port)).unwrap_or_default().into(),
        reused: of.reused,
        attempts: of.attempts,
        head_us: us(of.phases.head),
        connect_us: us(of.phases.connect),
        first_byte_us: of.phases.first_byte.map(us),
        total_us: us(of.phases.total),
        user_agent: text(of.user_agent()),
        referer: text(of.referer()),
        trace_id: of.trace.as_ref().map(|id| hex(id)).unwrap_or_default(),
        request_id: given.unwrap_or_else(|| text(of.received_request_id())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes it
        text
    })
}

/// The combined log format, as Apache and nginx have it: what a client could confuse a reader with is written
/// as `\xHH`.
fn combined(out: &mut dyn Write, style: Style, times: &Times, of: &Record) -> io::Result<()> {
    let host = client_address(of.source, style.addresses);
    write!(out, "{} - - [{}] \"", if host.is_empty() { "-" } else { &host }, day(times.unix_ms(of.end().0)))?;
    match of.method().is_empty() {
        true => write!(out, "-")?,
        false => {
            escaped(out, of.method())?;
            write!(out, " ")?;
            escaped(out, of.path())?;
            write!(out, " HTTP/{}", version(of))?;
        }
    }
    write!(out, "\" {} {} \"", of.status, of.sent)?;
    escaped(out, or_dash(of.referer()))?;
    write!(out, "\" \"")?;
    escaped(out, or_dash(of.user_agent()))?;
    write!(out, "\"")
}

fn or_dash(text: &[u8]) -> &[u8] {
    if text.is_empty() { b"-" } else { text }
}

fn escaped(out: &mut dyn Write, text: &[u8]) -> io::Result<()> {
    for byte in text {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f..=0xff => write!(out, "\\x{byte:02X}")?,
            _ => out.write_all(std::slice::from_ref(byte))?,
        }
    }
    Ok(())
}

/// Returns a time as `30/Nov/2026:10:22:17 +0000`.
fn day(unix_ms: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = utc(unix_ms); // 2026-11-30T10:22:17.042Z
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1)));
    format!("{}/{}/{}:{} +0000", part(8, 10), month.unwrap_or(&"-"), part(0, 4), part(11, 19))
}
