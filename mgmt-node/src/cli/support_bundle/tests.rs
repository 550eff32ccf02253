//! What of a fabricated host goes into a bundle. tests/support_bundle.rs has the cluster's part.

use std::collections::BTreeMap;
use std::io::Read as _;

use super::super::doctor::tests::World;
use super::*;

/// A text that must not leave the host.
const SECRET: &str = "hunter2-never-to-be-seen";
const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const Z85: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";

/// The files of a bundle of this host, without its cluster.
async fn bundled(world: &World) -> BTreeMap<String, String> {
    let path = world.tree.path("/bundle.tar.gz");
    let seen = world.seen();
    let archive = Archive::create(&path, "csp-support-edge-1", Timestamp::now()).unwrap();
    let mut bundle = Bundle { archive, secrets: Secrets::of(&seen) };
    bundle.collect(&seen, None).await.unwrap();
    bundle.archive.finish("Support bundle").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let files = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path.strip_prefix("csp-support-edge-1").unwrap().display().to_string(), text)
    });
    files.collect()
}

#[tokio::test]
async fn secrets_of_every_input_stay_on_the_host() {
    let mut world = World::new();
    let body = "MC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAA";
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
    let certificate = "-----BEGIN CERTIFICATE-----\nMIIBpublic\n-----END CERTIFICATE-----\n";
    let open = "-----BEGIN CERTIFICATE-----\nMIIBpublic\n";
    let config = "node: {id: nn-1, identity: /etc/csp/identity}\nadmin: {listen: \"10.77.0.1:9101\"}\n";
    world.tree.file(
        "/etc/csp/network-node.yaml",
        &format!("{config}etcd:\n  endpoints: [\"https://root:{SECRET}@10.77.0.4:2379\"]\npassword: {SECRET}\n# {HEX}\n{pem}"),
    );
    let several =
        format!("password: \"a\n  {SECRET}\"\ntokens: [a,\n  {SECRET}]\nsecret: # why\n  {SECRET}\n");
    let other = format!("token: |\n  {SECRET}\n{several}kept: yes\n");
    world.tree.file("/etc/csp/other.yaml", &other);
    world.tree.file("/etc/csp/network-node.key", &format!("1 node network-node nn-1 {HEX}\n"));
    world.tree.file(
        "/etc/csp/curve/ticks.key_secret",
        &format!("curve\n    public-key = \"x\"\n    secret-key = \"{Z85}\"\n"),
    );
    world
        .tree
        .file("/etc/csp/identity/key.pem", &pem)
        .file("/etc/csp/identity/certificate.pem", &format!("{SECRET}\n{certificate}{open}{pem}"));
    world.tree.file("/etc/csp/identity/ca.pem", certificate).file("/etc/csp/identity/notes", SECRET);
    world.tree.file(
        "/etc/default/csp-context",
        &format!("CSP_TOKEN=a,b&c;d {SECRET}\nCSP_CONTEXT_OPTIONS=--listen\n"),
    );
    world.tree.file(
        "/etc/systemd/system/csp-proxy-node.service.d/own.conf",
        &format!("[Service]\nSetCredential=a:{SECRET}\nEnvironment=\"X_PASSWORD=a b {SECRET}\"\n"),
    );
    world.tree.file("/proc/mounts", &format!("//nas/x /mnt cifs user=u,password={SECRET},ro 0 0\n"));
    let journal = format!("nn-1: key {Z85} {HEX}\nnn-1: https://u:{SECRET}@h/ cookie={SECRET}; {body}\n");
    world.fake.run_is("journalctl", 0, &journal).run_is("ss", 0, &format!("secret={SECRET}"));
    world.fake.run_is("systemctl", 0, &format!("ExecStart=x --password={SECRET}\n"));
    world.fake.run_is("csp-proxy-node --version", 0, &format!("secret={SECRET}"));
    world.fake.run_is("csp-proxy-node", 1, &format!("--password={SECRET}"));

    let files = bundled(&world).await;
    for (name, text) in &files {
        for secret in [SECRET, HEX, Z85, "MC4CAQ"] {
            assert!(!text.contains(secret), "{secret} is in {name}:\n{text}");
        }
    }
    let config = &files["configuration/etc-csp-network-node.yaml"];
    assert!(config.contains("id: nn-1") && config.contains("@10.77.0.4:2379"), "{config}");
    assert!(files["configuration/etc-csp-other.yaml"].contains("kept: yes"));
    assert_eq!(
        files["configuration/etc-csp-identity-certificate.pem"],
        certificate.to_owned() + "(removed)(removed)\n"
    );
    assert!(files["configuration/etc-default-csp-context"].contains("CSP_CONTEXT_OPTIONS=--listen"));
    assert!(files["journal.txt"].starts_with("nn-1: key (removed)"), "{}", files["journal.txt"]);
    assert!(files["doctor.json"].contains("\"check\": \"keys\""));
    assert!(
        !files.keys().any(|name| name.contains(".key") || name.contains("key.pem") || name.contains("notes")),
        "{:?}",
        files.keys()
    );
}

#[tokio::test]
async fn what_is_missing_is_listed() {
    let world = World::new();
    let files = bundled(&world).await;
    let manifest = &files["MANIFEST"];
    for line in [
        "Support bundle\n",
        "missing   cluster  no answer",
        "missing   journal.txt  journalctl is not installed",
        "included  doctor.json  ",
    ] {
        assert!(manifest.contains(line), "{line} is missing in:\n{manifest}");
    }
    assert_eq!(manifest.matches("included").count() + 1, files.len());
    // A large cluster, which fills the bundle, takes nothing from this host's part.
    let order = ["doctor.json", "configuration/", "host/", "journal.txt", "cluster"];
    let places = order.map(|name| manifest.find(&format!("  {name}")));
    assert!(places.is_sorted() && places[0].is_some(), "{places:?} in:\n{manifest}");
}

#[tokio::test]
async fn bundles_are_bounded() {
    let world = World::new();
    for file in 0..12 {
        world.tree.file(&format!("/etc/csp/{file}.yaml"), &("a: 1".repeat(200) + "\n").repeat(10_000));
    }
    let files = bundled(&world).await;
    assert!(files.values().map(String::len).sum::<usize>() <= archive::LEN_MAX as usize);
    assert!(files.values().all(|text| text.len() <= PART_LEN_MAX));
    let manifest = &files["MANIFEST"];
    assert!(manifest.contains("the bundle is full"), "{manifest}");
    let mut world = World::new();
    world.fake.run_is(
        "journalctl",
        0,
        &(("not a key ".repeat(100) + " line\n").repeat(10_000) + "the last line\n"),
    );
    let files = bundled(&world).await;
    assert!(files["journal.txt"].ends_with("the last line\n") && files["journal.txt"].len() <= PART_LEN_MAX);
    assert!(files["MANIFEST"].contains("bytes of 10060014: the end"), "{}", files["MANIFEST"]);
}
