//! Which process gets a connection, and when members are removed.

use std::net::IpAddr;

use super::place::DOUBT;
use super::*;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 76, 0, 100));

/// Returns all IPv4 addresses at this port.
fn any(port: u16) -> SocketAddr {
    ([0, 0, 0, 0], port).into()
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// Returns a member with two processes that would accept ten connections each.
fn two_processes() -> (Pools, MemberId) {
    let mut pools = Pools::new();
    let web = pools.listen(node("an-1"), any(80), ChannelId(1), 1).unwrap();
    pools.listen(node("an-1"), any(80), ChannelId(2), 1).unwrap();
    pools.grant(ChannelId(1), 1, 10);
    pools.grant(ChannelId(2), 1, 10);
    (pools, web)
}

#[test]
fn a_listener_without_credit_gets_nothing() {
    let mut pools = Pools::new();
    let web = pools.listen(node("an-1"), any(80), ChannelId(1), 7).unwrap();
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false), None);
    pools.grant(ChannelId(1), 7, 1).unwrap();
    let choice = pools.choose(NOW, &[web], VIP, |_| false).unwrap();
    assert_eq!(choice, Choice { member: web, channel: ChannelId(1), listener: 7 });
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false), None, "one credit is one connection");
}

#[test]
fn the_member_with_the_fewest_open_connections_is_chosen() {
    let mut pools = Pools::new();
    let a = pools.listen(node("an-1"), any(80), ChannelId(1), 1).unwrap();
    let b = pools.listen(node("an-2"), any(80), ChannelId(2), 1).unwrap();
    pools.grant(ChannelId(1), 1, 10);
    pools.grant(ChannelId(2), 1, 10);
    let first = pools.choose(NOW, &[a, b], VIP, |_| false).unwrap();
    let second = pools.choose(NOW, &[a, b], VIP, |_| false).unwrap();
    assert_ne!(first.member, second.member);
    pools.release(first);
    assert_eq!(pools.choose(NOW, &[a, b], VIP, |_| false).unwrap().member, first.member);
}

#[test]
fn within_a_member_connections_spread_over_processes() {
    let (mut pools, web) = two_processes();
    let channels = [
        pools.choose(NOW, &[web], VIP, |_| false).unwrap().channel,
        pools.choose(NOW, &[web], VIP, |_| false).unwrap().channel,
    ];
    assert_ne!(channels[0], channels[1]);
    pools.remove_channel(Instant::ZERO, ChannelId(1));
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false).unwrap().channel, ChannelId(2));
}

#[test]
fn a_listener_id_is_used_once_per_channel() {
    let mut pools = Pools::new();
    pools.listen(node("an-1"), any(80), ChannelId(1), 1).unwrap();
    assert_eq!(pools.listen(node("an-1"), any(81), ChannelId(1), 1), Err(ListenError::Duplicate));
    assert!(pools.listen(node("an-1"), any(81), ChannelId(2), 1).is_ok());
}

#[test]
fn a_member_goes_when_nobody_names_it_listens_there_or_is_connected() {
    let mut pools = Pools::new();
    let web = pools.name(Instant::ZERO, ServerHost::Node(node("an-1")), 80, 3).unwrap();
    assert_eq!(pools.listen(node("an-1"), any(80), ChannelId(1), 7), Ok(web));
    pools.grant(ChannelId(1), 7, 2);
    let choice = pools.choose(NOW, &[web], VIP, |_| false).unwrap();
    assert_eq!(pools.get(web).map(|m| (m.open, m.accept_credit(), m.listener_count())), Some((1, 1, 1)));
    pools.unname(web, 3);
    pools.remove_channel(Instant::ZERO, ChannelId(1));
    assert!(pools.get(web).is_some(), "a connection is at it");
    pools.release(choice);
    assert!(pools.get(web).is_none() && pools.is_empty());
    // Its entry is used again, and nothing of the old member is left.
    assert_eq!(pools.listen(node("an-2"), any(81), ChannelId(1), 7), Ok(web));
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false), None);
    pools.unlisten(Instant::ZERO, ChannelId(1), 7);
    assert!(pools.is_empty());
}

#[test]
fn announcing_and_leaving_does_not_use_members_up() {
    let mut pools = Pools::new();
    for port in 1..=2 * MEMBERS_MAX as u32 {
        let member = pools.listen(node("an-1"), any(port as u16), ChannelId(port), 1);
        assert!(member.is_ok(), "at {port}");
        pools.remove_channel(Instant::ZERO, ChannelId(port));
    }
    assert!(pools.is_empty());
}

#[test]
fn a_draining_node_gets_nothing_and_keeps_what_it_has() {
    let mut pools = Pools::new();
    let web = pools.listen(node("an-1"), any(80), ChannelId(1), 1).unwrap();
    pools.grant(ChannelId(1), 1, 5);
    let before = pools.choose(NOW, &[web], VIP, |_| false).unwrap();
    pools.set_draining([node("an-1")].into());
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false), None);
    assert!(!pools.any_ready(NOW, &[web], VIP, |_| false) && !pools.any_idle(NOW, &[web], VIP, |_| false));
    pools.accepted(before);
    assert_eq!(pools.get(web).map(|m| (m.open, m.accepted)), Some((1, 1)));
    // A port that it opens while it drains is no exception.
    let more = pools.listen(node("an-1"), any(81), ChannelId(1), 2).unwrap();
    pools.grant(ChannelId(1), 2, 5);
    assert_eq!(pools.choose(NOW, &[more], VIP, |_| false), None);
    pools.take_readied();
    pools.set_draining([].into());
    assert!(pools.take_readied(), "what waits is offered now");
    assert!(pools.choose(NOW, &[web], VIP, |_| false).is_some());
}

#[test]
fn a_process_that_cannot_be_reached_gets_nothing_until_it_grants_again() {
    let mut pools = Pools::new();
    let web = pools.listen(node("an-1"), any(80), ChannelId(1), 1).unwrap();
    pools.grant(ChannelId(1), 1, 5);
    let choice = pools.choose(NOW, &[web], VIP, |_| false).unwrap();
    pools.give_up(choice);
    assert_eq!((pools.choose(NOW, &[web], VIP, |_| false), pools.get(web).map(|m| m.open)), (None, Some(0)));
    pools.grant(ChannelId(1), 1, 1);
    assert!(pools.choose(NOW, &[web], VIP, |_| false).is_some());
}

#[test]
fn a_process_in_doubt_comes_last_until_it_accepts_or_time_has_passed() {
    let (mut pools, web) = two_processes();
    let lapsed = pools.choose(NOW, &[web], VIP, |_| false).unwrap();
    assert_eq!(pools.choose_idle(NOW, &[web], VIP, |_| false).map(|c| c.channel), Some(ChannelId(2)));
    assert!(!pools.any_idle(NOW, &[web], VIP, |_| false), "both have offers to answer");
    pools.doubt(NOW, lapsed);
    assert!(
        !pools.any_idle(NOW, &[web], VIP, |_| false) && pools.any_idle(NOW + DOUBT, &[web], VIP, |_| false)
    );
    // Others are preferred, however many connections they have; after a while the process in doubt gets one
    // as a trial.
    assert_eq!(pools.choose(NOW, &[web], VIP, |_| false).unwrap().channel, ChannelId(2));
    let later = NOW + DOUBT;
    let trial = pools.choose(later, &[web], VIP, |_| false).unwrap();
    assert_eq!(trial.channel, ChannelId(1));
    assert_eq!(pools.choose(later, &[web], VIP, |_| false).unwrap().channel, ChannelId(2));
    pools.accepted(trial);
    assert_eq!(pools.get(trial.member).map(|m| m.accepted), Some(1));
    assert_eq!(
        pools.choose(later, &[web], VIP, |_| false).unwrap().channel,
        ChannelId(1),
        "it has the fewest again"
    );
}

#[test]
fn the_listener_that_is_bound_most_specifically_gets_a_connection() {
    let v6: IpAddr = "2001:db8::100".parse().unwrap();
    let bound = ["10.76.0.3:53", "[::]:53", "0.0.0.0:53", "10.76.0.100:53"];
    // The index of the listener that gets connections to each address while listeners 0 to n exist.
    for (local, expected) in [(VIP, [0, 1, 2, 3]), (v6, [0, 1, 1, 1])] {
        let mut pools = Pools::new();
        for (at, expected) in expected.into_iter().enumerate() {
            // All of one process, with enough credit that any of them could get all connections.
            let dns =
                pools.listen(node("an-1"), bound[at].parse().unwrap(), ChannelId(1), at as u32).unwrap();
            pools.grant(ChannelId(1), at as u32, 100);
            for _ in 0..10 {
                let choice = pools.choose(NOW, &[dns], local, |_| false).unwrap();
                assert_eq!(choice.listener, expected, "{local} with {at}");
                pools.accepted(choice);
            }
        }
        // A listener without credit keeps its connections waiting; a removed one does not.
        let dns = pools.name(NOW, ServerHost::Node(node("an-1")), 53, 1).unwrap();
        let last = expected[3];
        pools.withdraw_credit(ChannelId(1), last);
        assert_eq!(pools.choose(NOW, &[dns], local, |_| false), None);
        assert!(!pools.any_ready(NOW, &[dns], local, |_| false));
        pools.unlisten(NOW, ChannelId(1), last);
        let next = pools.choose(NOW, &[dns], local, |_| false).unwrap().listener;
        assert_eq!(next, 2, "{local}");
    }
}
