//! The text of key files.
//!
//! ```text
//! # a comment
//! 2 cluster KEY
//! 2 node network-node nn-1 KEY
//! 2 link nn-1 an-1 KEY
//! ```
//! Each line has the key's generation, its use, and 64 hexadecimal digits. A line of digits alone is a
//! cluster key of generation 1. While keys are replaced a file has two generations: acceptors take both,
//! connectors use the higher.

use core::fmt::Write as _;

use csp_types::{NodeId, Role};

use crate::keys::{ClusterKey, Held, Holder, KeyError, KeyOf, KeySet, Secret};

/// Largest number of keys in one file.
pub const KEYS_MAX: usize = 1024;
/// Largest number of generations in one file.
pub const GENERATIONS_MAX: usize = 4;

/// Why a text is not a key file, or not one for its holder.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyFileError {
    /// A line has another form.
    #[error(
        "line {0}: allowed are `GENERATION cluster KEY`, `GENERATION node ROLE ID KEY`, `GENERATION link NETWORK-NODE APP-NODE KEY`, or 64 hexadecimal digits"
    )]
    Form(usize),
    /// A line's key is malformed.
    #[error("line {0}: {1}")]
    Key(usize, KeyError),
    /// Two lines have the same generation and purpose.
    #[error("line {0}: this key is there already with generation {1}")]
    Twice(usize, u32),
    /// There are more than [`KEYS_MAX`] keys.
    #[error("more than {KEYS_MAX} keys")]
    TooMany,
    /// There are more than [`GENERATIONS_MAX`] generations.
    #[error("more than {GENERATIONS_MAX} generations: retire old ones with `cspctl key retire`")]
    TooManyGenerations,
    /// A proxy needs a cluster key.
    #[error("no cluster key in it, which a proxy node needs: `cspctl key generate` makes one")]
    NoClusterKey,
    /// Network nodes, application nodes and plug-in hosts must not hold a cluster key.
    #[error("a cluster key is in it: only proxy nodes hold those. {}", advice(.0))]
    ClusterKey(Holder),
    /// The holder's own key is missing.
    #[error("no key of this node is in it. {}", advice(.0))]
    NotIts(Holder),
}

fn advice(holder: &Holder) -> String {
    match holder {
        Holder::Proxy => String::new(),
        Holder::Node(role, id) => format!("`cspctl key derive CLUSTER-KEY-FILE {role} {id}` makes its file"),
        Holder::Host(id) => {
            format!("`cspctl key derive CLUSTER-KEY-FILE app-node {id} --network-node ID` makes its file")
        }
    }
}

impl KeySet {
    /// Parses the text of a key file.
    pub fn parse(text: &str) -> Result<KeySet, KeyFileError> {
        let mut set = KeySet::default();
        for (at, line) in text.lines().enumerate() {
            let (number, line) = (at + 1, line.split('#').next().unwrap_or("").trim());
            if line.is_empty() {
                continue;
            }
            if set.keys.len() == KEYS_MAX {
                return Err(KeyFileError::TooMany);
            }
            let held = parse_line(line, number)?;
            if set.keys.iter().any(|old| (old.generation, old.of) == (held.generation, held.of)) {
                return Err(KeyFileError::Twice(number, held.generation));
            }
            set.keys.push(held);
        }
        set.sort();
        match set.generations().len() > GENERATIONS_MAX {
            true => Err(KeyFileError::TooManyGenerations),
            false => Ok(set),
        }
    }

    /// The text of a key file with these keys.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for Held { generation, of, key } in &self.keys {
            let of = match of {
                KeyOf::Cluster => "cluster".to_owned(),
                KeyOf::Node(role, id) => format!("node {role} {id}"),
                KeyOf::Link { network_node, host } => format!("link {network_node} {host}"),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{generation} {of} {}", key.to_hex());
        }
        text
    }

    /// The keys of one node, derived from all cluster keys here: its own, and as a plug-in host those of its
    /// links to `network_nodes`.
    pub fn derive(&self, role: Role, id: NodeId, network_nodes: &[NodeId]) -> KeySet {
        let mut set = KeySet::default();
        for held in self.keys.iter().filter(|held| held.of == KeyOf::Cluster) {
            let (generation, cluster) = (held.generation, ClusterKey(held.key.clone()));
            let mut put = |of, key| set.keys.push(Held { generation, of, key });
            put(KeyOf::Node(role, id), cluster.node(role, id).0);
            for &network_node in network_nodes {
                let of = KeyOf::Link { network_node, host: id };
                put(of, cluster.node(Role::NetworkNode, network_node).link(id).0);
            }
        }
        set.sort();
        set.keys.dedup_by_key(|held| (held.generation, held.of));
        set
    }

    /// Adds a cluster key of a new generation, above all that are here. Returns the generation.
    pub fn add(&mut self, ClusterKey(key): ClusterKey) -> Result<u32, KeyFileError> {
        let generation = self.keys.first().map_or(1, |newest| newest.generation.saturating_add(1));
        if self.generations().len() == GENERATIONS_MAX || generation == u32::MAX {
            return Err(KeyFileError::TooManyGenerations);
        }
        self.keys.push(Held { generation, of: KeyOf::Cluster, key });
        self.sort();
        Ok(generation)
    }

    /// Removes all generations but the newest. Returns how many.
    pub fn retire(&mut self) -> usize {
        let all = self.generations().len();
        let newest = self.keys.first().map(|held| held.generation);
        self.keys.retain(|held| Some(held.generation) == newest);
        all.saturating_sub(1)
    }

    fn sort(&mut self) {
        self.keys.sort_by(|a, b| b.generation.cmp(&a.generation).then(a.of.cmp(&b.of)));
    }
}

fn parse_line(line: &str, number: usize) -> Result<Held, KeyFileError> {
    let form = KeyFileError::Form(number);
    let mut words = line.split_whitespace();
    let mut word = || words.next().ok_or(KeyFileError::Form(number));
    let first = word()?;
    let Ok(second) = word() else {
        let key = Secret::from_hex(first).map_err(|error| KeyFileError::Key(number, error))?;
        return Ok(Held { generation: 1, of: KeyOf::Cluster, key });
    };
    let generation = first.parse().ok().filter(|generation| *generation > 0).ok_or(form.clone())?;
    let id = |text: &str| text.parse::<NodeId>().map_err(|_| KeyFileError::Form(number));
    let of = match second {
        "cluster" => KeyOf::Cluster,
        "node" => {
            let name = word()?;
            let role = (1..=u8::MAX).map_while(Role::from_u8).find(|role| role.as_str() == name);
            KeyOf::Node(role.ok_or(form.clone())?, id(word()?)?)
        }
        "link" => KeyOf::Link { network_node: id(word()?)?, host: id(word()?)? },
        _ => return Err(form),
    };
    let key = Secret::from_hex(word()?).map_err(|error| KeyFileError::Key(number, error))?;
    match words.next() {
        Some(_) => Err(form),
        None => Ok(Held { generation, of, key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    fn id(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    #[test]
    fn a_file_is_written_as_it_is_read_newest_first() {
        let set = KeySet::parse(&format!("# ours\n{ONE}\n\n 2 cluster {TWO} # new\n")).unwrap();
        assert_eq!(set.to_text(), format!("2 cluster {TWO}\n1 cluster {ONE}\n"));
        assert_eq!(set.generations(), [2, 1]);
        let node = set.derive(Role::AppNode, id("an-1"), &[id("nn-2"), id("nn-1"), id("nn-1")]);
        let text = node.to_text();
        let starts =
            ["2 node app-node an-1 ", "2 link nn-1 an-1 ", "2 link nn-2 an-1 ", "1 node app-node an-1 "];
        assert!(text.lines().zip(starts).all(|(line, start)| line.starts_with(start)), "{text}");
        assert_eq!(text.lines().count(), 6);
        assert_eq!(KeySet::parse(&text).unwrap().to_text(), text);
        assert!(!text.contains(ONE) && !text.contains(TWO));
        assert!(!format!("{set:?} {node:?}").contains("2222"), "a key must not get into logs");
    }

    /// `ansible/plugins/filter/keys.py` derives the same: these digits were computed by it.
    #[test]
    fn derived_keys_stay_what_they_are() {
        let set = KeySet::parse(ONE).unwrap().derive(Role::AppNode, id("an-1"), &[id("nn-1")]);
        let expected = "1 node app-node an-1 4b58f1c77bbd7daa6b7bc6f66a9b5061a2e2ae55f18a4f11c7e100192ca1df83\n\
            1 link nn-1 an-1 7832823245d1b78b750bbcf0c0b8b7bbf703a01e16ae7155f09d5aa90b3ed036\n";
        assert_eq!(set.to_text(), expected);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| KeySet::parse(text).unwrap_err().to_string();
        assert_eq!(error("\n00ff"), "line 2: a key has 64 hexadecimal digits, this one has 4");
        assert_eq!(
            error(&ONE.replacen("11", "1g", 1)),
            "line 1: character 2 of the key is not a hexadecimal digit"
        );
        for form in [
            "0 cluster KEY",
            "x cluster KEY",
            "1 clutser KEY",
            "1 node king k-1 KEY",
            "1 link nn-1 KEY",
            "1 cluster KEY KEY",
        ] {
            assert!(error(&form.replace("KEY", ONE)).starts_with("line 1: "), "{form}");
        }
        assert!(error(&format!("{ONE}\n1 cluster {TWO}")).contains("line 2: this key is there already"));
        let many: String = (1..=5).map(|n| format!("{n} cluster {ONE}\n")).collect();
        assert!(error(&many).contains("more than 4 generations"));
    }

    #[test]
    fn each_holder_has_its_own_keys_and_only_proxies_the_cluster_s() {
        let cluster = KeySet::parse(ONE).unwrap();
        let node = cluster.derive(Role::NetworkNode, id("nn-1"), &[]);
        let host = cluster.derive(Role::AppNode, id("an-1"), &[id("nn-1")]);
        let (network, other) =
            (Holder::Node(Role::NetworkNode, id("nn-1")), Holder::Node(Role::NetworkNode, id("nn-2")));
        let application = Holder::Node(Role::AppNode, id("an-1"));
        assert_eq!(cluster.check(Holder::Proxy), Ok(()));
        assert_eq!(node.check(network), Ok(()));
        assert_eq!((host.check(application), host.check(Holder::Host(id("an-1")))), (Ok(()), Ok(())));
        assert_eq!(node.check(Holder::Proxy), Err(KeyFileError::NoClusterKey));
        assert_eq!(node.check(other), Err(KeyFileError::NotIts(other)));
        assert_eq!(cluster.check(network), Err(KeyFileError::ClusterKey(network)));
        let text = cluster.check(network).unwrap_err().to_string();
        assert!(
            text.ends_with("`cspctl key derive CLUSTER-KEY-FILE network-node nn-1` makes its file"),
            "{text}"
        );
        assert!(cluster.check(Holder::Host(id("an-1"))).unwrap_err().to_string().contains("--network-node"));
        let alone = cluster.derive(Role::AppNode, id("an-1"), &[]);
        assert_eq!(
            alone.check(Holder::Host(id("an-1"))),
            Err(KeyFileError::NotIts(Holder::Host(id("an-1"))))
        );
    }

    #[test]
    fn a_new_generation_is_above_all_others_and_the_newest_remains() {
        let mut set = KeySet::parse(ONE).unwrap();
        for expected in 2..=4 {
            assert_eq!(set.add(ClusterKey::from_bytes([7; 32])), Ok(expected));
        }
        assert_eq!(set.add(ClusterKey::from_bytes([7; 32])), Err(KeyFileError::TooManyGenerations));
        assert_eq!((set.retire(), set.generations()), (3, vec![4]));
        assert_eq!(set.add(ClusterKey::from_bytes([7; 32])), Ok(5), "a number is not used again");
    }
}
