//! What the operations page reads beside the overview: figures of the last hour, a choice of services,
//! topology, answers that pages share.
#![forbid(unsafe_code)]

mod support;

use csp_types::Role;
use serde_json::{Value, json};

use support::{FakeNode, Mgmt, Policies, eventually, http};

fn policy(services: usize) -> String {
    let one = |n: usize| {
        format!(
            "  - {{name: s-{n:04}, vip: 10.76.{}.{}, port: 80, pool: [{{node: an-1, port: 80}}]}}\n",
            n / 250,
            n % 250
        )
    };
    format!("apiVersion: csp/v1\nservices:\n{}", (0..services).map(one).collect::<String>())
}

/// What a proxy reports of a service.
fn service(n: usize, listeners: u64) -> Value {
    json!({"name": format!("s-{n:04}"), "address": "10.76.0.1:80", "pending": n % 2, "members":
        [{"node": "an-1", "port": 80, "listeners": listeners, "open": 3, "accept_credit": 5, "connections_total": 100}]})
}

async fn get(mgmt: &Mgmt, path: &str, age: &str) -> Value {
    let client = http().no_proxy().build().expect("client");
    let answer = client.get(mgmt.url() + path).header("cache-control", age).send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_chosen_figures_kept_and_links_shown() {
    let mgmt = Mgmt::start().await;
    let tunnel = |worker: u32, state: &str| json!({"proxy": "pn-1", "proxy_worker": worker, "provider": "tcp", "address": "10.77.0.2:7000", "state": state, "worker": 0});
    let tunnels = json!({"/v1/tunnels": [tunnel(0, "up"), tunnel(1, "down")]});
    let reported: Vec<Value> = (0..40).map(|n| service(n, u64::from(n != 38))).collect();
    let proxies = json!([{"proxy": "pn-1", "worker": 0, "socket": "/run/s", "provider": "shm", "address": "/run/s", "direct": null}]);
    let _nn = FakeNode::start(&mgmt, "nn-1", Role::NetworkNode, Policies::Follow, tunnels).await;
    let _pn =
        FakeNode::start(&mgmt, "pn-1", Role::ProxyNode, Policies::Follow, json!({"/v1/services": reported}))
            .await;
    let _an =
        FakeNode::start(&mgmt, "an-1", Role::AppNode, Policies::Follow, json!({"/v1/proxies": proxies}))
            .await;
    let file = mgmt.scratch.file("policy.yaml", &policy(40));
    mgmt.cspctl(&["policy", "apply", file.to_str().expect("path")]).await.exited(0);

    let all = mgmt.get("/api/v1/services").await.expect("services");
    assert_eq!((&all["total"], all["services"].as_array().map(Vec::len)), (&json!(40), Some(40)));
    let names = |view: &Value| -> Vec<String> {
        let services = view["services"].as_array().expect("services").iter();
        services.map(|service| service["name"].as_str().expect("name").to_owned()).collect()
    };
    let first = mgmt.get("/api/v1/services?limit=3").await.expect("services");
    assert_eq!(names(&first), ["s-0001", "s-0003", "s-0005"], "those with troubles first");
    assert_eq!((&first["total"], &first["troubled"]), (&json!(40), &json!(21)));
    let down = mgmt.get("/api/v1/services?limit=30&offset=19").await.expect("services");
    assert_eq!(names(&down)[..2], ["s-0038", "s-0039"], "s-0038 has no process");
    let found = mgmt.get("/api/v1/overview?find=S-003&limit=100").await.expect("overview");
    assert_eq!(names(&found["services"]).len(), 10);

    let topology = mgmt.get("/api/v1/topology").await.expect("topology");
    assert_eq!(
        topology["links"],
        json!([{"node": "an-1", "proxy": "pn-1", "provider": "shm", "links": 1, "up": 1},
               {"node": "nn-1", "proxy": "pn-1", "provider": "tcp", "links": 2, "up": 1}])
    );

    let path = "/api/v1/series?object=service/s-0001,node/pn-1,node/none&points=5";
    let series = eventually("figures", async || {
        let series = mgmt.get(path).await?;
        (series["objects"].as_array()?.len() == 2).then_some(series)
    })
    .await;
    let last = |at: usize, name: &str| {
        let figures = series["objects"][at]["figures"].as_array().expect("figures").iter();
        let found = figures
            .clone()
            .find(|figure| figure["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {series}"));
        found["values"].as_array().expect("values").last().cloned()
    };
    assert_eq!((last(0, "open_connections"), last(0, "accept_credit")), (Some(json!(3.0)), Some(json!(5.0))));
    assert_eq!(
        (last(0, "waiting_connections"), last(0, "members_down")),
        (Some(json!(1.0)), Some(json!(0.0)))
    );
    assert_eq!((last(1, "flows"), last(1, "flow_table_percent")), (Some(json!(2.0)), Some(json!(2.0))));
    let many = format!("/api/v1/series?object={}", vec!["node/a"; 65].join(","));
    assert!(mgmt.get(&many).await.expect("a refusal")["error"].as_str().expect("text").contains("64"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_share_an_answer_of_the_age_that_they_allow() {
    let mgmt = Mgmt::start().await;
    let node = |id: &'static str| FakeNode::start(&mgmt, id, Role::ProxyNode, Policies::Follow, json!({}));
    let _first = node("pn-1").await;
    let count = |view: Value| {
        view["nodes"].as_array().expect("nodes").iter().filter(|n| n["role"] == "proxy-node").count()
    };
    eventually("the node", async || {
        (count(get(&mgmt, "/api/v1/nodes", "no-cache").await) == 1).then_some(())
    })
    .await;
    assert_eq!(count(get(&mgmt, "/api/v1/nodes", "max-age=0").await), 1);
    let _second = node("pn-2").await;
    eventually("the second", async || {
        (count(get(&mgmt, "/api/v1/nodes", "no-cache").await) == 2).then_some(())
    })
    .await;
    assert_eq!(count(get(&mgmt, "/api/v1/nodes", "max-age=10").await), 1, "what another page was given");
    assert_eq!(count(get(&mgmt, "/api/v1/nodes", "max-age=0").await), 2);
}
