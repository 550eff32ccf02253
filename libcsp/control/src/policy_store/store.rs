//! The state machine of a node's policy: what the node knows, and what follows from it. It does no I/O with
//! etcd or the disk. Certificates are verified by the system clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use csp_policy::Policy;

use super::activations::Activations;
use super::packed::{self, Header};
use super::{AckState, ActivePolicy, GenerationRecord, Kept, NodeAck, PolicySource};
use crate::daemon::PolicyCheck;
use crate::follow::{Entry, KeyChange};
use crate::keys;
use crate::signatures::{Activation, Verifier};

/// A generation that was read, or the reason why it cannot be used.
type Checked = Result<Box<GenerationRecord>, String>;

/// What is known about a generation.
enum Known {
    /// Its record.
    Read(Checked),
    /// Its header. The record is read when it is needed.
    Packed(Header),
}

impl Known {
    fn is_packed_as(&self, header: &Header) -> bool {
        matches!(self, Known::Packed(now) if now == header)
    }
}

/// A refused generation, kept to be checked again.
enum Refused {
    /// Refused by this node's check.
    Check(Box<GenerationRecord>),
    /// Refused because no management node has signed it. It was not checked.
    Unsigned(Box<GenerationRecord>),
    /// Refused because no management node has signed it. It is packed and was not read.
    UnsignedHeader(Header),
}

impl Refused {
    /// Returns whether it was refused because of its signature.
    fn is_unsigned(&self) -> bool {
        !matches!(self, Refused::Check(_))
    }
}

/// Largest number of refused generations that are kept to be checked again.
const REFUSED_MAX: usize = 4;

/// The policy from the view of one node.
pub(super) struct Store {
    check: PolicyCheck,
    activations: Activations,
    incarnation: u64,
    generations: BTreeMap<u64, Known>,
    /// The newest refused generations.
    refused: BTreeMap<u64, Refused>,
    active_key: Option<u64>,
    /// Why the generation that etcd names as active is not accepted; empty if it is.
    doubt: String,
    /// Whether the activation that is followed differs from the one on disk.
    unkept: bool,
    /// The newest generation that was examined. It is staged only once.
    staged: Option<Content>,
    /// The policy that the daemon is to apply.
    current: Option<ActivePolicy>,
    /// The policy that the daemon has applied.
    applied: Option<Content>,
    /// Whether etcd has answered.
    read: bool,
    /// This node's acknowledgement.
    ack: Option<NodeAck>,
}

/// A generation with its content. After a loss of etcd's history a number may be used again.
#[derive(Clone, Debug)]
struct Content {
    generation: u64,
    /// SHA-256 of the policy's canonical form, hex.
    hash: String,
}

impl Content {
    fn is(&self, generation: u64, hash: &str) -> bool {
        self.generation == generation && self.hash == hash
    }
}

impl Store {
    /// `followed` is the activation that this node followed before it was restarted.
    pub(super) fn new(
        check: PolicyCheck,
        (verifier, followed): (Verifier, Option<Activation>),
        incarnation: u64,
    ) -> Store {
        Store {
            check,
            activations: Activations::new(verifier, followed),
            incarnation,
            generations: BTreeMap::new(),
            refused: BTreeMap::new(),
            active_key: None,
            doubt: String::new(),
            unkept: false,
            staged: None,
            current: None,
            applied: None,
            read: false,
            ack: None,
        }
    }

    /// Returns the policy that the daemon has to apply.
    pub(super) fn current(&self) -> Option<&ActivePolicy> {
        self.current.as_ref()
    }

    /// Returns the acknowledgement to write to etcd.
    pub(super) fn ack(&self) -> Option<&NodeAck> {
        self.ack.as_ref()
    }

    /// Returns the newest staged generation, and the applied one.
    pub(super) fn generations(&self) -> (u64, u64) {
        let number = |of: &Option<Content>| of.as_ref().map_or(0, |content| content.generation);
        (number(&self.staged), number(&self.applied))
    }

    /// Returns why the policy in use is not the active one in etcd; empty if it is, or if etcd's is unknown.
    pub(super) fn problem(&self) -> String {
        if !self.read {
            return String::new();
        }
        let kept = match &self.current {
            Some(current) => format!(
                "generation {} stays in use; restore etcd's backup, or publish a policy (cspctl policy apply)",
                current.generation
            ),
            None => "no policy is in use; publish one (cspctl policy apply)".to_owned(),
        };
        let Some(number) = self.active_key else {
            return match self.current.is_some() {
                true => format!("etcd holds no policy in force; {kept}"),
                false => String::new(),
            };
        };
        if !self.doubt.is_empty() {
            return format!("etcd says that generation {number} is in force, but {}; {kept}", self.doubt);
        }
        match self.generations.get(&number) {
            None => format!("generation {number} is in force but not in etcd; {kept}"),
            Some(Known::Read(Err(error))) => {
                format!("generation {number} is in force but cannot be used: {error}; {kept}")
            }
            Some(_) => String::new(),
        }
    }

    /// Uses the policy on disk, unless etcd has answered.
    pub(super) fn use_last_known_good(&mut self, record: GenerationRecord) {
        if self.current.is_none() {
            self.current = Some(active(&record, PolicySource::LastKnownGood));
        }
    }

    /// Replaces all that is known of etcd. If the active key is missing, the node keeps its policy.
    pub(super) fn reset(&mut self, entries: Vec<Entry>) {
        self.read = true;
        self.generations.clear();
        self.refused.clear();
        self.activations.clear();
        self.active_key = None;
        for entry in entries {
            self.put(entry);
        }
        self.settle();
    }

    /// Applies changes of keys.
    pub(super) fn change(&mut self, changes: Vec<KeyChange>) {
        for change in changes {
            match change {
                KeyChange::Put(entry) => self.put(entry),
                KeyChange::Delete(key) if key == keys::ACTIVE => self.active_key = None,
                KeyChange::Delete(key) if key == keys::ACTIVE_SIGNED => self.activations.clear(),
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

    /// Records whether the daemon applied a generation. Returns the generation to store as last-known-good.
    pub(super) fn applied(&mut self, generation: u64, result: Result<(), String>) -> Option<Kept> {
        let current = self.current.as_ref().filter(|current| current.generation == generation)?;
        let hash = current.hash.clone();
        match result {
            Ok(()) => {
                self.applied = Some(Content { generation, hash: hash.clone() });
                self.acknowledge_applied(generation, hash);
                self.keep()
            }
            Err(error) => {
                self.acknowledge(generation, AckState::Refused, error, hash);
                None
            }
        }
    }

    /// Returns what to store on disk if the activation was signed again while the daemon runs the same
    /// policy.
    pub(super) fn signed_anew(&mut self) -> Option<Kept> {
        let current = self.current.as_ref()?;
        let runs = self.applied.as_ref().is_some_and(|applied| applied.is(current.generation, &current.hash));
        if self.unkept && runs { self.keep() } else { None }
    }

    /// Returns the policy to apply in the form in which it is stored on disk.
    fn keep(&mut self) -> Option<Kept> {
        let current = self.current.as_ref()?;
        let (generation, hash) = (current.generation, current.hash.clone());
        let known = match self.generations.get(&generation) {
            Some(Known::Read(Ok(record))) => Some(record),
            _ => None,
        };
        let known = known.filter(|record| record.hash == hash);
        let record = GenerationRecord {
            generation,
            created_unix_ms: known.map_or_else(crate::registry::unix_now_ms, |record| record.created_unix_ms),
            signature: known.and_then(|record| record.signature.clone()),
            policy: Policy::clone(&current.policy),
            hash,
        };
        let activation = self.activations.followed();
        let activation = activation.filter(|activation| activation.is_of(generation, &record.hash)).cloned();
        self.unkept = false;
        Some(Kept { record, activation })
    }

    /// Acknowledges the applied generation, unless a newer one is waiting for activation or was refused: the
    /// acknowledgement is then about that one.
    fn acknowledge_applied(&mut self, generation: u64, hash: String) {
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

    /// Returns the number of the applied generation; 0 if there is none, or if etcd holds another policy
    /// under that number.
    fn applied_in_etcd(&self) -> u64 {
        let Some(Content { generation, hash }) = &self.applied else { return 0 };
        let of_etcd = match self.generations.get(generation) {
            Some(Known::Read(Ok(record))) => Some(&record.hash),
            Some(Known::Packed(header)) => Some(&header.hash),
            Some(Known::Read(Err(_))) | None => None,
        };
        if of_etcd.is_none_or(|of_etcd| of_etcd == hash) { *generation } else { 0 }
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
        } else if key == keys::ACTIVE_SIGNED {
            self.activations.put(&text);
            self.look_again(Refused::is_unsigned);
        } else if let Some(number) = generation_number(&key) {
            let known = match packed::header(&text) {
                Some(header) if header.generation == number => self.vouched(header),
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

    /// Returns a packed generation, or refuses it without reading its chunks if no management node has signed
    /// it.
    fn vouched(&mut self, header: Header) -> Known {
        let of = (header.generation, header.created_unix_ms, header.hash.as_str());
        match self.activations.vouch(of, header.signature.as_ref()) {
            Ok(()) => Known::Packed(header),
            Err(reason) => {
                self.refused.insert(header.generation, Refused::UnsignedHeader(header));
                Known::Read(Err(reason))
            }
        }
    }

    /// Checks a generation, its signature first. A refused one is kept.
    fn check(&mut self, record: Box<GenerationRecord>) -> Checked {
        let of = (record.generation, record.created_unix_ms, record.hash.as_str());
        if let Err(reason) = self.activations.vouch(of, record.signature.as_ref()) {
            self.refused.insert(record.generation, Refused::Unsigned(record));
            return Err(reason);
        }
        let Err(error) = (self.check)(&record.policy) else { return Ok(record) };
        self.refused.insert(record.generation, Refused::Check(record));
        Err(error)
    }

    /// Checks refused generations again.
    pub(super) fn recheck(&mut self) {
        self.look_again(|_| true);
        self.settle();
    }

    /// Verifies signatures again, since trusted authorities or the time have changed. Returns whether a
    /// result differs.
    pub(super) fn verify_again(&mut self) -> bool {
        let before = self.refused.values().filter(|refused| refused.is_unsigned()).count();
        let changed = self.activations.verify_again();
        self.look_again(Refused::is_unsigned);
        let after = self.refused.values().filter(|refused| refused.is_unsigned()).count();
        if changed || after != before {
            self.settle();
        }
        changed || after != before
    }

    /// Returns whether a generation was refused because of its signature.
    pub(super) fn doubts(&self) -> bool {
        !self.doubt.is_empty() || self.refused.values().any(Refused::is_unsigned)
    }

    fn look_again(&mut self, which: impl Fn(&Refused) -> bool) {
        let (again, rest) =
            std::mem::take(&mut self.refused).into_iter().partition(|(_, refused)| which(refused));
        self.refused = rest;
        let again: BTreeMap<u64, Refused> = again;
        for (number, refused) in again {
            let now = match refused {
                Refused::Check(record) | Refused::Unsigned(record) => Known::Read(self.check(record)),
                Refused::UnsignedHeader(header) => self.vouched(header),
            };
            if let Some(known @ Known::Read(Err(_))) = self.generations.get_mut(&number) {
                *known = now;
            }
        }
    }

    /// Updates the state after a change: stages the newest generation and selects the active one.
    fn settle(&mut self) {
        self.keep_few_refused();
        self.stage_newest();
        let Some(number) = self.active_key else { return self.set_doubt(String::new()) };
        let (hash, current) = match self.generations.get(&number) {
            Some(Known::Read(Ok(record))) => (record.hash.clone(), active(record, PolicySource::Etcd)),
            Some(Known::Packed(_)) => return, // it is being read
            Some(Known::Read(Err(error))) => {
                let error = error.clone();
                self.set_doubt(String::new());
                return self.refuse(number, error);
            }
            // The pointer and its generation are written in one transaction. A pointer to a missing
            // generation changes nothing.
            None => return tracing::error!(generation = number, "the active generation is not in etcd"),
        };
        if let Err(reason) = self.activations.confirm(number, &hash) {
            self.set_doubt(reason.clone());
            return self.refuse(number, format!("it is not taken for the one in force: {reason}"));
        }
        let doubted = !self.doubt.is_empty();
        self.set_doubt(String::new());
        self.unkept |= self.activations.follow();
        let applied = self.applied.as_ref().is_some_and(|applied| applied.is(number, &hash));
        self.current = Some(current);
        // It runs already: it was staged again after a start with the policy on disk, or accepted after a
        // doubt.
        let behind = |ack: &NodeAck| ack.generation == number && ack.state != AckState::Active;
        if applied && (doubted || self.ack.as_ref().is_none_or(behind)) {
            self.acknowledge_applied(number, hash);
        }
    }

    /// Acknowledges that the active generation is refused, unless the acknowledgement is about a newer one
    /// that waits.
    fn refuse(&mut self, number: u64, error: String) {
        match &self.ack {
            Some(ack) if ack.generation > number && ack.state == AckState::Staged => {}
            _ => self.acknowledge(number, AckState::Refused, error, String::new()),
        }
    }

    fn set_doubt(&mut self, reason: String) {
        if !reason.is_empty() && reason != self.doubt {
            let generation = self.active_key;
            tracing::error!(
                generation,
                reason,
                "the generation in force in etcd is not taken for it; the one in use stays"
            );
        }
        self.doubt = reason;
    }

    /// Drops refused generations that are neither active nor among the newest.
    fn keep_few_refused(&mut self) {
        while self.refused.len() > REFUSED_MAX {
            let oldest = self.refused.keys().copied().find(|number| Some(*number) != self.active_key);
            oldest.and_then(|number| self.refused.remove(&number));
        }
    }

    fn stage_newest(&mut self) {
        let Some((&number, Known::Read(checked))) = self.generations.last_key_value() else { return };
        let hash = checked.as_ref().map_or(String::new(), |record| record.hash.clone());
        if self.staged.as_ref().is_some_and(|staged| staged.is(number, &hash)) {
            return;
        }
        let (state, error) = match checked {
            Ok(_) => (AckState::Staged, String::new()),
            Err(error) => (AckState::Refused, error.clone()),
        };
        self.staged = Some(Content { generation: number, hash: hash.clone() });
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
mod signed;
#[cfg(test)]
mod tests;
