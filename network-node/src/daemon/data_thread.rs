//! A network worker in its data thread: requests of the control thread, and the snapshots that the worker
//! publishes.

use std::ops::ControlFlow;
use std::sync::Arc;

use csp_classify::multifield::InstanceId;
use csp_daemon::{DataWorker, clock};
use csp_election::{Change, LostBy};
use csp_plugins::{Answer, CallError, EnvironmentId, Settings};
use csp_telemetry::Reply;
use csp_types::{FlowLabel, Instant, TraceEvent};
use csp_vi::{Armed, ViError, Wake};

use crate::core::{FlowInfo, PluginChange, PluginCounts, Pools, RuleSet, ServerView};
use crate::links::{HostInstances, HostSpec, LinkNotice, ProxySpec, TunnelInfo};
use crate::worker::{Condition, ElectionInfo, NetworkWorker, OwnGroup};

use super::metrics::Published;

/// Number of turns after closing, so that CLOSE is sent before the process ends.
const LAST_TURNS: usize = 3;

/// A message or request of the control thread to a worker.
pub enum Question {
    /// Puts the rules of a policy generation into force. Answered with the former ones, to be freed.
    Rules(Box<RuleSet>, Reply<Box<RuleSet>>),
    /// Sets which servers are up that packets are forwarded to.
    Pools(Arc<Pools>),
    /// Returns these servers.
    ForwardServers(Reply<Vec<ServerView>>),
    /// Replaces the groups of addresses that this node may hold; for worker 0, once all have the rules.
    Groups(Vec<OwnGroup>),
    /// How the node is; for worker 0.
    Condition(Condition),
    /// Returns what this node holds; for worker 0.
    Election(Reply<ElectionInfo>),
    /// Replaces the proxies by those of the membership.
    Proxies(Vec<ProxySpec>),
    /// Returns at most this many flows, each with its proxy's node.
    Flows(usize, Reply<Vec<(FlowInfo, String)>>),
    /// Returns the tunnels that should exist.
    Tunnels(Reply<Vec<TunnelInfo>>),
    /// Returns the recorded events of one flow, or of all.
    Trace(Option<FlowLabel>, Reply<Vec<TraceEvent>>),
    /// Applies a change of packet plug-ins, and sets the instances of plug-in hosts. The change is returned
    /// with the parts to be freed.
    Plugins(Box<PluginChange>, Vec<HostInstances>, Reply<Box<PluginChange>>),
    /// Replaces the plug-in hosts.
    Hosts(Vec<HostSpec>),
    /// Executes an operation (as text) of an instance on a plug-in host. Answered when the host has answered.
    HostCall(EnvironmentId, InstanceId, String, Reply<Result<Vec<u8>, String>>),
    /// Executes an operation of a packet plug-in.
    PluginCall(InstanceId, &'static str, Box<Settings>, Reply<Result<Answer, CallError>>),
    /// Fills in the counters of packet plug-ins.
    PluginCounts(Box<PluginCounts>, Reply<Box<PluginCounts>>),
    /// Returns the plug-in hosts that do not run their instances, each with the reason.
    AbsentHosts(Reply<Vec<(EnvironmentId, String)>>),
    /// Closes all links and ends the thread.
    Stop,
}

impl DataWorker for NetworkWorker {
    type Question = Question;
    type Published = Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        NetworkWorker::turn(self, now, unix_s)
    }

    fn answer(&mut self, now: Instant, question: Question) -> ControlFlow<()> {
        match question {
            Question::Rules(mut rules, reply) => {
                self.exchange_rules(now, &mut rules);
                reply.send(rules);
            }
            // The former ones are freed by the control thread, which has them, too.
            Question::Pools(mut pools) => self.set_pools(now, &mut pools),
            Question::ForwardServers(reply) => reply.send(self.core().forward_servers().collect()),
            Question::Groups(groups) => self.set_groups(now, &groups),
            Question::Condition(condition) => self.set_condition(now, &condition),
            Question::Election(reply) => reply.send(self.election()),
            Question::Proxies(proxies) => self.set_proxies(now, &proxies),
            Question::Flows(limit, reply) => {
                let name =
                    |flow: &FlowInfo| self.node_of(flow.proxy).map_or(String::new(), |n| n.to_string());
                reply.send(self.core().flows().take(limit).map(|flow| (flow, name(&flow))).collect());
            }
            Question::Tunnels(reply) => reply.send(self.tunnels().collect()),
            Question::Trace(Some(label), reply) => reply.send(self.core().flow_trace(label)),
            Question::Trace(None, reply) => reply.send(self.core().trace().iter().copied().collect()),
            Question::Plugins(mut change, hosted, reply) => {
                self.change_plugins(&mut change, &hosted);
                reply.send(change);
            }
            Question::Hosts(hosts) => self.set_hosts(now, &hosts),
            Question::HostCall(host, instance, text, reply) => {
                self.call_host(host, instance, text, Box::new(move |answer| reply.send(answer)));
            }
            Question::PluginCall(instance, operation, arguments, reply) => {
                reply.send(self.call_plugin(now, instance, operation, &arguments));
            }
            Question::PluginCounts(mut counts, reply) => {
                self.core().count_plugins(&mut counts);
                reply.send(counts);
            }
            Question::AbsentHosts(reply) => reply.send(self.absent_hosts()),
            Question::Stop => {
                NetworkWorker::turn(self, now, clock::unix_now_s());
                self.close(now);
                for _ in 0..LAST_TURNS {
                    NetworkWorker::turn(self, clock::now(), clock::unix_now_s());
                }
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self) -> Published {
        log_notices(self);
        Published::of(self)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        NetworkWorker::arm(self)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        NetworkWorker::wake(self, into);
    }

    fn wake_generation(&self) -> u64 {
        NetworkWorker::wake_generation(self)
    }

    fn next_timeout(&self) -> Option<Instant> {
        NetworkWorker::next_timeout(self)
    }
}

/// Logs changes of what is held and of tunnels, at most ten times a second, and not while frames wait.
fn log_notices(worker: &mut NetworkWorker) {
    while let Some((group, change)) = worker.poll_change() {
        log_change(&group, change);
    }
    while let Some(notice) = worker.poll_notice() {
        match notice {
            LinkNotice::Up { node, worker, address } => {
                tracing::info!(proxy = %node, worker, address, "tunnel up");
            }
            LinkNotice::Lost { node, worker, reason } => {
                tracing::warn!(proxy = %node, worker, reason, "tunnel lost; its flows go to other proxies");
            }
            LinkNotice::NoSlot { node } => {
                let proxies_max = worker.proxies_max();
                tracing::error!(proxy = %node, proxies_max, "proxy not used: capacity.proxies others are known; raise it");
            }
            LinkNotice::Failed { node, worker, reason } => {
                tracing::warn!(proxy = %node, worker, reason, "no tunnel yet; trying again");
            }
            LinkNotice::HostUp { node, address } => {
                tracing::info!(host = %node, address, "plug-in host connected");
            }
            LinkNotice::HostLost { node, reason } => {
                tracing::warn!(host = %node, reason, "plug-in host lost; its rules fall back");
            }
            LinkNotice::HostRefused { node, reason } => {
                tracing::error!(host = %node, reason, "the plug-in host does not run its plug-ins; their rules fall back");
            }
            LinkNotice::HostFailed { node, reason } => {
                tracing::warn!(host = %node, reason, "no link to the plug-in host yet; trying again");
            }
        }
    }
}

/// Logs a change of what this node holds.
fn log_change(group: &str, change: Change) {
    match change {
        Change::Gained { epoch, .. } => {
            tracing::info!(group, epoch, "VIP group held: this node answers for its addresses from now on");
        }
        Change::Lost { by: LostBy::Time, .. } => {
            tracing::warn!(group, "VIP group lost: too few proxies have renewed their votes in time");
        }
        Change::Lost { by: LostBy::Yielding(Some(to)), .. } => {
            tracing::info!(group, %to, "VIP group given to another network node");
        }
        Change::Lost { by: LostBy::Yielding(None), .. } => {
            tracing::info!(group, "VIP group given up, and no other network node would take it");
        }
        Change::Lost { by: LostBy::Policy, .. } => {
            tracing::info!(group, "VIP group given up: the policy has it no more");
        }
    }
}
