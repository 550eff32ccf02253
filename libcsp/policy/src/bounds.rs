//! Bounds of channels, queries and flows that contradict each other: one that is never reached because of
//! another, or that no proxy worker can keep. Those that break a promise of the policy are errors. Those that
//! only say more than can be are [warnings](crate::Policy::warnings).

use csp_config::Problems;
use csp_handlers::{MESSAGE_BLOCK_LEN, MESSAGE_POOL_LEN, PATHS_MAX};

use crate::{Channel, ChannelMemory, FlowQueue, Policy, QueryLimits, ReceiverQueue};

/// Memory of a proxy worker for messages, in MiB.
const POOL_MIB: u64 = MESSAGE_POOL_LEN >> 20;
/// Messages that a MiB has room for at most: each takes a block or more.
const MESSAGES_OF_MIB: u64 = (1 << 20) / MESSAGE_BLOCK_LEN as u64;
/// KiB that a message takes at least.
pub(crate) const BLOCK_KIB: u32 = MESSAGE_BLOCK_LEN >> 10;
/// Bytes of the shortest row that waits in a join: the header of an SBE message.
const ROW_LEN_MIN: u64 = 8;

/// Notes bounds that contradict each other.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    for (at, channel) in policy.channels.iter().enumerate() {
        let at = format!("channels[{at}]");
        check_memory(channel.memory, &at, problems);
        if let Some(requests) = &channel.requests {
            let at = format!("{at}.requests");
            check_memory(requests.memory, &at, problems);
            check_limits(&requests.limits, requests.memory, &at, problems);
        }
    }
    for (at, query) in policy.queries.iter().enumerate() {
        let at = format!("queries[{at}]");
        check_memory(query.memory, &at, problems);
        check_limits(&query.limits, query.memory, &at, problems);
    }
    for (at, flow) in policy.information_flows.iter().enumerate() {
        check_flow(&flow.queue, &format!("information_flows[{at}]"), problems);
    }
    check_worker(policy, problems);
}

/// A channel has no more memory than its worker.
fn check_memory(memory: ChannelMemory, at: &str, problems: &mut Problems) {
    if u64::from(memory.max_mib) > POOL_MIB {
        let message = format!(
            "{} MiB are more than a proxy worker has for all messages: write at most {POOL_MIB}",
            memory.max_mib
        );
        problems.add(format!("{at}.memory.max_mib"), message);
    }
}

fn check_limits(limits: &QueryLimits, memory: ChannelMemory, at: &str, problems: &mut Problems) {
    // Half of the memory is for messages that wait for the query, the other for its rows.
    let most = u64::from(memory.max_mib) * MESSAGES_OF_MIB / 2;
    let needed_mib = u64::from(limits.waiting).div_ceil(MESSAGES_OF_MIB / 2);
    if u64::from(limits.waiting) > most {
        let or = match needed_mib {
            ..=POOL_MIB => format!(", or `memory: {{max_mib: {needed_mib}}}`"),
            _ => String::new(),
        };
        let message = format!(
            "{} messages do not fit half of memory.max_mib, {} MiB: write at most {most}{or}",
            limits.waiting, memory.max_mib
        );
        problems.add_unless(&[&format!("{at}.memory.max_mib")], format!("{at}.limits.waiting"), message);
    }
    let most = (u64::from(limits.kib) << 10) / ROW_LEN_MIN;
    if u64::from(limits.rows) > most {
        let needed = (u64::from(limits.rows) * ROW_LEN_MIN).div_ceil(1 << 10);
        let message = format!(
            "{} rows of at least {ROW_LEN_MIN} bytes do not fit `kib`, {}: write at most {most}, or `kib: {needed}`",
            limits.rows, limits.kib
        );
        problems.add_unless(&[&format!("{at}.limits.kib")], format!("{at}.limits.rows"), message);
    }
}

fn check_flow(queue: &FlowQueue, at: &str, problems: &mut Problems) {
    if queue.kib > POOL_MIB << 10 {
        let message = format!(
            "{} KiB are more than a proxy worker has for all messages: write at most {}",
            queue.kib,
            POOL_MIB << 10
        );
        problems.add(format!("{at}.queue.kib"), message);
    }
}

/// Any worker may be the owner of all channels: it has the memory that is guaranteed to them, and places for
/// their paths.
fn check_worker(policy: &Policy, problems: &mut Problems) {
    let requested = policy.requested_channels().map(|(_, place)| place);
    let all: Vec<Channel> = policy.all_channels().chain(requested).filter(|c| c.pool.is_empty()).collect();
    let guaranteed: u64 = all.iter().map(|channel| u64::from(channel.memory.guaranteed_mib)).sum();
    if guaranteed > POOL_MIB {
        let message = format!(
            "{} channels, queries and places for queries have {guaranteed} MiB guaranteed together, and a proxy worker has {POOL_MIB} MiB for messages: \
             lower some `memory.guaranteed_mib` (4 by default, 1 at least), or have fewer",
            all.len()
        );
        problems.add("channels", message);
    }
    let of_channel = |channel: &Channel| channel.paths().count() + channel.outlets().len();
    let paths: usize = policy.channels.iter().map(of_channel).sum();
    let (queries, places) = (policy.queries.len(), policy.requested_channels().count());
    if paths + queries + places > usize::from(PATHS_MAX) {
        let message = format!(
            "{paths} paths and derived channels, {queries} queries and {places} places for queries on request are more than a proxy worker runs: \
             have at most {PATHS_MAX} in all"
        );
        problems.add("channels", message);
    }
}

impl Policy {
    /// Returns bounds that another one keeps from being reached, each with what would make sense.
    pub(crate) fn unreached_bounds(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for channel in self.channels.iter().filter(|channel| channel.pool.is_empty()) {
            let name = format!("channel {}", channel.name);
            warnings.extend(unreached_queue(&name, &channel.queue, channel.memory));
            if let Some(last) = channel.last_value.filter(|last| last.kib < channel.message_kib) {
                warnings.push(format!(
                    "{name} keeps no message of more than {} KiB as last value, and has messages of up to {} KiB: raise `last_value.kib` if all are to be kept",
                    last.kib, channel.message_kib
                ));
            }
        }
        for query in &self.queries {
            warnings.extend(unreached_queue(&format!("query {}", query.name), &query.queue, query.memory));
        }
        warnings
    }
}

/// The memory of all of a channel's messages ends before one receiver's queue is full.
fn unreached_queue(name: &str, queue: &ReceiverQueue, memory: ChannelMemory) -> Option<String> {
    let max = u64::from(memory.max_mib);
    let (messages, kib) = (max * MESSAGES_OF_MIB, max << 10);
    if u64::from(queue.messages) <= messages && u64::from(queue.kib) <= kib {
        return None;
    }
    Some(format!(
        "a queue of {name} is never full: {} messages and {} KiB are more than memory.max_mib, {max} MiB, has room for; beyond it messages are dropped \
         for want of memory, or held back: write `queue: {{messages: {}, kib: {}}}` at most",
        queue.messages,
        queue.kib,
        messages.min(queue.messages.into()),
        kib.min(queue.kib.into())
    ))
}

#[cfg(test)]
mod tests;
