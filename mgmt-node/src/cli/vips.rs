//! `cspctl vips`: the groups of VIPs, and who holds them.

use csp_api::mgmt::VipGroupsView;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::Colour;
use super::table::{Cell, Table, span};

/// `cspctl vips`.
pub(super) async fn vips(context: &Context) -> Result<(), CliError> {
    let view: VipGroupsView = context.client.get("/api/v1/vip-groups", &[]).await?;
    context.show(&view, |view| {
        if view.groups.is_empty() {
            return "No VIP groups: no policy is active, or it has none.\n".to_owned()
                + &missing(context, &view.unreachable);
        }
        let mut table = Table::new(&["GROUP", "HELD BY", "SINCE", "VOTES", "EPOCH", "NODES", "ADDRESSES"]);
        for group in &view.groups {
            table.row([
                group.name.clone().into(),
                match &group.holder {
                    Some(node) if group.others.is_empty() => Cell::from(node.clone()).coloured(Colour::Green),
                    Some(node) => {
                        Cell::from(format!("{node} {}", group.others.join(" "))).coloured(Colour::Red)
                    }
                    None => Cell::from("nobody").coloured(Colour::Red),
                },
                group.held_ms.map(span).unwrap_or_default().into(),
                format!("{} of {}", group.votes, group.voters).into(),
                group.epoch.into(),
                group.nodes.join(" ").into(),
                group.addresses.join(" ").into(),
            ]);
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })
}
