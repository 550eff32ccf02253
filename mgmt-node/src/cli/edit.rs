//! Commands that change the active policy: read it, change it, publish it if nobody else has published
//! meanwhile.

use std::sync::Arc;

use csp_api::mgmt::PolicyView;
use csp_planner::Planned;
use csp_policy::Policy;

use super::Context;
use super::error::CliError;
use super::policy::publish;
use crate::policy_view::field_errors;

/// How long the nodes may take to agree, in seconds.
const TIMEOUT_S: u64 = 15;

/// Returns the active policy and its generation; an empty one and 0 before the first.
pub(super) async fn active(context: &Context) -> Result<(u64, Policy), CliError> {
    let view: PolicyView = match context.client.get("/api/v1/policy", &[]).await {
        Err(CliError::Failed(_)) => return Ok((0, Policy::empty())),
        other => other?,
    };
    let policy = Policy::from_json(&view.policy.to_string(), "the active policy")
        .map_err(|error| CliError::Protocol(error.to_string()))?;
    Ok((view.generation, policy))
}

/// Publishes the active policy with a change.
pub(super) async fn edit(
    context: &Context,
    change: impl FnOnce(&mut Policy) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (generation, mut policy) = active(context).await?;
    change(&mut policy)?;
    let (file, bad) = ("the changed policy", |error| CliError::BadPolicy(field_errors(&error)));
    policy.validate(file).map_err(bad)?;
    let planned = Planned::new(Arc::new(policy), file).map_err(bad)?;
    let json = planned.policy().to_json().into_bytes();
    publish(context, (file, TIMEOUT_S), Some(generation), json).await?;
    warn(&planned.warnings());
    Ok(())
}

/// Reports on standard error what is allowed but hardly meant.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}
