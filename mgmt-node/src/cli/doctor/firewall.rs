//! What a rule set of nftables does to ports, as far as its JSON shows it: chains at the input hook, their
//! default, and rules that name ports. Jumps, marks and addresses are not followed.

use std::collections::BTreeSet;

use serde_json::Value;

/// A chain, whether it drops by default, and the ports concerned.
pub type Blocked = (String, bool, BTreeSet<u16>);

/// Returns what keeps others from `ports`, given `nft --json list ruleset`.
pub fn blocked(json: &str, ports: &BTreeSet<u16>) -> Result<Vec<Blocked>, String> {
    let all: Value = serde_json::from_str(json)
        .map_err(|error| format!("the output of nft is not understood: {error}"))?;
    let all = all["nftables"].as_array().ok_or("the output of nft has no list")?;
    let chains = all.iter().map(|entry| &entry["chain"]).filter(|chain| chain["hook"] == "input");
    let rules: Vec<&Value> = all.iter().map(|entry| &entry["rule"]).filter(|rule| rule.is_object()).collect();
    let mut blocked = Vec::new();
    for chain in chains {
        let name = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
        let (family, table) = (name(chain, "family"), name(chain, "table"));
        let of_table = || {
            rules.iter().filter(|rule| rule["family"] == chain["family"] && rule["table"] == chain["table"])
        };
        let own = || of_table().filter(|rule| rule["chain"] == chain["name"]);
        let title = format!("{family} {table} {}", name(chain, "name"));
        let dropped = own().filter(|rule| has(rule, "drop") || has(rule, "reject"));
        let dropped: BTreeSet<u16> = ports
            .iter()
            .copied()
            .filter(|port| dropped.clone().any(|rule| names_only(rule, *port)))
            .collect();
        if !dropped.is_empty() {
            blocked.push((title.clone(), false, dropped.clone()));
        }
        // Whatever chain of the table accepts it may be jumped to; a rule without ports may accept all.
        let passes = |port: u16| {
            of_table().any(|rule| {
                let tcp = dports(rule);
                has(rule, "accept") && (tcp.iter().any(|right| covers(right, port)) || accepts_all(rule))
            })
        };
        if chain["policy"] == "drop" {
            let silent: BTreeSet<u16> =
                ports.iter().copied().filter(|port| !passes(*port) && !dropped.contains(port)).collect();
            if !silent.is_empty() {
                blocked.push((title, true, silent));
            }
        }
    }
    Ok(blocked)
}

fn expressions(rule: &Value) -> &[Value] {
    rule["expr"].as_array().map_or(&[], Vec::as_slice)
}

fn has(rule: &Value, verdict: &str) -> bool {
    expressions(rule).iter().any(|expression| expression.get(verdict).is_some())
}

/// The right sides of the rule's conditions on TCP destination ports.
fn dports(rule: &Value) -> Vec<&Value> {
    let conditions = expressions(rule).iter().map(|expression| &expression["match"]);
    let of_port = conditions.filter(|condition| {
        let payload = &condition["left"]["payload"];
        payload["field"] == "dport"
            && matches!(payload["protocol"].as_str(), Some("tcp" | "th"))
            && is_equal(condition)
    });
    of_port.map(|condition| &condition["right"]).collect()
}

fn is_equal(condition: &Value) -> bool {
    matches!(condition["op"].as_str(), Some("==" | "in"))
}

/// Whether the rule has this port as its only condition.
fn names_only(rule: &Value, port: u16) -> bool {
    let conditions = expressions(rule).iter().filter(|expression| expression.get("match").is_some()).count();
    conditions == 1 && dports(rule).iter().any(|right| covers(right, port))
}

/// Whether the rule accepts without regard to ports: on an interface or for addresses, but not for
/// connections that exist already.
fn accepts_all(rule: &Value) -> bool {
    let mut conditions = expressions(rule)
        .iter()
        .map(|expression| &expression["match"])
        .filter(|condition| condition.is_object());
    conditions.all(|condition| {
        let left = &condition["left"];
        let address = matches!(left["payload"]["field"].as_str(), Some("saddr" | "daddr"));
        let loopback = condition["right"] == "lo";
        let interface = matches!(left["meta"]["key"].as_str(), Some("iifname" | "iif")) && !loopback;
        address || interface
    })
}

/// Whether a right side contains a port: a number, a range, a set of these. A named set may contain it.
fn covers(right: &Value, port: u16) -> bool {
    let number = |value: &Value| value.as_u64();
    match right {
        Value::Number(_) => number(right) == Some(port.into()),
        Value::String(_) => true,
        Value::Object(object) => {
            if let Some(range) = object.get("range").and_then(Value::as_array) {
                let ends = (range.first().and_then(number), range.get(1).and_then(number));
                return matches!(ends, (Some(first), Some(last)) if (first..=last).contains(&port.into()));
            }
            let set = object.get("set").and_then(Value::as_array);
            set.is_some_and(|set| set.iter().any(|value| !value.is_string() && covers(value, port)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chain(policy: &str) -> Value {
        json!({"chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": policy}})
    }

    fn rule(expressions: &Value) -> Value {
        json!({"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": expressions}})
    }

    fn dport(right: &Value) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": right}})
    }

    fn check(entries: &[Value], expected: &[(bool, &[u16])]) {
        let json = json!({"nftables": entries}).to_string();
        let found = blocked(&json, &BTreeSet::from([7100, 9102])).unwrap();
        let expected = expected.iter().map(|(by_default, ports)| {
            ("inet filter input".to_owned(), *by_default, ports.iter().copied().collect())
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{json}");
    }

    #[test]
    fn a_chain_that_drops_by_default_needs_a_rule_for_each_port() {
        let established = json!([{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established"]}}, {"accept": null}]);
        check(&[chain("accept")], &[]);
        check(&[chain("drop"), rule(&established)], &[(true, &[7100, 9102])]);
        let range = json!({"range": [7100, 7868]});
        check(&[chain("drop"), rule(&json!([dport(&range), {"accept": null}]))], &[(true, &[9102])]);
        let set = json!({"set": [9102, {"range": [7000, 7200]}]});
        check(&[chain("drop"), rule(&json!([dport(&set), {"accept": null}]))], &[]);
        let named = json!("@ports");
        check(&[chain("drop"), rule(&json!([dport(&named), {"accept": null}]))], &[]);
    }

    #[test]
    fn an_interface_that_is_accepted_whole_needs_no_ports_and_lo_does_not_count() {
        let on = |name: &str| json!([{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": name}}, {"accept": null}]);
        check(&[chain("drop"), rule(&on("san0"))], &[]);
        check(&[chain("drop"), rule(&on("lo"))], &[(true, &[7100, 9102])]);
    }

    #[test]
    fn a_rule_that_drops_a_port_is_found_unless_it_has_other_conditions() {
        check(&[chain("accept"), rule(&json!([dport(&json!(9102)), {"drop": null}]))], &[(false, &[9102])]);
        let from = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "192.0.2.1"}});
        check(&[chain("accept"), rule(&json!([from, dport(&json!(9102)), {"drop": null}]))], &[]);
        assert!(blocked("{}", &BTreeSet::new()).is_err() && blocked("x", &BTreeSet::new()).is_err());
    }
}
