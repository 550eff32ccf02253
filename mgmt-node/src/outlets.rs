//! Outlets of events: the management node that leads sends them on, to receivers that the configuration
//! names.
//!
//! ```text
//!  [hub] ── after(cursor) ──▶ [outlet] ──▶ [webhook] ── POST ──▶ receiver
//!                                │    └───▶ [syslog] ── datagrams ──▶ receiver
//!                                └── cursor, at most once a second ──▶ etcd ──▶ the next leader
//! ```
//! An outlet has no queue: it reads the events that are kept anyway, from where it is. A receiver that does
//! not answer is tried again until it does; what is no longer kept then is counted, and the next body says
//! how much it is. Delivery is at least once, in the order of arrival: after a change of leader the events of
//! the last moments come again.

mod syslog;
mod webhook;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use csp_api::events::Page;
use csp_control::EtcdClient;
use csp_daemon::DaemonError;
use csp_daemon::jitter::fraction;
use csp_events::{Cursor, Filter};
use csp_telemetry::{ConditionState, MetricSource, MetricWriter, Readiness};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{EventsSection, SYSLOG};
use crate::events::Hub;
use crate::leader::Leadership;
use syslog::Syslog;
use webhook::Webhook;

/// Events that are sent at once. Half as many after each failure, twice as many after each success.
const BATCH_MAX: usize = 100;
/// Pause after a delivery that failed: at first, and at most; it doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Longest pause that a receiver may ask for.
const ASKED_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Longest time between two looks at whether the cursor is to be written.
const LOOK: Duration = Duration::from_secs(1);
/// A cursor is written so long after the one before: when events were sent, and when they were only passed
/// over.
const WRITTEN_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Deliveries that fail one after another before the condition says so.
const FAILURES_SHOWN: u32 = 3;

/// Why events were not delivered.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// The receiver asks to be left alone for so long.
    pause: Option<Duration>,
    /// It is this body that the receiver does not take.
    is_refused: bool,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    failures: AtomicU64,
    missed: AtomicU64,
    behind: AtomicU64,
    is_failing: AtomicBool,
}

/// Who receives events.
#[derive(Debug)]
enum Receiver {
    Webhook(Webhook),
    Syslog(Syslog),
}

impl Receiver {
    async fn deliver(&self, page: &Page) -> Result<(), Failure> {
        match self {
            Receiver::Webhook(webhook) => webhook.deliver(page).await,
            Receiver::Syslog(syslog) => syslog.deliver(page).await,
        }
    }
}

/// An outlet.
#[derive(Debug)]
struct Outlet {
    name: String,
    filter: Filter,
    to: Receiver,
    counts: Arc<Counts>,
}

/// All outlets of this node.
#[derive(Debug)]
pub struct Outlets(Vec<Outlet>);

/// What outlets read, and what they say.
#[derive(Clone)]
pub struct Sources {
    /// The events.
    pub hub: Arc<Hub>,
    /// Where the cursors are kept.
    pub etcd: EtcdClient,
    /// Whether this node leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Where a receiver that takes nothing becomes a condition.
    pub readiness: Readiness,
}

impl Outlets {
    /// Reads what the outlets of the configuration need. Errors say what is wrong with which file.
    pub fn open(section: &EventsSection) -> Result<Outlets, DaemonError> {
        let mut outlets = Vec::new();
        for webhook in &section.webhooks {
            let to = Webhook::open(webhook).map_err(|why| {
                DaemonError::Unavailable(format!("events.webhooks: {}: {why}", webhook.name))
            })?;
            let (name, filter) = (webhook.name.clone(), webhook.filter());
            outlets.push(Outlet { name, filter, to: Receiver::Webhook(to), counts: Arc::default() });
        }
        if let Some(section) = &section.syslog {
            let (name, filter) = (SYSLOG.to_owned(), section.filter());
            let to = Receiver::Syslog(Syslog::new(section));
            outlets.push(Outlet { name, filter, to, counts: Arc::default() });
        }
        Ok(Outlets(outlets))
    }

    /// Returns the metrics of all outlets.
    pub fn metrics(&self) -> OutletMetrics {
        OutletMetrics(self.0.iter().map(|outlet| (outlet.name.clone(), outlet.counts.clone())).collect())
    }

    /// Sends events while this node leads. Does not end.
    pub async fn run(self, sources: Sources) {
        let all = self.0.into_iter().map(|outlet| outlet.run(sources.clone()));
        futures_util::future::join_all(all).await;
    }
}

/// The place of an outlet.
struct Place {
    cursor: Cursor,
    written: Instant,
    /// Events before the cursor that were not delivered, and not reported yet.
    owed: u64,
    /// Whether it moved since it was written; whether events were sent since.
    has_moved: bool,
    has_sent: bool,
}

impl Outlet {
    async fn run(self, sources: Sources) {
        let mut leadership = sources.leadership.clone();
        loop {
            let Ok(fence) = leadership.wait_for(|now| now.fence().is_some()).await.map(|now| now.fence())
            else {
                return;
            };
            tokio::select! {
                _ = leadership.wait_for(|now| now.fence() != fence) => {}
                () = self.send(&sources, fence.unwrap_or(0)) => {}
            }
            self.counts.behind.store(0, Ordering::Relaxed);
            self.well(&sources.readiness);
        }
    }

    /// Goes on from where its predecessor was; an outlet that is new begins with what arrives from now on.
    async fn begin(&self, sources: &Sources, fence: i64) -> Place {
        let cursor = loop {
            let found = sources.etcd.outlet_place(&self.name).await;
            let begun = match found {
                Ok(Some(text)) => {
                    let cursor = text.parse::<Cursor>();
                    cursor.map(Some).or_else(|_| {
                        tracing::warn!(outlet = self.name, "its place cannot be read; it begins anew");
                        Ok::<_, csp_control::ControlError>(None)
                    })
                }
                other => other.map(|_| None),
            };
            match begun {
                Ok(begun) => break begun,
                Err(error) => tracing::debug!(outlet = self.name, %error, "its place is not known yet"),
            }
            tokio::time::sleep(LOOK).await;
        };
        let is_new = cursor.is_none();
        let cursor = cursor.unwrap_or_else(|| sources.hub.latest(&Filter::default(), 0).cursor);
        let written = Instant::now();
        let mut place = Place { cursor, written, owed: 0, has_moved: is_new, has_sent: is_new };
        if is_new {
            self.write(sources, fence, &mut place).await;
        }
        place
    }

    /// Sends what arrives. Does not end.
    async fn send(&self, sources: &Sources, fence: i64) {
        let mut place = self.begin(sources, fence).await;
        let (mut most, mut failures) = (BATCH_MAX, 0);
        loop {
            let read = sources.hub.after(&place.cursor, &self.filter, most, LOOK).await;
            self.counts.behind.store(sources.hub.waiting(&place.cursor), Ordering::Relaxed);
            let (events, missed) = (read.events.len() as u64, place.owed.saturating_add(read.missed));
            let next = read.cursor.clone();
            let page = Page { missed, ..read.into() };
            let delivered = match events {
                0 => Ok(()),
                _ => self.to.deliver(&page).await,
            };
            match delivered {
                Ok(()) => {
                    place.advance(next, if events > 0 { 0 } else { missed });
                    place.has_sent |= events > 0;
                    if events > 0 {
                        (most, failures) = ((most * 2).min(BATCH_MAX), 0);
                        self.counts.sent.fetch_add(events, Ordering::Relaxed);
                        self.counts.missed.fetch_add(missed, Ordering::Relaxed);
                        self.well(&sources.readiness);
                    }
                }
                Err(failure) => {
                    failures += 1;
                    self.failed(&sources.readiness, failures, &failure);
                    if failure.is_refused && events == 1 {
                        tracing::warn!(outlet = self.name, reason = failure.reason, "an event is left out");
                        place.advance(next, missed.saturating_add(1));
                        place.has_sent = true;
                        failures = 0; // what follows is another matter
                    }
                    most = (events as usize / 2).max(1);
                    // What was sent before must not be sent again because of this pause.
                    self.write_if_due(sources, fence, &mut place).await;
                    pause(failures, failure.pause).await;
                }
            }
            self.write_if_due(sources, fence, &mut place).await;
        }
    }

    /// Writes the place if that is due.
    async fn write_if_due(&self, sources: &Sources, fence: i64, place: &mut Place) {
        let after = if place.has_sent { WRITTEN_AFTER.0 } else { WRITTEN_AFTER.1 };
        if place.has_moved && place.written.elapsed() >= after {
            self.write(sources, fence, place).await;
        }
    }

    async fn write(&self, sources: &Sources, fence: i64, place: &mut Place) {
        place.written = Instant::now();
        match sources.etcd.set_outlet_place(&self.name, place.cursor.to_string(), fence).await {
            Ok(true) => (place.has_moved, place.has_sent) = (false, false),
            Ok(false) => tracing::debug!(outlet = self.name, "another management node leads"),
            Err(error) => tracing::debug!(outlet = self.name, %error, "its place is not written"),
        }
    }

    fn condition(&self) -> String {
        format!("outlet-{}", self.name)
    }

    fn well(&self, readiness: &Readiness) {
        self.counts.is_failing.store(false, Ordering::Relaxed);
        readiness.set(&self.condition(), ConditionState::Ok, "");
    }

    fn failed(&self, readiness: &Readiness, failures: u32, failure: &Failure) {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        if failures == FAILURES_SHOWN {
            tracing::warn!(outlet = self.name, reason = failure.reason, "events are not taken");
        }
        if failures >= FAILURES_SHOWN {
            self.counts.is_failing.store(true, Ordering::Relaxed);
            let reason = format!("events are not taken: {}", failure.reason);
            readiness.set(&self.condition(), ConditionState::Degraded, reason);
        }
    }
}

impl Place {
    fn advance(&mut self, cursor: Cursor, owed: u64) {
        self.has_moved |= cursor != self.cursor;
        (self.cursor, self.owed) = (cursor, owed);
    }
}

/// Waits after so many failures: receivers that come back are not to meet all at once.
async fn pause(failures: u32, asked: Option<Duration>) {
    let doubled = PAUSE.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE.1);
    let asked = asked.unwrap_or_default().min(ASKED_PAUSE_MAX);
    tokio::time::sleep(doubled.mul_f64(0.5 + fraction()).max(asked)).await;
}

/// The metrics of outlets.
#[derive(Debug)]
pub struct OutletMetrics(Vec<(String, Arc<Counts>)>);

impl MetricSource for OutletMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        for (name, counts) in &self.0 {
            let labels = [("outlet", name.as_str())];
            let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
            for (name, help, count) in [
                ("csp_events_outlet_sent_total", "Events that the receiver took", &counts.sent),
                ("csp_events_outlet_failures_total", "Deliveries that failed", &counts.failures),
                (
                    "csp_events_outlet_missed_total",
                    "Events that the receiver was told it lacks: no longer kept, or refused by it alone",
                    &counts.missed,
                ),
            ] {
                out.counter(name, help, &labels, value(count));
            }
            let help = "Events after the outlet's place, wanted or not; 0 where another node leads";
            out.gauge("csp_events_outlet_behind", help, &labels, value(&counts.behind) as f64);
            let failing = f64::from(u8::from(counts.is_failing.load(Ordering::Relaxed)));
            out.gauge("csp_events_outlet_failing", "1 while the receiver takes nothing", &labels, failing);
        }
    }
}
