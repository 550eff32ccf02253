//! `cspctl`: the command line of a CSP cluster.
//!
//! Owns argument parsing, the HTTP client and all output. It knows nothing of etcd or of other nodes:
//! everything comes from one management node's API.

mod args;
mod cache;
mod certificates;
mod channel_key;
mod channels;
mod client;
mod cluster_top;
mod contexts;
mod contexts_top;
mod diff;
mod doctor;
mod drain;
mod edit;
mod error;
mod etcd;
mod events;
mod explain;
mod flow_args;
mod get;
mod handlers;
mod help;
mod http_trace;
mod identity;
mod key;
mod ladder;
mod login;
mod messages;
mod observe;
mod paint;
mod pki;
mod pki_args;
mod plugin_checks;
mod plugin_modules;
mod plugins;
mod policy;
mod policy_check;
mod policy_schema;
mod quality;
mod queries;
mod routes;
mod rules;
mod support_bundle;
mod table;
mod top;
mod vips;

use clap::FromArgMatches;
use futures_util::FutureExt as _;
use serde::Serialize;

pub use args::Cli;
pub use diff::unified;
pub use error::CliError;
pub use ladder::{Style, draw};
pub use messages::draw_messages;
pub use paint::Paint;

use args::{Command, ContextsCommand, InformationFlowsCommand, Output, PolicyCommand};
use client::Client;
use flow_args::FlowCommand;
use http_trace::HttpCommand;
use messages::MessageCommand;

/// EX_USAGE of sysexits.h.
const EXIT_USAGE: u8 = 64;

/// Parses the process's arguments and runs; the exit code.
pub fn main() -> u8 {
    let parsed = help::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version are no errors and go to standard output.
            let code = if error.use_stderr() { EXIT_USAGE } else { 0 };
            let _ = error.print();
            return code;
        }
    };
    let reads = cli.command.reads();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        // Boxed: compiled once, and not once for each way in which a runtime polls.
        Ok(runtime) => runtime.block_on(run(cli).boxed_local()),
        Err(error) => Err(CliError::Failed(format!("cannot start: {error}"))),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprint!("{}", error.message(reads));
            error.exit_code()
        }
    }
}

/// Runs one command.
async fn run(cli: Cli) -> Result<(), CliError> {
    match &cli.command {
        Command::Doctor(args) => return doctor::doctor(&cli, args).await,
        Command::Policy(PolicyCommand::Schema) => return policy_schema::print(),
        Command::Events(args) if args.schema => return events::schema(),
        Command::SupportBundle(args) => return support_bundle::bundle(&cli, args).await,
        _ => {}
    }
    match cli.command {
        Command::Key(command) => return key::run(&command),
        Command::ChannelKey { file } => return channel_key::make(file.as_deref(), cli.output),
        Command::Completions { shell } => return completions(shell),
        Command::Pki(args) => return pki::run(args, cli.output, Paint::for_stdout()),
        _ => {}
    }
    if let Some(done) = offline(&cli) {
        return done;
    }
    let credentials = identity::open(cli.identity.as_deref())?;
    if let Command::Etcd(command) = cli.command {
        return etcd::run(command, credentials, cli.output).await;
    }
    let server = cli.server.as_deref().unwrap_or_else(|| identity::default_server(credentials.as_ref()));
    let client = Client::new(server, credentials.as_ref())?;
    let context = Context { client, output: cli.output, paint: Paint::for_stdout() };
    match cli.command {
        Command::Nodes => observe::nodes(&context).await,
        Command::Get(args) => get::get(&context, &args).await,
        Command::Services => observe::services(&context).await,
        Command::Vips => vips::vips(&context).await,
        Command::Certificates(args) => certificates::run(&context, args).await,
        Command::Events(args) => events::events(&context, &args).await,
        Command::Top(args) => cluster_top::top(&context, &args).await,
        Command::Channels => channels::channels(&context).await,
        Command::Contexts { command: None } => contexts::contexts(&context).await,
        Command::Contexts { command: Some(ContextsCommand::Top(args)) } => {
            contexts_top::top(&context, &args).await
        }
        Command::Handler(command) => handlers::run(&context, command).await,
        command @ (Command::Formats(_) | Command::Queries(_) | Command::Query(_) | Command::Path(_)) => {
            queries::online(&context, &command).await
        }
        Command::Subscriptions(args) => messages::subscriptions(&context, args).await,
        Command::Message(MessageCommand::Trace(args)) => messages::trace(&context, args).await,
        Command::InformationFlows(InformationFlowsCommand::Top(args)) => quality::top(&context, &args).await,
        Command::Routes(args) => routes::online(&context, &args).await,
        Command::Http(HttpCommand::Trace(args)) => http_trace::trace(&context, args).await,
        Command::Flows(args) => observe::flows(&context, args).await,
        Command::Sockets(args) => observe::sockets(&context, args).await,
        Command::Flow(FlowCommand::Trace(args)) => observe::trace(&context, args).await,
        Command::Policy(command) => policy::run(&context, command).await,
        Command::Rule(command) => rules::run(&context, command).await,
        Command::Plugin(command) => plugins::run(&context, command).await,
        Command::Blocks(command) => plugins::blocks(&context, command).await,
        Command::Capture(args) => plugins::capture(&context, args).await,
        Command::Login { role } => login::login(&context, role).await,
        Command::Cache(command) => cache::run(&context, command).await,
        Command::Drain(args) => drain::drain(&context, args).await,
        Command::Resume { node } => drain::resume(&context, &node).await,
        Command::Doctor(_)
        | Command::SupportBundle(_)
        | Command::Key(_)
        | Command::ChannelKey { .. }
        | Command::Pki(_)
        | Command::Etcd(_)
        | Command::Completions { .. } => Ok(()),
    }
}

/// Runs a command on a policy in a file, if it names one.
fn offline(cli: &Cli) -> Option<Result<(), CliError>> {
    let paint = Paint::for_stdout();
    queries::offline(&cli.command, cli.output, paint)
        .or_else(|| routes::offline(&cli.command, cli.output, paint))
}

/// What every command that talks to the server needs.
struct Context {
    client: Client,
    output: Output,
    paint: Paint,
}

impl Context {
    /// Prints `value` as JSON, or as the text that `table` makes of it.
    fn show<T: Serialize>(&self, value: &T, table: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        show_as(self.output, value, table)
    }
}

/// Prints `value` as JSON, or as the text that `table` makes of it.
fn show_as<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    match output {
        Output::Table => put(&table(value)),
        Output::Json => {
            let text = serde_json::to_string_pretty(value)
                .map_err(|e| CliError::Protocol(format!("cannot write JSON: {e}")))?;
            put(&(text + "\n"))
        }
    }
}

/// Writes to standard output. A reader that went away (`| head`) is no error.
fn put(text: &str) -> Result<(), CliError> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::CannotCreate { path: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "cspctl", &mut script);
    put(&String::from_utf8_lossy(&script))
}
