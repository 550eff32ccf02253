//! What a context elsewhere needs to run a stage, beside the handler's name: STAGE describes it, and the
//! context asks for it. Also the reports that it returns.

use csp_handlers::{Reported, ReportedTimes};
use csp_messages::{MessagePlane, RemoteStage, StageObject, Ticket};
use csp_types::Duration;
use csp_types::options::Standing;
use csp_wire::context::{Hash, PART_LEN_MAX, Place, Record, Report, ReportNumbers, Supply};

/// Largest number of requests of a context for one stage: its module, and its formats.
pub(super) const WANTS_MAX: u8 = 2;

/// Returns the record that describes a stage.
pub(super) fn record<'a>(place: Place, room: u64, stage: &RemoteStage<'a>) -> Record<'a> {
    let RemoteStage { handler, parameters, supply } = *stage;
    let supply = supply.map_or(Supply::default(), |supply| Supply {
        module: Some(&supply.module.hash),
        formats: supply.formats.as_ref().map(|formats| &formats.hash),
        on_stop: supply.on_stop,
    });
    Record::Stage { place, room, handler, parameters, supply }
}

/// A module or formats that are being sent.
#[derive(Debug)]
pub(super) struct Transfer {
    object: StageObject,
    done: usize,
}

impl Transfer {
    /// Finds the object that a context asks for among those of the stage.
    pub fn find(plane: &MessagePlane, stage: Ticket, object: &Hash) -> Option<Self> {
        let supply = plane.remote_stage(stage)?.supply?;
        let mut known = [Some(&supply.module), supply.formats.as_ref()].into_iter().flatten();
        let object = known.find(|known| known.hash == *object)?.clone();
        Some(Transfer { object, done: 0 })
    }

    /// Returns the next part.
    pub fn next_part(&mut self) -> Option<Record<'_>> {
        let StageObject { hash, bytes } = &self.object;
        let part = bytes.get(self.done..)?;
        let part = &part[..part.len().min(PART_LEN_MAX)];
        let offset = u32::try_from(self.done).ok()?;
        self.done += part.len();
        Some(Record::Part { object: hash, total: u32::try_from(bytes.len()).ok()?, offset, bytes: part })
    }

    pub fn is_done(&self) -> bool {
        self.done >= self.object.bytes.len()
    }
}

/// Converts a REPORT.
pub(super) fn reported(standing: Standing, numbers: &ReportNumbers) -> Reported {
    let report = Report::read(standing, numbers);
    let Report { calls, fuel, fuel_max, given_up, waited, passed, restarts, stops, .. } = report;
    let time = Duration::from_nanos;
    Reported {
        standing,
        calls,
        fuel,
        fuel_max,
        given_up,
        waited,
        passed,
        restarts,
        stops,
        times: ReportedTimes {
            measured: report.measured,
            mean: time(report.mean_ns),
            p50: time(report.p50_ns),
            p99: time(report.p99_ns),
            max: time(report.max_ns),
        },
    }
}
