//! The time of what queries read, also of the rows of other queries.

use csp_operators::{QuerySetupError, Time, Unit};
use csp_policy::{ChannelTime, TimeUnit};
use csp_queries::{AggregateFunction, Expr, Plan, Window};
use csp_types::Duration;

use crate::catalogue::QuerySource;

impl QuerySource {
    /// Returns the time of its messages, as operators have it.
    pub(crate) fn time(&self) -> Time {
        let Some(ChannelTime { field, unit, lateness_ms }) = &self.time else { return Time::Arrival };
        Time::Field {
            path: field.clone(),
            unit: match unit {
                TimeUnit::S => Unit::Seconds,
                TimeUnit::Ms => Unit::Milliseconds,
                TimeUnit::Us => Unit::Microseconds,
                TimeUnit::Ns => Unit::Nanoseconds,
            },
            lateness: Duration::from_millis((*lateness_ms).into()),
        }
    }
}

/// The time of a query's rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RowTime {
    /// That of its channels, or of their windows, stands in a column.
    Column(ChannelTime),
    /// When they are made: its channels have none either.
    Arrival,
    /// Its channels have a time, and no column of the rows has it.
    Lost,
}

impl RowTime {
    /// Finds the column of a query's rows that has the time of its sources.
    pub fn of(plan: &Plan, sources: &[QuerySource]) -> RowTime {
        let Some(first) = sources.iter().find_map(|source| source.time.clone()) else {
            return RowTime::Arrival;
        };
        let of_window = |expr: &Expr| match expr {
            Expr::Aggregate(at) => {
                plan.aggregates.get(*at).is_some_and(|a| a.function == AggregateFunction::WindowStart)
            }
            _ => false,
        };
        if let Some(output) = plan.outputs.iter().find(|output| of_window(&output.expr)) {
            // Windows close in order.
            return RowTime::Column(ChannelTime { field: output.name.clone(), lateness_ms: 0, ..first });
        }
        let within_ms = plan.join.as_ref().map_or(0, |join| join.within_us.div_ceil(1_000));
        let found = plan.outputs.iter().find_map(|output| {
            let column = plan.columns.get(output.like?)?;
            let time = sources.get(column.source)?.time.as_ref().filter(|time| time.field == column.path)?;
            // A pair is made when its later row comes; the time of the other is as much less as they may be
            // apart.
            let lateness_ms = within_ms.saturating_add(time.lateness_ms.into());
            let lateness_ms = u32::try_from(lateness_ms).unwrap_or(u32::MAX);
            Some(ChannelTime { field: output.name.clone(), lateness_ms, ..time.clone() })
        });
        found.map_or(RowTime::Lost, RowTime::Column)
    }
}

/// Refuses a query that orders rows of another by a time that these have lost: it would silently use the time
/// at which they are made.
pub(crate) fn check(plan: &Plan, sources: &[QuerySource]) -> Result<(), QuerySetupError> {
    let needs_time = plan.join.is_some() || matches!(plan.window, Some(Window::Time { .. }));
    match sources.iter().find(|source| source.lost_time) {
        Some(source) if needs_time => Err(QuerySetupError::Time {
            channel: source.channel.clone(),
            problem: "its rows do not have that of its channels: select it there, or WINDOW_START".to_owned(),
        }),
        _ => Ok(()),
    }
}
