//! Fields that are more than a number or a text.

use std::fmt;
use std::net::IpAddr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// Serde for a [`NodeId`](csp_types::NodeId) as text: `#[serde(with = "csp_config::serde_node_id")]`.
pub mod serde_node_id {
    use csp_types::NodeId;
    use serde::{Deserialize, Deserializer, Serializer, de};

    /// Writes the id as text.
    pub fn serialize<S: Serializer>(id: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(id.as_str())
    }

    /// Reads and checks an id.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = NodeId::parse(text.as_bytes());
        id.map_err(|error| de::Error::custom(format!("{text:?} is no node id: {error}")))
    }
}

/// Serde for networks as text: `#[serde(with = "csp_config::serde_prefixes")]`.
pub mod serde_prefixes {
    use csp_types::Prefix;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    /// One of them, so that an error has its index.
    struct Text(Prefix);

    impl Serialize for Text {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for Text {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map(Text).map_err(de::Error::custom)
        }
    }

    /// Writes each as text.
    pub fn serialize<S: Serializer>(prefixes: &[Prefix], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(prefixes.iter().copied().map(Text))
    }

    /// Reads and checks each.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Prefix>, D::Error> {
        Ok(Vec::<Text>::deserialize(deserializer)?.into_iter().map(|text| text.0).collect())
    }
}

/// Reads an IPv4 or IPv6 address.
pub fn ip_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let message = format!(
            "{text:?} is no address; allowed is IPv4 such as 10.76.0.100, or IPv6 such as 2001:db8::1"
        );
        serde::de::Error::custom(message)
    })
}

/// Reads a TCP port.
pub fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let number = number(deserializer, 1, u64::from(u16::MAX), "a port")?;
    Ok(number as u16)
}

/// Reads a whole number from `min` to `max`; `what` names it in the error, such as `a port`.
pub fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    min: u64,
    max: u64,
    what: &'static str,
) -> Result<u64, D::Error> {
    struct InRange {
        min: u64,
        max: u64,
        what: &'static str,
    }

    impl InRange {
        fn check<E: de::Error>(self, found: impl fmt::Display, number: Option<u64>) -> Result<u64, E> {
            let InRange { min, max, what } = self;
            let number = number.filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| E::custom(format!("{found} is not {what}; allowed is {min} to {max}")))
        }
    }

    impl Visitor<'_> for InRange {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}: a number from {} to {}", self.what, self.min, self.max)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
            self.check(number, Some(number))
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
            self.check(number, u64::try_from(number).ok())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
            self.check(number, None)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            self.check(format_args!("{text:?}"), text.parse().ok())
        }
    }

    deserializer.deserialize_any(InRange { min, max, what })
}
