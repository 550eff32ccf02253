//! Specialised operators: code made for the operators of channels and queries on a thread of its own, for all
//! workers.
//!
//! There is one workshop in a process, as there is one engine: what asks are operators, which workers make
//! far from what holds the daemon's parts.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use csp_api::handlers::SpecialisedOperator;
use csp_daemon::background::lower_priority;
use csp_modules::ALONE;
use csp_operators::{FormatSet, Query, Rules};
use csp_specialiser::Workshop;
use csp_telemetry::without_abort;

static WORKSHOP: OnceLock<Option<Arc<Workshop>>> = OnceLock::new();

/// Makes the workshop and its thread when the first policy with operators comes. `None`: compiled code cannot
/// run here, and operators stay generic.
fn workshop() -> Option<&'static Arc<Workshop>> {
    let make = || {
        let (workshop, work) = Workshop::new(nanos)
            .inspect_err(|error| tracing::warn!(%error, "operators are not specialised"))
            .ok()?;
        let thread = std::thread::Builder::new().name("specialiser".to_owned());
        let run = move || {
            lower_priority();
            without_abort(|| work.run(&ALONE));
        };
        match thread.spawn(run) {
            Ok(_) => Some(workshop),
            Err(error) => {
                tracing::warn!(%error, "operators are not specialised: there is no thread that makes code");
                None
            }
        }
    };
    WORKSHOP.get_or_init(make).as_ref()
}

fn nanos() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos() as u64
}

/// Makes the workshop on the calling thread, so that no worker does when a program asks for a query.
pub fn start() {
    let _ = workshop();
}

/// Has operators with these formats ask for specialised versions from now on.
pub fn specialise(set: &FormatSet, channel: &str) {
    if let Some(workshop) = workshop() {
        set.set_specialiser(workshop.named(channel), Rules::default());
    }
}

/// Has a query ask for a specialised version.
pub fn specialised(query: Query, channel: &str) -> Query {
    match workshop() {
        Some(workshop) => query.specialised(&workshop.named(channel), Rules::default()),
        None => query,
    }
}

/// Returns how operators stand: which version runs, and why.
pub fn describe() -> Vec<SpecialisedOperator> {
    let workshop = WORKSHOP.get().and_then(Option::as_ref);
    let standings = workshop.map(|workshop| workshop.standings()).unwrap_or_default();
    let describe = |standing: csp_specialiser::Standing| SpecialisedOperator {
        name: (&standing.name).into(),
        version: (&standing.text).into(),
        specialised_total: standing.specialised_total,
    };
    standings.into_iter().map(describe).collect()
}
