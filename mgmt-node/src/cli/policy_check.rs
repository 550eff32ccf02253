//! `cspctl policy check`: a policy file against itself and against the cluster's nodes.

use std::path::Path;

use csp_api::mgmt::NodesView;
use csp_planner::Planned;

use super::doctor::{Findings, Report, compare, render};
use super::error::CliError;
use super::{Context, policy};
use crate::policy_view::{contents, dry_run, field_errors};

/// Checks `file`. Nothing is changed, and nodes are not asked: what they have registered is compared.
pub(super) async fn check(context: &Context, file: &Path) -> Result<(), CliError> {
    let (name, yaml) = policy::read(file)?;
    let text = String::from_utf8_lossy(&yaml);
    let planned =
        Planned::parse_yaml(&text, &name).map_err(|error| CliError::BadPolicy(field_errors(&error)))?;
    let mut itself = Findings::of("policy");
    itself.ok(format!("{name}: right, {}", contents(&dry_run(&planned, None))));
    for warning in planned.warnings() {
        itself.warning(warning, "it is allowed, and hardly meant", format!("${{EDITOR:-vi}} {name}"));
    }
    let mut needs = Findings::of("capabilities");
    match context.client.get::<NodesView>("/api/v1/nodes", &[]).await {
        Ok(view) => compare(planned.policy(), &view.nodes, &mut needs),
        Err(error) => needs.not_checked("what the policy needs of nodes", error),
    }
    let findings = [itself.into_list(), needs.into_list()].concat();
    let report = Report::with(name, context.client.page("/")?, findings);
    context.show(&report, |report| render::table(report, context.paint))?;
    report.outcome()
}
