//! `cspctl contexts`.

use csp_api::contexts::{ContextsView, PathStage};
use csp_api::proxy::LostRows;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::Colour;
use super::table::{Cell, Table, bytes};

/// `cspctl contexts`.
pub(super) async fn contexts(context: &Context) -> Result<(), CliError> {
    let view: ContextsView = context.client.get("/api/v1/contexts", &[]).await?;
    context.show(&view, |view| {
        let missing = missing(context, &view.unreachable);
        if view.nodes.iter().all(|node| node.contexts.contexts.is_empty()) {
            return "No contexts in use: no channel of the active policy has a path.\n".to_owned() + &missing;
        }
        contexts_table(view).render(context.paint)
            + "\n"
            + &stages_table(view).render(context.paint)
            + &missing
    })
}

fn contexts_table(view: &ContextsView) -> Table {
    let mut table = Table::new(&[
        "NODE", "WORKER", "CONTEXT", "PLACE", "STAGES", "MESSAGES", "BYTES", "WAITING", "MOST", "BUSY",
        "STATE",
    ]);
    for node in &view.nodes {
        for context in &node.contexts.contexts {
            let place = match context.place.as_str() {
                "absent" => Colour::Red,
                "connected" => Colour::Green,
                _ => Colour::Plain,
            };
            table.row([
                node.node.clone().into(),
                context.worker.into(),
                context.name.to_string().into(),
                Cell::from(context.place.to_string()).coloured(place),
                context.stages.into(),
                context.messages_total.into(),
                Cell::from(bytes(context.bytes_total)).right(),
                context.waiting.into(),
                context.waiting_max.into(),
                Cell::from(format!("{:.3} s", context.busy_ns_total as f64 / 1e9)).right(),
                Cell::from(bytes(context.state_bytes)).right(),
            ]);
        }
    }
    table
}

fn stages_table(view: &ContextsView) -> Table {
    let mut table = Table::new(&[
        "CHANNEL",
        "NODE",
        "WORKER",
        "PATH",
        "STAGE",
        "HANDLER",
        "CONTEXT",
        "WAITING",
        "MESSAGES",
        "EMITTED",
        "DROPPED",
        "LOST ROWS",
        "MEAN",
        "MAX",
    ]);
    for node in &view.nodes {
        for stage in &node.contexts.stages {
            let waiting = if stage.held { Colour::Yellow } else { Colour::Plain };
            let dropped = if stage.dropped_total > 0 { Colour::Yellow } else { Colour::Plain };
            table.row([
                stage.channel.to_string().into(),
                node.node.clone().into(),
                stage.worker.into(),
                match stage.format_name.as_str() {
                    "" => stage.state.to_string().into(),
                    format => format!("{} of {format}", stage.state).into(),
                },
                stage.stage.into(),
                stage.handler.to_string().into(),
                stage.context.to_string().into(),
                Cell::from(stage.waiting).coloured(waiting),
                stage.messages_total.into(),
                stage.emitted_total.into(),
                Cell::from(stage.dropped_total).coloured(dropped),
                lost_rows(&stage.lost_rows),
                time(stage, stage.mean_ns),
                time(stage, stage.max_ns),
            ]);
        }
    }
    table
}

/// A cell for rows that were lost, by reason.
pub(super) fn lost_rows(lost: &LostRows) -> Cell {
    let colour = if *lost == LostRows::default() { Colour::Plain } else { Colour::Yellow };
    Cell::from(lost.words()).right().coloured(colour)
}

fn time(stage: &PathStage, ns: u64) -> Cell {
    match stage.max_ns {
        0 => "-".into(),
        _ => Cell::from(format!("{ns} ns")).right(),
    }
}
