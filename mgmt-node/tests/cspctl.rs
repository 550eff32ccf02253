//! What `cspctl` and `csp-mgmt-node` do without a cluster: exit codes, help, keys, configuration.
#![forbid(unsafe_code)]

mod support;

use std::os::unix::fs::PermissionsExt;

use support::{Ran, Scratch, config_text, cspctl, daemon, free_address};

fn run(arguments: &[&str]) -> Ran {
    Ran::of(cspctl().args(arguments).output().expect("cspctl runs"))
}

#[test]
fn help_explains_exit_codes_and_examples() {
    let help = run(&["--help"]).exited(0);
    for words in
        ["Exit codes:", "65  the policy file is wrong", "Examples:", "CSP_SERVER", "flow trace --last"]
    {
        assert!(help.out.contains(words), "{words} is missing:\n{}", help.out);
    }
    assert!(run(&["policy", "apply", "--help"]).exited(0).out.contains("--dry-run"));
    assert!(run(&["completions", "bash"]).exited(0).out.contains("_cspctl"));
}

#[test]
fn a_wrong_command_line_is_64() {
    run(&["nodez"]).exited(64);
    run(&["flows", "--limit", "0"]).exited(64);
    let ran = run(&["flow", "trace", "xyz"]).exited(64);
    assert!(ran.err.contains("1 to 8 hex digits"), "{ran:?}");
    let ran = run(&["--server", "10.77.0.4:9104", "nodes"]).exited(64);
    assert!(ran.err.contains("https://10.77.0.4:9104"), "{ran:?}");
}

#[test]
fn no_server_is_69_and_says_where_it_was_looked_for() {
    let nobody = free_address();
    let ran = run(&["--server", &format!("http://{nobody}"), "nodes"]).exited(69);
    assert!(ran.err.contains(&nobody.to_string()) && ran.err.contains("refused"), "{ran:?}");
    assert_eq!(ran.out, "");
}

#[test]
fn a_file_that_is_not_there_is_66() {
    let ran = run(&["policy", "apply", "/nonexistent/policy.yaml"]).exited(66);
    assert!(ran.err.contains("/nonexistent/policy.yaml: No such file"), "{ran:?}");
    let ran = run(&["handler", "put", "/nonexistent/module.wasm"]).exited(66);
    assert!(ran.err.contains("/nonexistent/module.wasm: No such file"), "{ran:?}");
}

#[test]
fn a_channel_s_pair_goes_to_two_files_and_its_public_key_to_the_terminal() {
    let scratch = Scratch::new();
    let base = scratch.0.join("ticks");
    let name = base.to_str().expect("path");
    let public = run(&["channel-key", name]).exited(0).out;
    let public: csp_types::CurvePublicKey = public.trim_end().parse().expect("40 characters of Z85");
    let mode = |ending: &str| {
        let path = format!("{name}{ending}");
        (
            std::fs::metadata(&path).expect("metadata").permissions().mode() & 0o777,
            std::fs::read_to_string(&path),
        )
    };
    let (secret_mode, secret) = mode(".key_secret");
    let (secret, line) = (secret.expect("text"), format!("public-key = \"{public}\""));
    assert!(secret_mode == 0o600 && secret.contains(&line) && secret.contains("secret-key = \""), "{secret}");
    let (_, shared) = mode(".key");
    assert!(shared.is_ok_and(|text| text.contains(&line) && !text.contains("secret")));
    run(&["channel-key", name]).exited(73);
    assert_eq!(mode(".key_secret").1.expect("text"), secret, "it was not touched");
    let other = run(&["channel-key"]).exited(0).out;
    assert!(other.contains("secret-key = \"") && !other.contains(&line), "{other}");
}

#[test]
fn a_key_is_64_hex_digits_for_its_owner_alone_and_never_overwritten() {
    let scratch = Scratch::new();
    let path = scratch.0.join("cluster.key");
    let name = path.to_str().expect("path");
    run(&["key", "generate", name]).exited(0);
    let key = std::fs::read_to_string(&path).expect("key");
    assert!(key.len() == 65 && key.trim_end().bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
    assert_eq!(std::fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
    csp_control::key_file::read(&path).expect("daemons can read it");
    run(&["key", "generate", name]).exited(73);
    assert_eq!(std::fs::read_to_string(&path).expect("key"), key);
    assert_ne!(run(&["key", "generate"]).exited(0).out, key, "every key is another");
}

#[test]
fn keys_of_nodes_are_derived_and_generations_replaced() {
    let scratch = Scratch::new();
    let (cluster, node) = (scratch.0.join("cluster.key"), scratch.0.join("node.key"));
    let (cluster, node) = (cluster.to_str().expect("path"), node.to_str().expect("path"));
    let read = |name: &str| std::fs::read_to_string(name).expect("a file");
    run(&["key", "generate", cluster]).exited(0);
    let first = read(cluster);
    let derive = ["key", "derive", cluster, "network-node", "nn-1"];
    run(&[&derive[..], &["--out", node]].concat()).exited(0);
    let old = read(node);
    assert!(old.starts_with("1 node network-node nn-1 ") && old.lines().count() == 1, "{old}");
    assert!(!old.contains(first.trim()), "the cluster's key is not in it");
    assert_eq!(std::fs::metadata(node).expect("metadata").permissions().mode() & 0o777, 0o600);
    assert_eq!(run(&derive).exited(0).out, old, "it is the same each time");
    let host = ["key", "derive", cluster, "app-node", "an-1", "--network-node", "nn-1"];
    let host = run(&host).exited(0).out;
    assert!(host.contains("1 link nn-1 an-1 ") && host.contains("1 node app-node an-1 "), "{host}");
    assert!(!host.contains(old.trim().rsplit(' ').next().expect("digits")), "nor its network nodes' keys");

    run(&["key", "add", cluster]).exited(0);
    assert!(read(cluster).starts_with("2 cluster ") && read(cluster).contains(first.trim()));
    run(&[&derive[..], &["--out", node]].concat()).exited(0);
    assert!(read(node).starts_with("2 node ") && read(node).ends_with(&old), "{}", read(node));
    run(&["key", "retire", cluster]).exited(0);
    assert!(!read(cluster).contains(first.trim()) && read(cluster).lines().count() == 1);
    assert!(run(&["key", "retire", cluster]).exited(0).out.starts_with("0 old generations"));
    for wrong in [
        &["key", "derive", node, "network-node", "nn-1"][..],
        &["key", "derive", cluster, "network-node", "nn-1", "--network-node", "nn-2"],
        &["key", "derive", cluster, "app-node", "AN"],
        &["key", "derive", cluster, "proxy-node", "pn-1"],
    ] {
        run(wrong).exited(64);
    }
}

#[test]
fn a_wrong_configuration_is_78_and_names_file_line_and_field() {
    let scratch = Scratch::new();
    let base = config_text(&scratch, "mgmt-1", free_address(), "");
    for (name, text, words) in [
        ("unknown.yaml", format!("{base}etcd:\n  endpoint: [x]\n"), vec![":4:", "endpoint", "endpoints"]),
        (
            "url.yaml",
            format!("{base}etcd: {{endpoints: [\"10.77.0.4:2379\"]}}\n"),
            vec![":3:", "https://ADDRESS:PORT"],
        ),
        ("any.yaml", base.replace("127.0.0.1", "0.0.0.0"), vec![":2:", "admin.listen", "10.77.0.4:9104"]),
        ("id.yaml", base.replace("mgmt-1", "Mgmt_1"), vec![":1:", "node.id", "a-z"]),
    ] {
        let path = scratch.file(name, &text);
        let ran = Ran::of(daemon(&path).output().expect("daemon runs")).exited(78);
        for word in words.into_iter().chain([name]) {
            assert!(ran.err.contains(word), "{word} is missing in:\n{}", ran.err);
        }
    }
    let good = scratch.file("good.yaml", &base);
    Ran::of(daemon(&good).arg("--check").output().expect("daemon runs")).exited(0);
    Ran::of(daemon(&good).arg("--chekc").output().expect("daemon runs")).exited(64);
    let missing = scratch.0.join("missing.yaml");
    let ran = Ran::of(daemon(&missing).output().expect("daemon runs")).exited(78);
    assert!(ran.err.contains("missing.yaml"), "{ran:?}");
}
