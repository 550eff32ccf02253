//! Which proxy's flow an event belongs to: labels are unique only within one proxy, so two proxies may use
//! the same one.

use std::collections::{BTreeMap, BTreeSet};

use csp_api::{Text, Tier, TraceEntry};
use csp_types::NodeId;

/// Ids of proxies by their tags. Two proxies with the same tag (1 pair in 65,535) are not distinguished.
#[derive(Clone, Default, Debug)]
pub struct ProxyTags(BTreeMap<u16, String>);

impl FromIterator<NodeId> for ProxyTags {
    fn from_iter<I: IntoIterator<Item = NodeId>>(proxies: I) -> Self {
        ProxyTags(proxies.into_iter().map(|id| (id.tag(), id.as_str().to_owned())).collect())
    }
}

/// The tag of the node with this id; 0 if it is not a valid id.
pub fn tag_of(id: &str) -> u16 {
    NodeId::parse(id.as_bytes()).map_or(0, |id| id.tag())
}

/// The events of one proxy's flow.
#[derive(Clone, Default, Debug)]
pub struct OneProxy {
    /// The proxy; empty where no event names one.
    pub proxy: Text,
    /// Other proxies that have events of the same label.
    pub others: Vec<Text>,
    /// The events.
    pub entries: Vec<TraceEntry>,
}

impl ProxyTags {
    /// Returns the proxy's id; of an unknown tag, the tag in hex digits; empty for 0.
    pub fn name(&self, tag: u16) -> Text {
        match self.0.get(&tag) {
            Some(id) => id.as_str().into(),
            None if tag == 0 => Text::default(),
            None => format!("{tag:04x}").into(),
        }
    }

    /// Selects the events of the flow of `wanted`; without it, of the first proxy by id. An event that names
    /// no proxy is selected if only one proxy has the label.
    pub fn select(&self, entries: Vec<TraceEntry>, wanted: Option<&str>) -> OneProxy {
        let tag = |entry: &TraceEntry| match entry.tier {
            Tier::ProxyNode => tag_of(entry.node.as_str()),
            Tier::NetworkNode | Tier::Application => entry.proxy,
        };
        let tags: BTreeSet<u16> = entries.iter().map(tag).filter(|tag| *tag != 0).collect();
        let mut named: Vec<(Text, u16)> = tags.iter().map(|tag| (self.name(*tag), *tag)).collect();
        named.sort();
        let chosen = match wanted {
            Some(id) => Some((id.into(), tag_of(id))),
            None => named.first().cloned(),
        };
        let Some((proxy, own)) = chosen else { return OneProxy { entries, ..OneProxy::default() } };
        let only = tags.iter().all(|tag| *tag == own);
        let others = named.into_iter().filter(|(_, tag)| *tag != own).map(|(name, _)| name).collect();
        let entries = entries.into_iter().filter(|entry| tag(entry) == own || (only && tag(entry) == 0));
        OneProxy { proxy, others, entries: entries.collect() }
    }
}

#[cfg(test)]
mod tests {
    use csp_types::{FlowLabel, TraceEvent, TraceKind};

    use super::*;

    fn entry(node: &str, kind: TraceKind, proxy: &str) -> TraceEntry {
        let label = FlowLabel::new(7, 0);
        TraceEntry::new(&TraceEvent { label, kind, proxy: tag_of(proxy), ..TraceEvent::default() }, node, 0)
    }

    #[test]
    fn events_of_two_proxies_with_one_label_are_kept_apart() {
        let tags: ProxyTags = ["pn-1", "pn-2"].into_iter().filter_map(|id| id.parse().ok()).collect();
        let all = || {
            vec![
                entry("nn-1", TraceKind::LabelBound, "pn-1"),
                entry("nn-1", TraceKind::LabelBound, "pn-2"),
                entry("nn-2", TraceKind::LanIn, ""),
                entry("pn-1", TraceKind::SegmentIn, ""),
                entry("pn-2", TraceKind::SegmentIn, ""),
                entry("an-1", TraceKind::AppOpen, "pn-2"),
            ]
        };
        let first = tags.select(all(), None);
        assert_eq!((first.proxy.as_str(), first.others.as_slice()), ("pn-1", ["pn-2".into()].as_slice()));
        assert_eq!(first.entries, [all()[0].clone(), all()[3].clone()]);
        let second = tags.select(all(), Some("pn-2"));
        assert_eq!(second.entries, [all()[1].clone(), all()[4].clone(), all()[5].clone()]);
        assert_eq!(second.others, [Text::from("pn-1")]);
        assert!(tags.select(all(), Some("pn-3")).entries.is_empty(), "a proxy without events");
        // An event without a proxy belongs to the only one.
        let one = tags.select(vec![all()[2].clone(), all()[4].clone()], None);
        assert_eq!((one.entries.len(), one.proxy.as_str(), one.others.len()), (2, "pn-2", 0));
        let none = tags.select(vec![all()[2].clone()], None);
        assert_eq!((none.entries.len(), none.proxy.as_str()), (1, ""));
    }
}
