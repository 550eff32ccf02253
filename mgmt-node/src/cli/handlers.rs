//! `cspctl handler put`, `list` and `remove`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use csp_api::contexts::{ContextsView, PathStage};
use csp_api::handlers::{HandlersView, MODULE_LEN_MAX, NodeHandlers, PutView, RemovedView, SuppliedStage};

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::paint::Colour;
use super::table::{Cell, Table, bytes};

/// `cspctl handler`.
#[derive(Subcommand, Debug)]
pub enum HandlerCommand {
    /// Give a WebAssembly module to all proxies
    ///
    /// Each proxy checks, compiles and stores it. A policy names it by the SHA-256 that this command prints.
    /// A proxy that joins later gets the modules that the policy in force names from the others.
    #[command(
        after_help = "Examples:\n  cspctl handler put anonymise.wasm\n  cspctl handler put anonymise.wasm -o json | jq -r .module"
    )]
    Put {
        /// The module, in the binary format of WebAssembly
        file: PathBuf,
    },
    /// List the modules that proxies have, and the stages that run them
    ///
    /// FUEL is the mean of a call, about an instruction each. BY is `policy`, or the client that has brought
    /// the handler (its public key, or its address) and the channel that it has asked; LEASE is how long such
    /// a handler lives without subscribers. STOPS are by reason. A stage that was stopped is `waiting` to be
    /// restarted, `passed-by`, or `ended`, as the policy's `on_stop` says. The last table has built-in
    /// operators for which a proxy makes specialised versions: which one runs, why, and how many messages the
    /// specialised one has processed.
    #[command(
        after_help = "Examples:\n  cspctl handler list\n  cspctl handler list -o json | jq '.nodes[].stages[] | {handler, state, stops}'"
    )]
    List,
    /// Remove a module from all proxies
    ///
    /// Refused while the policy in force names it. Policies of before that name it can be applied again once
    /// it was put again.
    #[command(
        after_help = "Examples:\n  cspctl handler remove 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )]
    Remove {
        /// SHA-256 of the module, as `cspctl handler list` shows it
        module: String,
    },
}

pub(super) async fn run(context: &Context, command: HandlerCommand) -> Result<(), CliError> {
    match command {
        HandlerCommand::Put { file } => put(context, &file).await,
        HandlerCommand::List => list(context).await,
        HandlerCommand::Remove { module } => remove(context, &module).await,
    }
}

async fn put(context: &Context, file: &Path) -> Result<(), CliError> {
    put_to(context, file, "/api/v1/handlers", "proxy").await
}

/// Gives a module to all nodes of a kind.
pub(super) async fn put_to(context: &Context, file: &Path, path: &str, nodes: &str) -> Result<(), CliError> {
    let bytes = std::fs::read(file).map_err(|source| CliError::NoInput { path: file.to_owned(), source })?;
    if bytes.len() > MODULE_LEN_MAX {
        return Err(CliError::Usage(format!(
            "{} has {} bytes; a module has at most {MODULE_LEN_MAX}",
            file.display(),
            bytes.len()
        )));
    }
    let view: PutView = context.client.post_bytes(path, bytes).await?;
    let refused: Vec<String> =
        view.refused.iter().map(|refused| format!("{}: {}", refused.node, refused.error)).collect();
    context.show(&view, |view| match view.stored.as_slice() {
        [] => String::new(),
        stored => format!("{}\nstored at {}\n", view.module, stored.join(", ")),
    })?;
    match (refused.is_empty(), view.stored.is_empty()) {
        (true, false) => Ok(()),
        (true, true) => {
            Err(CliError::Failed(format!("no {nodes} node is registered; `cspctl nodes` lists the nodes")))
        }
        (false, _) => Err(CliError::Failed(format!("the module was refused by {}", refused.join("; ")))),
    }
}

async fn remove(context: &Context, module: &str) -> Result<(), CliError> {
    remove_from(context, module, "/api/v1/handlers", "cspctl handler list").await
}

/// Removes a module from all nodes of a kind; `list` is the command that shows their modules.
pub(super) async fn remove_from(
    context: &Context,
    module: &str,
    path: &str,
    list: &str,
) -> Result<(), CliError> {
    if module.len() != 64 || !module.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(CliError::Usage(format!(
            "{module:?} is no module; it has 64 hex digits, as `{list}` shows them"
        )));
    }
    let view: RemovedView = context.client.delete(&format!("{path}/{module}")).await?;
    context.show(&view, |view| match view.removed.as_slice() {
        [] => String::new(),
        removed => format!("removed at {}\n", removed.join(", ")),
    })?;
    let refused: Vec<String> =
        view.refused.iter().map(|refused| format!("{}: {}", refused.node, refused.error)).collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(CliError::Failed(format!("the module stays at {}", refused.join("; ")))),
    }
}

async fn list(context: &Context) -> Result<(), CliError> {
    let view: HandlersView = context.client.get("/api/v1/handlers", &[]).await?;
    let contexts: ContextsView = context.client.get("/api/v1/contexts", &[]).await?;
    context.show(&view, |view| {
        let missing = missing(context, &view.unreachable);
        let operators = match view.nodes.iter().all(|node| node.handlers.operators.is_empty()) {
            true => String::new(),
            false => "\n".to_owned() + &operators(view).render(context.paint),
        };
        let has_none =
            |node: &NodeHandlers| node.handlers.modules.is_empty() && node.handlers.stages.is_empty();
        if view.nodes.iter().all(has_none) {
            return "No supplied handlers: no proxy has a module. `cspctl handler put FILE` brings one.\n"
                .to_owned()
                + &operators
                + &missing;
        }
        let supplied =
            modules(view).render(context.paint) + "\n" + &stages(view, &contexts).render(context.paint);
        supplied + &operators + &missing
    })
}

fn modules(view: &HandlersView) -> Table {
    let mut table = Table::new(&["NODE", "MODULE", "LENGTH"]);
    for node in &view.nodes {
        for module in &node.handlers.modules {
            table.row([node.node.clone().into(), module.module.to_string().into(), bytes(module.len).into()]);
        }
    }
    table
}

/// Returns the contexts that run a handler of a channel at a node, and why.
fn place(contexts: &ContextsView, node: &str, stage: &SuppliedStage) -> (String, String) {
    let of_node = contexts.nodes.iter().filter(|known| known.node == node);
    let stages = of_node.flat_map(|known| &known.contexts.stages);
    let is_its = |known: &&PathStage| {
        (&known.channel, &known.handler) == (&stage.channel, &stage.handler) && &*known.state != "retired"
    };
    let (mut names, mut reasons): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for known in stages.filter(is_its) {
        for (list, text) in [(&mut names, &known.context), (&mut reasons, &known.why)] {
            if !text.is_empty() && !list.contains(&&**text) {
                list.push(text);
            }
        }
    }
    (names.join(", "), reasons.join("; "))
}

fn stages(view: &HandlersView, contexts: &ContextsView) -> Table {
    let mut table = Table::new(&[
        "CHANNEL",
        "HANDLER",
        "NODE",
        "CONTEXT",
        "MODULE",
        "STATE",
        "CALLS",
        "FUEL",
        "MOST",
        "GIVEN UP",
        "PASSED",
        "STOPS",
        "BY",
        "LEASE",
        "WHY THERE",
    ]);
    for node in &view.nodes {
        for stage in &node.handlers.stages {
            let colour = match &*stage.state {
                "running" => Colour::Green,
                "waiting" => Colour::Yellow,
                _ => Colour::Red,
            };
            let (context, why) = place(contexts, &node.node, stage);
            table.row([
                stage.channel.to_string().into(),
                stage.handler.to_string().into(),
                node.node.clone().into(),
                context.into(),
                stage.module.chars().take(12).collect::<String>().into(),
                Cell::from(stage.state.to_string()).coloured(colour),
                stage.calls_total.into(),
                (stage.fuel_total / stage.calls_total.max(1)).into(),
                stage.fuel_max.into(),
                (stage.given_up_total + stage.waited_total).into(),
                stage.passed_total.into(),
                stops(stage).into(),
                by(stage).into(),
                lease(stage).into(),
                why.into(),
            ]);
        }
    }
    table
}

/// Which version of built-in operators runs, and why.
fn operators(view: &HandlersView) -> Table {
    let mut table = Table::new(&["OPERATOR", "NODE", "SPECIALISED", "VERSION"]);
    for node in &view.nodes {
        for operator in &node.handlers.operators {
            let is_specialised = operator.version.starts_with("specialised");
            let version = Cell::from(operator.version.to_string());
            table.row([
                operator.name.to_string().into(),
                node.node.clone().into(),
                operator.specialised_total.into(),
                if is_specialised { version.coloured(Colour::Green) } else { version },
            ]);
        }
    }
    table
}

/// Returns the client that brought a handler, with the channel that it asked; `policy` if the policy names
/// the handler.
fn by(stage: &SuppliedStage) -> String {
    match &*stage.by {
        "" => "policy".to_owned(),
        by => format!("{by} to {}", stage.of),
    }
}

fn lease(stage: &SuppliedStage) -> String {
    if stage.lease_s == 0 { "-".to_owned() } else { format!("{} s", stage.lease_s) }
}

fn stops(stage: &SuppliedStage) -> String {
    match stage.stops.as_slice() {
        [] => "-".to_owned(),
        stops => stops
            .iter()
            .map(|stops| format!("{} {}", stops.total, stops.reason))
            .collect::<Vec<_>>()
            .join(", "),
    }
}
