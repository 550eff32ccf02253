//! Handlers that are supplied as WebAssembly modules: each with a name by which paths use it.

use std::collections::HashMap;

use csp_config::Problems;
use csp_types::options::OnStop;
use serde::{Deserialize, Serialize};

use crate::Policy;
use crate::check::{check_count, check_name};

/// Most supplied handlers of a policy.
pub const SUPPLIED_MAX: usize = 64;
/// Length of a module's name: SHA-256 in hex digits.
const HASH_LEN: usize = 64;

/// A supplied handler.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuppliedHandler {
    /// 1 to 63 of `a-z 0-9 -`, unique in the policy and no built-in handler's.
    pub name: String,
    /// SHA-256 of the module in 64 hex digits, as `cspctl handler put` prints it.
    pub module: String,
    /// What becomes of a message for which the module was stopped, and of those after it.
    #[serde(default)]
    pub on_stop: OnStop,
}

impl SuppliedHandler {
    pub(crate) fn summary(&self) -> String {
        let on_stop = match self.on_stop {
            OnStop::Restart => "",
            OnStop::Pass => ", on stop pass",
            OnStop::End => ", on stop end",
        };
        format!("{} module {}{on_stop}", self.name, self.module.get(..12).unwrap_or(&self.module))
    }
}

/// Checks the supplied handlers of a policy.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("handlers", policy.handlers.len(), 0, SUPPLIED_MAX, problems);
    let mut names = HashMap::new();
    for (index, handler) in policy.handlers.iter().enumerate() {
        let (at, name) = (format!("handlers[{index}]"), handler.name.as_str());
        check_name(name, "handler", &at, problems);
        if let Some(first) = names.insert(name, index) {
            problems.add(format!("{at}.name"), format!("{name:?} is the name of handlers[{first}] already"));
        }
        let is_hash = handler.module.len() == HASH_LEN
            && handler.module.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash {
            let message = format!(
                "{:?} names no module; it has {HASH_LEN} hex digits (0-9 a-f), as `cspctl handler put FILE` prints",
                handler.module
            );
            problems.add(format!("{at}.module"), message);
        }
    }
}
