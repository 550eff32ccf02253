//! Records that a session sends beside those of its handlers.

use csp_handlers::Reported;
use csp_types::Duration;
use csp_wire::context::{Hash, Place, RECORD_HEADER_LEN, Record, Report, ReportNumbers};

/// Longest text of a report, in bytes.
const WHY_LEN_MAX: usize = 256;

fn append(record: Record<'_>, out: &mut Vec<u8>) {
    let mut head = [0; RECORD_HEADER_LEN + size_of::<ReportNumbers>() + WHY_LEN_MAX];
    if let Ok(len) = record.emit_head(None, &mut head) {
        out.extend_from_slice(&head[..len]);
    }
}

/// Appends the report of a stage; `why`: the reason for which it does not run.
pub(crate) fn emit(place: Place, reported: &Reported, why: &str, out: &mut Vec<u8>) {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let Reported { calls, fuel, fuel_max, given_up, waited, passed, restarts, stops, times, .. } = *reported;
    let report = Report {
        standing: reported.standing,
        calls,
        fuel,
        fuel_max,
        given_up,
        waited,
        passed,
        restarts,
        stops,
        measured: times.measured,
        mean_ns: nanos(times.mean),
        p50_ns: nanos(times.p50),
        p99_ns: nanos(times.p99),
        max_ns: nanos(times.max),
    };
    let cut = (0..=why.len().min(WHY_LEN_MAX)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
    append(
        Record::Report { place, standing: report.standing, numbers: &report.write(), why: &why[..cut] },
        out,
    );
}

/// Appends a request for an object that is missing here.
pub(crate) fn want(place: Place, object: &Hash, out: &mut Vec<u8>) {
    append(Record::Want { place, object }, out);
}
