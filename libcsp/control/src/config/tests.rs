//! Tests of configuration files: what is accepted, and the exact words for what is not.

use std::path::Path;

use csp_types::Role;
use csp_types::options::LogFormat;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Daemon {
    node: NodeSection,
    etcd: EtcdSection,
    admin: AdminSection,
    #[serde(default)]
    log: LogSection,
    san: SanSection,
}

const GOOD: &str = "\
node: {id: pn-1}
etcd: {endpoints: ['https://10.77.0.4:2379']}
admin: {listen: '10.77.0.2:9102'}
san: {address: 10.77.0.2}
";

fn read(text: &str) -> Result<Daemon, ConfigError> {
    parse_checked(text, "pn.yaml", |daemon: &Daemon, problems| daemon.etcd.check("etcd", problems))
}

/// `GOOD` with `from` replaced by `to` is refused with `expected`.
fn refuses(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from), "{from}");
    let error = read(&GOOD.replace(from, to)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn defaults_fill_what_is_left_out() {
    let daemon = read(GOOD).unwrap();
    assert_eq!(daemon.node.id.as_str(), "pn-1");
    assert_eq!(daemon.node.state_dir(Role::ProxyNode), Path::new("/var/lib/csp"));
    assert_eq!(daemon.node.run_dir(Role::ProxyNode), Path::new("/run/csp"));
    assert_eq!((daemon.log.level.as_str(), daemon.log.format), ("info", LogFormat::Text));
    assert_eq!((daemon.san.provider, daemon.san.port), (SanProvider::Auto, 7100));
    assert_eq!(daemon.admin.listen, "10.77.0.2:9102".parse().unwrap());
}

#[test]
fn a_wrong_value_names_its_place_and_what_is_allowed() {
    refuses(
        "id: pn-1",
        "id: PN-1",
        "pn.yaml:1:12: node.id: \"PN-1\" is no node id: character 1 of an id must be a-z or 0-9 (after the first also - . _)",
    );
    refuses(
        "'10.77.0.2:9102'",
        "'10.77.0.2'",
        "pn.yaml:3:17: admin.listen: \"10.77.0.2\" is no address to listen on; allowed is ADDRESS:PORT, such as 10.77.0.2:9102",
    );
    refuses(
        "address: 10.77.0.2}",
        "address: 10.77.0.256}",
        "pn.yaml:4:16: san.address: \"10.77.0.256\" is no address; allowed is IPv4 such as 10.76.0.100, or IPv6 such as 2001:db8::1",
    );
    refuses(
        "10.77.0.2}",
        "10.77.0.2, provider: rdma}",
        "pn.yaml:4:37: san.provider: `rdma` is not known; allowed are auto, shm, tcp, ucx, verbs",
    );
    refuses(
        "10.77.0.2}",
        "10.77.0.2, port: 70000}",
        "pn.yaml:4:33: san.port: 70000 is not a port; allowed is 1 to 65535",
    );
    refuses(
        "10.77.0.2}",
        "10.77.0.2, port: high}",
        "pn.yaml:4:33: san.port: \"high\" is not a port; allowed is 1 to 65535",
    );
}

#[test]
fn a_wrong_structure_names_its_place() {
    refuses(
        "{id: pn-1}",
        "{id: pn-1, stat_dir: /x}",
        "pn.yaml:1:18: node.stat_dir: unknown field `stat_dir` (is `state_dir` meant?); allowed are id, run_dir, state_dir, cluster_key_file, identity",
    );
    refuses("{id: pn-1}", "{}", "pn.yaml:1:7: node: missing field `id`, which has no default");
    refuses(
        "node: {id: pn-1}",
        "node: [1]",
        "pn.yaml:1:7: node: `[1]` is no mapping; allowed are lines of `field: value`",
    );
    refuses(
        "['https://10.77.0.4:2379']",
        "here",
        "pn.yaml:2:19: etcd.endpoints: `here` is no list; allowed are lines of `- entry`, or [entry, entry]",
    );
    refuses("{id: pn-1}", "{id: pn-1}\nnode: {id: pn-2}", "pn.yaml:2:1: duplicate mapping key: node");
    refuses("{address: 10.77.0.2}", "{address: 10.77.0.2", "pn.yaml:4:6: san: unclosed bracket '{'");
    refuses("san: {address: 10.77.0.2}\n", "", "pn.yaml:1:1: missing field `san`, which has no default");
}

#[test]
fn a_wrong_number_names_what_is_allowed() {
    #[derive(Debug, Deserialize)]
    struct Sizes {
        workers: u8,
        flows: usize,
    }
    let read = |text: &str| parse::<Sizes>(text, "pn.yaml").map(|s| (s.workers, s.flows));
    assert_eq!(read("workers: 255\nflows: 70000").unwrap(), (255, 70_000));
    for wrong in ["many", "256", "-1", "1.5", "''"] {
        let error = read(&format!("flows: 1\nworkers: {wrong}")).unwrap_err();
        let expected =
            format!("pn.yaml:2:10: workers: `{wrong}` is no whole number in range; allowed is 0 to 255");
        assert_eq!(error.to_string(), expected, "{wrong}");
    }
    let error = read("flows: some\nworkers: 1").unwrap_err().to_string();
    assert!(
        error.ends_with("flows: `some` is no whole number in range; allowed is 0 to 18446744073709551615"),
        "{error}"
    );
}

#[test]
fn all_findings_of_a_check_are_reported_with_their_places() {
    let none = "pn.yaml:2:19: etcd.endpoints: is empty; name at least one, such as https://10.77.0.4:2379";
    refuses("['https://10.77.0.4:2379']", "[]", none);
    refuses(
        "'https://10.77.0.4:2379'",
        "'https://10.77.0.4:2379', 'ftp://x:1', 'http://:1'",
        "pn.yaml:2:46: etcd.endpoints[1]: \"ftp://x:1\" is no endpoint; allowed is https://ADDRESS:PORT\n\
         pn.yaml:2:59: etcd.endpoints[2]: \"http://:1\" is no endpoint; allowed is https://ADDRESS:PORT",
    );
}

#[test]
fn all_mistakes_of_a_file_are_reported_at_once() {
    let text = "\
node: {id: PN 1, run_dri: /run}
etcd: {endpoints: ['10.77.0.4:2379']}
admin: {listen: '10.77.0.2'}
san: {address: 10.77.0.256, provider: rdma, port: []}
log: [info]
";
    let id = "\"PN 1\" is no node id: character 1 of an id must be a-z or 0-9 (after the first also - . _)";
    let endpoint = "\"10.77.0.4:2379\" is no endpoint; allowed is https://ADDRESS:PORT";
    let listen = "\"10.77.0.2\" is no address to listen on; allowed is ADDRESS:PORT, such as 10.77.0.2:9102";
    let address =
        "\"10.77.0.256\" is no address; allowed is IPv4 such as 10.76.0.100, or IPv6 such as 2001:db8::1";
    let field = "unknown field `run_dri` (is `run_dir` meant?); allowed are id, run_dir, state_dir, cluster_key_file, identity";
    let error = read(text).unwrap_err();
    let places: Vec<_> = error.problems.iter().map(|p| (p.position, p.field.as_str())).collect();
    let expected = [
        ((1, 12), "node.id"),
        ((1, 18), "node.run_dri"),
        ((2, 20), "etcd.endpoints[0]"),
        ((3, 17), "admin.listen"),
        ((4, 16), "san.address"),
        ((4, 39), "san.provider"),
        ((4, 51), "san.port"),
        ((5, 6), "log"),
    ];
    assert_eq!(places, expected.map(|(at, field)| (Some(at), field)), "{error}");
    let messages: Vec<_> = error.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(messages[..5], [id, field, endpoint, listen, address]);
    assert_eq!(messages[5], "`rdma` is not known; allowed are auto, shm, tcp, ucx, verbs");
    assert_eq!(messages[7], "`[info]` is no mapping; allowed are lines of `field: value`");
}

#[test]
fn a_mistake_is_reported_once_and_hides_what_follows_from_it() {
    // A misspelt field is not reported as missing as well; another one that is missing is.
    let error =
        read("nod: {id: pn-1}\nadmin: {listen: '10.77.0.2:1'}\nsan: {address: 10.77.0.2}\n").unwrap_err();
    let places: Vec<_> = error.problems.iter().map(|p| (p.field.as_str(), p.message.as_str())).collect();
    let unknown = "unknown field `nod` (is `node` meant?); allowed are node, etcd, admin, log, san";
    assert_eq!(places, [("nod", unknown), ("", "missing field `etcd`, which has no default")], "{error}");
    // What cannot be repaired ends the search, and is reported beside what was found before.
    let error = read(&format!("nod: 1\n{GOOD}etcd: {{}}\n")).unwrap_err().to_string();
    assert!(error.contains("`nod`") && error.contains("duplicate mapping key: etcd"), "{error}");
    // What a check finds about a value that cannot be read is left out.
    let error = read(&GOOD.replace("['https://10.77.0.4:2379']", "7")).unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
}

#[test]
fn a_file_of_nothing_but_mistakes_takes_bounded_work() {
    let wrong: String = (0..20_000).map(|n| format!("wrong{n}: 1\n")).collect();
    let error = read(&format!("{GOOD}{wrong}")).unwrap_err();
    assert_eq!(error.problems.len(), PROBLEMS_MAX);
    let long =
        format!("{GOOD}log: {{level: \"{}\", format: loud, colour: 1}}\n", "x".repeat(FILE_LEN_MAX - 1000));
    assert_eq!(read(&long).unwrap_err().problems.len(), 2);
}

#[test]
fn a_file_that_is_not_there_or_too_long_is_refused() {
    let error = load::<Daemon>(Path::new("/nonexistent/pn.yaml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/pn.yaml: cannot be read: No such file or directory (os error 2)"
    );
    let error = parse::<Daemon>(&"#".repeat(FILE_LEN_MAX + 1), "pn.yaml").unwrap_err();
    assert_eq!(error.to_string(), "pn.yaml: has 1048577 bytes; at most 1048576 are allowed");
}

#[test]
fn hostile_yaml_is_an_error_not_a_crash() {
    let nested = "[".repeat(100_000);
    let laughs: String = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        let m = n - 1;
        text + &format!("a{n}: &a{n} [*a{m}, *a{m}, *a{m}, *a{m}]\n")
    });
    for text in [nested.as_str(), laughs.as_str(), "\u{0}", "&a [*a]", "? ? ?", "!!binary x", "--- 1\n--- 2"]
    {
        read(text).unwrap_err();
    }
}
