//! Policy distribution by the management node: publish, wait for every node, activate, roll back.

mod drain;
mod errors;
mod progress;
mod signer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use csp_policy::Policy;
use csp_types::{NodeId, Role};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::client::{ChunksError, EtcdClient, within};
use crate::error::ControlError;
use crate::keys;
use crate::membership::RECORD_LEN_MAX;
use crate::policy_store::{GenerationRecord, NodeAck, packed};
use crate::registry::{NodeRecord, unix_now_ms};
use crate::signatures::PolicySignature;

pub use errors::{ApplyOutcome, GenerationSummary, ManagerError, StageFailure};
use progress::{NodesAndAcks, Progress};
pub use signer::Signer;

/// Publishes policies.
#[derive(Clone, Debug)]
pub struct PolicyManager {
    client: EtcdClient,
    /// The condition under which this manager may write.
    fence: Option<Fence>,
    /// Signs what is published and activated; `None` in a cluster without identities.
    signer: Option<Arc<Signer>>,
}

/// A key of etcd and the create revision that it must have for a write to succeed.
#[derive(Clone, Debug)]
struct Fence {
    key: String,
    create_revision: i64,
}

/// The roles that apply policies. Their nodes are waited for.
const APPLYING: [Role; 3] = [Role::NetworkNode, Role::ProxyNode, Role::AppNode];
/// Number of generations that are kept, beside the active one and the one to roll back to.
const GENERATIONS_KEPT: usize = 64;
/// Longest time until the nodes' state is read again, if no change is reported before.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Number of attempts at a change when other writers interfere.
const ATTEMPTS: u32 = 5;

impl PolicyManager {
    /// Returns a manager that uses `client`.
    pub fn new(client: EtcdClient) -> PolicyManager {
        PolicyManager { client, fence: None, signer: None }
    }

    /// Returns the manager with a fence: every write fails with [`ManagerError::FenceLost`] unless `key`
    /// still has the create revision `create_revision`. This keeps a former leader from writing after another
    /// one was elected.
    pub fn fenced(mut self, key: &str, create_revision: i64) -> PolicyManager {
        self.fence = Some(Fence { key: key.to_owned(), create_revision });
        self
    }

    fn fence_holds(&self) -> Option<Compare> {
        let Fence { key, create_revision } = self.fence.as_ref()?;
        Some(Compare::create_revision(key.as_str(), CompareOp::Equal, *create_revision))
    }

    /// Returns an error if a transaction failed because of the fence.
    async fn check_fence(&self) -> Result<(), ManagerError> {
        let Some(holds) = self.fence_holds() else { return Ok(()) };
        let held = self.client.txn(Txn::new().when([holds])).await?.succeeded();
        if held { Ok(()) } else { Err(ManagerError::FenceLost) }
    }

    /// Publishes `policy`, waits until all live nodes have staged it, activates it, and waits until they run
    /// it.
    ///
    /// `base` is the active generation on which the change is based (0 for none); `None` accepts any.
    /// `timeout` bounds each of the two waits. If a node refuses or does not answer before the activation,
    /// the old policy stays in force; if a node refuses afterwards, the old policy is activated again.
    pub async fn apply(
        &self,
        policy: &Policy,
        base: Option<u64>,
        timeout: Duration,
    ) -> Result<ApplyOutcome, ManagerError> {
        let (generation, previous) = self.publish_on(policy, base).await?;
        tracing::info!(generation, previous, "policy published, waiting for the nodes to stage it");
        self.wait_staged(generation, timeout).await?;
        self.activate(generation, previous).await?;
        tracing::info!(generation, "policy activated");
        let progress = self.wait(timeout, |nodes| nodes.applied(generation)).await?;
        if !progress.refused.is_empty() {
            return Err(self.take_back(generation, previous, progress.failure()).await);
        }
        let hash = policy.hash();
        Ok(ApplyOutcome { generation, previous, hash, nodes: progress.done, pending: progress.missing })
    }

    /// Publishes `policy` as the next generation without activating it. Returns the generation's number.
    pub async fn publish(&self, policy: &Policy, base: Option<u64>) -> Result<u64, ManagerError> {
        Ok(self.publish_on(policy, base).await?.0)
    }

    /// Waits until every live node has acknowledged `generation` as staged.
    pub async fn wait_staged(&self, generation: u64, timeout: Duration) -> Result<(), ManagerError> {
        let progress = self.wait(timeout, |nodes| nodes.staged(generation)).await?;
        if progress.complete() {
            return Ok(());
        }
        Err(ManagerError::NotStaged { generation, failure: progress.failure() })
    }

    /// Activates `generation` if `expected` (0 for none) is still in force, and signs the activation. Refused
    /// for a generation that no management node has signed, unless this one remembers that it was in force.
    pub async fn activate(&self, generation: u64, expected: u64) -> Result<(), ManagerError> {
        let signed = self.sign_activation(generation).await?;
        let first = FirstActivation { activated_unix_ms: unix_now_ms(), previous: expected };
        let remember = TxnOp::put(keys::activation(generation), json(&first), None);
        // A generation that was in force before keeps its place in the history.
        let never_before = Compare::version(keys::activation(generation), CompareOp::Equal, 0);
        let remember = TxnOp::txn(Txn::new().when([never_before]).and_then([remember]));
        let there = Compare::version(keys::generation(generation), CompareOp::Greater, 0);
        let mut changes = vec![TxnOp::put(keys::ACTIVE, generation.to_string(), None), remember];
        changes.extend(signed.iter().map(|signed| TxnOp::put(keys::ACTIVE_SIGNED, json(signed), None)));
        let mut conditions = vec![there, active_is(expected)];
        conditions.extend(self.fence_holds());
        if self.client.txn(Txn::new().when(conditions).and_then(changes)).await?.succeeded() {
            self.activated(signed.as_ref()).await;
            return Ok(());
        }
        self.check_fence().await?;
        let found = self.active().await?;
        if found == expected {
            return Err(ManagerError::NoGeneration(generation));
        }
        Err(ManagerError::Conflict { expected, found })
    }

    /// Returns the generation in force; 0 for none.
    pub async fn active(&self) -> Result<u64, ManagerError> {
        let response = self.client.get(keys::ACTIVE, None).await?;
        Ok(response.kvs().first().and_then(|pair| pair.value_str().ok()?.trim().parse().ok()).unwrap_or(0))
    }

    /// Returns one generation.
    pub async fn generation(&self, generation: u64) -> Result<GenerationRecord, ManagerError> {
        let response = self.client.get(&keys::generation(generation), None).await?;
        let pair = response.kvs().first().ok_or(ManagerError::NoGeneration(generation))?;
        let header = packed::header(&String::from_utf8_lossy(pair.value()));
        let Some(header) = header else {
            return from_json(pair.value()).ok_or(ManagerError::NoGeneration(generation));
        };
        let chunks = self.client.chunks(&header).await.map_err(|error| match error {
            ChunksError::Etcd(error) => error,
            ChunksError::Wrong(reason) => ControlError::Etcd(reason),
        })?;
        Ok(header.unpack(&chunks).map_err(ControlError::Etcd)?)
    }

    /// Returns the acknowledgements by node.
    pub async fn acks(&self) -> Result<BTreeMap<NodeId, NodeAck>, ManagerError> {
        let response = self.client.get(keys::ACKS, Some(GetOptions::new().with_prefix())).await?;
        Ok(parse_acks(response.kvs()))
    }

    /// Returns the registered nodes that apply policies, each with the acknowledgement of its present
    /// incarnation.
    pub async fn followers(&self) -> Result<Vec<(NodeRecord, Option<NodeAck>)>, ManagerError> {
        let NodesAndAcks { nodes, mut acks } = self.nodes_and_acks().await?;
        let said = |node: NodeRecord| {
            let ack = acks.remove(&node.id).filter(|ack| ack.incarnation == node.incarnation);
            (node, ack)
        };
        Ok(nodes.into_iter().map(said).collect())
    }

    /// Returns the newest `limit` generations, newest first.
    pub async fn history(&self, limit: usize) -> Result<Vec<GenerationSummary>, ManagerError> {
        let response = self.client.get(keys::POLICY, Some(GetOptions::new().with_prefix())).await?;
        let mut generations: BTreeMap<u64, Published> = BTreeMap::new();
        let mut activations: BTreeMap<u64, FirstActivation> = BTreeMap::new();
        let mut active = 0;
        for pair in response.kvs() {
            let key = pair.key_str().unwrap_or_default();
            if let Some(number) = number_in(key, keys::GENERATIONS) {
                generations.extend(from_json(pair.value()).map(|published| (number, published)));
            } else if let Some(number) = number_in(key, keys::ACTIVATIONS) {
                activations.extend(from_json(pair.value()).map(|activation| (number, activation)));
            } else if key == keys::ACTIVE {
                active = pair.value_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            }
        }
        let newest = generations.into_values().rev().take(limit);
        Ok(newest.map(|record| summary(&record, activations.get(&record.generation), active)).collect())
    }

    /// Publishes a policy. Returns the new generation, and the active one that the transaction was
    /// conditional on.
    async fn publish_on(&self, policy: &Policy, base: Option<u64>) -> Result<(u64, u64), ManagerError> {
        policy.validate("policy")?;
        let (mut expected, mut found) = (0, 0);
        for _ in 0..ATTEMPTS {
            found = self.active().await?;
            expected = base.unwrap_or(found);
            if found != expected {
                break;
            }
            let numbers = self.generation_numbers().await?;
            // Also above the active one: if generations were deleted by hand, no number is used twice.
            let newest = numbers.last().copied().unwrap_or(0).max(found);
            let next = newest.checked_add(1).ok_or(ManagerError::NoNumber)?;
            let mut record = GenerationRecord::new(next, policy.clone());
            record.signature = self.signer.as_ref().map(|signer| signer.generation(&record)).transpose()?;
            let (value, chunks) = match packed::pack(&record) {
                packed::Entry::Whole(text) => (text, Vec::new()),
                packed::Entry::Packed(header, chunks) => (json(&header), chunks),
            };
            for (number, chunk) in (0..).zip(chunks) {
                let put = TxnOp::put(keys::chunk(&record.hash, number), chunk, None);
                self.fenced_txn([put]).await?;
            }
            let put = TxnOp::put(keys::generation(next), value, None);
            let absent = Compare::version(keys::generation(next), CompareOp::Equal, 0);
            let mut conditions = vec![absent, active_is(found)];
            conditions.extend(self.fence_holds());
            if self.client.txn(Txn::new().when(conditions).and_then([put])).await?.succeeded() {
                self.prune(&numbers, found).await;
                self.prune_chunks().await;
                return Ok((next, found));
            }
            self.check_fence().await?;
        }
        Err(ManagerError::Conflict { expected, found })
    }

    /// Returns the numbers of all generations in ascending order.
    async fn generation_numbers(&self) -> Result<Vec<u64>, ManagerError> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let response = self.client.get(keys::GENERATIONS, Some(options)).await?;
        let keys =
            response.kvs().iter().filter_map(|pair| number_in(pair.key_str().ok()?, keys::GENERATIONS));
        let mut numbers: Vec<u64> = keys.collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Deletes the oldest generations but the active one. Best effort: the next publication tries again.
    async fn prune(&self, numbers: &[u64], active: u64) {
        let surplus = numbers.len().saturating_sub(GENERATIONS_KEPT);
        for number in numbers.iter().take(surplus).filter(|number| **number != active) {
            let delete =
                [keys::generation(*number), keys::activation(*number)].map(|key| TxnOp::delete(key, None));
            if let Err(error) = self.client.txn(Txn::new().and_then(delete)).await {
                tracing::warn!(generation = number, %error, "cannot delete an old generation");
            }
        }
    }

    /// Deletes chunks that no generation names. Best effort, as [`prune`](Self::prune).
    async fn prune_chunks(&self) {
        if let Err(error) = self.try_prune_chunks().await {
            tracing::warn!(%error, "cannot delete the chunks of old generations");
        }
    }

    async fn try_prune_chunks(&self) -> Result<(), ManagerError> {
        let keys_only = GetOptions::new().with_prefix().with_keys_only();
        let stored = self.client.get(keys::CHUNKS, Some(keys_only)).await?;
        let hash = |pair: &KeyValue| {
            let (hash, _) = pair.key_str().ok()?.strip_prefix(keys::CHUNKS)?.split_once('/')?;
            Some(hash.to_owned())
        };
        let mut unused: BTreeSet<String> = stored.kvs().iter().filter_map(hash).collect();
        if unused.is_empty() {
            return Ok(());
        }
        let generations = self.client.get(keys::GENERATIONS, Some(GetOptions::new().with_prefix())).await?;
        for published in generations.kvs().iter().filter_map(|pair| from_json::<Published>(pair.value())) {
            unused.remove(&published.hash);
        }
        for hash in unused {
            let prefix = DeleteOptions::new().with_prefix();
            self.fenced_txn([TxnOp::delete(format!("{}{hash}/", keys::CHUNKS), Some(prefix))]).await?;
        }
        Ok(())
    }

    /// Writes if the fence still holds.
    async fn fenced_txn(&self, change: impl Into<Vec<TxnOp>>) -> Result<(), ManagerError> {
        let conditions: Vec<_> = self.fence_holds().into_iter().collect();
        match self.client.txn(Txn::new().when(conditions).and_then(change)).await?.succeeded() {
            true => Ok(()),
            false => Err(ManagerError::FenceLost),
        }
    }

    /// Activates `previous` again after nodes failed to apply `generation`.
    async fn take_back(&self, generation: u64, previous: u64, failure: StageFailure) -> ManagerError {
        tracing::error!(generation, previous, %failure, "nodes cannot apply the policy, taking it back");
        if previous == 0 {
            return ManagerError::RolledBack { generation, failure };
        }
        match self.activate(previous, generation).await {
            Ok(()) => ManagerError::RolledBack { generation, failure },
            Err(error) => error,
        }
    }

    /// Waits until `judge` finds that every live node is done or that one refuses, or until `limit` has
    /// passed. Returns the last finding.
    async fn wait(
        &self,
        limit: Duration,
        judge: impl Fn(&NodesAndAcks) -> Progress,
    ) -> Result<Progress, ManagerError> {
        let deadline = tokio::time::Instant::now() + limit;
        let options = WatchOptions::new().with_prefix();
        // A change is only the hint to read again; the decision rests on what is read.
        let mut changes = within(self.client.inner.watch_client().watch(keys::ACKS, Some(options))).await?;
        loop {
            let mut progress = judge(&self.nodes_and_acks().await?);
            let over = tokio::time::Instant::now() >= deadline;
            if over || progress.complete() {
                return Ok(progress);
            }
            if !progress.refused.is_empty() {
                // The other nodes had less than their time, so they do not count as missing.
                progress.missing.clear();
                return Ok(progress);
            }
            let look_again = (tokio::time::Instant::now() + LOOK_AGAIN).min(deadline);
            tokio::select! {
                () = tokio::time::sleep_until(look_again) => {}
                Ok(Some(_)) = changes.message() => {}
            }
        }
    }

    async fn nodes_and_acks(&self) -> Result<NodesAndAcks, ManagerError> {
        let all = |prefix| TxnOp::get(prefix, Some(GetOptions::new().with_prefix()));
        let response = self.client.txn(Txn::new().and_then([all(keys::NODES), all(keys::ACKS)])).await?;
        let responses = response.op_responses();
        let [TxnOpResponse::Get(nodes), TxnOpResponse::Get(acks)] = responses.as_slice() else {
            return Err(ControlError::Etcd("unexpected answer to a transaction".to_owned()).into());
        };
        // Judged as members see it: a node may write anything under its own key, also under the id of
        // another.
        let own = |pair: &&KeyValue, node: &NodeRecord| {
            pair.value().len() <= RECORD_LEN_MAX && pair.key() == keys::node(node.role, &node.id).as_bytes()
        };
        let read = |pair| from_json::<NodeRecord>(KeyValue::value(pair)).filter(|node| own(&pair, node));
        let nodes = nodes.kvs().iter().filter_map(read);
        let nodes = nodes.filter(|node| APPLYING.contains(&node.role) && !node.leaving).collect();
        Ok(NodesAndAcks { nodes, acks: parse_acks(acks.kvs()) })
    }
}

/// When a generation was first in force, and which one it replaced then (0: none).
#[derive(Debug, Serialize, Deserialize)]
struct FirstActivation {
    activated_unix_ms: u64,
    previous: u64,
}

/// A generation as listed: a whole record, or the header of a packed one.
#[derive(Debug, Deserialize)]
struct Published {
    generation: u64,
    created_unix_ms: u64,
    hash: String,
    /// Present in a header.
    services: Option<usize>,
    /// Present in a whole record.
    policy: Option<Counted>,
    signature: Option<PolicySignature>,
}

/// The part of a policy that is counted.
#[derive(Debug, Deserialize)]
struct Counted {
    #[serde(default)]
    services: Vec<IgnoredAny>,
}

/// Returns the condition that `generation` (0: none) is in force.
fn active_is(generation: u64) -> Compare {
    if generation == 0 {
        Compare::version(keys::ACTIVE, CompareOp::Equal, 0)
    } else {
        Compare::value(keys::ACTIVE, CompareOp::Equal, generation.to_string())
    }
}

fn summary(record: &Published, activation: Option<&FirstActivation>, active: u64) -> GenerationSummary {
    GenerationSummary {
        generation: record.generation,
        created_unix_ms: record.created_unix_ms,
        activated_unix_ms: activation.map(|activation| activation.activated_unix_ms),
        previous: activation.map(|activation| activation.previous).filter(|previous| *previous > 0),
        active: record.generation == active,
        hash: record.hash.clone(),
        services: record.services.or(record.policy.as_ref().map(|p| p.services.len())).unwrap_or(0),
    }
}

fn parse_acks(pairs: &[KeyValue]) -> BTreeMap<NodeId, NodeAck> {
    let ack = |pair: &KeyValue| {
        let id = pair.key_str().ok()?.strip_prefix(keys::ACKS)?.parse().ok()?;
        Some((id, from_json(pair.value())?))
    };
    pairs.iter().filter_map(ack).collect()
}

fn number_in(key: &str, prefix: &str) -> Option<u64> {
    key.strip_prefix(prefix)?.parse().ok()
}

fn json(value: &impl Serialize) -> String {
    // Strings and numbers only, so that serialisation cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}
