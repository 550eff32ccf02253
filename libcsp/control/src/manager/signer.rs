//! Keeps the active generation signed by a management node whose certificate nodes accept, and refuses to
//! sign what others wrote into etcd.
//!
//! A management node stores, in its state directory, the latest activation that it has seen. The leader signs
//! the active generation again whenever its signature is not by the leader's present certificate: after an
//! election, a renewal, a rotation or a revocation. It never signs an active generation that no management
//! node has published and activated.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use csp_identity::Credentials;
use csp_types::NodeId;
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};

use super::{ManagerError, PolicyManager, Published, active_is, from_json, json};
use crate::durable;
use crate::error::ControlError;
use crate::keys;
use crate::policy_store::GenerationRecord;
use crate::signatures::{self, Activation, PolicySignature, Verifier, now};

/// Name of the file in the state directory.
const FILE: &str = "activation.json";

/// A generation by number and content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Content {
    generation: u64,
    hash: String,
}

/// The state that a management node stores about activations.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Memory {
    /// The highest sequence number that it has verified or signed.
    sequence: u64,
    /// The generation that this activation put in force.
    active: Option<Content>,
    /// The generation in force before.
    previous: Option<Content>,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    /// Whether this node was upgraded from a version without signatures, and has not seen or made an
    /// activation since.
    upgraded: bool,
    /// Why the active generation in etcd is not signed; empty when it is.
    problem: String,
}

/// Signs policies for a management node. Clones of its manager share it.
#[derive(Debug)]
pub struct Signer {
    credentials: Credentials,
    verifier: Verifier,
    directory: PathBuf,
    state: Mutex<State>,
    /// Held while the file is written.
    file: Mutex<()>,
}

/// The active generation as etcd holds it.
struct InForce {
    /// Its number; 0 for none.
    generation: u64,
    activation: Option<Result<Activation, String>>,
    /// Revision at which the activation last changed; 0 if there is none.
    activation_revision: i64,
    published: Option<Published>,
}

impl Signer {
    /// Opens the signer of node `id` with `credentials`; its state is stored in `state_dir`. Call this before
    /// the node's control plane starts: files that the control plane writes distinguish the state directory
    /// of a version without signatures from a new one.
    pub fn open(credentials: Credentials, state_dir: &Path, id: &NodeId) -> io::Result<Arc<Signer>> {
        fs::create_dir_all(state_dir)?;
        let (mut upgraded, mut memory) = (false, Memory::default());
        match fs::read(state_dir.join(FILE)) {
            Ok(text) => {
                memory = serde_json::from_slice(&text).unwrap_or_else(|error| {
                    tracing::error!(file = FILE, %error, "not using what was remembered of activations");
                    Memory::default()
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                upgraded = state_dir.join(format!("{id}.incarnation")).exists();
                if !upgraded {
                    durable::replace(state_dir, FILE, &json(&memory))?;
                }
            }
            Err(error) => return Err(error),
        }
        let verifier = Verifier::new(Some(credentials.clone()));
        let state = Mutex::new(State { memory, upgraded, problem: String::new() });
        Ok(Arc::new(Signer {
            credentials,
            verifier,
            directory: state_dir.to_owned(),
            state,
            file: Mutex::default(),
        }))
    }

    /// Returns why nodes with an identity do not follow the active generation in etcd; empty when they do.
    pub fn problem(&self) -> String {
        self.state().problem.clone()
    }

    pub(super) fn generation(&self, record: &GenerationRecord) -> Result<PolicySignature, ManagerError> {
        signatures::sign_generation(&self.credentials, record)
            .map_err(|error| ManagerError::Sign(error.to_string()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nodes follow the active generation in etcd: it is valid for them, and not older than
    /// the activation stored here.
    fn judge(&self, found: &InForce) -> Result<(), String> {
        let number = found.generation;
        if number == 0 {
            return Ok(());
        }
        let wrong = |reason: String| format!("etcd says that generation {number} is in force, but {reason}");
        let Some(published) = &found.published else { return Err(wrong("it is not in etcd".to_owned())) };
        let activation = match &found.activation {
            None => return Err(wrong("no management node has signed that".to_owned())),
            Some(activation) => activation.as_ref().map_err(|error| wrong(error.clone()))?,
        };
        self.verifier.activation(activation, now()).map_err(wrong)?;
        if !activation.is_of(number, &published.hash) {
            let signed = activation.generation;
            return Err(wrong(format!(
                "what is signed is generation {signed} with the hash {}",
                activation.hash
            )));
        }
        let state = self.state();
        let Memory { sequence, active, .. } = &state.memory;
        let same = active.as_ref().is_some_and(|active| activation.is_of(active.generation, &active.hash));
        if activation.sequence < *sequence || (activation.sequence == *sequence && !same) {
            let known = active.as_ref().map_or(0, |active| active.generation);
            return Err(wrong(format!(
                "its activation is older than the one of generation {known}: an old one was put back, or etcd was restored \
                 from a backup"
            )));
        }
        Ok(())
    }

    /// Returns whether this node may sign the active generation in etcd although its signature is invalid:
    /// only if it remembers that this generation is in force.
    fn may_sign(&self, found: &InForce) -> bool {
        let Some(published) = &found.published else { return false };
        let state = self.state();
        let remembered = state.memory.active.as_ref();
        let is = remembered.is_some_and(|content| content.is(found.generation, &published.hash));
        is || (state.upgraded && found.activation.is_none())
    }

    /// Returns whether this node may sign a new activation of the generation: a management node published it
    /// with a certificate valid at that time, or it was in force before.
    fn may_activate(&self, published: &Published) -> Result<(), String> {
        let Published { generation, created_unix_ms, ref hash, .. } = *published;
        let state = self.state();
        let Memory { active, previous, .. } = &state.memory;
        if [active, previous].into_iter().flatten().any(|content| content.is(generation, hash)) {
            return Ok(());
        }
        let then = Duration::from_millis(created_unix_ms).min(now());
        self.verifier.generation((generation, created_unix_ms, hash), published.signature.as_ref(), then)
    }

    fn sign(&self, generation: u64, hash: &str) -> Result<Activation, ManagerError> {
        let sequence = (now().as_millis() as u64).max(self.state().memory.sequence.saturating_add(1));
        signatures::sign_activation(&self.credentials, (generation, hash), sequence)
            .map_err(|error| ManagerError::Sign(error.to_string()))
    }

    /// Returns whether an activation is signed with the certificate in use.
    fn is_own(&self, activation: &Activation) -> bool {
        BASE64.encode(&self.credentials.current().holder.certificate) == activation.signature.certificate
    }

    /// Stores an activation that was verified or signed.
    async fn remember(self: &Arc<Self>, activation: &Activation) {
        {
            let mut state = self.state();
            let Activation { generation, sequence, ref hash, .. } = *activation;
            if sequence <= state.memory.sequence {
                return;
            }
            state.upgraded = false;
            let memory = &mut state.memory;
            memory.sequence = sequence;
            if !memory.active.as_ref().is_some_and(|content| content.is(generation, hash)) {
                memory.previous = memory.active.replace(Content { generation, hash: hash.clone() });
            }
        }
        self.write().await;
    }

    /// Records that no generation is in force that an upgraded node could sign.
    async fn found_nothing(self: &Arc<Self>) {
        if std::mem::take(&mut self.state().upgraded) {
            self.write().await;
        }
    }

    async fn write(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            // The newest state is written, whichever of two concurrent calls comes last.
            let _turn = this.file.lock().unwrap_or_else(PoisonError::into_inner);
            let memory = json(&this.state().memory);
            durable::replace(&this.directory, FILE, &memory)
        });
        if let Ok(Err(error)) = written.await {
            let file = self.directory.join(FILE);
            tracing::error!(file = %file.display(), %error, "cannot be written: a restart may take an older activation for right");
        }
    }

    fn set_problem(&self, problem: &str) {
        let mut state = self.state();
        if !problem.is_empty() && state.problem != problem {
            tracing::error!(problem, "what is in force in etcd is not signed by this node");
        }
        problem.clone_into(&mut state.problem);
    }
}

impl Content {
    fn is(&self, generation: u64, hash: &str) -> bool {
        self.generation == generation && self.hash == hash
    }
}

impl PolicyManager {
    /// Returns the manager with a signer for what it publishes and activates.
    pub fn signed(mut self, signer: Arc<Signer>) -> PolicyManager {
        self.signer = Some(signer);
        self
    }

    /// Returns why nodes do not follow the active generation in etcd; `None` when they do, and in a cluster
    /// without signatures.
    pub async fn doubt(&self) -> Result<Option<String>, ManagerError> {
        let Some(signer) = &self.signer else { return Ok(None) };
        let found = self.in_force().await?;
        Ok(signer.judge(&found).err())
    }

    /// Checks the active generation once. Stores an activation that a management node has signed. If this
    /// node is the leader and the signature is not by its present certificate, signs it again. Does nothing
    /// in a cluster without signatures.
    pub async fn keep_signed(&self, leads: bool) -> Result<(), ManagerError> {
        let Some(signer) = &self.signer else { return Ok(()) };
        let found = self.in_force().await?;
        let verdict = signer.judge(&found);
        if verdict.is_ok() && found.generation == 0 {
            signer.found_nothing().await;
            signer.set_problem("");
            return Ok(());
        }
        let right = found.activation.as_ref().and_then(|activation| activation.as_ref().ok());
        if let (Ok(()), Some(activation)) = (&verdict, right) {
            signer.remember(activation).await;
            if !leads || signer.is_own(activation) {
                signer.set_problem("");
                return Ok(());
            }
        }
        if let Err(problem) = &verdict
            && !(leads && signer.may_sign(&found))
        {
            signer.set_problem(&format!(
                "{problem}; look at it (cspctl policy show), then publish a policy (cspctl policy apply)"
            ));
            return Ok(());
        }
        self.sign_again(signer, &found).await
    }

    async fn sign_again(&self, signer: &Arc<Signer>, found: &InForce) -> Result<(), ManagerError> {
        let Some(published) = &found.published else { return Ok(()) };
        let (generation, hash) = (found.generation, published.hash.as_str());
        let activation = signer.sign(generation, hash)?;
        let seen = found.activation_revision;
        let unchanged = Compare::mod_revision(keys::ACTIVE_SIGNED, CompareOp::Equal, seen);
        let mut conditions = vec![active_is(generation), unchanged];
        conditions.extend(self.fence_holds());
        let put = TxnOp::put(keys::ACTIVE_SIGNED, json(&activation), None);
        if self.client.txn(Txn::new().when(conditions).and_then([put])).await?.succeeded() {
            tracing::info!(
                generation,
                hash,
                sequence = activation.sequence,
                "signed that this generation is in force"
            );
            signer.remember(&activation).await;
            signer.set_problem("");
        }
        Ok(())
    }

    /// Signs the activation of `generation`; returns `None` in a cluster without signatures.
    pub(super) async fn sign_activation(&self, generation: u64) -> Result<Option<Activation>, ManagerError> {
        let Some(signer) = &self.signer else { return Ok(None) };
        // Another management node may have activated a generation since the last check.
        let found = self.in_force().await?;
        if let (Ok(()), Some(Ok(activation))) = (signer.judge(&found), &found.activation) {
            signer.remember(activation).await;
        }
        let published = self.published(generation).await?.ok_or(ManagerError::NoGeneration(generation))?;
        signer.may_activate(&published).map_err(|reason| ManagerError::NotSigned { generation, reason })?;
        signer.sign(generation, &published.hash).map(Some)
    }

    /// Stores an activation that was written to etcd.
    pub(super) async fn activated(&self, activation: Option<&Activation>) {
        if let (Some(signer), Some(activation)) = (&self.signer, activation) {
            signer.remember(activation).await;
            signer.set_problem("");
        }
    }

    async fn in_force(&self) -> Result<InForce, ManagerError> {
        let gets = [keys::ACTIVE, keys::ACTIVE_SIGNED].map(|key| TxnOp::get(key, None));
        let responses = self.client.txn(Txn::new().and_then(gets)).await?.op_responses();
        let [TxnOpResponse::Get(active), TxnOpResponse::Get(signed)] = responses.as_slice() else {
            return Err(ControlError::Etcd("unexpected answer to a transaction".to_owned()).into());
        };
        let number = active.kvs().first().and_then(|pair| pair.value_str().ok()?.trim().parse().ok());
        let signed = signed.kvs().first();
        let read =
            |pair: &etcd_client::KeyValue| Activation::from_json(&String::from_utf8_lossy(pair.value()));
        let generation = number.unwrap_or(0);
        let published = match generation {
            0 => None,
            number => self.published(number).await?,
        };
        let (activation, activation_revision) =
            (signed.map(read), signed.map_or(0, |pair| pair.mod_revision()));
        Ok(InForce { generation, activation, activation_revision, published })
    }

    /// Returns what the generation's key holds, if it is that generation.
    async fn published(&self, generation: u64) -> Result<Option<Published>, ManagerError> {
        let response = self.client.get(&keys::generation(generation), None).await?;
        let published = response.kvs().first().and_then(|pair| from_json::<Published>(pair.value()));
        Ok(published.filter(|published| published.generation == generation))
    }
}
