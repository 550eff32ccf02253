//! The daemons' output and exit codes for a wrong configuration file or command line.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use csp_cluster::{Tier, configs, keys, testing};

/// A daemon that runs for longer than this has accepted what it should have refused.
const END_S: &str = "20";

/// The daemons' own files in a folder that is removed at the end.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Files {
    fn new(tag: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("csp-configuration-{tag}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = Files(folder);
        let binaries = testing::binaries().unwrap();
        keys::generate(&binaries, &files.0).unwrap();
        keys::derive(&binaries, &files.0, configs::NODES.map(|(role, place)| (role, place.id))).unwrap();
        files
    }

    fn good(&self, tier: Tier) -> String {
        match tier {
            Tier::NetworkNode => configs::network_node(&self.0, "shm"),
            Tier::ProxyNode => configs::proxy_node(&self.0, "shm"),
            Tier::AppNode => configs::app_node(&self.0, "shm"),
            Tier::MgmtNode => configs::mgmt_node(&self.0),
        }
    }

    /// Starts the daemon on the good file with `from` replaced by `to`. It must end with 78 and a message
    /// that contains the line of `to`, and all `words`.
    fn refused(&self, tier: Tier, from: &str, to: &str, words: &[&str]) {
        let good = self.good(tier);
        assert!(good.contains(from), "{}: its file has no {from:?}", tier.daemon());
        let line = 1 + good[..good.find(from).unwrap()].matches('\n').count();
        let path = self.0.join("wrong.yaml");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        for more in [&["--check-config"][..], &[]] {
            let output = start(tier, &path, more);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(78), "{} with {to:?}: {text}", tier.daemon());
            let place = format!("{}:{line}:", path.display());
            for word in [place.as_str()].iter().chain(words) {
                assert!(
                    text.contains(word),
                    "{} with {to:?} does not contain {word:?}: {text}",
                    tier.daemon()
                );
            }
        }
    }
}

fn binary(name: &str) -> PathBuf {
    testing::binaries().unwrap().join(name)
}

/// Runs a program to its end, with a time limit.
fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout").arg(END_S).arg(program).args(arguments).output().unwrap()
}

fn start(tier: Tier, config: &Path, more: &[&str]) -> Output {
    let config = config.to_string_lossy();
    let mut arguments = vec!["--config", &config];
    arguments.extend_from_slice(more);
    run(&binary(tier.daemon()), &arguments)
}

#[test]
fn an_unknown_field_is_refused_with_its_place_and_what_is_allowed() {
    let files = Files::new("unknown");
    for tier in Tier::ALL {
        files.refused(tier, "node:\n", "colour: blue\nnode:\n", &["colour", "allowed are", "node, "]);
        let allowed = ["node.nothing", "id, run_dir, state_dir, cluster_key_file, identity"];
        files.refused(tier, "  run_dir:", "  nothing: 1\n  run_dir:", &allowed);
        files.refused(tier, "  level: info", "  colour: blue", &["log.colour", "level, format"]);
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_place_and_what_is_allowed() {
    let files = Files::new("value");
    for tier in Tier::ALL {
        files.refused(tier, "  format: text", "  format: loud", &["log.format", "loud", "text, json"]);
        files.refused(tier, "listen: \"10.", "listen: \"x10.", &["admin.listen", "ADDRESS:PORT"]);
    }
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        files.refused(tier, "workers: 1", "workers: many", &["workers", "allowed is 0 to 255"]);
        files.refused(tier, "workers: 1", "workers: 200", &["workers", "200", "allowed is 1 to"]);
        files.refused(
            tier,
            "provider: shm",
            "provider: warp",
            &["san.provider", "auto, shm, tcp, ucx, verbs"],
        );
    }
    files.refused(
        Tier::NetworkNode,
        "interface: lan0",
        "interface: lan/0",
        &["lan[0].interface", "such as lan0"],
    );
    files.refused(Tier::ProxyNode, "port: 7100", "port: 71000", &["san.port", "65535"]);
    files.refused(
        Tier::ProxyNode,
        "san:\n",
        "messages: {curve_keys: /nowhere}\nsan:\n",
        &["messages.curve_keys", "/nowhere: cannot be read"],
    );
    files.refused(
        Tier::AppNode,
        "socket:",
        "accelerate: {connect: some}\nsocket:",
        &["accelerate.connect", "policy, off"],
    );
    files.refused(
        Tier::AppNode,
        "socket:",
        "users: [root]\nsocket:",
        &["users[0]", "allowed is 0 to 4294967295"],
    );
    files.refused(
        Tier::MgmtNode,
        "client: \"10.77.0.4:2379\"",
        "client: here",
        &["private_etcd.client", "ADDRESS:PORT"],
    );
}

#[test]
fn a_file_that_is_not_there_is_refused_by_name() {
    let files = Files::new("missing");
    for tier in Tier::ALL {
        let path = files.0.join("nowhere.yaml");
        let output = start(tier, &path, &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{}: {text}", tier.daemon());
        assert!(text.contains(&*path.to_string_lossy()) && text.contains("cannot be read"), "{text}");
    }
}

#[test]
fn a_key_file_that_is_missing_or_not_this_node_s_is_refused_by_name() {
    let files = Files::new("key");
    // The management node signs nothing and needs no key.
    for (tier, name, other) in [
        (Tier::NetworkNode, "nn-1.key", "cluster.key"),
        (Tier::ProxyNode, "cluster.key", "nn-1.key"),
        (Tier::AppNode, "an-1.key", "cluster.key"),
        (Tier::AppNode, "an-1.key", "nn-1.key"),
    ] {
        let key = files.0.join(name);
        let right = fs::read_to_string(&key).unwrap();
        let other = fs::read_to_string(files.0.join(other)).unwrap();
        let faults = [
            (None, 0, "cannot be read"),
            (Some("12345\n"), 0o600, "line 1: a key has 64 hexadecimal digits"),
            (Some(right.as_str()), 0o640, "chmod 600"),
            (Some(other.as_str()), 0o600, "cspctl key"),
        ];
        for (text, mode, word) in faults {
            let _ = fs::remove_file(&key);
            if let Some(text) = text {
                fs::write(&key, text).unwrap();
                fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            }
            let path = files.0.join("good.yaml");
            fs::write(&path, files.good(tier)).unwrap();
            let output = start(tier, &path, &[]);
            let reported = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(78), "{} with key {text:?}: {reported}", tier.daemon());
            for word in [&*key.to_string_lossy(), word] {
                assert!(reported.contains(word), "{} does not say {word:?}: {reported}", tier.daemon());
            }
        }
        let _ = fs::remove_file(&key);
        fs::write(&key, &right).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn check_says_that_a_right_file_is_right() {
    let files = Files::new("right");
    for tier in Tier::ALL {
        let path = files.0.join("right.yaml");
        fs::write(&path, files.good(tier)).unwrap();
        let output = start(tier, &path, &["--check-config"]);
        assert_eq!(output.status.code(), Some(0), "{}: {output:?}", tier.daemon());
        assert!(String::from_utf8_lossy(&output.stdout).contains(&*path.to_string_lossy()), "{output:?}");
    }
}

/// Returns an example file as it is, and with every option in it set.
fn example(tier: Tier) -> (String, String) {
    let name = tier.daemon().trim_start_matches("csp-");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples");
    let plain = fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
    // Options are commented out by "#" without a space after it.
    let option = |line: &str| match line.trim_start().strip_prefix('#').filter(|text| !text.starts_with(' '))
    {
        Some(text) => format!("{}{text}\n", &line[..line.len() - line.trim_start().len()]),
        None => format!("{line}\n"),
    };
    let all = plain.lines().map(option).collect();
    (plain, all)
}

#[test]
fn examples_are_right_and_have_every_option() {
    let files = Files::new("examples");
    // A secret is read when a configuration is checked.
    let secret = files.0.join("ticket-secret");
    fs::write(&secret, [7; 48]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    for tier in Tier::ALL {
        let (plain, all) = example(tier);
        let all = all.replace("/etc/csp/tls-ticket-secret", &secret.to_string_lossy());
        let path = files.0.join("example.yaml");
        for text in [&plain, &all] {
            fs::write(&path, text).unwrap();
            let output = start(tier, &path, &["--check-config"]);
            assert_eq!(output.status.code(), Some(0), "{}: {output:?}\n{text}", tier.daemon());
        }
        // The message on an unknown option lists those that there are: at the top, and in each section.
        let sections = all.lines().filter(|line| line.ends_with(':') && !line.starts_with(['#', ' ']));
        let wrong = |section: &str| match section {
            "lan:" => all.replace("  - interface:", "  - nothing: 1\n    interface:"),
            section => all.replace(&format!("\n{section}\n"), &format!("\n{section}\n  nothing: 1\n")),
        };
        for text in sections.map(wrong).chain([format!("nothing: 1\n{all}")]) {
            fs::write(&path, &text).unwrap();
            let output = start(tier, &path, &["--check-config"]);
            let reported = String::from_utf8_lossy(&output.stderr).into_owned();
            let (_, allowed) =
                reported.split_once("allowed are ").unwrap_or_else(|| panic!("{reported}\n{text}"));
            for option in allowed.lines().next().unwrap().split(", ") {
                let there = all
                    .lines()
                    .any(|line| line.trim_start_matches([' ', '-']).starts_with(&format!("{option}:")));
                assert!(there, "{}: the example lacks {option}", tier.daemon());
            }
        }
    }
}

#[test]
fn wrong_usage_is_64_and_help_shows_examples_and_exit_codes() {
    for tier in Tier::ALL {
        let program = binary(tier.daemon());
        for arguments in [&[][..], &["--config"], &["--configuration", "x"], &["--config", "x", "y"]] {
            let output = run(&program, arguments);
            assert_eq!(output.status.code(), Some(64), "{} {arguments:?}: {output:?}", tier.daemon());
            assert!(!output.stderr.is_empty() && output.stdout.is_empty());
        }
        let output = run(&program, &["--help"]);
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert_eq!(output.status.code(), Some(0));
        for word in ["example", "exit codes", "--config", "--check-config", "64", "73", "78"] {
            assert!(text.contains(word), "{} --help does not contain {word:?}", tier.daemon());
        }
    }
    for name in ["cspctl", "csp-run"] {
        let output = run(&binary(name), &["--no-such-option"]);
        assert_eq!(output.status.code(), Some(64), "{name}: {output:?}");
        let text = String::from_utf8_lossy(&run(&binary(name), &["--help"]).stdout).to_lowercase();
        assert!(text.contains("examples") && text.contains("exit codes"), "{name} --help: {text}");
    }
}
