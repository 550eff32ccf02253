//! Work on what strangers own, off the agent's own thread.
//!
//! A descriptor that a process sent, or one that it holds, may be a file whose closing asks a file system of the process's
//! own making, or a socket that lingers. Whatever may end a descriptor of a stranger runs on a thread beside the agent's, one
//! for each user at a time: a user who blocks it delays only its own processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// How long a process waits for work on its behalf, and for the work of its user's other processes before that.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// The helpers of all users.
#[derive(Clone, Default, Debug)]
pub struct Helpers(Arc<Mutex<HashMap<u32, Weak<Semaphore>>>>);

impl Helpers {
    /// The user's turn, which one piece of work has at a time.
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

    /// The result of `work` on behalf of this user; `None` where it does not come in time. What was begun goes on then, and
    /// its user's next piece of work waits for it.
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

    /// Drops something of this user's, however long that takes.
    pub async fn drop_for<T: Send + 'static>(&self, uid: u32, thing: T) {
        let Ok(turn) = self.turn(uid).acquire_owned().await else { return };
        // A failure is a panic of the drop, which ends the process.
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
