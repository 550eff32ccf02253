//! The command line of `cspctl`: structure and help texts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::doctor::DoctorArgs;
use super::etcd::EtcdCommand;
use super::events::EventsArgs;
use super::flow_args::{FlowCommand, FlowsArgs, SocketsArgs};
use super::handlers::HandlerCommand;
use super::help::AFTER_HELP;
use super::http_trace::HttpCommand;
use super::key::KeyCommand;
use super::messages::{MessageCommand, SubscriptionsArgs};
use super::pki_args::PkiArgs;
use super::plugins::{BlocksCommand, CaptureArgs, PluginCommand};
use super::queries::{PathCommand, PolicyChoice, QueryCommand};
use super::routes::RoutesArgs;
use super::rules::RuleCommand;
use super::support_bundle::SupportBundleArgs;

/// Shows and controls a CSP cluster through its management node.
///
/// A CSP cluster consists of network nodes (they take packets from the LAN), proxy nodes (they end the
/// clients' TCP), app nodes (they run unmodified servers) and management nodes. cspctl uses a management
/// node's HTTP API; any management node will do: those that do not lead pass changes on to the leader.
#[derive(Debug, Parser)]
#[command(name = "cspctl", version, after_help = AFTER_HELP, after_long_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// URL of a management node, or of several with commas between: the first that answers is asked; default:
    /// this host's, port 9104
    #[arg(long, global = true, env = "CSP_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// Folder of your certificate; default: ~/.config/csp/identity, then /etc/csp/identity, if there is one
    #[arg(long, global = true, env = "CSP_IDENTITY", value_name = "FOLDER")]
    pub identity: Option<PathBuf>,
    /// Form of the result
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Form of a command's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs: the API's JSON, one document
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the nodes and how they are
    ///
    /// States: ready; not-ready (answers, but cannot serve); unreachable (registered, its admin endpoint does
    /// not answer); lapsed (its lease in etcd ran out: it may still carry traffic); unknown (not asked yet).
    #[command(after_help = "Examples:\n  cspctl nodes\n  cspctl nodes --output json | jq '.nodes[].id'")]
    Nodes,
    /// Show, check, publish and compare policies
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl policy apply demo.yaml\n  cspctl policy diff demo.yaml\n  cspctl policy history"
    )]
    Policy(PolicyCommand),
    /// Print a section of the active policy, or one of its entries, as the policy has it
    #[command(
        after_help = "Examples:\n  cspctl get information_flows\n  cspctl get information_flows gates\n  cspctl get link -o json"
    )]
    Get(GetArgs),
    /// List services with their pools and live state
    #[command(after_help = "Examples:\n  cspctl services\n  cspctl services -o json | jq '.services[].pool'")]
    Services,
    /// List the routes of HTTP, or try a request against them
    ///
    /// PATH is a prefix; `= ` stands before a path that has to be equal, `~ ` before an expression.
    #[command(after_help = "Examples:\n  cspctl routes\n  cspctl routes www --policy new.yaml\n  \
                            cspctl routes test https://www.example.com/api/users")]
    Routes(RoutesArgs),
    /// Look at requests of HTTP
    #[command(subcommand, after_help = "Examples:\n  cspctl http trace --service www")]
    Http(HttpCommand),
    /// List the groups of VIPs, and the network node that answers for each
    ///
    /// SINCE is how long the node has held the group, VOTES how many proxies vote for it, of those whose
    /// votes count. EPOCH rises with each holder. NODES take part in the election.
    #[command(
        after_help = "Examples:\n  cspctl vips\n  cspctl vips -o json | jq -r '.groups[] | select(.holder == null).name'"
    )]
    Vips,
    /// List the certificates that are obtained from an ACME authority, and order one
    Certificates(super::certificates::CertificatesArgs),
    /// Show what happened in the cluster: nodes, servers, VIPs, policies, limits, changes by people
    #[command(
        after_help = "Examples:\n  cspctl events --follow --severity warning\n  cspctl events --object server/web/ --limit 500\n  cspctl events -f -o json | jq -r 'select(.kind == \"server_down\") | .text'"
    )]
    Events(EventsArgs),
    /// Show what the cluster does now, again and again: tiers, services, the busiest flows, drops
    #[command(after_help = "Examples:\n  cspctl top\n  cspctl top --once -o json | jq '.services[0]'")]
    Top(super::top::TopArgs),
    /// List channels of messages with their peers, what they carry and what they have dropped
    ///
    /// MESSAGES and BYTES arrived. DELIVERED are the copies given to receivers. DROPPED are those not
    /// delivered because a receiver's queue was full (`cspctl subscriptions` shows whose) or memory was
    /// short, and messages for which the queue of their flow had no room (`cspctl information-flows top`).
    /// OWNER is the proxy and worker at which the channel lives. HELD is how often senders were held back.
    /// WAITING are copies in queues.
    #[command(
        after_help = "Examples:\n  cspctl channels\n  cspctl channels -o json | jq '.channels[] | {name, dropped_total}'"
    )]
    Channels,
    /// List contexts of the proxies and the handlers that messages pass in them
    ///
    /// The first table has a line for each context: MOST is the longest queue seen at a resource-management
    /// point, BUSY the time in handlers, STATE the memory of their state. The second has a line for each
    /// stage of a channel's path. A path is `waiting` until the one that it replaces is empty. WAITING is
    /// yellow while the stage waits for a later one, for receivers or for memory.
    #[command(
        after_help = "Examples:\n  cspctl contexts\n  cspctl contexts -o json | jq '.nodes[].stages[] | {handler, p99_ns}'\n  cspctl contexts top"
    )]
    #[command(args_conflicts_with_subcommands = true)]
    Contexts {
        /// What to do; without it they are listed
        #[command(subcommand)]
        command: Option<ContextsCommand>,
    },
    /// Bring, look at and remove supplied handlers
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl handler put anonymise.wasm\n  cspctl handler list"
    )]
    Handler(HandlerCommand),
    /// List the formats of messages and the channels that have them
    #[command(after_help = "Examples:\n  cspctl formats\n  cspctl formats --policy demo.yaml -o json")]
    Formats(PolicyChoice),
    /// List the continual queries with what they read and make
    ///
    /// MESSAGES are those of its channels that reached the query, ROWS what it made of them, DROPPED messages
    /// for which its queue had no room and rows that subscribers did not get. OWNER is the proxy and worker
    /// at which it runs.
    #[command(after_help = "Examples:\n  cspctl queries\n  cspctl queries -o json | jq '.[] | {name, sql}'")]
    Queries(PolicyChoice),
    /// Look at one query
    #[command(subcommand, after_help = "Examples:\n  cspctl query explain late")]
    Query(QueryCommand),
    /// Look at the path of a channel
    #[command(subcommand, after_help = "Examples:\n  cspctl path explain flights")]
    Path(PathCommand),
    /// List the peers of channels and what they subscribe to
    ///
    /// A program of the cluster is named by its node and process, others by their addresses. IN are the
    /// messages that the peer has sent, OUT those given to it, WAITING those in its queue, DROPPED those that
    /// it did not get because its queue was full or memory was short. TOPICS are the beginnings of topics
    /// that it subscribes to; a byte that is no character is written as \xHH.
    #[command(
        after_help = "Examples:\n  cspctl subscriptions\n  cspctl subscriptions ticks --topics 100\n  \
                            cspctl subscriptions -o json | jq '.peers[] | select(.dropped > 0) | .address'"
    )]
    Subscriptions(SubscriptionsArgs),
    /// Look at messages of a channel
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl message trace ticks\n  cspctl message trace ticks --count 5 --topic ACME"
    )]
    Message(MessageCommand),
    /// List flows that are open, most bytes first
    ///
    /// A flow is here a connection of TCP, between a client and a service or a channel, with the bytes that
    /// the proxy has passed on. Of connections to channels, which end at the proxy, no bytes are known (-):
    /// `cspctl subscriptions` counts their messages. Information flows, which share the output link, are
    /// another thing: `cspctl information-flows` shows them.
    #[command(
        after_help = "Examples:\n  cspctl flows --limit 10\n  cspctl flows --service web --output json"
    )]
    Flows(FlowsArgs),
    /// Look at information flows: messages and byte streams that share the output link
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl information-flows top\n  cspctl information-flows top --once -o json"
    )]
    InformationFlows(InformationFlowsCommand),
    /// List the sockets of accelerated processes: what carries each, and why
    ///
    /// Sockets that the kernel carries are listed with the reason: their port or destination is outside the
    /// rule, a loopback address or one of the host's own, no agent or no proxy at that time, a table that was
    /// full, a program that asked for SIGIO or a socket option that accelerated sockets lack, a listener made
    /// outside the filter. QUEUED is what waits at the proxy, for the program and for the client's
    /// acknowledgement, and of a listener the connections that waited to be accepted when the program last
    /// slept, and its backlog; CREDIT is what each may still send; ERROR is the connection's last error. A
    /// process shows its first 256 sockets of either kind.
    #[command(after_help = "Examples:\n  cspctl sockets\n  cspctl sockets --process nginx\n  \
                            cspctl sockets -o json | jq '.sockets[] | select(.kind | startswith(\"kernel\"))'")]
    Sockets(SocketsArgs),
    /// Look at one flow
    #[command(subcommand, after_help = "Examples:\n  cspctl flow trace --last")]
    Flow(FlowCommand),
    /// Choose the packets that network nodes lead to plug-ins
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl rule add dns prio 10 proto udp dport 53 plugin limit\n  cspctl rule stats"
    )]
    Rule(RuleCommand),
    /// Look at and change packet plug-ins of network nodes
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl plugin create blocked block-list\n  cspctl plugin list\n  cspctl plugin modules"
    )]
    Plugin(PluginCommand),
    /// Drop packets of networks at the network nodes, for a time or for good
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl blocks add 192.0.2.0/24 --time 1h\n  cspctl blocks list"
    )]
    Blocks(BlocksCommand),
    /// Write what a plug-in of the module capture has captured to a file
    #[command(
        after_help = "Examples:\n  cspctl capture --write web.pcap\n  cspctl capture --plugin tap --node nn-1 --seconds 10 -w web.pcap"
    )]
    Capture(CaptureArgs),
    /// Make, replace and derive the keys of the SAN
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl key generate /etc/csp/cluster.key\n  cspctl key derive /etc/csp/cluster.key \
                            network-node nn-1 --out network-node.key"
    )]
    Key(KeyCommand),
    /// Make a key pair for a channel of messages, or for one of its clients
    ///
    /// The pair is one of CURVE, in files as ZeroMQ's tools write and read them: FILE.key_secret (mode 0600)
    /// has both keys, FILE.key the public one. The public key, which the policy names, goes to standard
    /// output. Existing files are never overwritten. Needs no server.
    #[command(
        after_help = "Examples:\n  cspctl channel-key ticks        the proxies' pair: copy ticks.key_secret to messages.curve_keys of each\n  \
                            cspctl channel-key alice        a client's pair: the program reads alice.key_secret\n  \
                            cspctl channel-key -o json ticks | jq -r .public_key"
    )]
    ChannelKey {
        /// The files' name without its ending; without it both keys go to standard output, in the form of
        /// FILE.key_secret
        file: Option<PathBuf>,
    },
    /// Set up etcd's users
    #[command(subcommand, after_help = "Examples:\n  cspctl etcd setup --help")]
    Etcd(EtcdCommand),
    /// Keep the cluster's certificate authority: a folder on the operator's machine
    ///
    /// Needs no server. The folder has the keys of the authority: keep it off the cluster's hosts, make
    /// backups.
    #[command(
        after_help = "Examples:\n  cspctl pki init --cluster east\n  cspctl pki issue proxy-node pn-1 --address 10.77.0.3"
    )]
    Pki(PkiArgs),
    /// Open the operations page in a browser: print a link that logs it in
    ///
    /// The link can be used once, within a minute. The browser's session lasts 8 hours, and not longer than
    /// your certificate; it ends when that is revoked. It is a session at this management node only.
    #[command(after_help = "Examples:\n  cspctl login\n  cspctl login --role operator\n  \
                            xdg-open \"$(cspctl login)\"\n  cspctl login -o json | jq -r .url")]
    Login {
        /// What the browser may do: look, or change policy and drain nodes as well
        #[arg(long, value_enum, default_value_t = LoginRole::Viewer)]
        role: LoginRole,
    },
    /// Take a node out of service without losing connections
    ///
    /// A proxy node or application node gets no new connections; those that it has continue until they end by
    /// themselves. A network node gives its VIP groups to other network nodes, and their connections go on
    /// there; addresses that are in no group stay, and their connections go on when the node comes back. A
    /// node that restarts goes on draining until `cspctl resume`.
    ///
    /// The last proxy node in service does not drain, since no client could connect: --force has it drain
    /// nevertheless.
    ///
    /// Exit code with --wait: 0 when no connection (of a network node: no VIP group) is left, 1 when some are
    /// left at the deadline.
    #[command(
        after_help = "Examples:\n  cspctl drain pn-1 --wait\n  cspctl drain an-2 --wait --deadline 300\n  cspctl drain nn-1 --wait"
    )]
    Drain(DrainArgs),
    /// Look at the HTTP cache of the proxies, and purge it
    #[command(
        subcommand,
        after_help = "Examples:\n  cspctl cache status\n  cspctl cache list --prefix /assets/\n  cspctl cache purge --tag product-17"
    )]
    Cache(super::cache::CacheCommand),
    /// Take a node that drains back into service
    #[command(after_help = "Examples:\n  cspctl resume pn-1")]
    Resume {
        /// Node
        node: String,
    },
    /// Check this host, and the cluster if a management node answers, against what CSP needs
    ///
    /// Each finding has a level (ok, info, warning, error), why it matters, and a command that mends it.
    /// Without root some checks see less, and say so.
    #[command(after_help = "Examples:\n  cspctl doctor\n  cspctl doctor --only clock,mtu\n  \
                            cspctl doctor -o json | jq '.findings[] | select(.level == \"error\")'\n\n\
                            Exit codes: 0 nothing worse than info; 1 warnings; 2 errors; 64 the command line is wrong")]
    Doctor(DoctorArgs),
    /// Write an archive of what helps to find a fault: findings, views, metrics, configuration, journal
    ///
    /// Secrets are removed. What cannot be had is listed in its MANIFEST. At most 64 MiB before compression.
    #[command(
        after_help = "Examples:\n  cspctl support-bundle\n  cspctl support-bundle --output-file /tmp/case-17.tar.gz"
    )]
    SupportBundle(SupportBundleArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  cspctl completions bash > /etc/bash_completion.d/cspctl")]
    Completions {
        /// Shell
        shell: Shell,
    },
}

impl Command {
    /// Returns whether it looks at a policy that it would never change.
    pub(super) fn reads(&self) -> bool {
        matches!(
            self,
            Command::Formats(_)
                | Command::Queries(_)
                | Command::Query(_)
                | Command::Path(_)
                | Command::Routes(_)
                | Command::Policy(PolicyCommand::Diff { .. } | PolicyCommand::Check { .. })
        )
    }
}

/// Role of a browser's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoginRole {
    /// May look
    Viewer,
    /// May change policy and drain nodes, too
    Operator,
}

/// `cspctl contexts`.
#[derive(Debug, Subcommand)]
pub enum ContextsCommand {
    /// Show again and again what contexts and handlers do
    ///
    /// Rates are those since the last look. BUSY is the part of the time in handlers. P50, P99 and MAX are
    /// times of calls, of which every 16th is measured; recent ones count more, MAX is since the path began.
    /// FUEL is the mean of a call of a supplied handler, MEMORY what is reserved for it and its state, STOPS
    /// how often it was stopped. With --output json each look prints a document.
    #[command(
        after_help = "Examples:\n  cspctl contexts top\n  cspctl contexts top --once -o json | jq '.stages[] | {handler, p99_ns, stops_total}'"
    )]
    Top(super::top::TopArgs),
}

/// `cspctl policy ...`
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check, publish and activate a policy
    ///
    /// The policy becomes a new generation. Every live node checks it first (staged); when all have, it is
    /// activated and each node acknowledges it when it serves on it (active). When a node refuses, or one
    /// does not answer in time, the old policy stays in force everywhere and the exit code is 1. A wrong file
    /// changes nothing and gives exit code 65.
    #[command(
        after_help = "Examples:\n  cspctl policy apply demo.yaml\n  cspctl policy apply --dry-run demo.yaml\n  \
                            generate-policy | cspctl policy apply -\n\nPolicy file:\n  apiVersion: csp/v1\n  \
                            services:\n    - name: web\n      vip: 10.76.0.100\n      port: 80\n      \
                            pool: [{node: an-1, port: 80}]\n  programs:\n    \
                            - {program: nginx, listen: [80]}\n  access:\n    \
                            - {users: [33], listen: [80, 8000-8999], connect: []}\n\n\
                            access: who may listen and connect, by users, groups and programs; the first rule that fits counts. \
                            What a rule leaves out, and processes that none fits, may what the kernel of their host allows: ports \
                            from 1024 on, all for root, in the host's network namespace only; every egress destination. A port is one \
                            user's while its processes listen there, unless all rules of its users say `shared: true`."
    )]
    Apply(ApplyArgs),
    /// Check a policy file: its own mistakes, and what nodes have registered against what it needs
    #[command(after_help = "Examples:\n  cspctl policy check demo.yaml\n\n\
                            Exit codes: 0 nothing worse than info; 1 warnings; 2 errors; 65 the policy file is wrong")]
    Check {
        /// Policy file, YAML; `-` reads standard input
        file: PathBuf,
    },
    /// Print the active policy, or one of the past, as YAML
    #[command(after_help = "Examples:\n  cspctl policy show\n  cspctl policy show --generation 3 > old.yaml")]
    Show {
        /// Generation to print instead of the active one
        #[arg(long, short, value_name = "N")]
        generation: Option<u64>,
    },
    /// Compare the active policy with a file
    ///
    /// Both are brought to canonical form first, so comments, order of fields and defaults written out do not
    /// count. Exit code 0: no difference; 1: they differ; 65: the file is wrong.
    #[command(after_help = "Examples:\n  cspctl policy diff demo.yaml")]
    Diff {
        /// Policy file, YAML; `-` reads standard input
        file: PathBuf,
    },
    /// Print the JSON Schema (2020-12) of policies, by which editors complete and check them
    #[command(after_help = "Examples:\n  cspctl policy schema > policy.schema.json")]
    Schema,
    /// List the generations and what became of them
    #[command(after_help = "Examples:\n  cspctl policy history\n  cspctl policy history -o json | jq '.[0]'")]
    History,
    /// Return to the policy that was in force before, or to an earlier one
    ///
    /// The earlier policy becomes a new generation, which every live node checks first, as with `apply`.
    /// Rolling back twice returns to where it began. Refused if somebody else publishes meanwhile.
    #[command(after_help = "Examples:\n  cspctl policy rollback\n  cspctl policy rollback --generation 3")]
    Rollback(RollbackArgs),
}

/// Arguments of `cspctl policy rollback`.
#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// Generation to return to instead of the one before
    #[arg(long, short, value_name = "N")]
    pub generation: Option<u64>,
    /// How long the nodes may take to agree, in seconds (1 to 600)
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
}

/// Arguments of `cspctl policy apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Policy file, YAML; `-` reads standard input
    pub file: PathBuf,
    /// Only check it; nothing is changed
    #[arg(long)]
    pub dry_run: bool,
    /// How long the nodes may take to agree, in seconds (1 to 600)
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
}

/// Arguments of `cspctl drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Node
    pub node: String,
    /// Wait until no connection is left, showing how many there are
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, in seconds (1 to 86400)
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub deadline: u64,
    /// Also the last proxy node in service: clients cannot connect until one is back
    #[arg(long)]
    pub force: bool,
}

/// `cspctl information-flows ...`
#[derive(Debug, Subcommand)]
pub enum InformationFlowsCommand {
    /// Watch information flows: rates, queues and delays between two looks
    ///
    /// PROMISED are Mb/s of the link; of a promise of messages those of messages with `message_bytes`, with
    /// the messages beside it. IN are the bytes that arrived, OUT those released to receivers outside the
    /// cluster. Both count the copy of each receiver: a message for three receivers is three times in IN.
    /// QUEUE and BYTES wait now. DELAY is the mean time from arrival to release. DROPPED are messages that
    /// filters or full queues have cost, HELD times that publishers were held back.
    #[command(
        after_help = "Examples:\n  cspctl information-flows top\n  cspctl information-flows top --once -o json | jq '.flows[] | {flow, out_mbps}'"
    )]
    Top(super::top::TopArgs),
}

/// Sections of a policy.
const SECTIONS: [&str; 14] = [
    "services",
    "formats",
    "channels",
    "queries",
    "handlers",
    "contexts",
    "information_flows",
    "link",
    "egress",
    "programs",
    "access",
    "plugin_hosts",
    "plugins",
    "rules",
];

/// Arguments of `cspctl get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The section
    #[arg(value_parser = SECTIONS)]
    pub section: String,
    /// Only the entry of this name
    pub name: Option<String>,
}
