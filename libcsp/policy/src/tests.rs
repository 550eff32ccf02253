//! Tests of the policy schema: what is accepted, and the exact words for what is not.

use csp_types::longest_match;
use csp_types::options::{FullQueue, LastValueKey};

use super::*;

const GOOD: &str = "\
apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 80
    pool: [{node: an-1, port: 80}, {node: an-2, port: 80}]
    tcp: {congestion: newreno, keepalive_s: 7200, user_timeout_s: 0}
  - name: upload
    vip: 10.76.0.101
    port: 8080
    pool:
      - {node: an-1, port: 8000}
egress:
  - {address: 10.76.0.101, destinations: [10.76.0.0/24]}
";

fn good() -> Policy {
    Policy::parse_yaml(GOOD, "p.yaml").unwrap()
}

/// `GOOD` with the first `from` replaced by `to` is refused with `p.yaml:` and `expected`.
fn refuses(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from), "{from}");
    let error = Policy::parse_yaml(&GOOD.replacen(from, to, 1), "p.yaml").unwrap_err();
    assert_eq!(error.to_string(), format!("p.yaml:{expected}"));
}

#[test]
fn a_wrong_name_or_field_is_refused() {
    refuses("csp/v1", "csp/v2", "1:13: apiVersion: \"csp/v2\" is not known; allowed is csp/v1");
    let name = "3:11: services[0].name: \"Web\" is no service name; allowed are 1 to 63 of a-z 0-9 -";
    refuses("name: web", "name: Web", name);
    let field = "3:5: services[0].nam: unknown field `nam` (is `name` meant?); allowed are name, vip, port, protocol, via, pool, accept_proxy_from, sni, tls, http, servers, tcp, backlog";
    refuses("name: web", "nam: web", field);
    let twice = "8:11: services[1].name: \"web\" is the name of services[0] already; names are unique";
    refuses("name: upload", "name: web", twice);
    let top = "2:1: service: unknown field `service` (is `services` meant?); allowed are apiVersion, services, formats, channels, queries, handlers, contexts, information_flows, link, egress, vip_groups, event_subscribers, connection_log, http_log, acme, programs, access, plugin_hosts, plugins, rules";
    refuses("services:", "service:", top);
}

#[test]
fn a_wrong_address_or_port_is_refused() {
    let allowed = "is no address; allowed is IPv4 such as 10.76.0.100, or IPv6 such as 2001:db8::1";
    refuses("vip: 10.76.0.100", "vip: 10.76.0", &format!("4:10: services[0].vip: \"10.76.0\" {allowed}"));
    for (address, kind) in [
        ("224.0.0.1", "a multicast address"),
        ("127.0.0.1", "a loopback address"),
        ("255.255.255.255", "the broadcast address"),
        ("0.1.2.3", "a reserved address"),
        ("240.0.0.1", "a reserved address"),
        ("'fe80::1'", "a link-local address"),
        ("'ff02::1'", "a multicast address"),
        ("'::ffff:10.0.0.1'", "an IPv4-mapped address; write it as IPv4"),
    ] {
        let shown = address.trim_matches('\'');
        let expected = format!("4:10: services[0].vip: {shown} is {kind}; allowed are unicast addresses");
        refuses("vip: 10.76.0.100", &format!("vip: {address}"), &expected);
    }
    let twice = "9:10: services[1].vip: 10.76.0.100 port 80 belongs to services[0] already";
    refuses("vip: 10.76.0.101\n    port: 8080", "vip: 10.76.0.100\n    port: 80", twice);
    for (port, shown) in
        [("0", "0"), ("65536", "65536"), ("-1", "-1"), ("http", "\"http\""), ("80.5", "80.5")]
    {
        let expected = format!("5:11: services[0].port: {shown} is not a port; allowed is 1 to 65535");
        refuses("port: 80\n", &format!("port: {port}\n"), &expected);
    }
}

#[test]
fn a_wrong_pool_is_refused() {
    let pool = "[{node: an-1, port: 80}, {node: an-2, port: 80}]";
    refuses(pool, "[]", "6:11: services[0].pool: has 0 entries; allowed are 1 to 256");
    let twice = "6:36: services[0].pool[1]: an-1 port 80 is in this pool already";
    refuses("{node: an-2, port: 80}", "{node: an-1, port: 80}", twice);
    let id = "6:43: services[0].pool[1].node: \"an 2\" is no node id: character 3 of an id must be a-z or 0-9 (after the first also - . _)";
    refuses("{node: an-2, port: 80}", "{node: an 2, port: 80}", id);
    let port = "12:28: services[1].pool[0].port: 0 is not a port; allowed is 1 to 65535";
    refuses("port: 8000", "port: 0", port);
    let many: Vec<String> = (1..=257).map(|n| format!("{{node: an-1, port: {n}}}")).collect();
    let many = format!("[{}]", many.join(", "));
    refuses(pool, &many, "6:11: services[0].pool: has 257 entries; allowed are 1 to 256");
}

#[test]
fn wrong_options_and_egress_are_refused() {
    let variant = "7:23: services[0].tcp.congestion: `bbr` is not known; allowed are newreno, cubic";
    refuses("newreno", "bbr", variant);
    let variant = "7:35: services[0].tcp.ecn: `maybe` is not known; allowed are off, passive, active";
    refuses("congestion: newreno, keepalive_s", "congestion: cubic, ecn: maybe, keepalive_s", variant);
    let pacing =
        "7:38: services[0].tcp.pacing: `sometimes` is neither true nor false; allowed are true, false";
    refuses("congestion: newreno, keepalive_s", "congestion: cubic, pacing: sometimes, keepalive_s", pacing);
    let long = "7:45: services[0].tcp.keepalive_s: 2592001 is not a number of seconds (0: off); allowed is 0 to 2592000";
    refuses("keepalive_s: 7200", "keepalive_s: 2592001", long);
    for mss in ["87", "9001", "65536"] {
        let wrong =
            format!("7:35: services[0].tcp.mss: {mss} is not a segment size in bytes; allowed is 88 to 9000");
        refuses(
            "congestion: newreno, keepalive_s",
            &format!("congestion: cubic, mss: {mss}, keepalive_s"),
            &wrong,
        );
    }
    let host =
        "14:43: egress[0].destinations[0]: 10.76.0.1/24 has host bits set; the network is 10.76.0.0/24";
    refuses("10.76.0.0/24", "10.76.0.1/24", host);
    let long = "14:43: egress[0].destinations[0]: a prefix of 10.76.0.0 has 0 to 32 bits, not 33";
    refuses("10.76.0.0/24", "10.76.0.0/33", long);
    let family = "14:43: egress[0].destinations[0]: 2001:db8::/32 is not of the family of 10.76.0.101; both are IPv4 or both IPv6";
    refuses("10.76.0.0/24", "2001:db8::/32", family);
    let none = "14:42: egress[0].destinations: has 0 entries; allowed are 1 to 128";
    refuses("[10.76.0.0/24]", "[]", none);
    let outside = "14:81: egress[0].except[1]: 10.77.0.0/25 lies in none of this entry's destinations";
    refuses("[10.76.0.0/24]", "[10.76.0.0/24], except: [10.76.0.0/25, 10.77.0.0/25]", outside);
    let many: Vec<String> = (0..64).map(|n| format!("10.76.0.{n}/32")).collect();
    let (many, sum) =
        (many.join(", "), "egress: the entries have 129 destinations and exceptions; allowed are 128 in all");
    refuses("[10.76.0.0/24]", &format!("[10.76.0.0/24, {many}], except: [{many}]"), &format!("14:3: {sum}"));
}

#[test]
fn several_mistakes_are_told_at_once() {
    let text = GOOD.replace("name: web", "name: UP").replace("vip: 10.76.0.101", "vip: 224.1.1.1");
    let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err();
    let places: Vec<_> =
        error.problems.iter().map(|problem| (problem.position, problem.field.as_str())).collect();
    assert_eq!(places, [(Some((3, 11)), "services[0].name"), (Some((9, 10)), "services[1].vip")]);
}

#[test]
fn a_mistake_of_form_hides_no_other_mistake() {
    let text = GOOD
        .replace("vip: 10.76.0.100", "vip: 10.76.0.300")
        .replacen("port: 80\n", "prot: 80\n", 1)
        .replace("newreno", "bbr")
        .replace("name: upload", "name: web")
        .replace("port: 8080", "port: 70000")
        .replace("[10.76.0.0/24]", "[10.76.0.1/24, '2001:db8::/32']")
        + "programs:\n  - {program: nginx, listen: [80, http]}\n";
    let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err();
    let places: Vec<_> =
        error.problems.iter().map(|problem| (problem.position, problem.field.as_str())).collect();
    let expected = [
        ((4, 10), "services[0].vip"),
        ((5, 5), "services[0].prot"),
        ((7, 23), "services[0].tcp.congestion"),
        ((8, 11), "services[1].name"),
        ((10, 11), "services[1].port"),
        ((14, 43), "egress[0].destinations[0]"),
        ((14, 57), "egress[0].destinations[1]"),
        ((16, 35), "programs[0].listen[1]"),
    ];
    assert_eq!(places, expected.map(|(at, field)| (Some(at), field)), "{error}");
}

#[test]
fn a_value_that_cannot_be_read_makes_no_other_one_wrong() {
    for (from, to) in [
        ("address: 10.76.0.101, destinations: [10.76.0.0/24]", "address: x, destinations: ['2001:db8::/32']"),
        ("[10.76.0.0/24]", "[10.76.0/24], except: [10.76.0.0/25]"),
        ("[{node: an-1, port: 80}, {node: an-2, port: 80}]", "an-1"),
        ("vip: 10.76.0.101\n    port: 8080", "vip: 10.76.0.100\n    port: x"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = Policy::parse_yaml(&GOOD.replace(from, to), "p.yaml").unwrap_err();
        assert_eq!(error.problems.len(), 1, "{error}");
    }
}

#[test]
fn the_canonical_form_does_not_depend_on_how_it_was_written() {
    let policy = good();
    let other = "{egress: [{destinations: ['10.76.0.0/24'], address: '10.76.0.101'}], services: [
        {port: 80, vip: '10.76.0.100', name: web, tcp: {user_timeout_s: 0, congestion: newreno},
         pool: [{port: 80, node: an-1}, {node: an-2, port: 80}]},
        {name: upload, vip: 10.76.0.101, port: '8080', pool: [{node: an-1, port: 8000}]}], apiVersion: csp/v1}";
    assert_eq!(Policy::parse_yaml(other, "p.yaml").unwrap().hash(), policy.hash());
    assert_eq!(Policy::from_json(&policy.to_json(), "x").unwrap(), policy);
    assert_eq!(policy.hash().len(), 64);
    let mut changed = policy.clone();
    changed.services[0].port = 81;
    assert_ne!(changed.hash(), policy.hash());
}

#[test]
fn json_is_validated_like_yaml() {
    let json = good().to_json().replace("\"port\":8080", "\"port\":0");
    let error = Policy::from_json(&json, "generation 7").unwrap_err().to_string();
    assert!(
        error.starts_with("generation 7: services[1].port: 0 is not a port; allowed is 1 to 65535"),
        "{error}"
    );
    let json = good().to_json().replace("\"upload\"", "\"web\"");
    let error = Policy::from_json(&json, "generation 7").unwrap_err().to_string();
    assert_eq!(
        error,
        "generation 7: services[1].name: \"web\" is the name of services[0] already; names are unique"
    );
    Policy::from_json("{", "x").unwrap_err();
}

#[test]
fn a_difference_reads_like_what_was_done() {
    let text = GOOD
        .replace("port: 80\n", "port: 81\n")
        .replace("{node: an-2, port: 80}", "{node: an-3, port: 80}")
        .replace("name: upload", "name: download")
        .replace("[10.76.0.0/24]", "[10.0.0.0/8], except: [10.1.0.0/16, 10.2.0.0/16]");
    let new = Policy::parse_yaml(&text, "p.yaml").unwrap();
    assert_eq!(
        good().diff(&new),
        [
            "~ service web: port 80 -> 81",
            "~ service web: pool - an-2:80",
            "~ service web: pool + an-3:80",
            "- service upload 10.76.0.101 port 8080 pool an-1:8000",
            "+ service download 10.76.0.101 port 8080 pool an-1:8000",
            "- egress 10.76.0.101 to 10.76.0.0/24",
            "+ egress 10.76.0.101 to 10.0.0.0/8 except 10.1.0.0/16, 10.2.0.0/16",
        ]
    );
    assert_eq!(good().diff(&good()), [""; 0]);
}

#[test]
fn a_service_says_how_many_connections_wait_and_how_long() {
    let text = GOOD.replacen(
        "user_timeout_s: 0}",
        "user_timeout_s: 0}\n    backlog: {connections: 128, time_s: 0}",
        1,
    );
    let new = Policy::parse_yaml(&text, "p.yaml").unwrap();
    assert_eq!(good().services[0].backlog, Backlog { connections: 4096, time_s: 60 });
    assert_eq!(new.services[0].backlog, Backlog { connections: 128, time_s: 0 });
    assert_eq!(Policy::from_json(&new.to_json(), "json").unwrap(), new);
    assert!(!good().to_json().contains("backlog"), "nodes of an older version take a policy without it");
    let changes = ["~ service web: backlog.connections 4096 -> 128", "~ service web: backlog.time_s 60 -> 0"];
    assert_eq!(good().diff(&new), changes);
    let number =
        "8:28: services[0].backlog.connections: 0 is not a number of connections; allowed is 1 to 1048576";
    let error =
        Policy::parse_yaml(&text.replace("connections: 128", "connections: 0"), "p.yaml").unwrap_err();
    assert_eq!(error.to_string(), format!("p.yaml:{number}"));
}

#[test]
fn egress_connections_have_options_of_their_own() {
    let text = GOOD.replace("[10.76.0.0/24]}", "[10.76.0.0/24], tcp: {ecn: active}}");
    let new = Policy::parse_yaml(&text, "p.yaml").unwrap();
    assert_eq!(good().egress[0].tcp, TcpOptions::default());
    assert_eq!(new.egress[0].tcp, TcpOptions { ecn: EcnMode::Active, ..TcpOptions::default() });
    assert_eq!(Policy::from_json(&new.to_json(), "json").unwrap(), new);
    let told = "+ egress 10.76.0.101 to 10.76.0.0/24 tcp.congestion Cubic tcp.ecn Active tcp.pacing true \
                tcp.keepalive_s 7200 tcp.user_timeout_s 0";
    assert_eq!(good().diff(&new), ["- egress 10.76.0.101 to 10.76.0.0/24", told]);
    let variant = "14:69: egress[0].tcp.ecn: `maybe` is not known; allowed are off, passive, active";
    refuses("[10.76.0.0/24]}", "[10.76.0.0/24], tcp: {ecn: maybe}}", variant);
}

#[test]
fn a_smaller_segment_size_is_kept_and_shown() {
    let text = GOOD
        .replace("keepalive_s: 7200", "mss: 1200")
        .replace("[10.76.0.0/24]}", "[10.76.0.0/24], tcp: {mss: 536}}");
    let new = Policy::parse_yaml(&text, "p.yaml").unwrap();
    assert_eq!((new.services[0].tcp.mss, new.egress[0].tcp.mss), (Some(1200), Some(536)));
    assert_eq!(Policy::from_json(&new.to_json(), "json").unwrap(), new);
    // Nodes that do not know the option read policies without it.
    assert!(!good().to_json().contains("mss"));
    let shown = "+ egress 10.76.0.101 to 10.76.0.0/24 tcp.congestion Cubic tcp.ecn Passive tcp.pacing true \
                 tcp.keepalive_s 7200 tcp.user_timeout_s 0 tcp.mss 536";
    let lines = ["~ service web: tcp.mss of the LAN -> 1200", "- egress 10.76.0.101 to 10.76.0.0/24", shown];
    assert_eq!(good().diff(&new), lines);
}

#[test]
fn lookups_find_services_and_the_longest_egress_prefix() {
    let text = GOOD.to_owned()
        + "  - {address: 10.76.0.102, destinations: [10.76.0.64/26, 0.0.0.0/0], except: [10.0.0.0/8]}\n";
    let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(policy.service_at(address("10.76.0.101"), 8080).unwrap().name, "upload");
    assert_eq!(policy.service_at(address("10.76.0.101"), 80), None);
    let entries = || {
        let egress = policy.egress.iter();
        egress.flat_map(|egress| egress.prefixes().map(move |(prefix, except)| (prefix, except, egress)))
    };
    let from = |text: &str| longest_match(entries(), address(text)).map(|egress| egress.address.to_string());
    assert_eq!(from("10.76.0.1").as_deref(), Some("10.76.0.101"));
    assert_eq!(from("10.76.0.65").as_deref(), Some("10.76.0.102"));
    assert_eq!(from("192.0.2.1").as_deref(), Some("10.76.0.102"));
    assert_eq!(from("10.75.0.1"), None, "an exception");
    assert_eq!(from("2001:db8::1"), None);
    assert_eq!(policy.addresses(), [address("10.76.0.100"), address("10.76.0.101"), address("10.76.0.102")]);
}

#[test]
fn program_rules_say_what_is_accelerated_and_are_told_when_they_change() {
    let with = |rules: &str| Policy::parse_yaml(&format!("{GOOD}programs:\n{rules}"), "p.yaml");
    let policy = with("  - {program: nginx, listen: [80, 443]}\n  - {program: sshd, listen: []}\n").unwrap();
    let nginx = ProgramRule::of(&policy.programs, &"nginx".parse().unwrap()).unwrap();
    assert_eq!((nginx.listen.as_deref(), nginx.connect), (Some([80, 443].as_slice()), true));
    assert_eq!(ProgramRule::of(&policy.programs, &"redis-server".parse().unwrap()), None);
    assert_eq!(policy.hash(), Policy::from_json(&policy.to_json(), "").unwrap().hash());
    for (rules, expected) in [
        (
            "  - {program: /usr/sbin/nginx}\n",
            "programs[0].program: \"/usr/sbin/nginx\" is no program's name: a program's name is a file name of 1 to 255 \
             bytes without / and NUL; byte 1 of this one is none of a name",
        ),
        (
            "  - {program: a}\n  - {program: a}\n",
            "programs[1].program: \"a\" has programs[0] already; one rule for each program",
        ),
        ("  - {program: a, listen: [0]}\n", "programs[0].listen: port 0 is none; allowed are 1 to 65535"),
    ] {
        let error = with(rules).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    let other = with("  - {program: nginx, connect: false}\n  - {program: sshd, listen: []}\n").unwrap();
    let lines = [
        "- program nginx: listens on ports 80, 443, connects",
        "+ program nginx: listens on all ports, does not connect",
    ];
    assert_eq!(policy.diff(&other), lines);
}

const CHANNELS: &str = "\
apiVersion: csp/v1
services:
  - {name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}
channels:
  - name: ticks
    vip: 10.76.0.100
    port: 5556
  - name: jobs
    vip: 10.76.0.100
    port: 5557
    pattern: push
    message_kib: 4096
    queue: {messages: 10, kib: 100, full: block}
    memory: {guaranteed_mib: 4, max_mib: 8}
";

#[test]
fn channels_have_defaults_and_their_addresses_are_the_clusters() {
    let policy = Policy::parse_yaml(CHANNELS, "p.yaml").unwrap();
    let [ticks, jobs] = &policy.channels[..] else { panic!("two channels") };
    assert_eq!((ticks.pattern, ticks.message_kib, ticks.queue.messages), (Pattern::Publish, 1_024, 1_000));
    assert_eq!((jobs.pattern, jobs.queue.full, jobs.memory.max_mib), (Pattern::Push, FullQueue::Block, 8));
    let ports: Vec<u16> = policy.ends().map(|(_, port)| port).collect();
    assert_eq!((ports, policy.addresses().len()), (vec![80, 5556, 5557], 1));
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
    assert!(!good().to_json().contains("channels"), "the hash of a policy without channels stays");
    let diff = good().diff(&policy);
    assert!(
        diff.iter().any(|line| line.starts_with("+ channel ticks 10.76.0.100 port 5556 Publish")),
        "{diff:?}"
    );
}

#[test]
fn a_wrong_channel_is_refused() {
    for (from, to, expected) in [
        (
            "name: ticks",
            "name: web",
            "5:11: channels[0].name: \"web\" is the name of services[0] already; names are unique",
        ),
        (
            "port: 5556",
            "port: 80",
            "6:10: channels[0].vip: 10.76.0.100 port 80 belongs to services[0] already",
        ),
        (
            "name: jobs",
            "name: Jobs",
            "8:11: channels[1].name: \"Jobs\" is no channel name; allowed are 1 to 63 of a-z 0-9 -",
        ),
        (
            "full: block",
            "full: wait",
            "13:43: channels[1].queue.full: `wait` is not known; allowed are drop-newest, drop-oldest, block",
        ),
        (
            "messages: 10",
            "messages: 0",
            "13:23: channels[1].queue.messages: 0 is not a number of messages; allowed is 1 to 1048576",
        ),
        (
            "guaranteed_mib: 4",
            "guaranteed_mib: 9",
            "14:30: channels[1].memory.guaranteed_mib: 9 MiB are more than max_mib, 8",
        ),
        (
            "message_kib: 4096",
            "message_kib: 4097",
            "12:18: channels[1].message_kib: 4097 KiB do not fit 4 MiB of memory.guaranteed_mib, which a channel that holds back publishers needs",
        ),
    ] {
        let error = Policy::parse_yaml(&CHANNELS.replacen(from, to, 1), "p.yaml").unwrap_err();
        assert_eq!(error.to_string(), format!("p.yaml:{expected}"));
    }
}

/// Options are written as documented, survive JSON, are shown as a change, and are absent from the JSON of
/// channels without them.
#[test]
fn channels_can_keep_last_values_and_number_messages() {
    let options = |text: &str| Policy::parse_yaml(&CHANNELS.replacen("port: 5556\n", text, 1), "p.yaml");
    let plain = Policy::parse_yaml(CHANNELS, "p.yaml").unwrap();
    assert!(!plain.to_json().contains("last_value") && !plain.to_json().contains("sequence"));
    for (key, expected, shown) in [
        ("topic", LastValueKey::Topic, "last values of 7 topics in 100 KiB, numbered"),
        ("{bytes: 8}", LastValueKey::Bytes(8), "last values of 7 keys of 8 bytes in 100 KiB, numbered"),
    ] {
        let text =
            format!("port: 5556\n    last_value: {{entries: 7, kib: 100, key: {key}}}\n    sequence: true\n");
        let policy = options(&text).unwrap();
        assert_eq!(policy.channels[0].last_value, Some(LastValue { entries: 7, kib: 100, key: expected }));
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        assert!(plain.diff(&policy).iter().any(|line| line.contains(shown)), "{:?}", plain.diff(&policy));
    }
    let defaults = options("port: 5556\n    last_value: {}\n").unwrap().channels[0].last_value;
    assert_eq!(defaults, Some(LastValue { entries: 512, kib: 1_024, key: LastValueKey::Topic }));
    // A bound that is not said follows from the other.
    for (said, entries, kib) in [
        ("entries: 10000", 10_000, 20_000),
        ("entries: 7", 7, 1_024),
        ("kib: 20000", 10_000, 20_000),
        ("kib: 2", 1, 2),
        ("entries: 512, kib: 1024", 512, 1_024),
    ] {
        let last =
            options(&format!("port: 5556\n    last_value: {{{said}}}\n")).unwrap().channels[0].last_value;
        assert_eq!(last, Some(LastValue { entries, kib, key: LastValueKey::Topic }), "{said}");
    }
    for (text, expected) in [
        (
            "last_value: {entries: 0}",
            "channels[0].last_value.entries: 0 is not a number of keys; allowed is 1 to 1048576",
        ),
        (
            "last_value: {key: {bytes: 2049}}",
            "channels[0].last_value.key.bytes: 2049 is not a length in bytes; allowed is 1 to 2048",
        ),
        (
            "last_value: {kib: 40000}",
            "channels[0].last_value.kib: 40000 KiB are more than half of memory.max_mib, 32768 KiB",
        ),
        (
            "last_value: {entries: 513, kib: 1024}",
            "channels[0].last_value.entries: 513 last values take 2 KiB each at least, and `kib` is 1024: write at most 512, or `kib: 1026`",
        ),
        (
            "last_value: {entries: 100000, kib: 1024}",
            "channels[0].last_value.entries: 100000 last values take 2 KiB each at least, and `kib` is 1024: write at most 512",
        ),
        (
            "last_value: {entries: 100000}",
            "channels[0].last_value.kib: 200000 KiB are more than half of memory.max_mib, 32768 KiB",
        ),
        (
            "last_value: {}\n    pattern: push",
            "channels[0].last_value: a channel with `pattern: push` has no last values",
        ),
    ] {
        let error = options(&format!("port: 5556\n    {text}\n")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
