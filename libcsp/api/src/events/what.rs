//! The kinds of events: what each is about, what it says, and how much it matters.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Severity;
use crate::Text;

/// What happened: the kinds of events.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", content = "fields", rename_all = "snake_case")]
pub enum What {
    /// A node registered, for the first time or again. By the leading management node.
    NodeJoined {
        /// Its id.
        node: Text,
        /// Its role.
        role: Text,
        /// Version of its software.
        version: Text,
        /// Another number at each start of the daemon, below 2^53.
        incarnation: u64,
    },
    /// A node left on purpose. By the leading management node.
    NodeLeft {
        /// Its id.
        node: Text,
        /// Its role.
        role: Text,
    },
    /// A node's registration lapsed: it is dead, cut off from etcd, or far behind. By the leading management
    /// node.
    NodeLate {
        /// Its id.
        node: Text,
        /// Its role.
        role: Text,
    },
    /// A node gets no new connections from now on. By the leading management node.
    NodeDrains {
        /// Its id.
        node: Text,
    },
    /// A node gets new connections again. By the leading management node.
    NodeResumes {
        /// Its id.
        node: Text,
    },
    /// A management node leads.
    LeaderElected {
        /// Its id.
        node: Text,
    },
    /// A condition of the node's `/readyz` changed.
    ConditionChanged {
        /// Id of the node.
        node: Text,
        /// Name of the condition, such as `tunnels` or `certificate`.
        condition: Text,
        /// Its state now.
        state: crate::ConditionState,
        /// Why it is not well; empty if it is.
        reason: Text,
    },
    /// The node answers for a VIP group from now on.
    VipGroupTaken {
        /// Name of the group.
        group: Text,
    },
    /// The node answers for a VIP group no longer.
    VipGroupGiven {
        /// Name of the group.
        group: Text,
    },
    /// A policy was written, and nodes are asked whether they can use it.
    PolicyPublished {
        /// Its generation.
        generation: u64,
        /// SHA-256 of the document.
        hash: Text,
    },
    /// A policy is in force in the cluster.
    PolicyActive {
        /// Its generation.
        generation: u64,
        /// What was not as it should be; empty if nothing.
        reason: Text,
    },
    /// A policy was refused by a node, or not answered for in time.
    PolicyRefused {
        /// Its generation.
        generation: u64,
        /// By whom, and why.
        reason: Text,
    },
    /// A node has checked a policy and can use it.
    PolicyStagedHere {
        /// Its generation.
        generation: u64,
    },
    /// A node uses a policy.
    PolicyActiveHere {
        /// Its generation.
        generation: u64,
    },
    /// A node could not put a policy into force.
    PolicyFailedHere {
        /// Its generation.
        generation: u64,
        /// Why.
        reason: Text,
    },
    /// A server of a service gets no connections: it cannot be reached, or checks of it fail.
    ServerDown {
        /// The service.
        service: Text,
        /// ADDRESS:PORT of the server.
        server: Text,
        /// Why.
        reason: Text,
    },
    /// A server gets connections again.
    ServerUp {
        /// The service.
        service: Text,
        /// ADDRESS:PORT of the server.
        server: Text,
    },
    /// A bound of the node was reached, once or more often within an interval (docs/limits.md).
    LimitReached {
        /// Which one: a reason of `csp_drops_total`.
        reason: Text,
        /// What was dropped or refused within the interval.
        count: u64,
        /// Length of the interval in seconds.
        interval_s: u64,
    },
    /// A supplied handler was stopped.
    HandlerStopped {
        /// The channel whose path it is in.
        channel: Text,
        /// Its name.
        handler: Text,
        /// SHA-256 of its module.
        module: Text,
        /// Which client brought it; empty if the policy names it.
        by: Text,
        /// Its state now.
        state: Text,
        /// How often it was stopped, for which reasons.
        reasons: Text,
    },
    /// A supplied packet plug-in was stopped.
    PluginStopped {
        /// Its instance.
        instance: Text,
        /// SHA-256 of its module.
        module: Text,
        /// Its state now.
        state: Text,
        /// How often it was stopped, for which reasons.
        reasons: Text,
    },
    /// A handler runs in another context, or could not be moved there.
    HandlerMoved {
        /// The channel whose path it is in.
        channel: Text,
        /// Its name.
        handler: Text,
        /// The context that it was in.
        from: Text,
        /// The context that it was to run in.
        to: Text,
        /// Why it was moved.
        why: Text,
        /// Why it could not be; empty if it was.
        error: Text,
    },
    /// A context does not run a handler: its messages wait.
    HandlerRefused {
        /// The channel whose path it is in.
        channel: Text,
        /// Its name.
        handler: Text,
        /// The context.
        context: Text,
        /// Why.
        reason: Text,
    },
    /// A handler has refused the state of the one that it replaces, and has begun with none.
    HandlerStateRefused {
        /// The channel whose path it is in.
        channel: Text,
        /// Its name.
        handler: Text,
    },
    /// A channel has another owner.
    ChannelMoved {
        /// Its name.
        channel: Text,
        /// The worker that had it.
        from: Text,
        /// The worker that has it.
        to: Text,
        /// Connections that were ended for it.
        connections: u64,
        /// Messages that were lost.
        lost: u64,
    },
    /// A trigger of information flows fired, or was released.
    TriggerFired {
        /// The trigger.
        trigger: Text,
        /// Whether it fired.
        fired: bool,
    },
    /// Somebody opened a session of the operations page.
    LoggedIn {
        /// Whose certificate.
        who: Text,
        /// Access level of the session.
        access: Text,
    },
    /// Somebody asked for a change, which was made or refused.
    ChangeRequested {
        /// Who: the identity of the certificate, or `local`.
        who: Text,
        /// How the caller is known: `session`, `certificate` or `local`.
        by: Text,
        /// Method of the request.
        method: Text,
        /// Path of the request.
        path: Text,
        /// Status of the answer.
        status: u16,
        /// `accepted`, or why it was refused.
        result: Text,
    },
    /// A node's certificate ends soon, or has ended: once for each of 30, 7 and 1 days that are left.
    CertificateExpires {
        /// Id of the node.
        node: Text,
        /// Whom the certificate names: `csp://CLUSTER/ROLE/ID`.
        subject: Text,
        /// Whole days that are left; 0 when it has ended, too.
        days_left: u64,
        /// When it ends, in UTC (RFC 3339).
        ends: Text,
    },
    /// A certificate of services was obtained from an authority, for the first time or again. By the leading
    /// management node.
    CertificateIssued {
        /// Its name in the policy.
        certificate: Text,
        /// Who issued it.
        issuer: Text,
        /// When it ends, in UTC (RFC 3339).
        ends: Text,
    },
    /// A certificate of services could not be obtained. By the leading management node.
    CertificateFailed {
        /// Its name in the policy.
        certificate: Text,
        /// Why.
        reason: Text,
        /// How often, one after another.
        failures: u64,
        /// Whole days until the one that is there ends; 0 if there is none.
        days_left: u64,
    },
    /// Events of another node were lost before a management node received them.
    EventsLost {
        /// That node.
        node: Text,
        /// How many.
        count: u64,
    },
}

impl What {
    /// Returns the kind's name and the fields.
    pub(super) fn parts(&self) -> (Text, Map<String, Value>) {
        let mut tagged = match serde_json::to_value(self) {
            Ok(Value::Object(tagged)) => tagged,
            _ => Map::new(),
        };
        let kind = tagged.get("kind").and_then(Value::as_str).unwrap_or_default().into();
        let fields = match tagged.remove("fields") {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        (kind, fields)
    }

    /// Returns how much it matters.
    pub fn severity(&self) -> Severity {
        use crate::ConditionState::{Degraded, Failed, Ok};
        match self {
            What::ConditionChanged { state: Ok, .. } => Severity::Info,
            What::ConditionChanged { state: Degraded, .. } => Severity::Warning,
            What::ConditionChanged { state: Failed, .. } => Severity::Error,
            What::ChangeRequested { status, .. } if *status >= 400 => Severity::Warning,
            What::PolicyActive { reason, .. } if !reason.is_empty() => Severity::Warning,
            What::HandlerMoved { error, .. } if !error.is_empty() => Severity::Warning,
            What::ChannelMoved { lost: 1.., .. } => Severity::Warning,
            What::CertificateExpires { days_left: 0 | 1, .. } => Severity::Error,
            What::CertificateExpires { days_left: 8.., .. } => Severity::Info,
            What::NodeJoined { .. }
            | What::NodeLeft { .. }
            | What::NodeDrains { .. }
            | What::NodeResumes { .. }
            | What::LeaderElected { .. }
            | What::VipGroupTaken { .. }
            | What::VipGroupGiven { .. }
            | What::PolicyPublished { .. }
            | What::PolicyActive { .. }
            | What::PolicyStagedHere { .. }
            | What::PolicyActiveHere { .. }
            | What::ServerUp { .. }
            | What::HandlerMoved { .. }
            | What::ChannelMoved { .. }
            | What::TriggerFired { .. }
            | What::LoggedIn { .. }
            | What::CertificateIssued { .. }
            | What::ChangeRequested { .. } => Severity::Info,
            What::CertificateFailed { days_left: 0..=7, .. } => Severity::Error,
            What::HandlerStateRefused { .. }
            | What::ServerDown { .. }
            | What::LimitReached { .. }
            | What::CertificateExpires { .. }
            | What::CertificateFailed { .. }
            | What::HandlerStopped { .. } => Severity::Warning,
            What::PluginStopped { .. } => Severity::Warning,
            What::NodeLate { .. }
            | What::PolicyRefused { .. }
            | What::PolicyFailedHere { .. }
            | What::HandlerRefused { .. }
            | What::EventsLost { .. } => Severity::Error,
        }
    }

    /// Returns what it is about.
    pub fn object(&self) -> Text {
        let object = match self {
            What::NodeJoined { node, .. }
            | What::NodeLeft { node, .. }
            | What::NodeLate { node, .. }
            | What::NodeDrains { node }
            | What::NodeResumes { node }
            | What::LeaderElected { node }
            | What::EventsLost { node, .. } => format!("node/{node}"),
            What::ConditionChanged { node, condition, .. } => format!("node/{node}/{condition}"),
            What::CertificateExpires { node, .. } => format!("node/{node}/certificate"),
            What::VipGroupTaken { group } | What::VipGroupGiven { group } => format!("vip-group/{group}"),
            What::CertificateIssued { certificate, .. } | What::CertificateFailed { certificate, .. } => {
                format!("certificate/{certificate}")
            }
            What::PolicyPublished { generation, .. }
            | What::PolicyActive { generation, .. }
            | What::PolicyRefused { generation, .. }
            | What::PolicyStagedHere { generation }
            | What::PolicyActiveHere { generation }
            | What::PolicyFailedHere { generation, .. } => format!("policy/{generation}"),
            What::ServerDown { service, server, .. } | What::ServerUp { service, server } => {
                format!("server/{service}/{server}")
            }
            What::LimitReached { reason, .. } => format!("limit/{reason}"),
            What::HandlerStopped { channel, handler, .. }
            | What::HandlerMoved { channel, handler, .. }
            | What::HandlerStateRefused { channel, handler }
            | What::HandlerRefused { channel, handler, .. } => format!("handler/{channel}/{handler}"),
            What::ChannelMoved { channel, .. } => format!("channel/{channel}"),
            What::PluginStopped { instance, .. } => format!("plugin/{instance}"),
            What::TriggerFired { trigger, .. } => format!("trigger/{trigger}"),
            What::LoggedIn { who, .. } => format!("user/{who}"),
            What::ChangeRequested { path, .. } => format!("api{path}"),
        };
        object.into()
    }

    /// Returns a sentence for people about handlers, plug-ins and channels; empty for others.
    fn text_of_messages(&self) -> Text {
        let text = match self {
            What::HandlerStopped { channel, handler, state, reasons, .. } => {
                format!("handler {handler} of {channel} was stopped, now {state}: {reasons}")
            }
            What::PluginStopped { instance, state, reasons, .. } => {
                format!("plug-in {instance} was stopped, now {state}: {reasons}")
            }
            What::HandlerMoved { channel, handler, from, to, why, error } if error.is_empty() => {
                format!("handler {handler} of {channel} moved from {from} to {to}: {why}")
            }
            What::HandlerMoved { channel, handler, to, error, .. } => {
                format!("handler {handler} of {channel} cannot be moved to {to}: {error}")
            }
            What::HandlerRefused { channel, handler, context, reason } => {
                format!(
                    "{context} does not run handler {handler} of {channel}, whose messages wait: {reason}"
                )
            }
            What::HandlerStateRefused { channel, handler } => format!(
                "handler {handler} of {channel} has refused the state of the one that it replaces, and begins with none"
            ),
            What::ChannelMoved { channel, from, to, connections, lost } => format!(
                "channel {channel} moved from {from} to {to}: {connections} connections ended, {lost} messages lost"
            ),
            _ => String::new(),
        };
        text.into()
    }

    /// Returns a sentence for people.
    pub fn text(&self) -> Text {
        let text = match self {
            What::NodeJoined { node, role, version, .. } => {
                format!("{role} {node} joined, version {version}")
            }
            What::NodeLeft { node, role } => format!("{role} {node} left"),
            What::NodeLate { node, role } => format!("{role} {node} does not renew its registration"),
            What::NodeDrains { node } => format!("{node} drains: it gets no new connections"),
            What::NodeResumes { node } => format!("{node} gets new connections again"),
            What::LeaderElected { node } => format!("{node} leads the management nodes"),
            What::ConditionChanged { condition, state: crate::ConditionState::Ok, .. } => {
                format!("{condition} is well")
            }
            What::ConditionChanged { condition, reason, .. } => format!("{condition}: {reason}"),
            What::VipGroupTaken { group } => format!("answers for VIP group {group}"),
            What::VipGroupGiven { group } => format!("answers for VIP group {group} no longer"),
            What::PolicyPublished { generation, .. } => format!("generation {generation} was published"),
            What::PolicyActive { generation, reason } if reason.is_empty() => {
                format!("generation {generation} is in force")
            }
            What::PolicyActive { generation, reason } => {
                format!("generation {generation} is in force, but: {reason}")
            }
            What::PolicyRefused { generation, reason } => {
                format!("generation {generation} is not used: {reason}")
            }
            What::PolicyStagedHere { generation } => format!("can use generation {generation}"),
            What::PolicyActiveHere { generation } => format!("uses generation {generation}"),
            What::PolicyFailedHere { generation, reason } => {
                format!("cannot use generation {generation}: {reason}")
            }
            What::ServerDown { service, server, reason } => {
                format!("server {server} of service {service} is down: {reason}")
            }
            What::ServerUp { service, server } => format!("server {server} of service {service} is up"),
            What::LimitReached { reason, count, interval_s } => {
                format!("a limit was reached, {reason}: {count} within {interval_s} s")
            }
            What::HandlerStopped { .. }
            | What::PluginStopped { .. }
            | What::HandlerMoved { .. }
            | What::HandlerRefused { .. }
            | What::HandlerStateRefused { .. }
            | What::ChannelMoved { .. } => return self.text_of_messages(),
            What::TriggerFired { trigger, fired: true } => format!("trigger {trigger} fired"),
            What::TriggerFired { trigger, fired: false } => format!("trigger {trigger} was released"),
            What::LoggedIn { who, access } => format!("{who} opened a session as {access}"),
            What::ChangeRequested { who, method, path, result, .. } => {
                format!("{who} asked for {method} {path}: {result}")
            }
            What::CertificateExpires { subject, days_left: 0, ends, .. } => {
                format!("the certificate of {subject} ends within a day, or has ended: {ends}")
            }
            What::CertificateExpires { subject, days_left, ends, .. } => {
                format!("the certificate of {subject} ends in {days_left} days: {ends}")
            }
            What::CertificateIssued { certificate, issuer, ends } => {
                format!("certificate {certificate} was issued by {issuer}, and ends {ends}")
            }
            What::CertificateFailed { certificate, reason, .. } => {
                format!("certificate {certificate} was not obtained: {reason}")
            }
            What::EventsLost { node, count } => {
                format!("{count} events of {node} were lost before they arrived")
            }
        };
        text.into()
    }
}
