//! `cspctl channels`.

use csp_api::mgmt::ChannelsView;

use super::Context;
use super::contexts::lost_rows;
use super::error::CliError;
use super::observe::{address, missing};
use super::paint::Colour;
use super::table::{Cell, Table, bytes};

/// `cspctl channels`.
pub(super) async fn channels(context: &Context) -> Result<(), CliError> {
    let view: ChannelsView = context.client.get("/api/v1/channels", &[]).await?;
    context.show(&view, |view| {
        if view.channels.is_empty() {
            return "No channels: no policy is active, or it names none.\n".to_owned()
                + &missing(context, &view.unreachable);
        }
        let mut table = Table::new(&[
            "CHANNEL",
            "ADDRESS",
            "PATTERN",
            "OWNER",
            "SENDERS",
            "RECEIVERS",
            "TOPICS",
            "MESSAGES",
            "BYTES",
            "DELIVERED",
            "DROPPED",
            "LOST ROWS",
            "HELD",
            "WAITING",
            "MEMORY",
        ]);
        for channel in &view.channels {
            let figures = &channel.figures;
            let dropped = match figures.dropped_total + figures.lost_total {
                0 => Colour::Plain,
                _ => Colour::Yellow,
            };
            let memory = format!("{}/{}", bytes(figures.memory_bytes), bytes(figures.memory_max_bytes));
            table.row([
                channel.name.clone().into(),
                address(&channel.vip, channel.port).into(),
                channel.pattern.clone().into(),
                channel.owners.iter().map(|owner| owner.as_str()).collect::<Vec<_>>().join(" ").into(),
                channel.senders.into(),
                channel.receivers.into(),
                channel.subscriptions.into(),
                figures.messages_total.into(),
                Cell::from(bytes(figures.bytes_total)).right(),
                figures.delivered_total.into(),
                Cell::from(figures.dropped_total + figures.lost_total).coloured(dropped),
                lost_rows(&figures.lost_rows),
                figures.held_total.into(),
                figures.waiting.into(),
                Cell::from(memory).right(),
            ]);
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })
}
