//! Handlers that are supplied as WebAssembly modules: each with a name by which paths use it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Policy;
use super::check::{check_count, check_name};
use crate::config::Problems;

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

/// What happens when a module was stopped because it trapped, ran too long, or asked for too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The module is started again, after a pause that grows each time. Messages that come meanwhile are given up and counted. After 16
    /// stops it is `End`; a module that has run for a minute since is forgiven.
    #[default]
    Restart,
    /// Messages pass by the handler from then on. The one that stopped it is given up.
    Pass,
    /// Messages are given up here from then on, and counted.
    End,
}

impl SuppliedHandler {
    pub(super) fn summary(&self) -> String {
        let on_stop = match self.on_stop {
            OnStop::Restart => "",
            OnStop::Pass => ", on stop pass",
            OnStop::End => ", on stop end",
        };
        format!("{} module {}{on_stop}", self.name, self.module.get(..12).unwrap_or(&self.module))
    }
}

/// Returns the supplied handler of a name.
pub(super) fn find<'p>(handlers: &'p [SuppliedHandler], name: &str) -> Option<&'p SuppliedHandler> {
    handlers.iter().find(|handler| handler.name == name)
}

/// Checks the supplied handlers of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("handlers", policy.handlers.len(), 0, SUPPLIED_MAX, problems);
    let mut names = HashMap::new();
    for (index, handler) in policy.handlers.iter().enumerate() {
        let (at, name) = (format!("handlers[{index}]"), handler.name.as_str());
        check_name(name, "handler", &at, problems);
        if super::paths::is_built_in(name) {
            problems.add(format!("{at}.name"), format!("`{name}` is built in; choose another name"));
        } else if let Some(first) = names.insert(name, index) {
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

#[cfg(test)]
mod tests {
    use crate::Policy;

    const HANDLERS: &str = "\
apiVersion: csp/v1
handlers:
  - name: mask
    module: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
channels:
  - name: ticks
    vip: 10.76.0.100
    port: 5556
    path:
      - {handler: forward}
      - {handler: mask, context: c1, parameters: \"4\"}
";

    #[test]
    fn a_path_names_a_supplied_handler() {
        let policy = Policy::parse_yaml(HANDLERS, "p.yaml").unwrap();
        assert_eq!(policy.handlers[0].on_stop, super::OnStop::Restart);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let (before, after) = HANDLERS.split_once("handlers:").unwrap();
        let before = format!("{before}channels:{}", after.split_once("channels:").unwrap().1);
        let before = before.replacen("\n      - {handler: mask, context: c1, parameters: \"4\"}", "", 1);
        let before = Policy::parse_yaml(&before, "p.yaml").unwrap();
        assert!(!before.to_json().contains("handlers"), "the hash of a policy without them stays");
        let diff = before.diff(&policy);
        assert!(diff.contains(&"+ handler mask module e3b0c44298fc".to_owned()), "{diff:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, expected) in [
            (
                "name: mask",
                "name: select",
                "3:11: handlers[0].name: `select` is built in; choose another name",
            ),
            (
                "module: e3b0",
                "module: sha256-e3b0",
                "4:13: handlers[0].module: \"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\" names no \
                 module; it has 64 hex digits (0-9 a-f), as `cspctl handler put FILE` prints",
            ),
            (
                "context: c1",
                "context: g0",
                "11:34: channels[0].path[1].context: `g0` is not among the policy's contexts",
            ),
        ] {
            let error = Policy::parse_yaml(&HANDLERS.replacen(from, to, 1), "p.yaml").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = Policy::parse_yaml(&HANDLERS.replace("name: mask", "name: musk"), "p.yaml").unwrap_err();
        assert!(error.to_string().contains("`mask` is not known; allowed are forward"), "{error}");
        assert!(error.to_string().ends_with(", musk"), "the policy's own are among them: {error}");
        // A path without formats has no `anonymise`, whatever a supplied handler is called.
        let error = HANDLERS.replace("name: mask", "name: forward").replace("handler: mask", "handler: musk");
        let error = Policy::parse_yaml(&error, "p.yaml").unwrap_err().to_string();
        assert_eq!(error.matches("allowed are forward, ").count(), 1, "{error}");
        assert!(!error.contains(", forward"), "a name stands there once: {error}");
    }
}
