//! Files of another root than `/`, whose links must not lead to the running host.

use super::*;

/// An image whose links lead to files of `outside`.
fn linked(outside: &Tree) -> Tree {
    let tree = Tree::new();
    tree.file("/etc/csp/proxy-node.yaml", PROXY_NODE).file("/srv/inside", "inside");
    outside.file("/secret", "outside").file("/identity/key.pem", "outside").mode("/secret", 0o644);
    let link = |to: &Path, from: &str| symlink(to, tree.path(from)).unwrap();
    link(Path::new("/srv/inside"), "/etc/csp/inside");
    link(Path::new("/srv"), "/etc/csp/folder");
    link(&outside.path("/secret"), "/etc/csp/secret");
    link(&outside.path("/identity"), "/etc/csp/identity-proxy");
    let up = "../".repeat(32) + outside.path("/secret").to_str().unwrap().trim_start_matches('/');
    link(Path::new(&up), "/etc/csp/up");
    tree
}

#[test]
fn links_of_an_image_stay_below_its_root() {
    let outside = Tree::new();
    let tree = linked(&outside);
    let host = Host::new(&tree.0);
    assert_eq!(host.text("/etc/csp/inside").as_deref(), Some("inside"));
    assert_eq!(
        (host.names("/etc/csp/folder"), host.mode("/etc/csp/inside")),
        (vec!["inside".into()], Some(0o600))
    );
    assert_eq!(host.path("/etc/csp/inside").unwrap(), tree.0.canonicalize().unwrap().join("srv/inside"));
    for name in ["/etc/csp/secret", "/etc/csp/up", "/etc/csp/identity-proxy/key.pem"] {
        assert_eq!((host.text(name), host.mode(name)), (None, None), "{name}");
    }
    assert_eq!(host.names("/etc/csp/identity-proxy"), Vec::<String>::new());
    assert!(host.exists("/etc/csp/secret") && !host.exists("/etc/csp/identity-proxy/key.pem"));
    assert_eq!(host.link("/etc/csp/secret"), Some(outside.path("/secret")));
    let running = Host::new(Path::new("/"));
    assert_eq!(running.text(tree.path("/etc/csp/secret")).as_deref(), Some("outside"));
    assert!(running.opens() && host.opens() && !Host::new(&tree.path("/none")).opens());
}

#[test]
fn certificates_that_are_links_to_the_running_host_are_not_read() {
    let outside = Tree::new();
    let mut world = World::new();
    world.tree = linked(&outside);
    world.finds("certificates", &["error: /etc/csp/identity-proxy/certificate.pem: No such file"]);
    std::fs::remove_file(world.tree.path("/etc/csp/identity-proxy")).unwrap();
    world.tree.file("/etc/csp/identity-proxy/ca.pem", "");
    symlink(outside.path("/identity/key.pem"), world.tree.path("/etc/csp/identity-proxy/key.pem")).unwrap();
    world.finds("certificates", &["info: not checked: /etc/csp/identity-proxy (its key.pem is a link)"]);
}
