//! What a policy may say but hardly means: rules, plug-ins, flows and bounds that nothing reaches.

use std::collections::HashSet;
use std::net::IpAddr;

use csp_types::Prefix;

use super::{DEFAULT_FLOW, Flow, FlowMatch, Policy, PortRange};

impl Policy {
    /// Returns what is allowed but is hardly meant: rules, plug-ins and flows that no packet and no message
    /// reaches, and bounds that others keep from being reached, each with the reason.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = super::plugins::covered_rules(self);
        warnings.extend(self.unreached_plugins());
        warnings.extend(super::plugin_places::never_in_driver(&self.plugins));
        warnings.extend(self.unreached_flows());
        warnings.extend(self.unreached_bounds());
        warnings.extend(self.unverified_servers());
        warnings.extend(self.servers_reached_twice());
        warnings
    }

    fn unreached_plugins(&self) -> impl Iterator<Item = String> {
        let mut reached: HashSet<&str> = HashSet::new();
        let mut next: Vec<&str> = self.rules.iter().map(|rule| rule.plugin.as_str()).collect();
        while let Some(name) = next.pop() {
            if reached.insert(name) {
                let plugin = self.plugins.iter().find(|plugin| plugin.name == name);
                next.extend(plugin.iter().flat_map(|plugin| &plugin.outputs).map(String::as_str));
            }
        }
        let unreached = self.plugins.iter().filter(move |plugin| !reached.contains(plugin.name.as_str()));
        unreached.map(|plugin| {
            format!(
                "plug-in {} gets no packets: no rule leads to it, nor to a plug-in before it",
                plugin.name
            )
        })
    }

    fn unreached_flows(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_default = |flow: &Flow| flow.name == DEFAULT_FLOW;
        for (at, flow) in self.information_flows.iter().enumerate() {
            // The default flow is the last, wherever it stands.
            let before =
                if is_default(flow) { &self.information_flows[..] } else { &self.information_flows[..at] };
            let mut before = before.iter().filter(|other| !is_default(other));
            let name = &flow.name;
            if let Some(other) = before.find(|other| other.predicate.covers(&flow.predicate)) {
                let other = &other.name;
                warnings.push(format!(
                    "flow {name} never has a message: {other} takes all that match it, before it"
                ));
            } else if let Some((channel, vip)) = self.contradicted(&flow.predicate) {
                warnings.push(format!(
                    "flow {name} never has a message: {channel} is at {vip}, which its `match` excludes"
                ));
            }
        }
        warnings
    }

    /// The channel or query that conditions name, with its addresses, if the other conditions exclude all of
    /// these.
    fn contradicted<'p>(&self, of: &'p FlowMatch) -> Option<(&'p str, String)> {
        let name = of.channel.as_deref()?;
        let ends: Vec<(IpAddr, u16)> = match self.channels.iter().find(|channel| channel.name == name) {
            Some(channel) => channel.ports().map(|port| (channel.vip, port.port)).collect(),
            None => {
                let query = self.queries.iter().find(|query| query.name == name)?;
                vec![(query.vip, query.port)]
            }
        };
        let allowed = |(vip, port): &(IpAddr, u16)| {
            of.destination.is_none_or(|network| network.contains(*vip))
                && of.port.as_ref().is_none_or(|ports| (ports.0.first..=ports.0.last).contains(port))
        };
        let at = |(vip, port): &(IpAddr, u16)| format!("{vip} port {port}");
        let is_excluded = !ends.iter().any(allowed);
        is_excluded.then(|| (name, ends.iter().map(at).collect::<Vec<_>>().join(", ")))
    }
}

impl FlowMatch {
    /// Returns whether these conditions hold of every message of which the others do.
    fn covers(&self, other: &FlowMatch) -> bool {
        let FlowMatch { source, source_port, destination, port, channel, format, condition } = self;
        holds(source.as_ref(), other.source.as_ref(), within)
            && holds(destination.as_ref(), other.destination.as_ref(), within)
            && holds(source_port.as_ref(), other.source_port.as_ref(), among)
            && holds(port.as_ref(), other.port.as_ref(), among)
            && holds(channel.as_ref(), other.channel.as_ref(), String::eq)
            && holds(format.as_ref(), other.format.as_ref(), String::eq)
            && holds(condition.as_ref(), other.condition.as_ref(), String::eq)
    }
}

/// Returns whether a condition holds wherever `other` does.
fn holds<T: ?Sized>(condition: Option<&T>, other: Option<&T>, implied: impl Fn(&T, &T) -> bool) -> bool {
    condition.is_none_or(|wide| other.is_some_and(|narrow| implied(wide, narrow)))
}

fn within(wide: &Prefix, narrow: &Prefix) -> bool {
    wide.length() <= narrow.length() && wide.contains(narrow.address())
}

fn among(wide: &PortRange, narrow: &PortRange) -> bool {
    wide.0.first <= narrow.0.first && narrow.0.last <= wide.0.last
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const CHANNELS: &str = "\
apiVersion: csp/v1
channels:
  - {name: gates, vip: 10.76.0.100, port: 5561}
  - {name: bulk, vip: 10.76.0.100, port: 5562, listen: [{port: 5563, framing: sofh}]}
link: {mbps: 200}
information_flows:
";

    fn warnings(flows: &str) -> Vec<String> {
        Policy::parse_yaml(&format!("{CHANNELS}{flows}"), "p.yaml").unwrap().warnings()
    }

    #[test]
    fn a_flow_that_an_earlier_one_covers_is_a_warning() {
        let right = "  - {name: gates, match: {channel: gates}}\n  - {name: bulk, match: {channel: bulk, port: 5562}}\n  - {name: late, match: \
                     {channel: bulk, port: 5563}}\n  - {name: default}\n";
        assert_eq!(warnings(right), [""; 0]);
        let all = "  - {name: all}\n  - {name: gates, match: {channel: gates}}\n  - {name: default}\n";
        let taken = |flow: &str, by: &str| {
            format!("flow {flow} never has a message: {by} takes all that match it, before it")
        };
        assert_eq!(warnings(all), [taken("gates", "all"), taken("default", "all")]);
        let wide = "  - {name: wide, match: {source: 10.0.0.0/8, port: 5500-5599}}\n  - {name: narrow, match: {source: 10.1.0.0/16, port: 5561, \
                    channel: gates}}\n  - {name: beside, match: {source: 11.1.0.0/16, port: 5561}}\n";
        assert_eq!(warnings(wide), [taken("narrow", "wide")]);
        let fields = "  - {name: few, match: {channel: gates, where: delay > 9}}\n  - {name: gates, match: {channel: gates}}\n  - {name: again, \
                      match: {channel: gates, where: delay > 5}}\n";
        let parsed: Policy =
            csp_config::parse_checked(&format!("{CHANNELS}{fields}"), "p.yaml", |_, _| {}).unwrap();
        assert_eq!(
            parsed.warnings(),
            [taken("again", "gates")],
            "those with a condition leave messages to others"
        );
        let default = "  - {name: default}\n  - {name: gates, match: {channel: gates}}\n";
        assert_eq!(warnings(default), [""; 0], "it takes what no other does wherever it stands");
    }

    #[test]
    fn a_flow_whose_conditions_exclude_its_channel_is_a_warning() {
        let port = warnings("  - {name: gates, match: {channel: bulk, port: 5561}}\n");
        let expected = "flow gates never has a message: bulk is at 10.76.0.100 port 5562, 10.76.0.100 port 5563, which its `match` excludes";
        assert_eq!(port, [expected]);
        let network = warnings("  - {name: gates, match: {channel: gates, destination: 10.77.0.0/24}}\n");
        assert!(network[0].contains("gates is at 10.76.0.100 port 5561"), "{network:?}");
    }

    #[test]
    fn promises_that_no_link_carries_are_refused() {
        let flows = |first: &str, second: &str| {
            format!(
                "{CHANNELS}  - {{name: gates, match: {{channel: gates}}, reserve: {{{first}}}}}\n  - {{name: bulk, match: {{channel: bulk}}, \
                 message_bytes: 1500, reserve: {{{second}}}}}\n"
            )
        };
        Policy::parse_yaml(&flows("mbps: 120", "mbps: 80"), "p.yaml").unwrap();
        for second in ["mbps: 81", "messages_per_s: 6750"] {
            let error = Policy::parse_yaml(&flows("mbps: 120", second), "p.yaml").unwrap_err().to_string();
            let expected = "information_flows[1].reserve: 201 Mb/s are promised to this flow and those before it; the link carries 200";
            assert!(error.ends_with(expected), "{error}");
        }
        // One proxy may send more, and might be the only one.
        let more = flows("mbps: 120", "mbps: 81")
            .replace("mbps: 200", "mbps: 200, proxies: [{node: pn-1, mbps: 300}]");
        Policy::parse_yaml(&more, "p.yaml").unwrap();
    }

    #[test]
    fn a_plug_in_to_which_no_rule_leads_is_a_warning() {
        let text = "apiVersion: csp/v1\nplugins:\n  - {name: blocked, module: block-list}\n  - {name: limit, module: policer, settings: {rate: 8k, \
                    block: blocked}}\nrules:\n  - {name: dns, match: proto udp dport 53, plugin: blocked}\n";
        let policy = Policy::parse_yaml(text, "p.yaml").unwrap();
        assert_eq!(
            policy.warnings(),
            ["plug-in limit gets no packets: no rule leads to it, nor to a plug-in before it"]
        );
        let connected = text.replace("block-list}", "block-list, outputs: [limit]}");
        assert_eq!(Policy::parse_yaml(&connected, "p.yaml").unwrap().warnings(), [""; 0]);
    }
}
