//! Where packet plug-ins run: at a level of the policy's, or where each network node places them by their
//! packets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use csp_config::Problems;
use csp_plugins::{Auto, Level};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::plugins::PacketPlugin;

/// Most packets per second that a plug-in may expect, or be placed by.
const PPS_MAX: u64 = 1_000_000_000;
/// Longest time in seconds for which a rate has to stand.
const HOLD_MAX_S: u32 = 3_600;

/// Where a packet plug-in runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PluginLevel {
    /// There, on every network node.
    Fixed(Level),
    /// Each network node chooses between 1 and 2.
    Auto,
}

impl Default for PluginLevel {
    fn default() -> Self {
        PluginLevel::Fixed(Level::default())
    }
}

impl fmt::Display for PluginLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PluginLevel::Fixed(level) => write!(f, "{}", *level as u8),
            PluginLevel::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for PluginLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(PluginLevel::Auto),
            _ => text.parse().ok().and_then(Level::from_number).map(PluginLevel::Fixed).ok_or_else(|| {
                format!("{text} is no level; allowed is 1 (driver), 2 (workers), 3 (host) or auto")
            }),
        }
    }
}

impl Serialize for PluginLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            PluginLevel::Fixed(level) => serializer.serialize_u8(*level as u8),
            PluginLevel::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for PluginLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrAuto;
        impl Visitor<'_> for NumberOrAuto {
            type Value = PluginLevel;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("1, 2, 3 or auto")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PluginLevel, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PluginLevel, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PluginLevel, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrAuto)
    }
}

impl PluginLevel {
    /// Returns whether it is this level.
    pub fn is(self, level: Level) -> bool {
        self == PluginLevel::Fixed(level)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_default(&self) -> bool {
        *self == PluginLevel::default()
    }

    /// Returns the level of the policy; where nodes choose, that at which instances begin.
    pub(super) fn fixed(self) -> Level {
        match self {
            PluginLevel::Fixed(level) => level,
            PluginLevel::Auto => Level::default(),
        }
    }
}

/// By what a network node places a plug-in whose level is `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginPlacement {
    /// Packets per second from which on it runs in the driver; below half of them it leaves.
    pub driver_pps: u64,
    /// Seconds for which a rate has to stand before the plug-in is moved.
    pub hold_s: u32,
}

impl Default for PluginPlacement {
    fn default() -> Self {
        let Auto { driver_pps, hold, .. } = Auto::default();
        PluginPlacement { driver_pps, hold_s: hold.as_secs() as u32 }
    }
}

impl PacketPlugin {
    /// How network nodes place it; `None` if the policy does.
    pub(super) fn auto(&self) -> Option<Auto> {
        let PluginPlacement { driver_pps, hold_s } = self.place.unwrap_or_default();
        let hold = Duration::from_secs(hold_s.into());
        (self.level == PluginLevel::Auto).then_some(Auto { expects: self.expects, driver_pps, hold })
    }

    /// Its level and what belongs to it, for a summary.
    pub(super) fn level_summary(&self) -> String {
        let level = (!self.level.is_default()).then(|| format!(" level {}", self.level));
        let expects = self.expects.map(|rate| format!(" expects {rate}"));
        let place = self.place.map(|of| format!(" place driver_pps={} hold_s={}", of.driver_pps, of.hold_s));
        level.into_iter().chain(expects).chain(place).collect()
    }

    pub(super) fn check_level(&self, at: usize, problems: &mut Problems) {
        if self.level != PluginLevel::Auto {
            let given = [("expects", self.expects.is_some()), ("place", self.place.is_some())];
            for (field, _) in given.iter().filter(|(_, given)| *given) {
                let message = format!("is for level auto alone; this plug-in is at level {}", self.level);
                problems.add(format!("plugins[{at}].{field}"), message);
            }
        }
        let place = self.place.unwrap_or_default();
        let bounds = [
            ("expects", self.expects.unwrap_or(1), PPS_MAX),
            ("place.driver_pps", place.driver_pps, PPS_MAX),
            ("place.hold_s", place.hold_s.into(), HOLD_MAX_S.into()),
        ];
        for (field, value, max) in bounds.iter().filter(|(_, value, max)| !(1..=*max).contains(value)) {
            problems.add(format!("plugins[{at}].{field}"), format!("is {value}; allowed is 1 to {max}"));
        }
    }
}

/// Plug-ins that no node can place in the driver, since their module has no implementation there.
pub(super) fn never_in_driver(plugins: &[PacketPlugin]) -> impl Iterator<Item = String> {
    let auto = plugins.iter().filter(|plugin| plugin.level == PluginLevel::Auto);
    let stays = auto.filter(|plugin| !can_run_in_driver(&plugin.module));
    stays.map(|plugin| {
        format!(
            "plug-in {} stays at level 2: module {} has no implementation for level 1",
            plugin.name, plugin.module
        )
    })
}

fn can_run_in_driver(module: &str) -> bool {
    let known = csp_plugins::builtin::MODULES.iter().find(|known| known.name == module);
    known.is_some_and(|known| known.levels.contains(&Level::Driver) && known.name != "mirror")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    const AUTO: &str = "\
apiVersion: csp/v1
plugins:
  - {name: count, module: counter, level: auto}
  - {name: flood, module: block-list, level: auto, expects: 1000000, place: {driver_pps: 50000}}
  - {name: tap, module: capture}
rules:
  - {name: a, match: proto tcp, plugin: count}
  - {name: b, match: proto udp egress, plugin: flood}
  - {name: c, plugin: tap}
";

    #[test]
    fn a_plug_in_may_leave_its_level_to_the_nodes() {
        let policy = Policy::parse_yaml(AUTO, "p.yaml").unwrap();
        let instances = policy.packet_plugins().instances;
        assert_eq!((instances[0].auto, instances[0].level), (Some(Auto::default()), Level::Worker));
        let flood = Auto { expects: Some(1_000_000), driver_pps: 50_000, hold: Duration::from_secs(10) };
        assert_eq!((instances[1].auto, instances[2].auto), (Some(flood), None));
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        assert_eq!(Policy::parse_yaml(&policy.to_json(), "p.json").unwrap(), policy, "as cspctl sends it");
        let diff = Policy::empty().diff(&policy).join("\n");
        let expected =
            "+ plugin flood block-list level auto expects 1000000 place driver_pps=50000 hold_s=10";
        assert!(diff.contains(expected), "{diff}");
        assert_eq!(policy.warnings(), [""; 0]);
        let tap = AUTO.replace("module: capture", "module: capture, level: auto");
        assert_eq!(
            Policy::parse_yaml(&tap, "p.yaml").unwrap().warnings(),
            ["plug-in tap stays at level 2: module capture has no implementation for level 1"]
        );
    }

    #[test]
    fn what_is_wrong_with_a_place_is_named() {
        for (from, to, expected) in [
            (
                "counter, level: auto",
                "counter, level: fast",
                "fast is no level; allowed is 1 (driver), 2 (workers), 3 (host) or auto",
            ),
            (
                "block-list, level: auto",
                "block-list, level: 1",
                "plugins[1].expects: is for level auto alone; this plug-in is at level 1",
            ),
            ("block-list, level: auto", "block-list", "plugins[1].place: is for level auto alone"),
            ("expects: 1000000", "expects: 0", "4:61: plugins[1].expects: is 0; allowed is 1 to 1000000000"),
            ("driver_pps: 50000", "driver_pps: 0", "plugins[1].place.driver_pps: is 0; allowed is 1 to"),
            ("driver_pps: 50000", "hold_s: 3601", "plugins[1].place.hold_s: is 3601; allowed is 1 to 3600"),
            ("driver_pps: 50000", "driver: 50000", "unknown field `driver`"),
        ] {
            let error = Policy::parse_yaml(&AUTO.replacen(from, to, 1), "p.yaml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}
