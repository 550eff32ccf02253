//! Keys of a channel: the pair by which its proxies are known, and what the owners of other keys may do.
//!
//! The policy has public keys only. The secret key lies in a file at each proxy (decision 0037).

use std::collections::HashMap;

use csp_config::Problems;
use csp_types::CurvePublicKey;
use serde::{Deserialize, Serialize};

use super::{Channel, Clients, Framing, is_yes, yes};

/// Most clients of a channel that are listed.
pub const CURVE_CLIENTS_MAX: usize = 4_096;

/// `curve:` of a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// The public key that clients know the channel by. Each proxy has the secret key in a file.
    #[serde(with = "as_text")]
    pub server_key: CurvePublicKey,
    /// Whether peers without encryption are refused. `false`: they may do what `any` says.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub require: bool,
    /// The keys that are known, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<CurveClient>,
    /// What peers may do whose key is not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub any: Vec<Permission>,
}

/// A key and what its owner may do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveClient {
    /// The client's public key.
    #[serde(with = "as_text")]
    pub key: CurvePublicKey,
    /// At least one.
    pub may: Vec<Permission>,
}

/// What a peer may do on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Connect as PUB, XPUB or PUSH.
    Publish,
    /// Connect as SUB, XSUB or PULL.
    Subscribe,
    /// Connect as REQ or DEALER, and ask the channel.
    Control,
    /// As `control`, and ask for queries.
    Query,
    /// As `control`, and bring handlers.
    Supply,
}

impl Permission {
    /// The word in the policy.
    pub const fn as_str(self) -> &'static str {
        match self {
            Permission::Publish => "publish",
            Permission::Subscribe => "subscribe",
            Permission::Control => "control",
            Permission::Query => "query",
            Permission::Supply => "supply",
        }
    }
}

impl Curve {
    /// Notes what is wrong; `at` is the section's path.
    pub(super) fn check(&self, at: &str, problems: &mut Problems) {
        if self.clients.len() > CURVE_CLIENTS_MAX {
            let message = format!("has {} entries; allowed are 0 to {CURVE_CLIENTS_MAX}", self.clients.len());
            problems.add(format!("{at}.clients"), message);
        }
        if self.clients.is_empty() && self.any.is_empty() {
            let parts = [format!("{at}.clients"), format!("{at}.any")];
            let message = "lets nobody in; list `clients` with their keys, or say what `any` peer may do";
            problems.add_unless(&parts.each_ref().map(String::as_str), at, message);
        }
        if !self.require && self.any.is_empty() {
            let message = "peers without a key may do what `any` says, which is nothing; add for example \
                           any: [subscribe], or remove this line";
            problems.add_unless(&[&format!("{at}.any")], format!("{at}.require"), message);
        }
        check_once(&self.any, &format!("{at}.any"), problems);
        let mut known = HashMap::new();
        for (index, client) in self.clients.iter().enumerate() {
            let at_client = format!("{at}.clients[{index}]");
            let field = format!("{at_client}.key");
            if let Some(first) = known.insert(client.key, index) {
                problems
                    .add(&field, format!("is the key of clients[{first}] already; each key is listed once"));
            }
            if client.key == self.server_key {
                let message = "is the channel's own server_key; allowed are keys of clients";
                problems.add_unless(&[&format!("{at}.server_key")], field, message);
            }
            if client.may.is_empty() {
                let message = "is empty; name at least one of publish, subscribe, control, query, supply";
                problems.add(format!("{at_client}.may"), message);
            }
            check_once(&client.may, &format!("{at_client}.may"), problems);
        }
    }

    /// Notes ports whose peers cannot have keys, and may do more than `any` says; `at` is the channel's path.
    pub(super) fn check_ports(&self, channel: &Channel, at: &str, problems: &mut Problems) {
        if !channel.pool.is_empty() {
            let message = "a channel with a pool passes messages to servers that know no keys; remove `curve` or `pool`";
            problems.add(format!("{at}.curve"), message);
            return;
        }
        for (index, port) in channel.ports().enumerate() {
            let at_port = match index.checked_sub(1) {
                None => at.to_owned(),
                Some(index) => format!("{at}.listen[{index}]"),
            };
            if port.framing == Framing::Zmtp {
                continue;
            }
            let needed: &[Permission] = match port.clients {
                None | Some(Clients::Both) => &[Permission::Publish, Permission::Subscribe],
                Some(Clients::Publish) => &[Permission::Publish],
                Some(Clients::Subscribe) => &[Permission::Subscribe],
            };
            if self.require || needed.iter().any(|one| !self.any.contains(one)) {
                let depends_on = [format!("{at}.curve"), format!("{at_port}.clients")];
                let message = "peers of this framing have no keys; with curve they need `require: false`, and may do at \
                               most what `any` says: name it in `clients`";
                let depends_on = depends_on.each_ref().map(String::as_str);
                problems.add_unless(&depends_on, format!("{at_port}.framing"), message);
            }
        }
    }

    /// In words, for a difference.
    pub(super) fn summary(&self) -> String {
        let list = |may: &[Permission]| match may {
            [] => "nothing".to_owned(),
            may => may.iter().map(|one| one.as_str()).collect::<Vec<_>>().join("+"),
        };
        let clients = self.clients.iter().map(|client| format!("{} {}", client.key, list(&client.may)));
        let clients: Vec<String> = clients.collect();
        let require = if self.require { "" } else { ", not required" };
        format!(
            ", curve {}{require}, any {}, clients [{}]",
            self.server_key,
            list(&self.any),
            clients.join(", ")
        )
    }
}

fn check_once(may: &[Permission], at: &str, problems: &mut Problems) {
    for (index, one) in may.iter().enumerate() {
        if may[..index].contains(one) {
            problems.add(format!("{at}[{index}]"), format!("{} stands here already", one.as_str()));
        }
    }
}

/// Serde for a key as text.
pub(super) mod as_text {
    use csp_types::CurvePublicKey;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(key: &CurvePublicKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(key)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CurvePublicKey, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            de::Error::custom(format!(
                "{text:?} is no public key of CURVE; allowed are 40 characters of Z85 in quotes, as `cspctl \
                 channel-key` prints them"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use crate::Policy;

    const KEYED: &str = r#"apiVersion: csp/v1
channels:
  - name: ticks
    vip: 10.76.0.100
    port: 5556
    heartbeat_s: 10
    curve:
      server_key: "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
      clients:
        - {key: "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", may: [publish, subscribe]}
        - {key: "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hIE", may: [subscribe]}
      any: [subscribe]
"#;

    fn errors(replacements: &[(&str, &str)]) -> String {
        let text = replacements.iter().fold(KEYED.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        Policy::parse_yaml(&text, "p.yaml").unwrap_err().to_string()
    }

    #[test]
    fn a_channel_with_keys_is_read_written_and_compared() {
        let policy = Policy::parse_yaml(KEYED, "p.yaml").unwrap();
        let curve = policy.channels[0].curve.as_ref().unwrap();
        assert!(curve.require && curve.clients.len() == 2 && policy.channels[0].heartbeat_s == 10);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let mut other = policy.clone();
        other.channels[0].curve.as_mut().unwrap().any.clear();
        let diff = policy.diff(&other);
        assert!(
            diff[1].contains("heartbeat 10 s, curve rq:rM>")
                && diff[1].contains(", any nothing, clients [Yne@"),
            "{diff:?}"
        );
    }

    #[test]
    fn a_wrong_key_or_permission_is_refused() {
        let no_key = "is no public key of CURVE; allowed are 40 characters of Z85 in quotes, as `cspctl channel-key` prints them";
        for (from, to, expected) in [
            ("]yf7", "]yf", format!("8:19: channels[0].curve.server_key: \"rq:rM>}}U?@Lns47E1%kR.o@n%FcmmsL/@{{H8]yf\" {no_key}")),
            ("hIE", "hID", "11:17: channels[0].curve.clients[1].key: is the key of clients[0] already; each key is listed once".to_owned()),
            ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hIE", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "11:17: channels[0].curve.clients[1].key: is the channel's own server_key; allowed are keys of clients".to_owned()),
            ("may: [subscribe]", "may: [read]", "11:67: channels[0].curve.clients[1].may[0]: `read` is not known; allowed are publish, subscribe, control, query, supply".to_owned()),
            ("may: [subscribe]", "may: []", "11:66: channels[0].curve.clients[1].may: is empty; name at least one of publish, subscribe, control, query, supply".to_owned()),
            ("any: [subscribe]", "any: [subscribe, subscribe]", "12:24: channels[0].curve.any[1]: subscribe stands here already".to_owned()),
            ("any: [subscribe]", "require: false", "12:16: channels[0].curve.require: peers without a key may do what `any` says, which is nothing; add for example any: [subscribe], or remove this line".to_owned()),
            ("heartbeat_s: 10", "heartbeat_s: 4000", "6:18: channels[0].heartbeat_s: 4000 is not a number of seconds (0: off); allowed is 0 to 3600".to_owned()),
        ] {
            let found = errors(&[(from, to)]);
            assert!(found == format!("p.yaml:{expected}"), "{found}\n{expected}");
        }
    }

    #[test]
    fn peers_that_can_have_no_keys_may_do_what_any_peer_may() {
        let port = ("heartbeat_s: 10", "listen: [{port: 5557, framing: sofh, clients: subscribe}]");
        let text = |replacements: &[(&str, &str)]| {
            replacements
                .iter()
                .fold(KEYED.replacen(port.0, port.1, 1), |text, (from, to)| text.replacen(from, to, 1))
        };
        let open = ("      any:", "      require: false\n      any:");
        assert!(Policy::parse_yaml(&text(&[open]), "p.yaml").is_ok());
        for replacements in [&[][..], &[open, ("sofh, clients: subscribe", "sofh, clients: both")]] {
            let found = Policy::parse_yaml(&text(replacements), "p.yaml").unwrap_err().to_string();
            assert!(
                found.starts_with("p.yaml:6:36: channels[0].listen[0].framing: peers of this framing"),
                "{found}"
            );
        }
        let pool = "framing: sofh\n    pool: [{node: an-1, port: 9000}]";
        let found = errors(&[("heartbeat_s: 10", pool)]);
        assert!(found.contains("channels[0].curve: a channel with a pool"), "{found}");
    }

    #[test]
    fn all_mistakes_are_found_at_once_and_a_channel_that_lets_nobody_in_is_one() {
        let found = errors(&[
            ("]yf7", "]yf"),
            ("hIE", "hI"),
            ("may: [subscribe]", "may: []"),
            ("name: ticks", "name: Ticks"),
        ]);
        assert_eq!(found.lines().count(), 4, "{found}");
        let text = KEYED.split("      clients:").next().unwrap();
        let found = Policy::parse_yaml(text, "p.yaml").unwrap_err().to_string();
        assert!(
            found.starts_with("p.yaml:8:7: channels[0].curve: lets nobody in; list `clients`"),
            "{found}"
        );
    }
}
