//! `cspctl rule`: which packets network nodes lead to plug-ins.

use clap::Subcommand;
use csp_api::plugins::{PluginsView, Rule};
use csp_plugins::text::parse_rule;
use csp_policy::PacketRule;

use super::Context;
use super::edit::{active, edit};
use super::error::CliError;
use super::observe::missing;
use super::paint::Colour;
use super::table::{Cell, Table, bytes};

/// `cspctl rule`.
#[derive(Subcommand, Debug)]
pub enum RuleCommand {
    /// Add a rule to the policy
    ///
    /// A rule is: NAME [prio NUMBER] CONDITION... plugin INSTANCE [fallback pass|drop]. The rule with the
    /// lowest number that matches decides; of equal ones the older. Conditions: src NETWORK, dst NETWORK, ip
    /// 4|6, proto PROTOCOL, sport PORTS, dport PORTS, flags FLAGS[/FLAGS], dscp NUMBER, dev NUMBER (the
    /// node's LAN port, from 0 on), ingress, egress.
    #[command(after_help = "Examples:\n  cspctl rule add dns prio 10 proto udp dport 53 plugin limit\n  \
                            cspctl rule add syns proto tcp flags syn/syn,ack ingress plugin blocked fallback drop\n  \
                            cspctl rule add dns proto udp dport 53 plugin limit -o json")]
    Add {
        /// The rule
        #[arg(required = true, value_name = "WORD")]
        words: Vec<String>,
    },
    /// Remove rules from the policy
    #[command(after_help = "Examples:\n  cspctl rule del dns")]
    Del {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// List the policy's rules, those first that are tried first
    #[command(after_help = "Examples:\n  cspctl rule list\n  cspctl rule list -o json | jq -r '.[].name'")]
    List,
    /// Show how many packets each rule has decided on, by network node
    ///
    /// Packets that the LAN port has coalesced count once. COVERED names a rule because of which this one is
    /// never matched.
    #[command(after_help = "Examples:\n  cspctl rule stats\n  cspctl rule stats dns\n  \
                            cspctl rule stats -o json | jq '.nodes[].rules[] | select(.packets_total == 0) | .name'")]
    Stats {
        /// Only this rule
        name: Option<String>,
    },
}

pub(super) async fn run(context: &Context, command: RuleCommand) -> Result<(), CliError> {
    match command {
        RuleCommand::Add { words } => {
            // Also as one quoted argument.
            let words: Vec<&str> = words.iter().flat_map(|word| word.split_whitespace()).collect();
            let rule = parse_rule(&words).map_err(|error| CliError::Usage(error.to_string()))?;
            edit(context, |policy| {
                policy.rules.push(PacketRule::from_text(rule));
                Ok(())
            })
            .await
        }
        RuleCommand::Del { names } => {
            edit(context, |policy| {
                for name in &names {
                    let before = policy.rules.len();
                    policy.rules.retain(|rule| rule.name != *name);
                    if policy.rules.len() == before {
                        return Err(CliError::Failed(format!(
                            "there is no rule {name}; `cspctl rule list` lists them; nothing was changed"
                        )));
                    }
                }
                Ok(())
            })
            .await
        }
        RuleCommand::List => list(context).await,
        RuleCommand::Stats { name } => stats(context, name.as_deref()).await,
    }
}

async fn list(context: &Context) -> Result<(), CliError> {
    let (_, policy) = active(context).await?;
    let mut rules = policy.rules.clone();
    rules.sort_by_key(|rule| rule.priority);
    super::edit::warn(&policy.warnings());
    context.show(&rules, |rules| match rules.as_slice() {
        [] => "No rules: packet plug-ins get no packets. `cspctl rule add` adds one.\n".to_owned(),
        rules => rules.iter().map(|rule| rule.text() + "\n").collect(),
    })
}

async fn stats(context: &Context, name: Option<&str>) -> Result<(), CliError> {
    let mut view: PluginsView = context.client.get("/api/v1/plugins", &[]).await?;
    if let Some(name) = name {
        view.nodes.iter_mut().for_each(|node| node.plugins.rules.retain(|rule| *rule.name == *name));
        if view.nodes.iter().all(|node| node.plugins.rules.is_empty()) {
            return Err(CliError::Failed(format!("no network node has a rule {name}")));
        }
    }
    context.show(&view, |view| {
        let mut table =
            Table::new(&["NODE", "PRIO", "RULE", "MATCH", "PLUGIN", "LEVEL", "PACKETS", "BYTES", "COVERED"]);
        for node in &view.nodes {
            node.plugins.rules.iter().for_each(|rule| row(&mut table, &node.node, rule));
        }
        table.render(context.paint) + &missing(context, &view.unreachable)
    })
}

fn row(table: &mut Table, node: &str, rule: &Rule) {
    let covered = rule.covered_by.as_ref().map(ToString::to_string).unwrap_or_default();
    table.row([
        node.into(),
        u64::from(rule.priority).into(),
        rule.name.to_string().into(),
        rule.conditions.to_string().into(),
        rule.plugin.to_string().into(),
        u64::from(rule.level).into(),
        rule.packets_total.into(),
        Cell::from(bytes(rule.bytes_total)).right(),
        Cell::from(covered).coloured(Colour::Yellow),
    ]);
}
