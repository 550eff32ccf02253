//! Operations of packet plug-ins on plug-in hosts. Each worker has a session with the host and passes on its
//! answers.

use std::collections::HashMap;

use csp_api::plugins as api;
use csp_classify::multifield::InstanceId;
use csp_daemon::query::Workers;
use csp_plugins::remote::{RemoteAnswer, RemoteRow, read_answer, write_call};
use csp_plugins::{EnvironmentId, combine, pcap};

use super::data_thread::Question;
use super::plugins::{CallFailure, CallResult, WORKER_TIMEOUT};

/// The combined answer of all workers to an operation. Removing an entry succeeds if any of them had it,
/// since plug-ins add entries separately at each worker.
pub(super) struct Outcome {
    removes: bool,
    done: bool,
    refused: Option<String>,
}

impl Outcome {
    pub(super) fn of(operation: &str) -> Self {
        Outcome { removes: operation == "remove", done: false, refused: None }
    }

    pub(super) fn done(&mut self) {
        self.done = true;
    }

    /// Records a refusal.
    ///
    /// # Errors
    /// The remaining workers need not be asked.
    pub(super) fn refused(&mut self, reason: String) -> Result<(), CallFailure> {
        if !self.removes {
            return Err(CallFailure::Refused(reason));
        }
        self.refused = Some(reason);
        Ok(())
    }

    /// Returns the refusal if no worker had the entry.
    pub(super) fn end(self) -> Result<(), CallFailure> {
        match self.refused {
            Some(reason) if !self.done => Err(CallFailure::Refused(reason)),
            _ => Ok(()),
        }
    }
}

/// Executes an operation of an instance on its host, for all workers.
pub async fn call(
    workers: &Workers<Question>,
    (host, instance): (EnvironmentId, InstanceId),
    operation: &str,
    arguments: &[(&str, &str)],
) -> Result<CallResult, CallFailure> {
    let text = write_call(operation, arguments);
    let (mut rows, mut files): (Vec<RemoteRow>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    let mut outcome = Outcome::of(operation);
    for mailbox in &workers.mailboxes {
        let text = text.clone();
        let asked = |reply| Question::HostCall(host, instance, text, reply);
        let bytes = mailbox.ask(WORKER_TIMEOUT, asked).await?.map_err(CallFailure::Absent)?;
        match read_answer(&bytes).map_err(|error| CallFailure::Absent(error.to_string()))? {
            RemoteAnswer::Done => outcome.done(),
            RemoteAnswer::Rows(more) => merge(&mut rows, more),
            RemoteAnswer::Bytes(file) => files.push(file),
            RemoteAnswer::Refused(reason) => outcome.refused(reason)?,
        }
    }
    outcome.end()?;
    if !files.is_empty() {
        return Ok(CallResult::Bytes(pcap::merge(&files).unwrap_or_else(|| files.concat())));
    }
    let truncated = rows.len() > api::ROWS_MAX;
    let rows = rows.into_iter().take(api::ROWS_MAX).map(row).collect();
    Ok(CallResult::Rows(api::CallAnswer { rows, truncated }))
}

/// Merges the rows of a worker's session into `rows`, by key.
fn merge(rows: &mut Vec<RemoteRow>, more: Vec<RemoteRow>) {
    if rows.is_empty() {
        *rows = more;
        return;
    }
    let places: HashMap<String, usize> =
        rows.iter().enumerate().map(|(at, row)| (row.key.clone(), at)).collect();
    for other in more {
        match places.get(&other.key).and_then(|at| rows.get_mut(*at)) {
            Some(row) => {
                row.numbers.iter_mut().zip(&other.numbers).for_each(|(a, b)| a.1 = combine(&a.0, a.1, b.1));
            }
            None => rows.push(other),
        }
    }
}

fn row(RemoteRow { key, note, numbers }: RemoteRow) -> api::Row {
    let number = |(name, value): (String, u64)| api::Number { name: name.into(), value };
    api::Row { key: key.into(), note: note.into(), numbers: numbers.into_iter().map(number).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(operation: &str, answers: &[bool]) -> bool {
        let mut outcome = Outcome::of(operation);
        let asked = answers.iter().try_for_each(|done| match done {
            true => {
                outcome.done();
                Ok(())
            }
            false => outcome.refused("no such entry".to_owned()),
        });
        asked.and_then(|()| outcome.end()).is_ok()
    }

    #[test]
    fn an_entry_is_removed_if_any_worker_had_it() {
        for (answers, expected) in [
            (&[true, true][..], true),
            (&[false, true], true),
            (&[true, false], true),
            (&[false, false], false),
        ] {
            assert_eq!(end("remove", answers), expected, "{answers:?}");
            assert_eq!(end("add", answers), answers.iter().all(|done| *done), "{answers:?}");
        }
    }

    #[test]
    fn what_is_left_of_an_entry_is_not_added() {
        let rows = |left, packets| {
            let numbers = vec![("seconds_left".to_owned(), left), ("packets".to_owned(), packets)];
            vec![RemoteRow { key: "192.0.2.1/32".to_owned(), note: String::new(), numbers }]
        };
        for (one, other, left) in [(600, 599, 600), (5, 600, 600), (0, 600, 0), (600, 0, 0)] {
            let mut merged = rows(one, 1);
            merge(&mut merged, rows(other, 2));
            assert_eq!(merged, rows(left, 3));
        }
    }
}
