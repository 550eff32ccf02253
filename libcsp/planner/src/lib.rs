//! What follows from a policy: its formats parsed, the handlers of its paths checked against them and
//! ordered, its queries planned.
//!
//! ```text
//!  text ─▶ csp-policy: schema, references, bounds ─▶ Policy ─▶ Planned: policy and catalogue ─▶ what a proxy's workers run
//! ```
//! Management nodes plan a policy before they publish it, so that a mistake in a query has its line and
//! column in the file; proxies plan it once, and run what was made. Nobody else links this crate: agents,
//! network nodes and tools go by the policy alone.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod brought;
mod catalogue;
mod channels;
mod flows;
mod formats;
mod handlers;
pub mod http;
pub mod http_filters;
mod paths;
mod requests;
mod times;

use std::sync::Arc;

use csp_config::{ConfigError, Problems, parse_checked};
use csp_policy::Policy;

pub use brought::{RequestedTranslation, TranslationRequest};
pub use catalogue::{Catalogue, PlannedQuery, QuerySource};
pub use channels::{Origin, PlannedChannel};
pub use flows::{FLOW_FIELDS_MAX, FlowCondition, FormatFields};
pub use formats::{KnownFormat, format_set};
pub use paths::{Destination, PathPlan, PlannedOutput, PlannedStage, divides, parameters, plan_paths};
pub use requests::{QueryRequest, RequestError, RequestedQuery};

/// A policy, and what follows from it.
#[derive(Clone, Debug)]
pub struct Planned {
    policy: Arc<Policy>,
    catalogue: Arc<Catalogue>,
}

impl Planned {
    /// Reads, validates and plans the policy in YAML `text`; `file` is its name for errors, which are all
    /// that it has.
    pub fn parse_yaml(text: &str, file: &str) -> Result<Planned, ConfigError> {
        let mut catalogue = Catalogue::default();
        let policy = parse_checked(text, file, |policy: &Policy, problems| {
            policy.check(problems);
            catalogue = Catalogue::new(policy, problems);
        })?;
        Ok(Planned { policy: Arc::new(policy), catalogue: Arc::new(catalogue) })
    }

    /// Plans a policy that is valid in itself; `origin` names it for errors.
    pub fn new(policy: Arc<Policy>, origin: &str) -> Result<Planned, ConfigError> {
        let mut problems = Problems::default();
        let catalogue = Catalogue::new(&policy, &mut problems);
        ConfigError::from_problems(origin, &problems)?;
        Ok(Planned { policy, catalogue: Arc::new(catalogue) })
    }

    /// The policy.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The policy, without what follows from it.
    pub fn into_policy(self) -> Policy {
        Arc::unwrap_or_clone(self.policy)
    }

    /// Its formats and queries.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Returns what is allowed but is hardly meant, each with the reason: [`Policy::warnings`], and queries
    /// that do not read all messages of their channels.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.policy.warnings();
        let longest = csp_policy::MESSAGE_KIB;
        for planned in &self.catalogue.queries {
            let is_read = |name: &str| planned.sources.iter().any(|source| source.channel == name);
            let long = self.policy.channels.iter().filter(|channel| is_read(&channel.name));
            warnings.extend(long.filter(|channel| channel.message_kib > longest).map(|channel| {
                format!(
                    "query {} does not read messages of more than {longest} KiB, and {} has some of up to {} KiB",
                    self.policy.queries[planned.index].name, channel.name, channel.message_kib
                )
            }));
        }
        warnings
    }
}

/// A policy that was read, validated and planned.
#[cfg(test)]
fn checked(text: &str, file: &str) -> Result<Policy, ConfigError> {
    Planned::parse_yaml(text, file).map(Planned::into_policy)
}

#[cfg(test)]
mod documents;
#[cfg(test)]
mod tests;
