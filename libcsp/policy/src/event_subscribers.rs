//! Who may subscribe to the cluster's events over ZeroMQ, by key.

use std::collections::HashMap;

use csp_config::Problems;
use csp_types::CurvePublicKey;
use serde::{Deserialize, Serialize};

use super::Policy;
use super::check::{check_count, check_name};
use super::curve::as_text;

/// Most subscribers that are listed.
pub const EVENT_SUBSCRIBERS_MAX: usize = 256;

/// A program that may subscribe to events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSubscriber {
    /// 1 to 63 of `a-z 0-9 -`, unique in the list.
    pub name: String,
    /// Its public key of CURVE, unique in the list.
    #[serde(with = "as_text")]
    pub key: CurvePublicKey,
}

/// Checks the list of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    let list = &policy.event_subscribers;
    check_count("event_subscribers", list.len(), 0, EVENT_SUBSCRIBERS_MAX, problems);
    let (mut names, mut keys) = (HashMap::new(), HashMap::new());
    for (index, subscriber) in list.iter().enumerate() {
        let at = format!("event_subscribers[{index}]");
        check_name(&subscriber.name, "subscriber", &at, problems);
        if let Some(first) = names.insert(subscriber.name.as_str(), index) {
            let message = format!("{:?} is the name of event_subscribers[{first}] already", subscriber.name);
            problems.add(format!("{at}.name"), message);
        }
        if let Some(first) = keys.insert(subscriber.key, index) {
            let message =
                format!("is the key of event_subscribers[{first}] already; each has one of its own");
            problems.add(format!("{at}.key"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";

    #[test]
    fn names_and_keys_are_unique() {
        let list = |entries: &str| format!("apiVersion: csp/v1\nevent_subscribers: [{entries}]\n");
        let one = format!("{{name: siem, key: \"{KEY}\"}}");
        let policy = Policy::parse_yaml(&list(&one), "p").unwrap();
        assert_eq!(policy.event_subscribers[0].key.to_string(), KEY);
        assert_eq!(Policy::parse_yaml(&policy.to_json(), "again").unwrap(), policy);
        assert!(
            !Policy::empty().to_json().contains("event_subscribers"),
            "policies of before have their hashes"
        );
        let diff = crate::diff::diff(&Policy::empty(), &policy);
        assert_eq!(diff, [format!("+ event subscriber siem {KEY}")]);
        let error = Policy::parse_yaml(&list(&format!("{one}, {one}")), "p").unwrap_err().to_string();
        for words in ["[1].name: \"siem\" is the name of event_subscribers[0]", "[1].key: is the key of"] {
            assert!(error.contains(words), "{error}");
        }
    }
}
