//! What a real management node makes of a policy that somebody else has written into etcd.
#![forbid(unsafe_code)]

mod support;

use std::path::Path;
use std::process::Child;

use csp_control::{EtcdAccess, EtcdClient, EtcdSection, GenerationRecord, keys};
use csp_identity::{Credentials, IdentityRole};
use csp_policy::Policy;
use support::identities::{self, issue};
use support::{Ran, Scratch, cspctl, eventually, free_address, policy};

/// Ends the process when a test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::process::Pid::from_raw(self.0.id() as i32)
            .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let _ = self.0.wait();
    }
}

async fn run(server: &str, identity: &Path, arguments: &[&str]) -> Ran {
    let mut command = cspctl();
    command.args(["--server", server, "--identity"]).arg(identity).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    Ran::of(output.expect("task").expect("cspctl runs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_no_management_node_signed_is_no_base_for_changes_and_is_replaced_by_publishing() {
    let (scratch, api, etcd) = (Scratch::new(), free_address(), free_address());
    let _daemon = Daemon(identities::start(&scratch, api, etcd));
    let operator = issue(&scratch, IdentityRole::Operator, "alice", None);
    let server = format!("https://{api}");
    let good = scratch.file("good.yaml", &policy("web", 80));
    let good = good.to_str().expect("path");
    let applied = eventually("a policy is applied", async || {
        let ran = run(&server, &operator, &["policy", "apply", good]).await;
        (ran.code == 0).then_some(ran)
    })
    .await;
    assert!(applied.out.contains("generation 1 is active"), "{applied:?}");
    let again = run(&server, &operator, &["policy", "apply", good]).await.exited(0);
    assert!(again.out.contains("unchanged"), "{again:?}");

    // etcd asks for no permissions yet: an application node's certificate writes policy.
    let thief = Credentials::open(&issue(&scratch, IdentityRole::AppNode, "an-1", None)).expect("identity");
    let section = EtcdSection { endpoints: vec![format!("https://{etcd}")] };
    let thief = EtcdClient::connect(&EtcdAccess { section, credentials: Some(thief) }).await.expect("etcd");
    let signed = thief.raw().get(keys::ACTIVE_SIGNED, None).await.expect("etcd");
    assert!(signed.kvs()[0].value_str().expect("text").contains("\"generation\":1"), "{signed:?}");
    let forged =
        GenerationRecord::new(2, Policy::parse_yaml(&policy("web", 6666), "forged").expect("policy"));
    let forged = serde_json::to_string(&forged).expect("JSON");
    thief.raw().put(keys::generation(2), forged, None).await.expect("etcd");
    thief.raw().put(keys::ACTIVE, "2", None).await.expect("etcd");

    eventually("the forged policy is shown as the one in etcd", async || {
        let shown = run(&server, &operator, &["policy", "show"]).await;
        shown.out.contains("6666").then_some(())
    })
    .await;
    let body = edit(&server, &operator).await;
    assert!(body.contains("generation 2 is in force, but what is signed is generation 1"), "{body}");
    assert!(body.contains("publish a whole policy"), "{body}");
    // The policy of before ends it, though it was in force already.
    let applied = run(&server, &operator, &["policy", "apply", good]).await.exited(0);
    assert!(applied.out.contains("generation 3 is active"), "{applied:?}");
    let signed = thief.raw().get(keys::ACTIVE_SIGNED, None).await.expect("etcd");
    assert!(signed.kvs()[0].value_str().expect("text").contains("\"generation\":3"), "{signed:?}");
}

/// Publishes a change of generation 2, as `cspctl` does for every edit; the refusal.
async fn edit(server: &str, identity: &Path) -> String {
    let credentials = Credentials::open(identity).expect("identity");
    let config = csp_identity::client_config(Some(&credentials), csp_identity::ExpectedServer::Management);
    let client =
        reqwest::Client::builder().no_proxy().tls_backend_preconfigured(config).build().expect("client");
    let request = client.post(format!("{server}/api/v1/policy?if_generation=2"));
    let request = request.header("content-type", "application/yaml").body(policy("web", 6667));
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 409);
    answer.text().await.expect("text")
}
