//! What a node knows of the policy, and what follows from it: a state machine without etcd, disk or clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::packed::{self, Header};
use super::{AckState, ActivePolicy, GenerationRecord, NodeAck, PolicySource};
use crate::daemon::PolicyCheck;
use crate::follow::{Entry, KeyChange};
use crate::keys;
use crate::policy::Policy;

/// A generation as it was read: usable, or why not.
type Checked = Result<Box<GenerationRecord>, String>;

/// What is known of a generation.
enum Known {
    /// Its record.
    Read(Checked),
    /// Its header: the record is read when it is needed.
    Packed(Header),
}

impl Known {
    fn is_packed_as(&self, header: &Header) -> bool {
        matches!(self, Known::Packed(now) if now == header)
    }
}

/// Generations that are kept to be checked again.
const REFUSED_MAX: usize = 4;

/// The policy as one node sees it.
pub(super) struct Store {
    check: PolicyCheck,
    incarnation: u64,
    generations: BTreeMap<u64, Known>,
    /// The newest of those that this node's check has refused, to be checked again.
    refused: BTreeMap<u64, Box<GenerationRecord>>,
    active_key: Option<u64>,
    /// The newest generation that was looked at, with its hash: staged once only.
    staged: Option<(u64, String)>,
    /// What the daemon is to apply.
    current: Option<ActivePolicy>,
    /// What the daemon has applied, with its hash: after a loss of etcd's history a number may come again.
    applied: Option<(u64, String)>,
    /// Whether etcd has answered.
    read: bool,
    /// This node's acknowledgement.
    ack: Option<NodeAck>,
}

impl Store {
    pub(super) fn new(check: PolicyCheck, incarnation: u64) -> Store {
        Store {
            check,
            incarnation,
            generations: BTreeMap::new(),
            refused: BTreeMap::new(),
            active_key: None,
            staged: None,
            current: None,
            applied: None,
            read: false,
            ack: None,
        }
    }

    /// What the daemon has to apply.
    pub(super) fn current(&self) -> Option<&ActivePolicy> {
        self.current.as_ref()
    }

    /// What has to stand in etcd as this node's acknowledgement.
    pub(super) fn ack(&self) -> Option<&NodeAck> {
        self.ack.as_ref()
    }

    /// The newest generation that was staged, and the one that is applied.
    pub(super) fn generations(&self) -> (u64, u64) {
        let number = |of: &Option<(u64, String)>| of.as_ref().map_or(0, |(generation, _)| *generation);
        (number(&self.staged), number(&self.applied))
    }

    /// Why the policy in use is not the one in force in etcd; empty if it is, or nothing is known of etcd.
    pub(super) fn problem(&self) -> String {
        let Some(current) = self.current.as_ref().filter(|_| self.read) else { return String::new() };
        let kept = format!(
            "generation {} stays in use; restore etcd's backup, or publish a policy (cspctl policy apply)",
            current.generation
        );
        let Some(number) = self.active_key else {
            return format!("etcd holds no policy in force; {kept}");
        };
        match self.generations.get(&number) {
            None => format!("generation {number} is in force but not in etcd; {kept}"),
            Some(Known::Read(Err(error))) => {
                format!("generation {number} is in force but cannot be used: {error}; {kept}")
            }
            Some(_) => String::new(),
        }
    }

    /// Serves on what the disk holds, unless etcd has answered.
    pub(super) fn use_last_known_good(&mut self, record: GenerationRecord) {
        if self.current.is_none() {
            self.current = Some(active(&record, PolicySource::LastKnownGood));
        }
    }

    /// Takes the whole of what etcd holds. A missing active key takes nothing away from this node.
    pub(super) fn reset(&mut self, entries: Vec<Entry>) {
        self.read = true;
        self.generations.clear();
        self.refused.clear();
        self.active_key = None;
        for entry in entries {
            self.put(entry);
        }
        self.settle();
    }

    /// Takes changes.
    pub(super) fn change(&mut self, changes: Vec<KeyChange>) {
        for change in changes {
            match change {
                KeyChange::Put(entry) => self.put(entry),
                KeyChange::Delete(key) if key == keys::ACTIVE => self.active_key = None,
                KeyChange::Delete(key) => {
                    if let Some(number) = generation_number(&key) {
                        self.generations.remove(&number);
                        self.refused.remove(&number);
                    }
                }
            }
        }
        self.settle();
    }

    /// Returns the packed generations that this node needs: the newest, to stage it, and the active one.
    pub(super) fn wanted(&self) -> Vec<Header> {
        let newest = self.generations.last_key_value().map(|(number, _)| *number);
        let header = |number: u64| match self.generations.get(&number) {
            Some(Known::Packed(header)) => Some(header.clone()),
            _ => None,
        };
        let active = self.active_key.filter(|number| Some(*number) != newest);
        newest.into_iter().chain(active).filter_map(header).collect()
    }

    /// Processes a packed generation that was read, or the reason why it cannot be used.
    pub(super) fn unpacked(&mut self, header: &Header, record: Checked) {
        let checked = record.and_then(|record| self.check(record));
        match self.generations.get_mut(&header.generation) {
            Some(known @ Known::Packed(_)) if known.is_packed_as(header) => *known = Known::Read(checked),
            _ => return, // deleted or replaced meanwhile
        }
        self.settle();
    }

    /// Records whether the daemon applied a generation; returns the generation to keep as last-known-good.
    pub(super) fn applied(
        &mut self,
        generation: u64,
        result: Result<(), String>,
    ) -> Option<GenerationRecord> {
        let current = self.current.as_ref().filter(|current| current.generation == generation)?;
        let hash = current.hash.clone();
        let record = GenerationRecord {
            generation,
            created_unix_ms: self.created_unix_ms(generation, &hash),
            hash: hash.clone(),
            policy: Policy::clone(&current.policy),
        };
        match result {
            Ok(()) => {
                self.applied = Some((generation, hash.clone()));
                self.say_applied(generation, hash);
                Some(record)
            }
            Err(error) => {
                self.acknowledge(generation, AckState::Refused, error, hash);
                None
            }
        }
    }

    fn created_unix_ms(&self, generation: u64, hash: &str) -> u64 {
        let known = match self.generations.get(&generation) {
            Some(Known::Read(Ok(record))) => Some(record),
            _ => None,
        };
        known
            .filter(|record| record.hash == hash)
            .map_or_else(crate::registry::unix_ms, |record| record.created_unix_ms)
    }

    /// A newer generation that waits for activation, or was refused, stays what the acknowledgement is about.
    fn say_applied(&mut self, generation: u64, hash: String) {
        match &mut self.ack {
            Some(ack) if ack.generation > generation && ack.state != AckState::Active => {
                ack.active = generation;
            }
            _ => self.acknowledge(generation, AckState::Active, String::new(), hash),
        }
    }

    fn acknowledge(&mut self, generation: u64, state: AckState, error: String, hash: String) {
        let (active, incarnation) = (self.applied_in_etcd(), self.incarnation);
        self.ack = Some(NodeAck { generation, state, error, hash, active, incarnation });
    }

    /// The number of the applied generation, unless etcd holds another policy under it; 0 for none.
    fn applied_in_etcd(&self) -> u64 {
        let Some((number, hash)) = &self.applied else { return 0 };
        let of_etcd = match self.generations.get(number) {
            Some(Known::Read(Ok(record))) => Some(&record.hash),
            Some(Known::Packed(header)) => Some(&header.hash),
            Some(Known::Read(Err(_))) | None => None,
        };
        if of_etcd.is_none_or(|of_etcd| of_etcd == hash) { *number } else { 0 }
    }

    fn put(&mut self, (key, value): Entry) {
        let text = String::from_utf8_lossy(&value);
        if key == keys::ACTIVE {
            match text.trim().parse() {
                Ok(number) => self.active_key = Some(number),
                Err(_) => {
                    tracing::error!(key, value = %text, "ignoring an active generation that is no number")
                }
            }
        } else if let Some(number) = generation_number(&key) {
            let known = match packed::header(&text) {
                Some(header) if header.generation == number => Known::Packed(header),
                Some(header) => Known::Read(Err(misnamed(&key, header.generation))),
                None => Known::Read(self.checked(number, &key, &text)),
            };
            self.generations.insert(number, known);
        }
    }

    fn checked(&mut self, number: u64, key: &str, text: &str) -> Checked {
        let record = GenerationRecord::from_json(text, key)?;
        if record.generation != number {
            return Err(misnamed(key, record.generation));
        }
        self.check(Box::new(record))
    }

    /// Checks a generation, and keeps it if it is refused.
    fn check(&mut self, record: Box<GenerationRecord>) -> Checked {
        let Err(error) = (self.check)(&record.policy) else { return Ok(record) };
        self.refused.insert(record.generation, record);
        Err(error)
    }

    /// Checks again what was refused.
    pub(super) fn recheck(&mut self) {
        for (number, record) in std::mem::take(&mut self.refused) {
            let checked = self.check(record);
            if let Some(known @ Known::Read(Err(_))) = self.generations.get_mut(&number) {
                *known = Known::Read(checked);
            }
        }
        self.settle();
    }

    /// Draws the conclusions: stages the newest generation, takes the active one.
    fn settle(&mut self) {
        self.keep_few_refused();
        self.stage_newest();
        let Some(number) = self.active_key else { return };
        let (hash, current) = match self.generations.get(&number) {
            Some(Known::Read(Ok(record))) => (record.hash.clone(), active(record, PolicySource::Etcd)),
            Some(Known::Packed(_)) => return, // it is being read
            Some(Known::Read(Err(error))) => {
                let error = error.clone();
                return self.acknowledge(number, AckState::Refused, error, String::new());
            }
            // The pointer and its generation arrive in one transaction; a pointer to nothing changes nothing.
            None => return tracing::error!(generation = number, "the active generation is not in etcd"),
        };
        let applied = self.applied.as_ref().is_some_and(|known| *known == (number, hash.clone()));
        self.current = Some(current);
        // Staged again, as after a start on the disk's policy: it is at work already.
        let only_staged = |ack: &NodeAck| ack.generation == number && ack.state == AckState::Staged;
        if applied && self.ack.as_ref().is_none_or(only_staged) {
            self.acknowledge(number, AckState::Active, String::new(), hash);
        }
    }

    /// Drops what was refused long ago: neither in force nor among the newest.
    fn keep_few_refused(&mut self) {
        while self.refused.len() > REFUSED_MAX {
            let oldest = self.refused.keys().copied().find(|number| Some(*number) != self.active_key);
            oldest.and_then(|number| self.refused.remove(&number));
        }
    }

    fn stage_newest(&mut self) {
        let Some((&number, Known::Read(checked))) = self.generations.last_key_value() else { return };
        let hash = checked.as_ref().map_or(String::new(), |record| record.hash.clone());
        if self.staged.as_ref().is_some_and(|(staged, of)| *staged == number && *of == hash) {
            return;
        }
        let (state, error) = match checked {
            Ok(_) => (AckState::Staged, String::new()),
            Err(error) => (AckState::Refused, error.clone()),
        };
        self.staged = Some((number, hash.clone()));
        self.acknowledge(number, state, error, hash);
    }
}

fn active(record: &GenerationRecord, source: PolicySource) -> ActivePolicy {
    ActivePolicy {
        generation: record.generation,
        hash: record.hash.clone(),
        policy: Arc::new(record.policy.clone()),
        source,
    }
}

fn misnamed(key: &str, generation: u64) -> String {
    format!("{key}: says that it is generation {generation}")
}

fn generation_number(key: &str) -> Option<u64> {
    key.strip_prefix(keys::GENERATIONS)?.parse().ok()
}

#[cfg(test)]
mod tests;
