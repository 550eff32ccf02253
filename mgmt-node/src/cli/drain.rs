//! `cspctl drain` and `cspctl resume`.

use std::time::{Duration, Instant};

use csp_api::mgmt::{FlowsView, NodesView, ServicesView, VipGroupsView};
use csp_types::Role;
use reqwest::Method;
use serde::Serialize;

use super::Context;
use super::args::DrainArgs;
use super::error::CliError;

/// How often the connections are counted.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to show in its registration what was requested.
const FOLLOW_MAX: Duration = Duration::from_secs(10);
/// Most flows that one answer has.
const FLOWS_MAX: usize = 10_000;

/// The result, for `--output json`.
#[derive(Serialize)]
struct Drained<'a> {
    node: &'a str,
    draining: bool,
    /// Connections left, or VIP groups of a network node; absent if they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
}

/// `cspctl drain`.
pub(super) async fn drain(context: &Context, args: DrainArgs) -> Result<(), CliError> {
    let node = args.node.as_str();
    change(context, Method::PUT, node, true, args.force).await?;
    if !args.wait {
        return show(context, &Drained { node, draining: true, connections: None });
    }
    let role = role_of(context, node).await?;
    let what = if role == Some(Role::NetworkNode) { "VIP groups" } else { "connections" };
    let deadline = Instant::now() + Duration::from_secs(args.deadline);
    let mut reported = None;
    loop {
        let left = connections(context, node, role).await?;
        if left == 0 {
            return show(context, &Drained { node, draining: true, connections: Some(0) });
        }
        if reported != Some(left) {
            reported = Some(left);
            let seconds = deadline.saturating_duration_since(Instant::now()).as_secs();
            eprintln!("{node}: {left} {what} left, waiting for {seconds} s more");
        }
        if Instant::now() + INTERVAL > deadline {
            show(context, &Drained { node, draining: true, connections: Some(left) })?;
            let text =
                format!("{left} {what} of {node} are left after {} s; it goes on draining", args.deadline);
            return Err(CliError::Failed(text));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// `cspctl resume`.
pub(super) async fn resume(context: &Context, node: &str) -> Result<(), CliError> {
    change(context, Method::DELETE, node, false, false).await?;
    show(context, &Drained { node, draining: false, connections: None })
}

/// Requests the change, and waits until the node's registration shows it.
async fn change(
    context: &Context,
    method: Method,
    node: &str,
    draining: bool,
    force: bool,
) -> Result<(), CliError> {
    let query = if force { "?force=true" } else { "" };
    context.client.change(method, &format!("/api/v1/nodes/{node}/drain{query}")).await?;
    let deadline = Instant::now() + FOLLOW_MAX;
    loop {
        let view: NodesView = context.client.get("/api/v1/nodes", &[]).await?;
        let shown = view.nodes.iter().find(|n| n.id == node).map(|n| n.draining);
        if shown.is_none() || shown == Some(draining) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let text =
                format!("{node} does not follow within {} s; is it connected to etcd?", FOLLOW_MAX.as_secs());
            return Err(CliError::Failed(text));
        }
        tokio::time::sleep(INTERVAL / 5).await;
    }
}

async fn role_of(context: &Context, node: &str) -> Result<Option<Role>, CliError> {
    let view: NodesView = context.client.get("/api/v1/nodes", &[]).await?;
    let role = view.nodes.into_iter().find(|n| n.id == node).map(|n| n.role);
    let roles = [Role::NetworkNode, Role::ProxyNode, Role::AppNode];
    Ok(roles.into_iter().find(|known| role.as_deref() == Some(known.as_str())))
}

/// Counts the connections of a proxy node, those of services to an application node, or the VIP groups of a
/// network node that another one could hold.
async fn connections(context: &Context, node: &str, role: Option<Role>) -> Result<u64, CliError> {
    if role == Some(Role::AppNode) {
        let view: ServicesView = context.client.get("/api/v1/services", &[]).await?;
        let members =
            view.services.iter().flat_map(|service| &service.pool).filter(|member| member.node == node);
        return Ok(members.filter_map(|member| member.open_connections).sum());
    }
    if role == Some(Role::NetworkNode) {
        let view: VipGroupsView = context.client.get("/api/v1/vip-groups", &[]).await?;
        if let Some(silent) = view.unreachable.iter().find(|silent| silent.node.as_str() == node) {
            return Err(CliError::Failed(format!("{node} did not say what it holds: {}", silent.error)));
        }
        return Ok(view.groups.iter().filter(|group| group.holder.as_deref() == Some(node)).count() as u64);
    }
    let view: FlowsView = context.client.get("/api/v1/flows", &[("limit", FLOWS_MAX.to_string())]).await?;
    let own = view
        .flows
        .iter()
        .filter(|flow| flow.node.as_str() == node && flow.role.as_str() == Role::ProxyNode.as_str());
    Ok(own.count() as u64)
}

fn show(context: &Context, drained: &Drained<'_>) -> Result<(), CliError> {
    context.show(drained, |d| match (d.draining, d.connections) {
        (true, Some(0)) => format!("{} is drained: nothing is left at it\n", d.node),
        (true, Some(left)) => format!("{} drains: {left} are left at it\n", d.node),
        (true, None) => format!("{} drains: it gets nothing new\n", d.node),
        (false, _) => format!("{} is in service\n", d.node),
    })
}
