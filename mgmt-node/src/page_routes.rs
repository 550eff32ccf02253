//! The operations page, and the routes that it reads most: overview, services, series, topology.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::mgmt::{OverviewView, SeriesView, ServiceView, ServicesView, TopologyView};
use serde::Deserialize;

use crate::limits::{SERIES_ASKED_MAX, SERIES_POINTS};
use crate::server::{Refusal, refuse};
use crate::views::Cluster;

type Shared = State<Arc<Cluster>>;

/// What browsers may do with the page: load its files, ask this server, nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                              img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page: path, type, text.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("../web/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../web/style.css")),
    ("/base.js", SCRIPT, include_str!("../web/base.js")),
    ("/charts.js", SCRIPT, include_str!("../web/charts.js")),
    ("/drops.js", SCRIPT, include_str!("../web/drops.js")),
    ("/topology.js", SCRIPT, include_str!("../web/topology.js")),
    ("/act.js", SCRIPT, include_str!("../web/act.js")),
    ("/app.js", SCRIPT, include_str!("../web/app.js")),
    ("/policy.js", SCRIPT, include_str!("../web/policy.js")),
    ("/planes.js", SCRIPT, include_str!("../web/planes.js")),
    ("/events.js", SCRIPT, include_str!("../web/events.js")),
];

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    let mut router = Router::new()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/services", get(services))
        .route("/api/v1/series", get(series))
        .route("/api/v1/topology", get(topology));
    for (path, kind, text) in FILES {
        router = router.route(path, get(move || async move { page(kind, text) }));
    }
    router
}

/// A file of the page.
pub(crate) fn page(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

/// Which services to show; without, all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServicesQuery {
    /// Services whose name or address contains this.
    find: Option<String>,
    offset: Option<usize>,
    limit: Option<usize>,
}

impl ServicesQuery {
    /// Returns the services that are asked for. Where some are left out, those with troubles come first.
    fn choose(&self, view: &ServicesView) -> ServicesView {
        let (offset, limit) = (self.offset.unwrap_or(0), self.limit.unwrap_or(usize::MAX));
        let wanted = self.find.as_deref().unwrap_or_default().to_lowercase();
        let found = |service: &&ServiceView| {
            let address = format!("{}:{}", service.vip, service.port);
            wanted.is_empty() || service.name.to_lowercase().contains(&wanted) || address.contains(&wanted)
        };
        let mut chosen: Vec<&ServiceView> = view.services.iter().filter(found).collect();
        let total = chosen.len();
        if total > limit {
            chosen.sort_by_key(|service| Reverse(service.is_troubled()));
        }
        ServicesView {
            generation: view.generation,
            total,
            troubled: chosen.iter().filter(|service| service.is_troubled()).count(),
            services: chosen.into_iter().skip(offset).take(limit).cloned().collect(),
            unreachable: view.unreachable.clone(),
        }
    }
}

/// `GET /api/v1/overview`: with a choice of its services.
async fn overview(State(cluster): Shared, Query(query): Query<ServicesQuery>) -> Json<OverviewView> {
    let whole = cluster.overview().await;
    Json(OverviewView {
        node: whole.node.clone(),
        version: whole.version.clone(),
        now_unix_ms: whole.now_unix_ms,
        cluster: whole.cluster.clone(),
        tiers: whole.tiers.clone(),
        active: whole.active.clone(),
        latest: whole.latest.clone(),
        services: query.choose(&whole.services),
        channels: whole.channels.clone(),
        flows: whole.flows.clone(),
        drops: whole.drops.clone(),
    })
}

/// `GET /api/v1/services`: asks the proxies now.
async fn services(State(cluster): Shared, Query(query): Query<ServicesQuery>) -> Json<ServicesView> {
    Json(query.choose(&cluster.services().await))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesQuery {
    /// `service/NAME` or `node/ID`, several with commas.
    object: String,
    points: Option<usize>,
}

/// `GET /api/v1/series?object=service/web,node/pn-1&points=360`: figures of the last hour.
async fn series(
    State(cluster): Shared,
    Query(query): Query<SeriesQuery>,
) -> Result<Json<SeriesView>, Refusal> {
    let objects: Vec<&str> = query.object.split(',').filter(|object| !object.is_empty()).collect();
    if objects.len() > SERIES_ASKED_MAX {
        let text = format!("{} objects: allowed are {SERIES_ASKED_MAX} at once", objects.len());
        return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    let points = query.points.unwrap_or(SERIES_POINTS).clamp(1, SERIES_POINTS);
    Ok(Json(cluster.poller.series.view(&objects, points)))
}

/// `GET /api/v1/topology`.
async fn topology(State(cluster): Shared) -> Json<TopologyView> {
    Json(cluster.topology().await)
}
