//! What is said of a change of packet plug-ins before the cluster is asked.

use std::net::IpAddr;

use clap::Args;
use csp_plugins::Level;
use csp_policy::{PacketPlugin, PluginLevel, PluginPlacement};
use csp_types::Prefix;

use super::error::CliError;

/// What a move to a level costs, if it costs state that operators have made.
pub(super) fn lost_by_move(plugin: &PacketPlugin, level: PluginLevel) -> Option<String> {
    let host = PluginLevel::Fixed(Level::Host);
    let crosses = (plugin.level == host) != (level == host);
    (crosses && plugin.module == "block-list").then(|| {
        format!(
            "{} is empty at level {level}: what it blocks does not move; `cspctl blocks list` shows what was added, before the move",
            plugin.name
        )
    })
}

/// Options of level auto.
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// Of level auto: packets per second that nodes expect until they have measured them, such as 200k
    #[arg(long, value_name = "PACKETS_PER_S", value_parser = packets_per_s)]
    pub(super) expects: Option<u64>,
    /// Of level auto: packets per second from which on it runs in the driver (100k); it leaves when they are
    /// fewer than half of that
    #[arg(long, value_name = "PACKETS_PER_S", value_parser = packets_per_s)]
    driver_pps: Option<u64>,
    /// Of level auto: seconds for which a rate has to stand before it moves (10)
    #[arg(long, value_name = "SECONDS")]
    hold_s: Option<u32>,
}

impl PlaceArgs {
    /// Returns by what nodes place it: what is not given stays what it was.
    pub(super) fn place(&self, before: Option<PluginPlacement>) -> Option<PluginPlacement> {
        if (self.driver_pps, self.hold_s) == (None, None) {
            return before;
        }
        let PluginPlacement { driver_pps, hold_s } = before.unwrap_or_default();
        Some(PluginPlacement {
            driver_pps: self.driver_pps.unwrap_or(driver_pps),
            hold_s: self.hold_s.unwrap_or(hold_s),
        })
    }
}

/// Reads a rate of packets.
fn packets_per_s(text: &str) -> Result<u64, String> {
    csp_plugins::parse_number(text).ok_or_else(|| format!("{text} is no number such as 50000, 200k or 1M"))
}

/// Checks a network of `blocks` where it can be said what would be right.
pub(super) fn check_network(text: &str) -> Result<(), CliError> {
    let checked = match text.contains('/') {
        true => text.parse::<Prefix>().map(drop).map_err(|error| error.to_string()),
        false => text.parse::<IpAddr>().map(drop).map_err(|_| {
            format!("{text:?} is no network and no address; allowed are such as 192.0.2.0/24 and 2001:db8::1")
        }),
    };
    checked.map_err(CliError::Usage)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_move_that_empties_a_block_list_is_a_warning() {
        let at = |level, module: &str| PacketPlugin {
            name: "blocked".to_owned(),
            module: module.to_owned(),
            settings: BTreeMap::new(),
            outputs: vec![],
            level: PluginLevel::Fixed(level),
            expects: None,
            place: None,
            context: None,
        };
        let warned = |from, to, module| lost_by_move(&at(from, module), PluginLevel::Fixed(to)).is_some();
        use Level::{Driver, Host, Worker};
        for (from, to) in [(Driver, Host), (Worker, Host), (Host, Worker)] {
            assert!(warned(from, to, "block-list"), "from {from} to {to}");
        }
        assert!(!warned(Driver, Worker, "block-list") && !warned(Host, Host, "block-list"));
        assert!(!warned(Worker, Host, "counter"));
        assert!(lost_by_move(&at(Host, "block-list"), PluginLevel::Auto).is_some());
        assert!(lost_by_move(&at(Driver, "block-list"), PluginLevel::Auto).is_none());
    }

    #[test]
    fn what_a_move_does_not_give_of_the_placement_stays() {
        let args = |driver_pps, hold_s| PlaceArgs { expects: None, driver_pps, hold_s };
        let before = Some(PluginPlacement { driver_pps: 7, hold_s: 8 });
        assert_eq!(args(None, None).place(before), before);
        assert_eq!(args(None, None).place(None), None);
        assert_eq!(args(Some(9), None).place(before), Some(PluginPlacement { driver_pps: 9, hold_s: 8 }));
        let default = PluginPlacement::default();
        assert_eq!(args(None, Some(3)).place(None), Some(PluginPlacement { hold_s: 3, ..default }));
    }

    #[test]
    fn a_network_with_host_bits_is_refused_with_the_network() {
        check_network("10.0.0.0/8").unwrap();
        check_network("10.8.0.1").unwrap();
        check_network("2001:db8:5::/48").unwrap();
        let error = |text| check_network(text).unwrap_err().to_string();
        assert_eq!(error("10.8.0.1/8"), "10.8.0.1/8 has host bits set; the network is 10.0.0.0/8");
        assert!(error("ten").contains("allowed are such as 192.0.2.0/24"));
    }
}
