//! Events that data threads report: they hand them over, and never wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use csp_api::events::What;

use super::Events;

/// Reports that may wait to be recorded; further ones are lost, and counted.
const WAITING_MAX: usize = 16_384;

/// Hands events to the thread that records them. Clones share it.
#[derive(Clone, Debug)]
pub struct Reporter {
    waiting: SyncSender<What>,
    lost: Arc<AtomicU64>,
}

impl Reporter {
    /// Starts the thread that records what is reported, which ends with the last clone. Errors are those of
    /// creating a thread.
    pub fn start(events: Events) -> io::Result<Reporter> {
        let (waiting, reported) = sync_channel::<What>(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let of_thread = Arc::clone(&lost);
        std::thread::Builder::new().name("events".to_owned()).spawn(move || {
            while let Ok(what) = reported.recv() {
                events.record(&what);
                let count = of_thread.swap(0, Ordering::Relaxed);
                if count > 0 {
                    let reason = "reported_events".into();
                    events.record(&What::LimitReached { reason, count, interval_s: 0 });
                }
            }
        })?;
        Ok(Reporter { waiting, lost })
    }

    /// Reports what happened. Does not wait.
    pub fn report(&self, what: What) {
        if self.waiting.try_send(what).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
