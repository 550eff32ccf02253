//! Policies, their generations, and errors.

use serde::{Deserialize, Serialize};

/// The leading management node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    /// Node id of the leading management node.
    pub id: String,
    /// Base URL of its API, for example `https://10.77.0.4:9104`.
    pub url: String,
}

/// One thing wrong in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// File name as the client gave it.
    pub file: String,
    /// Line, from 1; 0 when the place is not known.
    pub line: u64,
    /// Column, from 1; 0 when the place is not known.
    pub column: u64,
    /// Path of the field, for example `services[0].pool[1].port`; empty when it concerns the whole file.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What would be right; empty where the message contains it.
    pub allowed: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column.max(1))?;
        }
        if !self.field.is_empty() {
            write!(f, ": field `{}`", self.field)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        Ok(())
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong, for people.
    pub error: String,
    /// The leader, where the request must go there (status 307).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderView>,
    /// What is wrong in the policy (status 400).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// What programs distinguish: `changed` (another generation is in force), `expected-missing`,
    /// `fresh-login`, `not-leader`, `key-reused`, `in-progress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The generation in force, where another one was expected (status 409).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// Where a policy generation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Written; nodes check it.
    Staging,
    /// Every live node has checked it, `active` points to it; nodes switch over.
    Activating,
    /// Every live node serves on it.
    Active,
    /// It was active; a later one is now.
    Superseded,
    /// A node refused it; the policy before it is in force.
    Refused,
    /// Not every live node answered in time; it was never active.
    TimedOut,
    /// It was never active, and this management node does not know why: another one published it, or this one
    /// was started anew.
    Abandoned,
}

impl Phase {
    /// The name used in JSON and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Staging => "staging",
            Phase::Activating => "activating",
            Phase::Active => "active",
            Phase::Superseded => "superseded",
            Phase::Refused => "refused",
            Phase::TimedOut => "timed-out",
            Phase::Abandoned => "abandoned",
        }
    }

    /// Whether nothing further will happen to a generation being published.
    pub const fn is_final(self) -> bool {
        !matches!(self, Phase::Staging | Phase::Activating)
    }
}

/// What one node says of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledged {
    /// Nothing yet.
    Waiting,
    /// It has checked the generation and waits for its activation.
    Staged,
    /// It serves on it.
    Active,
    /// It refuses it.
    Refused,
}

impl Acknowledged {
    /// The name used in JSON and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Acknowledged::Waiting => "waiting",
            Acknowledged::Staged => "staged",
            Acknowledged::Active => "active",
            Acknowledged::Refused => "refused",
        }
    }
}

/// One node's acknowledgement of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckView {
    /// Node id.
    pub node: String,
    /// Its role.
    pub role: String,
    /// What it says.
    pub state: Acknowledged,
    /// Why it refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One policy generation: answer to `POST /api/v1/policy` (202) and `GET /api/v1/policy/generations/N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationView {
    /// Its number, from 1.
    pub generation: u64,
    /// When it was written, Unix time in ms.
    pub created_unix_ms: u64,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// Where it stands.
    pub phase: Phase,
    /// Why it was not activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The nodes that must agree, sorted by id. Empty for generations of the past.
    pub acks: Vec<AckView>,
    /// Grows by one with each change; `?since=` with this number waits for the next.
    pub revision: u64,
}

/// A policy with its generation: `GET /api/v1/policy` and `.../generations/N/policy`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyView {
    /// Generation, from 1.
    pub generation: u64,
    /// When it was written, Unix time in ms.
    pub created_unix_ms: u64,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// The policy as YAML, in canonical order with defaults filled in.
    pub yaml: String,
    /// The same as JSON.
    pub policy: serde_json::Value,
}

/// Answer to `POST /api/v1/policy?dry_run`: the policy is right by itself. Nodes were not asked, and nothing
/// was changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DryRunView {
    /// Always true; a wrong policy gives status 400.
    pub valid: bool,
    /// Services in it.
    pub services: usize,
    /// Channels in it.
    #[serde(default)]
    pub channels: usize,
    /// Continual queries in it.
    #[serde(default)]
    pub queries: usize,
    /// Supplied handlers in it.
    #[serde(default)]
    pub handlers: usize,
    /// Information flows in it.
    #[serde(default)]
    pub flows: usize,
    /// Packet plug-ins in it.
    #[serde(default)]
    pub plugins: usize,
    /// Rules that lead packets to plug-ins.
    #[serde(default)]
    pub rules: usize,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// The policy as YAML, in canonical order with defaults filled in.
    pub yaml: String,
    /// Generation in force; 0: none.
    #[serde(default)]
    pub generation: u64,
    /// Line differences to the policy in force, in the unified form; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// What is allowed but hardly meant.
    #[serde(default)]
    pub warnings: Vec<String>,
}
