//! Logins of browsers at a real management node: links, sessions, their cookie and their end.
#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use csp_authority::Timestamp;
use csp_identity::IdentityRole;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::eventually;
use support::node::{Node, cookie, status};

#[tokio::test]
async fn a_link_opens_one_session_and_the_session_has_its_role() {
    let node = Node::start().await;
    let alice = node.issue(IdentityRole::Operator, "alice", None);
    let browser = node.browser();
    let link = node.login(&alice, &["-o", "json"]).await.exited(0).json();
    let url = link["url"].as_str().expect("url");
    assert_eq!((&link["role"], &link["expires_in_s"]), (&"viewer".into(), &60.into()));
    assert!(url.starts_with(&node.url("/login#")), "{url}");

    let page = browser.get(node.url("/login")).send().await.expect("the page");
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(page.status() == 200 && policy.contains("default-src 'none'") && !policy.contains("unsafe"));
    let html = page.text().await.expect("text");
    assert!(html.contains("login.js") && !html.contains("<script>"), "{html}");
    assert_eq!(status(browser.get(node.url("/login.js"))).await, 200);

    let (_, token) = url.split_once('#').expect("a secret");
    let answer = node.redeem(&browser, token).await;
    assert_eq!(answer.status(), 204);
    let line = cookie(&answer).to_owned();
    for words in
        ["__Host-csp-session=", "; Path=/", "; Max-Age=28800", "; HttpOnly", "; Secure", "; SameSite=Strict"]
    {
        assert!(line.contains(words), "{line}");
    }
    assert!(!line.contains(token), "the session has a secret of its own");
    let viewer = line.split(';').next().expect("a pair").to_owned();
    let again = node.redeem(&browser, token).await;
    assert_eq!(again.status(), 401);
    assert!(again.text().await.expect("text").contains("used already"));

    assert_eq!(node.sees(&browser, &viewer).await, 200);
    assert_eq!(node.sees(&browser, "__Host-csp-session=00").await, 401);
    assert_eq!(node.sees(&browser, "").await, 401);
    let drain = |cookie: &str, origin: Option<String>| {
        let request = browser
            .request(Method::PUT, node.url("/api/v1/nodes/pn-9/drain?if_generation=0"))
            .header("cookie", cookie);
        status(origin.into_iter().fold(request, |request, origin| request.header("origin", origin)))
    };
    assert_eq!(drain(&viewer, Some(node.url(""))).await, 403);
    let operator = node.session(&alice, "operator").await;
    assert_eq!(drain(&operator, Some(node.url(""))).await, 404, "there is no such node");
    assert_eq!(drain(&operator, None).await, 403, "no page has asked for it");
    assert_eq!(drain(&operator, Some("https://example.net".into())).await, 403);

    let end =
        browser.delete(node.url("/api/v1/login")).header("cookie", &viewer).header("origin", node.url(""));
    assert_eq!(status(end).await, 204);
    assert_eq!(node.sees(&browser, &viewer).await, 401);
    assert_eq!(node.sees(&browser, &operator).await, 200);
}

/// A login link of another person: the page names that person before the reader agrees.
#[tokio::test]
async fn a_link_says_whose_it_is_and_opens_nothing_before_its_reader_agrees() {
    let node = Node::start().await;
    let mallory = node.issue(IdentityRole::Operator, "mallory", None);
    let link = node.login(&mallory, &["--role", "operator"]).await.exited(0).out;
    let (_, token) = link.trim().split_once('#').expect("a secret");
    let victim = node.browser();
    for _ in 0..3 {
        let answer = node.post(&victim, "link", json!({ "token": token })).await;
        assert_eq!(answer.status(), 200, "looking does not use it up");
        assert!(!answer.headers().contains_key("set-cookie"));
        let said: Value = answer.json().await.expect("JSON");
        assert_eq!(said, json!({ "identity": "csp://demo/operator/mallory", "role": "operator" }));
    }
    for body in
        [json!({ "token": token }), json!({ "token": token, "identity": "csp://demo/operator/alice" })]
    {
        let answer = node.post(&victim, "redeem", body).await;
        assert!(matches!(answer.status().as_u16(), 400 | 401), "{}", answer.status());
        assert!(!answer.headers().contains_key("set-cookie"), "nobody agreed to that identity");
    }
    let script =
        victim.get(node.url("/login.js")).send().await.expect("the script").text().await.expect("text");
    let (before, after) = script.split_once("addEventListener(\"click\"").expect("a button");
    assert!(before.contains("/api/v1/login/link") && after.contains("redeem(token, link.identity)"));
    assert_eq!(node.redeem(&victim, token).await.status(), 204);
}

#[tokio::test]
async fn links_are_for_people_and_not_above_their_role() {
    let node = Node::start().await;
    let bob = node.issue(IdentityRole::Viewer, "bob", None);
    let refused = node.login(&bob, &["--role", "operator"]).await.exited(1);
    assert!(refused.err.contains("the role operator is needed"), "{refused:?}");
    let proxy = node.issue(IdentityRole::ProxyNode, "pn-1", None);
    node.login(&proxy, &[]).await.exited(1);
    let manager = node.issue(IdentityRole::MgmtNode, "mgmt-2", None);
    assert!(node.login(&manager, &[]).await.exited(1).err.contains("no person's certificate"));

    let (browser, link) = (node.browser(), node.url("/api/v1/login"));
    let ask = |request: RequestBuilder, body: Value| status(request.json(&body));
    assert_eq!(ask(browser.post(&link), json!({})).await, 401, "nobody");
    let session = node.session(&bob, "viewer").await;
    let by_session = browser.post(&link).header("cookie", &session).header("origin", node.url(""));
    assert_eq!(ask(by_session, json!({})).await, 403, "sessions have no children");
    let holder = node.holder(&bob);
    assert_eq!(ask(holder.post(&link), json!({})).await, 200);
    assert_eq!(ask(holder.post(&link), json!({ "role": "admin" })).await, 422);
    assert_eq!(ask(holder.post(&link), json!({ "rule": "viewer" })).await, 400);
    assert_eq!(ask(holder.post(&link), json!({ "role": "v".repeat(2000) })).await, 413);
    let simple = holder.post(&link).header("content-type", "text/plain").body("{}");
    assert_eq!(status(simple).await, 415, "what a stranger's page could send");

    let redeem = browser.post(node.url("/api/v1/login/redeem"));
    let foreign = redeem.header("origin", "https://example.net").json(&json!({ "token": "00" }));
    assert_eq!(status(foreign).await, 403);
    for token in ["", "00", &"f".repeat(64)] {
        assert_eq!(node.redeem(&browser, token).await.status(), 401);
    }
}

#[tokio::test]
async fn a_session_ends_with_its_issuers_certificate() {
    let node = Node::start().await;
    let browser = node.browser();
    let alice = node.issue(IdentityRole::Operator, "alice", None);
    let session = node.session(&alice, "viewer").await;
    let link = node.login(&alice, &[]).await.exited(0).out;
    let bob = node.issue(IdentityRole::Viewer, "bob", None);
    let other = node.session(&bob, "viewer").await;
    assert_eq!(node.sees(&browser, &session).await, 200);
    let alices = "alice".parse().expect("id");
    node.authority().revoke(IdentityRole::Operator, alices, Timestamp::now()).expect("revoked");
    eventually("the end of the session", async || (node.sees(&browser, &session).await == 401).then_some(()))
        .await;
    assert_eq!(node.sees(&browser, &other).await, 200, "another person's goes on");
    let (_, token) = link.trim().split_once('#').expect("a secret");
    assert_eq!(node.redeem(&browser, token).await.status(), 401, "her link is worth nothing, either");

    let brief = node.issue(IdentityRole::Viewer, "carol", Some(Duration::from_secs(20)));
    let session = node.session(&brief, "viewer").await;
    assert_eq!(node.sees(&browser, &session).await, 200);
    eventually("the certificate's end", async || (node.sees(&browser, &session).await == 401).then_some(()))
        .await;
}
