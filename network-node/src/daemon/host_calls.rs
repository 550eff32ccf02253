//! Operations of packet plug-ins that run at plug-in hosts: each worker's session there answers through the worker.

use std::collections::HashMap;

use csp_api::plugins as api;
use csp_classify::multifield::InstanceId;
use csp_daemon::query::Workers;
use csp_plugins::remote::{RemoteAnswer, RemoteRow, read_answer, write_call};
use csp_plugins::{EnvironmentId, pcap};

use super::data_thread::Question;
use super::plugins::{CallFailure, CallResult, WORKER_TIMEOUT};

/// Executes an operation of an instance at its host, for all workers.
pub async fn call(
    workers: &Workers<Question>,
    (host, instance): (EnvironmentId, InstanceId),
    operation: &str,
    arguments: &[(&str, &str)],
) -> Result<CallResult, CallFailure> {
    let text = write_call(operation, arguments);
    let (mut rows, mut files): (Vec<RemoteRow>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for mailbox in &workers.mailboxes {
        let text = text.clone();
        let asked = |reply| Question::HostCall(host, instance, text, reply);
        let bytes = mailbox.ask(WORKER_TIMEOUT, asked).await?.map_err(CallFailure::Absent)?;
        match read_answer(&bytes).map_err(|error| CallFailure::Absent(error.to_string()))? {
            RemoteAnswer::Done => {}
            RemoteAnswer::Rows(more) => merge(&mut rows, more),
            RemoteAnswer::Bytes(file) => files.push(file),
            RemoteAnswer::Refused(reason) => return Err(CallFailure::Refused(reason)),
        }
    }
    if !files.is_empty() {
        return Ok(CallResult::Bytes(pcap::merge(&files).unwrap_or_else(|| files.concat())));
    }
    let truncated = rows.len() > api::ROWS_MAX;
    let rows = rows.into_iter().take(api::ROWS_MAX).map(row).collect();
    Ok(CallResult::Rows(api::CallAnswer { rows, truncated }))
}

/// Adds the rows of a worker's session to those of others, by key.
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
                row.numbers.iter_mut().zip(&other.numbers).for_each(|(a, b)| a.1 = a.1.saturating_add(b.1));
            }
            None => rows.push(other),
        }
    }
}

fn row(RemoteRow { key, note, numbers }: RemoteRow) -> api::Row {
    let number = |(name, value): (String, u64)| api::Number { name: name.into(), value };
    api::Row { key: key.into(), note: note.into(), numbers: numbers.into_iter().map(number).collect() }
}
