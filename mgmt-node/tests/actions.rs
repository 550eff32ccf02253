//! Changes by a page: a real management node with an identity, and sessions of operators and viewers.
#![forbid(unsafe_code)]

mod support;

use std::os::unix::fs::PermissionsExt;

use csp_identity::IdentityRole;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

use support::node::{Node, status};
use support::{eventually, policy};

/// A page of the node with a session's cookie.
struct Page<'a> {
    node: &'a Node,
    browser: Client,
    cookie: String,
}

impl<'a> Page<'a> {
    async fn open(node: &'a Node, person: &std::path::Path, role: &str) -> Self {
        Page { node, browser: node.browser(), cookie: node.session(person, role).await }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        read(self.browser.get(self.node.url(path)).header("cookie", &self.cookie).send().await).await
    }

    /// Sends a change as the page does; a key that is empty is left out.
    async fn change(&self, method: Method, path: &str, key: &str, body: &str) -> (u16, Value) {
        let kind = if body.starts_with('{') { "application/json" } else { "application/yaml" };
        let request = self.browser.request(method, self.node.url(path)).header("cookie", &self.cookie);
        let request = request.header("origin", self.node.url("")).header("content-type", kind);
        let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
        read(request.body(body.to_owned()).send().await).await
    }

    async fn apply(&self, expected: u64, key: &str, body: &str) -> (u16, Value) {
        self.change(Method::POST, &format!("/api/v1/policy?if_generation={expected}"), key, body).await
    }

    /// Waits until this generation is in force.
    async fn follows(&self, generation: u64) -> Value {
        eventually("the generation", async || {
            let (_, view) = self.get("/api/v1/policy").await;
            (view["generation"] == generation).then_some(view)
        })
        .await
    }
}

async fn read(answer: reqwest::Result<Response>) -> (u16, Value) {
    let answer = answer.expect("an answer");
    let (status, text) = (answer.status().as_u16(), answer.text().await.expect("text"));
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn with_link(text: &str) -> String {
    format!(
        "{text}channels:\n  - {{name: ticks, vip: 10.76.0.100, port: 5556, pattern: publish}}\nlink: {{mbps: 100, scheme: RR}}\n"
    )
}

#[tokio::test]
async fn a_page_names_the_generation_and_a_repeated_change_is_made_once() {
    let node = Node::start().await;
    let alice = node.issue(IdentityRole::Operator, "alice", None);
    let page = Page::open(&node, &alice, "operator").await;
    let (_, session) = page.get("/api/v1/session").await;
    assert_eq!(
        (&session["role"], &session["by"], &session["fresh"]),
        (&json!("operator"), &json!("session"), &json!(true))
    );
    assert_eq!(session["identity"], "csp://demo/operator/alice");

    let first = policy("web", 80);
    let (code, refused) = page.change(Method::POST, "/api/v1/policy", "", &first).await;
    assert_eq!((code, &refused["code"]), (428, &json!("expected-missing")), "{refused}");
    let (code, checked) = page.change(Method::POST, "/api/v1/policy?dry_run=true", "", &first).await;
    assert_eq!((code, &checked["generation"]), (200, &json!(0)), "a check changes nothing");
    assert!(
        checked["diff"].as_str().expect("diff").contains("+ - name: web")
            || checked["diff"].as_str().expect("diff").contains("name: web")
    );

    let (code, applied) = page.apply(0, "first", &first).await;
    assert_eq!((code, &applied["generation"]), (202, &json!(1)), "{applied}");
    page.follows(1).await;
    assert_eq!(page.apply(0, "first", &first).await, (202, applied), "the same answer, and no generation 2");
    let (code, reused) = page.apply(0, "first", &policy("web", 81)).await;
    assert_eq!((code, &reused["code"]), (422, &json!("key-reused")));
    let (code, conflict) = page.apply(0, "second", &policy("web", 81)).await;
    assert_eq!((code, &conflict["code"], &conflict["generation"]), (409, &json!("changed"), &json!(1)));
    let (code, _) = page.apply(1, "second", &policy("web", 81)).await;
    assert_eq!(code, 202, "what was refused was not made, and its key is free");
    page.follows(2).await;

    // Drains name the generation, too.
    let drain = |path: &'static str| page.change(Method::DELETE, path, "", "");
    assert_eq!(drain("/api/v1/nodes/pn-9/drain").await.0, 428);
    assert_eq!(drain("/api/v1/nodes/pn-9/drain?if_generation=1").await.0, 409);
    assert_eq!(drain("/api/v1/nodes/pn-9/drain?if_generation=2").await.0, 204);
    assert_eq!(drain("/api/v1/nodes/pn-9/drain?if_generation=x").await.0, 422);

    let request = page.browser.delete(node.url("/api/v1/nodes/pn-9/drain?if_generation=2"));
    let plain = node.url("").replace("https:", "http:");
    assert_eq!(status(request.header("cookie", &page.cookie).header("origin", plain)).await, 403);
}

#[tokio::test]
async fn the_scheme_is_switched_and_a_policy_rolled_back() {
    let node = Node::start().await;
    let alice = node.issue(IdentityRole::Operator, "alice", None);
    let page = Page::open(&node, &alice, "operator").await;
    let scheme = |expected: u64, scheme: &str| {
        let (path, body) =
            (format!("/api/v1/link/scheme?if_generation={expected}"), json!({ "scheme": scheme }));
        let page = &page;
        async move { page.change(Method::PUT, &path, "", &body.to_string()).await }
    };
    assert_eq!(scheme(0, "PAR").await.0, 404, "there is no policy");
    page.apply(0, "", &policy("web", 80)).await;
    page.follows(1).await;
    let (code, none) = scheme(1, "PAR").await;
    assert_eq!(code, 404, "{none}");
    page.apply(1, "", &with_link(&policy("web", 80))).await;
    page.follows(2).await;
    let (code, wrong) = scheme(2, "BEST").await;
    assert!(
        code == 422 && wrong["error"].as_str().expect("text").contains("RR, EAS, SA, PA, PAR"),
        "{wrong}"
    );
    assert_eq!(scheme(1, "PAR").await.0, 409);
    assert_eq!(scheme(2, "PAR").await.0, 202);
    let view = page.follows(3).await;
    assert_eq!(view["policy"]["link"]["scheme"], "PAR");

    let back = |to: u64| {
        let (page, path) = (&page, format!("/api/v1/policy/rollback?generation={to}&if_generation=3"));
        async move { page.change(Method::POST, &path, "", "{}").await }
    };
    assert_eq!(back(9).await.0, 404);
    assert_eq!(back(1).await.0, 202);
    let view = page.follows(4).await;
    assert!(view["policy"]["link"].is_null(), "{view}");
    assert_eq!(back(2).await.0, 409, "generation 4 is in force");
}

#[tokio::test]
async fn every_change_is_recorded_before_and_after_and_no_get_changes_anything() {
    let node = Node::start().await;
    let (alice, bob) =
        (node.issue(IdentityRole::Operator, "alice", None), node.issue(IdentityRole::Viewer, "bob", None));
    let page = Page::open(&node, &alice, "operator").await;
    let viewer = Page::open(&node, &bob, "viewer").await;
    page.apply(0, "k-1", &policy("web", 80)).await;
    page.follows(1).await;
    page.apply(0, "", &policy("web", 81)).await;
    assert_eq!(viewer.apply(1, "", &policy("web", 81)).await.0, 403);
    assert_eq!(viewer.get("/api/v1/audit").await.0, 403, "the log is for operators");
    assert_eq!(viewer.get("/api/v1/session").await.1["role"], "viewer");

    let (_, log) = page.get("/api/v1/audit?limit=10").await;
    let records = log["records"].as_array().expect("records");
    let of = |at: usize, name: &str| records[at][name].clone();
    assert_eq!(records.len(), 4, "two of each change, none of what a viewer may not: {log}");
    for (at, stage, status) in [
        (0, "done", json!(409)),
        (1, "asked", Value::Null),
        (2, "done", json!(202)),
        (3, "asked", Value::Null),
    ] {
        assert_eq!((of(at, "stage"), of(at, "status")), (json!(stage), status));
        assert_eq!((of(at, "who"), of(at, "by")), (json!("csp://demo/operator/alice"), json!("session")));
        assert!(of(at, "from").as_str().expect("address").starts_with("127.0.0.1:"));
        assert!(of(at, "what").as_str().expect("words").starts_with("apply a policy: "), "{log}");
    }
    assert_eq!((of(2, "id"), of(2, "key"), of(2, "generation")), (of(3, "id"), json!("k-1"), json!(0)));
    assert_eq!(of(2, "result"), "accepted");
    assert!(of(0, "result").as_str().expect("why").contains("generation 1 is in force"), "{log}");
    let file = node.scratch.0.join("state/audit.jsonl");
    assert_eq!(std::fs::metadata(&file).expect("file").permissions().mode() & 0o777, 0o600);

    // By a certificate the generation may be left out, as cspctl drain does.
    let holder = node.holder(&alice);
    assert_eq!(status(holder.delete(node.url("/api/v1/nodes/pn-9/drain"))).await, 204);
    let (_, before) = page.get("/api/v1/audit").await;
    for path in [
        "/api/v1/nodes/pn-9/drain?if_generation=1",
        "/api/v1/policy/rollback?generation=1&if_generation=1",
        "/api/v1/link/scheme?if_generation=1",
        "/api/v1/plugins/blocked/add?prefix=192.0.2.0/24&if_generation=1",
        "/api/v1/captures/c?if_generation=1",
        "/api/v1/policy?if_generation=1&dry_run=false",
    ] {
        page.get(path).await;
    }
    assert_eq!(page.get("/api/v1/audit").await.1, before);
    assert_eq!(page.get("/api/v1/policy").await.1["generation"], 1);
}
