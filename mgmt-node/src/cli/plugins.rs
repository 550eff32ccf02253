//! `cspctl plugin`, `blocks` and `capture`: packet plug-ins of the network nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use csp_api::plugins::{CallBody, CallView, Environment, Instance, NodeAnswer, PluginsView, Row, Supplied};
use csp_plugins::{Level, is_supplied};
use csp_policy::{PacketPlugin, PluginLevel, Policy};

use super::Context;
use super::edit::{active, edit};
use super::error::CliError;
use super::handlers;
use super::observe::missing;
use super::paint::Colour;
use super::plugin_checks::{PlaceArgs, check_network, lost_by_move};
use super::plugin_modules::{self, MODULES};
use super::table::{Cell, Table, bytes};

/// `cspctl plugin`.
#[derive(Subcommand, Debug)]
pub enum PluginCommand {
    /// List the plug-ins that network nodes run, with their packets
    #[command(
        after_help = "Examples:\n  cspctl plugin list\n  cspctl plugin list -o json | jq '.nodes[].instances[] | {name, dropped_total}'"
    )]
    List,
    /// List the modules that plug-ins can be instances of, with settings and operations, and the supplied
    /// ones of the network nodes
    #[command(
        after_help = "Examples:\n  cspctl plugin modules\n  cspctl plugin modules -o json | jq '.built_in[] | {module, operations}'"
    )]
    Modules,
    /// Give a module of a packet plug-in to all network nodes: WebAssembly, or an eBPF object
    ///
    /// Each network node checks and stores it; WebAssembly, for levels 2 and 3, is compiled, and the program
    /// of an eBPF object, for level 1, is verified by the node's kernel. A plug-in of the policy names it by
    /// the SHA-256 that this command prints. A node that joins later gets the modules that the policy in
    /// force names from the others.
    #[command(
        after_help = "Examples:\n  cspctl plugin install hop-limit.wasm\n  cspctl plugin install filter.o                      # an eBPF object, for level 1\n  cspctl plugin create f --level 1 $(cspctl plugin install filter.o -o json | jq -r .module)\n  cspctl plugin create near $(cspctl plugin install hop-limit.wasm -o json | jq -r .module) parameters=64"
    )]
    Install {
        /// The module, in the binary format of WebAssembly, or the object that `clang -target bpf` has made
        file: PathBuf,
    },
    /// Remove a supplied module from all network nodes
    ///
    /// Refused while the policy in force names it. Policies of before that name it can be applied again once
    /// it was installed again.
    #[command(
        after_help = "Examples:\n  cspctl plugin uninstall 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )]
    Uninstall {
        /// SHA-256 of the module, as `cspctl plugin modules` shows it
        module: String,
    },
    /// Add a plug-in to the policy
    #[command(
        after_help = "Examples:\n  cspctl plugin create limit policer rate=10M burst=64k\n  cspctl plugin create flood block-list --level auto --expects 1M\n  cspctl plugin create blocked block-list\n  cspctl plugin create near 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 parameters=64"
    )]
    Create {
        /// Its name
        name: String,
        /// What it is an instance of: a name, or the SHA-256 of a supplied module (`cspctl plugin modules`)
        module: String,
        /// Settings; others have their defaults
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Where it runs: 1 in the driver, 2 in the network nodes' workers, 3 on an attached host; auto: each
        /// node chooses 1 or 2
        #[arg(long, default_value_t)]
        level: PluginLevel,
        #[command(flatten)]
        place: PlaceArgs,
        /// Of level 3: which of the policy's plug-in hosts runs it
        #[arg(long, value_name = "HOST")]
        context: Option<String>,
    },
    /// Move a plug-in to another level
    ///
    /// Between levels 1 and 2 its state moves with it; with auto each network node moves it between these by
    /// the packets that it gets. To level 3 and from there it does not: block lists are empty then, captures
    /// too, and counters of the plug-in and of rules that lead to it begin at 0.
    #[command(
        after_help = "Examples:\n  cspctl plugin move blocked 1\n  cspctl plugin move blocked auto --expects 200k --driver-pps 50k --hold-s 30\n  cspctl plugin move count 3 --context h0"
    )]
    Move {
        /// The plug-in
        name: String,
        /// 1: in the driver; 2: in the network nodes' workers; 3: on an attached host; auto: each node
        /// chooses 1 or 2
        level: PluginLevel,
        #[command(flatten)]
        place: PlaceArgs,
        /// Of level 3: which of the policy's plug-in hosts runs it; not needed where the policy has one
        #[arg(long, value_name = "HOST")]
        context: Option<String>,
    },
    /// Give a plug-in other settings, or another module
    ///
    /// Settings not given have their defaults. Its state stays where the module allows it; otherwise, and
    /// with another module, the plug-in is made anew between two packets.
    #[command(
        after_help = "Examples:\n  cspctl plugin config limit rate=20M\n  cspctl plugin config near --module $(cspctl plugin install new.wasm -o json | jq -r .module) parameters=64"
    )]
    Config {
        /// The plug-in
        name: String,
        /// All its settings
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Its module from now on
        #[arg(long)]
        module: Option<String>,
    },
    /// Connect an output of a plug-in to another one
    #[command(
        after_help = "Examples:\n  cspctl plugin connect blocked 0 limit\n  cspctl plugin connect blocked 0 -"
    )]
    Connect {
        /// The plug-in
        from: String,
        /// Its output
        #[arg(value_name = "OUTPUT")]
        port: u8,
        /// The plug-in that gets its packets; `-`: they are routed
        to: String,
    },
    /// Remove a plug-in, to which no rule and no output leads, from the policy
    #[command(after_help = "Examples:\n  cspctl plugin remove limit")]
    Remove {
        /// The plug-in
        name: String,
    },
    /// Execute an operation of a plug-in at the network nodes
    ///
    /// What it changes is state of the nodes, not policy: it is gone when a node restarts.
    #[command(
        after_help = "Examples:\n  cspctl plugin call count read\n  cspctl plugin call blocked add prefix=192.0.2.0/24 time=1h from=web-shop\n  \
                            cspctl plugin call count read --node nn-1 -o json"
    )]
    Call {
        /// The plug-in
        name: String,
        /// Its operation
        operation: String,
        /// Arguments
        #[arg(value_name = "KEY=VALUE")]
        arguments: Vec<String>,
        /// Only at this network node
        #[arg(long)]
        node: Option<String>,
    },
}
/// `cspctl blocks`.
#[derive(Subcommand, Debug)]
pub enum BlocksCommand {
    /// List blocked networks with their remaining time, packets and origin
    #[command(after_help = "Examples:\n  cspctl blocks list\n  cspctl blocks list --plugin blocked -o json")]
    List(BlockList),
    /// Block a network
    #[command(
        after_help = "Examples:\n  cspctl blocks add 192.0.2.0/24 --time 1h --from web-shop\n  cspctl blocks add 2001:db8:5::/48"
    )]
    Add {
        /// A network or an address
        prefix: String,
        /// How long, such as 60s or 1h, or forever; without it until it is removed
        #[arg(long)]
        time: Option<String>,
        /// Where the verdict comes from; default: your identity
        #[arg(long)]
        from: Option<String>,
        #[command(flatten)]
        list: BlockList,
    },
    /// Block a network no longer
    #[command(after_help = "Examples:\n  cspctl blocks remove 192.0.2.0/24")]
    Remove {
        /// The network, as it was added
        prefix: String,
        #[command(flatten)]
        list: BlockList,
    },
}

/// Which list.
#[derive(Args, Debug)]
pub struct BlockList {
    /// The plug-in; not needed where the policy has one of the module block-list
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
}

/// Arguments of `cspctl capture`.
#[derive(Args, Debug)]
pub struct CaptureArgs {
    /// File to write, in the pcap format
    #[arg(long, short)]
    write: PathBuf,
    /// The plug-in; not needed where the policy has one of the module capture
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Only at this network node
    #[arg(long)]
    node: Option<String>,
    /// Discard what was captured so far, and capture for so many seconds (1 to 3600)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
}

pub(super) async fn run(context: &Context, command: PluginCommand) -> Result<(), CliError> {
    match command {
        PluginCommand::List => list(context).await,
        PluginCommand::Modules => plugin_modules::modules(context).await,
        PluginCommand::Install { file } => handlers::put_to(context, &file, MODULES, "network").await,
        PluginCommand::Uninstall { module } => {
            handlers::remove_from(context, &module, MODULES, "cspctl plugin modules").await
        }
        PluginCommand::Create { name, module, settings, level, place, context: host } => {
            let settings = pairs(&settings)?;
            edit(context, |policy| {
                let context = host_of(policy, level, host)?;
                let (outputs, expects, place) = (vec![], place.expects, place.place(None));
                let plugin = PacketPlugin { name, module, settings, outputs, level, expects, place, context };
                policy.plugins.push(plugin);
                Ok(())
            })
            .await
        }
        PluginCommand::Config { name, settings, module } => {
            let settings = pairs(&settings)?;
            edit(context, |policy| {
                let plugin = find(&mut policy.plugins, &name)?;
                plugin.settings = settings;
                module.into_iter().for_each(|module| plugin.module = module);
                Ok(())
            })
            .await
        }
        PluginCommand::Move { name, level, place, context: host } => {
            edit(context, |policy| {
                let host = host_of(policy, level, host)?;
                let plugin = find(&mut policy.plugins, &name)?;
                if let Some(warning) = lost_by_move(plugin, level) {
                    eprintln!("warning: {warning}");
                }
                plugin.place = place.place(plugin.place.filter(|_| level == PluginLevel::Auto));
                (plugin.level, plugin.expects, plugin.context) = (level, place.expects, host);
                Ok(())
            })
            .await
        }
        PluginCommand::Connect { from, port, to } => {
            edit(context, |policy| {
                let outputs = &mut find(&mut policy.plugins, &from)?.outputs;
                let at = usize::from(port);
                if outputs.len() <= at {
                    outputs.resize(at + 1, "-".to_owned());
                }
                outputs[at] = to;
                Ok(())
            })
            .await
        }
        PluginCommand::Remove { name } => {
            edit(context, |policy| {
                find(&mut policy.plugins, &name)?;
                policy.plugins.retain(|plugin| plugin.name != name);
                Ok(())
            })
            .await
        }
        PluginCommand::Call { name, operation, arguments, node } => {
            let view = call(context, &name, &operation, pairs(&arguments)?, node.as_deref()).await?;
            show(context, &view)
        }
    }
}

/// The plug-in host for a plug-in of this level: the one that was named, or the only one of the policy.
fn host_of(policy: &Policy, level: PluginLevel, named: Option<String>) -> Result<Option<String>, CliError> {
    if named.is_some() || level != PluginLevel::Fixed(Level::Host) {
        return Ok(named);
    }
    match policy.plugin_hosts.as_slice() {
        [one] => Ok(Some(one.name.clone())),
        [] => Err(CliError::Failed("the policy has no plugin_hosts; nothing was changed".to_owned())),
        several => {
            let names: Vec<&str> = several.iter().map(|host| host.name.as_str()).collect();
            Err(CliError::Usage(format!("--context is needed: the policy has {}", names.join(", "))))
        }
    }
}

fn find<'p>(plugins: &'p mut [PacketPlugin], name: &str) -> Result<&'p mut PacketPlugin, CliError> {
    let missing = || CliError::Failed(format!("the policy has no plug-in {name}; nothing was changed"));
    plugins.iter_mut().find(|plugin| plugin.name == name).ok_or_else(missing)
}

fn pairs(words: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let pair = |word: &String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(CliError::Usage(format!("{word}: expected KEY=VALUE"))),
    };
    words.iter().map(pair).collect()
}

/// Has the network nodes execute an operation; what changes nothing may be called by viewers.
async fn call(
    context: &Context,
    name: &str,
    operation: &str,
    arguments: BTreeMap<String, String>,
    node: Option<&str>,
) -> Result<CallView, CliError> {
    let path = format!("/api/v1/plugins/{name}/{operation}");
    if matches!(operation, "read" | "list" | "find") {
        let node = node.map(|node| ("node", node.to_owned()));
        let arguments = arguments.iter().map(|(name, value)| (name.as_str(), value.clone()));
        return context.client.get(&path, &node.into_iter().chain(arguments).collect::<Vec<_>>()).await;
    }
    let path = node.map_or(path.clone(), |node| format!("{path}?node={node}"));
    context.client.post_json(&path, &CallBody { arguments }).await
}

/// Prints what nodes have answered; an error if one of them has refused.
fn show(context: &Context, view: &CallView) -> Result<(), CliError> {
    context.show(view, |view| {
        let mut text = String::new();
        let answered = view.nodes.iter().filter(|node| !node.answer.rows.is_empty());
        answered.for_each(|node| text += &answer(node).render(context.paint));
        for node in view.nodes.iter().filter(|node| node.answer.truncated) {
            text += &format!("note: {} has more rows\n", node.node);
        }
        if text.is_empty() && !view.nodes.is_empty() {
            let nodes: Vec<&str> = view.nodes.iter().map(|node| node.node.as_str()).collect();
            text = format!("done at {}\n", nodes.join(", "));
        }
        text
    })?;
    let refused: Vec<String> = view.refused.iter().map(|r| format!("{}: {}", r.node, r.error)).collect();
    if refused.is_empty() { Ok(()) } else { Err(CliError::Failed(refused.join("\n"))) }
}

fn answer(node: &NodeAnswer) -> Table {
    let mut table = Table::new(&["NODE", "KEY", "NUMBERS", "FROM"]);
    for Row { key, note, numbers } in &node.answer.rows {
        let numbers: Vec<String> =
            numbers.iter().map(|number| format!("{}={}", &*number.name, number.value)).collect();
        table.row([
            node.node.clone().into(),
            key.to_string().into(),
            numbers.join(" ").into(),
            note.to_string().into(),
        ]);
    }
    table
}

async fn list(context: &Context) -> Result<(), CliError> {
    let view: PluginsView = context.client.get("/api/v1/plugins", &[]).await?;
    context.show(&view, |view| {
        let mut table = Table::new(&[
            "NODE", "PLUGIN", "MODULE", "LEVEL", "SETTINGS", "OUTPUTS", "PACKETS", "BYTES", "DROPPED",
            "STATE",
        ]);
        for node in &view.nodes {
            for plugin in &node.plugins.instances {
                let settings = plugin.settings.iter().map(|s| format!("{}={}", &*s.name, &*s.value));
                let outputs = plugin.outputs.iter().map(|o| format!("{}:{}", o.output, &*o.to));
                table.row([
                    node.node.clone().into(),
                    plugin.name.to_string().into(),
                    short(&plugin.module).into(),
                    level(&node.plugins.environments, plugin).into(),
                    settings.collect::<Vec<_>>().join(" ").into(),
                    outputs.collect::<Vec<_>>().join(" ").into(),
                    plugin.packets_total.into(),
                    Cell::from(bytes(plugin.bytes_total)).right(),
                    plugin.dropped_total.into(),
                    state(plugin),
                ]);
            }
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })
}

/// Its level; where the node has chosen it, with why.
fn level(environments: &[Environment], plugin: &Instance) -> String {
    let environment = environments.iter().find(|known| known.name == plugin.environment);
    let level = environment.map_or(0, |known| known.level);
    match &plugin.auto {
        Some(auto) => format!("{level} (auto: {})", &*auto.reason),
        None => level.to_string(),
    }
}

/// The name of a module; of a supplied one its first 12 digits.
fn short(module: &str) -> String {
    let len = if is_supplied(module) { 12 } else { module.len() };
    module.chars().take(len).collect()
}

/// Whether an instance runs where it is to, and why not; of a supplied module also why it was stopped.
fn state(plugin: &Instance) -> Cell {
    let supplied = plugin.supplied.as_ref().map(supplied_state);
    let is_odd = |own: &Supplied| &*own.state != "running" || !own.reason.is_empty();
    let odd = plugin.held.is_some() || plugin.supplied.as_ref().is_some_and(is_odd);
    let words: Vec<String> = plugin.held.iter().map(ToString::to_string).chain(supplied).collect();
    match (words.is_empty(), odd) {
        (true, _) => Cell::from("-".to_owned()),
        (_, true) => Cell::from(words.join("; ")).coloured(Colour::Yellow),
        _ => Cell::from(words.join("; ")).coloured(Colour::Green),
    }
}

fn supplied_state(supplied: &Supplied) -> String {
    let stops = supplied.stops.iter().map(|stops| format!("{} {}", stops.total, stops.reason));
    let stops = stops.collect::<Vec<_>>().join(", ");
    if !supplied.reason.is_empty() {
        format!("{}: {}", &*supplied.state, &*supplied.reason)
    } else if stops.is_empty() {
        supplied.state.to_string()
    } else {
        format!("{}, stopped: {stops}", supplied.state)
    }
}

pub(super) async fn blocks(context: &Context, command: BlocksCommand) -> Result<(), CliError> {
    let (list, operation, arguments) = match command {
        BlocksCommand::List(list) => (list, "list", vec![]),
        BlocksCommand::Add { prefix, time, from, list } => {
            (list, "add", vec![("prefix", Some(prefix)), ("time", time), ("from", from)])
        }
        BlocksCommand::Remove { prefix, list } => (list, "remove", vec![("prefix", Some(prefix))]),
    };
    if let Some((_, Some(prefix))) = arguments.first().filter(|_| operation == "add") {
        check_network(prefix)?;
    }
    let name = the_one(context, list.plugin, "block-list").await?;
    let arguments = arguments.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    show(context, &call(context, &name, operation, arguments.collect(), None).await?)
}

pub(super) async fn capture(context: &Context, args: CaptureArgs) -> Result<(), CliError> {
    let name = the_one(context, args.plugin, "capture").await?;
    let node = args.node.map_or_else(String::new, |node| format!("?node={node}"));
    let path = format!("/api/v1/captures/{name}{node}");
    if let Some(seconds) = args.seconds {
        context.client.post_for_file(&path).await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    let file = context.client.post_for_file(&path).await?;
    let packets = csp_plugins::pcap::records(&file)
        .ok_or_else(|| CliError::Protocol("the answer is no capture; do the releases match?".to_owned()))?
        .len();
    write(&args.write, &file)?;
    eprintln!("{packets} packets in {}", args.write.display());
    Ok(())
}

fn write(path: &Path, file: &[u8]) -> Result<(), CliError> {
    std::fs::write(path, file).map_err(|source| CliError::CannotCreate { path: path.to_owned(), source })
}

/// The plug-in that was named, or the only one of its module in the policy.
async fn the_one(context: &Context, named: Option<String>, module: &str) -> Result<String, CliError> {
    if let Some(name) = named {
        return Ok(name);
    }
    let (_, policy) = active(context).await?;
    let of: Vec<&str> =
        policy.plugins.iter().filter(|p| p.module == module).map(|p| p.name.as_str()).collect();
    match of.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(CliError::Failed(format!(
            "the policy has no plug-in of the module {module}; `cspctl plugin create NAME {module}` adds one"
        ))),
        several => Err(CliError::Usage(format!("--plugin is needed: the policy has {}", several.join(", ")))),
    }
}
