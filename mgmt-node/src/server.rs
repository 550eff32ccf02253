//! The routes of the management node: the API under `/api/v1/` and the operations page at `/`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use csp_api::label;
use csp_api::mgmt::{ErrorBody, LeaderView, PolicyView};
use csp_control::{ConfigError, ManagerError, Member, MemberState, PolicyManager, keys};
use csp_identity::{Access, Caller};
use csp_planner::Planned;
use csp_policy::Policy;
use csp_telemetry::require;
use csp_types::{NodeId, Role};
use serde::Deserialize;

use crate::acme;
use crate::actions::{self, Actions, truth};
use crate::answers::{Answers, shared};
use crate::events::{self, Hub};
use crate::guard::{Guarded, guard};
use crate::leader::Leadership;
use crate::limits::{ACK_TIMEOUT_S, ACK_TIMEOUT_S_MAX, FLOWS_MAX, POLICY_LEN_MAX, RECENT_MAX, WAIT_S_MAX};
use crate::login::{self, Logins};
use crate::policy_view;
use crate::publish::{PublishError, Started};
use crate::views::Cluster;
use crate::{
    cache_routes, discovery, handler_routes, http_routes, message_routes, modules, page_routes, plugin_routes,
};

type Shared = State<Arc<Cluster>>;

/// All routes, behind the guard.
pub fn router(
    cluster: Arc<Cluster>,
    (logins, hub): (Arc<Logins>, Arc<Hub>),
    names: Arc<[String]>,
    actions: Arc<Actions>,
) -> Router {
    let guarded = Guarded { names, scheme: if logins.is_secure() { "https" } else { "http" } };
    let acting = (cluster.clone(), actions.clone());
    Router::new()
        .route("/api/v1/nodes", get(|State(c): Shared| async move { Json(c.nodes()) }))
        .route(
            "/api/v1/discovery",
            get(|State(c): Shared| async move { Json(discovery::targets(&c.membership.borrow())) }),
        )
        .route("/api/v1/nodes/{id}/drain", put(drain).delete(resume))
        .route("/api/v1/vip-groups", get(|State(c): Shared| async move { Json(c.vip_groups().await) }))
        .route("/api/v1/channels", get(|State(c): Shared| async move { Json(c.channels().await) }))
        .route("/api/v1/quality", get(|State(c): Shared| async move { Json(c.quality().await) }))
        .route("/api/v1/contexts", get(|State(c): Shared| async move { Json(c.contexts().await) }))
        .merge(actions::routes(actions))
        .merge(page_routes::routes())
        .merge(cache_routes::routes())
        .merge(message_routes::routes())
        .merge(handler_routes::routes())
        .merge(http_routes::routes())
        .merge(plugin_routes::routes())
        .merge(acme::routes())
        .route("/api/v1/flows", get(flows))
        .route("/api/v1/sockets", get(sockets))
        .route("/api/v1/trace", get(trace))
        .route("/api/v1/trace/recent", get(recent))
        .route("/api/v1/policy", get(active_policy).post(apply))
        .route(
            "/api/v1/policy/history",
            get(|State(c): Shared| async move { Json(c.history(&c.policy.latest().await)) }),
        )
        .route("/api/v1/policy/generations/{n}", get(generation))
        .route("/api/v1/policy/generations/{n}/policy", get(generation_policy))
        .layer(DefaultBodyLimit::max(POLICY_LEN_MAX))
        .layer(from_fn_with_state(Answers::default(), shared))
        .layer(from_fn_with_state(acting, actions::allowed))
        .with_state(cluster)
        .merge(events::routes(hub.clone()))
        .merge(login::routes(logins.clone()))
        .layer(Extension(hub))
        .layer(from_fn_with_state(logins, login::sessions))
        .layer(from_fn_with_state(guarded, guard))
}

/// An answer that is not a success.
pub(crate) struct Refusal(StatusCode, Box<ErrorBody>, Option<Duration>);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retry_after = self.2.map(|pause| [(header::RETRY_AFTER, HeaderValue::from(pause.as_secs()))]);
        (self.0, retry_after, Json(self.1)).into_response()
    }
}

impl Refusal {
    /// Adds what programs distinguish it by.
    pub(crate) fn code(mut self, code: &str) -> Self {
        self.1.code = Some(code.to_owned());
        self
    }

    /// Adds the generation in force.
    pub(crate) fn generation(mut self, active: u64) -> Self {
        self.1.generation = Some(active);
        self
    }
}

/// Returns an answer with this status and text.
pub(crate) fn refuse(status: StatusCode, error: impl Into<String>) -> Refusal {
    Refusal(status, Box::new(ErrorBody { error: error.into(), ..ErrorBody::default() }), None)
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        let errors = policy_view::field_errors(&error);
        let body = ErrorBody { error: error.to_string(), errors, ..ErrorBody::default() };
        Refusal(StatusCode::BAD_REQUEST, Box::new(body), None)
    }
}

impl From<ManagerError> for Refusal {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::Invalid(error) => error.into(),
            ManagerError::Control(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            ManagerError::NoGeneration(_) => refuse(StatusCode::NOT_FOUND, error.to_string()),
            _ => refuse(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl From<PublishError> for Refusal {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Busy(_) => refuse(StatusCode::CONFLICT, error.to_string()).code("in-progress"),
            PublishError::Changed { active, .. } => {
                refuse(StatusCode::CONFLICT, error.to_string()).code("changed").generation(active)
            }
            PublishError::Manager(error) => error.into(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyQuery {
    file: Option<String>,
    dry_run: Option<String>,
    timeout_s: Option<u64>,
    /// The generation that must be in force: a change of what the caller has read.
    if_generation: Option<u64>,
}

/// `POST /api/v1/policy`: 202 while it is published, 200 when this policy is active or for `?dry_run`.
async fn apply(
    State(cluster): Shared,
    uri: Uri,
    Query(query): Query<ApplyQuery>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let file = query.file.unwrap_or_else(|| "policy".to_owned());
    let text = std::str::from_utf8(&body).map_err(|e| {
        ConfigError::new(&file, "", format!("is no UTF-8 text (byte {} is wrong)", e.valid_up_to()))
    })?;
    let planned = Planned::parse_yaml(text, &file)?;
    if query.dry_run.as_deref().is_some_and(truth) {
        let active = cluster.policy.latest().await.active;
        return Ok(Json(policy_view::dry_run(&planned, active.as_ref())).into_response());
    }
    publish(&cluster, &uri, planned.into_policy(), query.timeout_s, query.if_generation).await
}

/// Publishes a policy that was checked: 202 while it is under way, 200 when it is in force already.
pub(crate) async fn publish(
    cluster: &Cluster,
    uri: &Uri,
    policy: Policy,
    timeout_s: Option<u64>,
    expected: Option<u64>,
) -> Result<Response, Refusal> {
    let timeout_s = timeout_s.unwrap_or(ACK_TIMEOUT_S);
    if !(1..=ACK_TIMEOUT_S_MAX).contains(&timeout_s) {
        let text = format!("timeout_s={timeout_s}: allowed is 1 to {ACK_TIMEOUT_S_MAX}");
        return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    let manager = match leading(cluster)? {
        Ok(manager) => manager,
        Err(leader) => return Ok(to_leader(leader, uri)),
    };
    // Proxies that joined since a module was brought get it now, or refuse the policy.
    modules::distribute(cluster, &policy).await;
    let started = cluster.publisher.start(manager, policy, Duration::from_secs(timeout_s), expected).await?;
    Ok(match started {
        Started::Running(view) => (StatusCode::ACCEPTED, Json(view)).into_response(),
        Started::Unchanged(view) => Json(view).into_response(),
    })
}

/// `PUT /api/v1/nodes/{id}/drain`: the node gets no new connections, and a network node gives its VIP groups
/// to others. 204; the node shows it when it follows.
/// 412 if it is the last proxy node in service, unless `force=true` is asked for.
async fn drain(
    State(cluster): Shared,
    uri: Uri,
    Path(id): Path<String>,
    Query(query): Query<DrainQuery>,
) -> Result<Response, Refusal> {
    if !query.force && last_proxy(&cluster, &id) {
        let text = format!(
            "{id} is the last proxy node in service: clients could not connect while it drains; take another one back into \
             service first, or force it (cspctl drain --force)"
        );
        return Err(refuse(StatusCode::PRECONDITION_FAILED, text));
    }
    set_draining(&cluster, &uri, &id, true).await
}

/// Query of [`drain`].
#[derive(Deserialize)]
struct DrainQuery {
    #[serde(default)]
    force: bool,
}

/// Returns whether this node alone of all proxy nodes takes new connections.
fn last_proxy(cluster: &Cluster, id: &str) -> bool {
    let membership = cluster.membership.borrow();
    let serves = |member: &&Member| member.state == MemberState::Live && !member.record.draining;
    let mut serving = membership.of_role(Role::ProxyNode).filter(serves);
    serving.next().is_some_and(|member| member.record.id.as_str() == id) && serving.next().is_none()
}

/// `DELETE /api/v1/nodes/{id}/drain`: the node gets new connections again. 204.
async fn resume(State(cluster): Shared, uri: Uri, Path(id): Path<String>) -> Result<Response, Refusal> {
    set_draining(&cluster, &uri, &id, false).await
}

async fn set_draining(cluster: &Cluster, uri: &Uri, id: &str, draining: bool) -> Result<Response, Refusal> {
    let unknown =
        || refuse(StatusCode::NOT_FOUND, format!("there is no node {id}; `cspctl nodes` lists them"));
    let id = NodeId::parse(id.as_bytes()).map_err(|_| unknown())?;
    let role = cluster.membership.borrow().nodes.get(&id).map(|member| member.record.role);
    match role {
        // A node that is away may have been drained before.
        None if draining => return Err(unknown()),
        None | Some(Role::NetworkNode | Role::ProxyNode | Role::AppNode) => {}
        Some(role) => {
            let text = format!("{id} is a {role}: network nodes, proxy nodes and application nodes drain");
            return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
        }
    }
    let manager = match leading(cluster)? {
        Ok(manager) => manager,
        Err(leader) => return Ok(to_leader(leader, uri)),
    };
    manager.set_draining(&id, draining).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A fenced manager when this node leads, otherwise the leader.
pub(crate) fn leading(cluster: &Cluster) -> Result<Result<PolicyManager, LeaderView>, Refusal> {
    match &*cluster.leadership.borrow() {
        Leadership::Own { fence, .. } => Ok(Ok(cluster.manager.clone().fenced(keys::LEADER, *fence))),
        Leadership::Other(view) => Ok(Err(view.clone())),
        Leadership::Nobody => Err(nobody_leads()),
    }
}

/// 503 with Retry-After: an election takes a few seconds.
fn nobody_leads() -> Refusal {
    let error = "no management node leads at this time: etcd is away or an election is under way; nothing was changed";
    let body = ErrorBody { error: error.to_owned(), ..ErrorBody::default() };
    Refusal(StatusCode::SERVICE_UNAVAILABLE, Box::new(body), Some(Duration::from_secs(1)))
}

/// 307: the same request must go to the leader.
pub(crate) fn to_leader(leader: LeaderView, uri: &Uri) -> Response {
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let location = HeaderValue::try_from(format!("{}{path}", leader.url.trim_end_matches('/')));
    let error = format!("management node {} leads; send this to {}", leader.id, leader.url);
    let code = Some("not-leader".to_owned());
    let body = Json(ErrorBody { error, leader: Some(leader), code, ..ErrorBody::default() });
    match location {
        Ok(location) => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)], body).into_response()
        }
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, body).into_response(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FormatQuery {
    format: Option<String>,
}

/// Whether a caller sees a policy with its keys.
fn access_of(caller: &Caller) -> Access {
    let operates = require(caller, Access::Operator).is_ok();
    if operates { Access::Operator } else { Access::Viewer }
}

async fn active_policy(
    State(cluster): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<FormatQuery>,
) -> Result<Response, Refusal> {
    let state = cluster.policy.latest().await;
    match (&state.active, state.answered) {
        (Some(record), _) => {
            policy_answer(&policy_view::view(record, access_of(&caller)), query.format.as_deref())
        }
        (None, Some(_)) => {
            let orphaned = state.orphaned();
            let words = match orphaned.is_empty() {
                true => "no policy is active; publish one: cspctl policy apply FILE".to_owned(),
                false => orphaned,
            };
            Err(refuse(StatusCode::NOT_FOUND, words))
        }
        (None, None) => Err(refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "etcd has not answered since this node started; the policy is not known",
        )),
    }
}

async fn generation_policy(
    State(cluster): Shared,
    Extension(caller): Extension<Caller>,
    Path(n): Path<u64>,
    Query(query): Query<FormatQuery>,
) -> Result<Response, Refusal> {
    let record = cluster.manager.generation(n).await?;
    policy_answer(&policy_view::view(&record, access_of(&caller)), query.format.as_deref())
}

fn policy_answer(view: &PolicyView, format: Option<&str>) -> Result<Response, Refusal> {
    match format {
        None | Some("json") => Ok(Json(view).into_response()),
        Some("yaml") => Ok(([(header::CONTENT_TYPE, "application/yaml")], view.yaml.clone()).into_response()),
        Some(other) => {
            let text = format!("format={other}: allowed are json and yaml");
            Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    since: Option<u64>,
    wait_s: Option<u64>,
}

/// One generation; with `since` and `wait_s` the answer waits for news of a publication under way.
async fn generation(
    State(cluster): Shared,
    uri: Uri,
    Path(n): Path<u64>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Refusal> {
    let wait = Duration::from_secs(query.wait_s.unwrap_or(0).min(WAIT_S_MAX));
    if let Some(view) = cluster.publisher.wait(n, query.since.unwrap_or(0), wait).await {
        return Ok(Json(view).into_response());
    }
    // A publication of another management node is followed there.
    if let Leadership::Other(leader) = &*cluster.leadership.borrow() {
        return Ok(to_leader(leader.clone(), &uri));
    }
    let state = cluster.policy.latest().await;
    let found = cluster.history(&state).into_iter().find(|view| view.generation == n);
    found.map(|view| Json(view).into_response()).ok_or_else(|| {
        refuse(
            StatusCode::NOT_FOUND,
            format!("there is no generation {n}; `cspctl policy history` lists them"),
        )
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowsQuery {
    service: Option<String>,
    limit: Option<usize>,
}

async fn flows(State(cluster): Shared, Query(query): Query<FlowsQuery>) -> Response {
    let limit = query.limit.unwrap_or(100).min(FLOWS_MAX);
    Json(cluster.flows(query.service.as_deref(), limit, FLOWS_MAX).await).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketsQuery {
    process: Option<String>,
    limit: Option<usize>,
}

async fn sockets(State(cluster): Shared, Query(query): Query<SocketsQuery>) -> Response {
    let limit = query.limit.unwrap_or(100).min(FLOWS_MAX);
    Json(cluster.sockets(query.process.as_deref(), limit).await).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    label: String,
    proxy: Option<String>,
}

async fn trace(State(cluster): Shared, Query(query): Query<TraceQuery>) -> Result<Response, Refusal> {
    let label = label::parse(&query.label).ok_or_else(|| {
        let text = format!("label={}: a flow label has 1 to 8 hex digits", query.label);
        refuse(StatusCode::UNPROCESSABLE_ENTITY, text)
    })?;
    Ok(Json(cluster.trace(label, query.proxy.as_deref()).await).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecentQuery {
    client: Option<String>,
    limit: Option<usize>,
}

async fn recent(State(cluster): Shared, Query(query): Query<RecentQuery>) -> Result<Response, Refusal> {
    let limit = query.limit.unwrap_or(20).min(RECENT_MAX);
    let client = query.client.map(|text| text.parse().map_err(|_| text)).transpose().map_err(|text| {
        let text = format!("client={text}: a client is ADDRESS:PORT, such as 10.76.0.1:41822");
        refuse(StatusCode::UNPROCESSABLE_ENTITY, text)
    })?;
    Ok(Json(cluster.recent(client, limit).await).into_response())
}
