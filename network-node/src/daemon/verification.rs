//! Jobs that may block in the kernel for long and cannot be cancelled: the verification of supplied eBPF
//! programs.
//!
//! One job runs at a time, on a dedicated thread. The caller waits for all jobs of a change for a bounded
//! time. A job that has not ended by then continues, and a later call uses its result; no other job starts
//! before it has ended. Hence at most one thread waits for the kernel, and nothing is verified twice.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The subject of a job: the names of an instance and its module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Subject {
    pub instance: String,
    pub module: String,
}

/// A blocking job. The error is for the operator.
pub(super) struct Job<T> {
    pub subject: Subject,
    pub run: Box<dyn FnOnce() -> Result<T, String> + Send>,
}

struct Running<T> {
    subject: Subject,
    result: oneshot::Receiver<Result<T, String>>,
}

/// The results of a call.
#[derive(Debug)]
pub(super) struct Verified<T> {
    /// Successful results, including that of a job that an earlier call had started.
    pub ready: Vec<T>,
    /// Why there is no result, by instance.
    pub refused: HashMap<String, String>,
    /// The jobs with a result in `ready`.
    done: Vec<Subject>,
}

/// The running job, and the results of failed jobs.
pub(super) struct Verification<T> {
    running: Option<Running<T>>,
    failed: HashMap<Subject, String>,
}

impl<T> core::fmt::Debug for Verification<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let running = self.running.as_ref().map(|running| &running.subject);
        write!(f, "Verification({running:?} runs, {:?} failed)", self.failed)
    }
}

impl<T: Send + 'static> Verification<T> {
    pub(super) fn new() -> Self {
        Verification { running: None, failed: HashMap::new() }
    }

    /// Returns whether a job was started whose result no call has returned yet.
    #[cfg(test)]
    fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether the job that an earlier call had started has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.result.is_empty())
    }

    /// Runs jobs one after the other until `time_max` has passed. A failure is remembered, and the job not
    /// repeated, as long as each call includes a job with the same subject.
    pub(super) async fn run(&mut self, jobs: Vec<Job<T>>, time_max: Duration) -> Verified<T> {
        let deadline = Instant::now() + time_max;
        let mut verified = Verified { ready: Vec::new(), refused: HashMap::new(), done: Vec::new() };
        let wanted: Vec<Subject> = jobs.iter().map(|job| job.subject.clone()).collect();
        self.failed.retain(|subject, _| wanted.contains(subject));
        if self.has_ended() {
            self.wait(deadline, &mut verified).await;
        }
        for Job { subject, run } in jobs {
            // An earlier call's job that has ended since.
            if verified.done.contains(&subject) {
                continue;
            }
            let is_it = |running: &Running<T>| running.subject == subject;
            let own = self.running.as_ref().is_some_and(is_it);
            if !own && !self.failed.contains_key(&subject) {
                if self.running.is_some() && !self.wait(deadline, &mut verified).await {
                    let reason = "another program is still being verified".to_owned();
                    verified.refused.insert(subject.instance, reason);
                    continue;
                }
                self.begin(subject.clone(), run);
            }
            if self.running.as_ref().is_some_and(is_it) && !self.wait(deadline, &mut verified).await {
                let reason =
                    format!("the kernel has not verified the program within {} s", time_max.as_secs());
                verified.refused.insert(subject.instance, reason);
            } else if let Some(reason) = self.failed.get(&subject) {
                verified.refused.insert(subject.instance, reason.clone());
            }
        }
        verified
    }

    fn begin(&mut self, subject: Subject, run: Box<dyn FnOnce() -> Result<T, String> + Send>) {
        let (sender, result) = oneshot::channel();
        let thread = std::thread::Builder::new().name("verify".into());
        // Not a thread of the runtime, whose shutdown would wait for it. The receiver may be gone when the
        // job ends.
        let begun = thread.spawn(move || drop(sender.send(run())));
        match begun {
            Ok(_) => self.running = Some(Running { subject, result }),
            Err(error) => drop(self.failed.insert(subject, format!("no thread: {error}"))),
        }
    }

    /// Waits for the running job. Returns `false` if it has not ended by the deadline.
    async fn wait(&mut self, deadline: Instant, verified: &mut Verified<T>) -> bool {
        let Some(running) = &mut self.running else { return true };
        let Ok(result) = timeout_at(deadline, &mut running.result).await else { return false };
        let subject = running.subject.clone();
        self.running = None;
        match result.unwrap_or_else(|_| Err("it could not be read".to_owned())) {
            Ok(ready) => {
                verified.ready.push(ready);
                verified.done.push(subject);
            }
            Err(reason) => drop(self.failed.insert(subject, reason)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    fn subject(instance: &str) -> Subject {
        Subject { instance: instance.to_owned(), module: "m".to_owned() }
    }

    /// Returns a job that ends when the test sends its result.
    fn job(instance: &str) -> (Job<u32>, mpsc::Sender<Result<u32, String>>) {
        let (end, ends) = mpsc::channel::<Result<u32, String>>();
        let run = Box::new(move || ends.recv().unwrap_or_else(|_| Err("not ended".to_owned())));
        (Job { subject: subject(instance), run }, end)
    }

    fn never(instance: &str) -> Job<u32> {
        Job { subject: subject(instance), run: Box::new(|| panic!("it is not to run")) }
    }

    #[tokio::test]
    async fn what_ends_in_time_is_returned_and_a_failure_is_not_tried_again() {
        let mut verification = Verification::new();
        let ((first, ends_first), (second, ends_second)) = (job("a"), job("b"));
        ends_first.send(Ok(1)).unwrap();
        ends_second.send(Err("wrong".to_owned())).unwrap();
        let verified = verification.run(vec![first, second], Duration::from_secs(30)).await;
        assert_eq!(
            (verified.ready, verified.refused),
            (vec![1], HashMap::from([("b".into(), "wrong".into())]))
        );
        let verified = verification.run(vec![never("b")], Duration::from_secs(30)).await;
        assert_eq!(verified.refused, HashMap::from([("b".into(), "wrong".into())]));
        // No call has asked for it meanwhile, so it is tried again.
        verification.run(vec![], TIME).await;
        let (again, ends) = job("b");
        ends.send(Ok(2)).unwrap();
        assert_eq!(verification.run(vec![again], Duration::from_secs(30)).await.ready, [2]);
    }

    #[tokio::test]
    async fn what_takes_too_long_goes_on_alone_and_is_used_later() {
        let mut verification = Verification::new();
        let (slow, end) = job("slow");
        let verified = verification.run(vec![slow, never("next")], TIME).await;
        assert!(verified.ready.is_empty() && verification.is_running());
        assert!(verified.refused["slow"].contains("has not verified"), "{verified:?}");
        assert!(verified.refused["next"].contains("another program"), "{verified:?}");
        // A second call starts neither this job again nor another one.
        let verified = verification.run(vec![never("slow"), never("next")], TIME).await;
        assert_eq!(verified.refused.len(), 2);
        assert!(!verification.has_ended());
        end.send(Ok(7)).unwrap();
        let (next, end_next) = job("next");
        end_next.send(Ok(8)).unwrap();
        let verified = verification.run(vec![never("slow"), next], Duration::from_secs(30)).await;
        assert_eq!((verified.ready, verified.refused.len()), (vec![7, 8], 0));
        assert!(!verification.is_running());
    }

    /// Whether the job has ended when the next call begins, or during it, makes no difference.
    #[tokio::test]
    async fn what_has_ended_before_a_call_is_not_run_again() {
        let mut verification = Verification::new();
        let (slow, end) = job("slow");
        verification.run(vec![slow], Duration::ZERO).await;
        end.send(Ok(7)).unwrap();
        while !verification.has_ended() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (other, end_other) = job("other");
        end_other.send(Ok(8)).unwrap();
        let verified = verification.run(vec![other, never("slow")], Duration::from_secs(30)).await;
        assert_eq!((verified.ready, verified.refused.len()), (vec![7, 8], 0));
    }

    #[tokio::test]
    async fn a_job_that_dies_is_a_failure() {
        let mut verification = Verification::new();
        let (job, end) = job("a");
        drop(end);
        let verified = verification.run(vec![job], Duration::from_secs(30)).await;
        assert_eq!(verified.refused["a"], "not ended");
    }
}
