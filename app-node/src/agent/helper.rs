//! Operations on descriptors of other processes, outside the agent's own thread.
//!
//! A descriptor that a process sent or holds may be a file in a file system that the process itself serves,
//! or a socket that lingers; closing it may block. Whatever may close such a descriptor runs on a helper
//! thread, one for each user at a time, so that a user who blocks it delays only its own processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// How long a process waits for work on its behalf, and before that for the work of its user's other
/// processes.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// The helpers of all users.
#[derive(Clone, Default, Debug)]
pub struct Helpers(Arc<Mutex<HashMap<u32, Weak<Semaphore>>>>);

impl Helpers {
    /// Returns the user's semaphore, which admits one task at a time.
    fn turn(&self, uid: u32) -> Arc<Semaphore> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = turns.get(&uid).and_then(Weak::upgrade) {
            return known;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(uid, Arc::downgrade(&turn));
        turn
    }

    /// Runs `work` on behalf of this user. Returns `None` if it does not finish in time; it then continues,
    /// and the user's next task waits for it.
    pub async fn run<T: Send + 'static>(
        &self,
        uid: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = tokio::time::timeout(WAIT_MAX, self.turn(uid).acquire_owned()).await.ok()?.ok()?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(turn);
            result
        });
        tokio::time::timeout(WAIT_MAX, done).await.ok()?.ok()
    }

    /// Drops `thing` on behalf of this user, however long that takes.
    pub async fn drop_for<T: Send + 'static>(&self, uid: u32, thing: T) {
        let Ok(turn) = self.turn(uid).acquire_owned().await else { return };
        // The only failure is a panic of the drop, which ends the process.
        let _ = tokio::task::spawn_blocking(move || {
            drop(thing);
            drop(turn);
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_user_who_blocks_its_helper_delays_only_itself() {
        let helpers = Helpers::default();
        let (end, ended) = mpsc::channel::<()>();
        assert_eq!(helpers.run(1000, move || ended.recv().is_ok()).await, None, "it does not come in time");
        assert_eq!(helpers.run(1000, || 1).await, None, "the former work goes on");
        while helpers.run(1001, || 2).await != Some(2) {}
        end.send(()).unwrap();
        while helpers.run(1000, || 3).await != Some(3) {}
        helpers.drop_for(1000, end).await;
    }
}
