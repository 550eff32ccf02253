//! Announces nodes that join, leave, are late, drain and resume: the leading management node compares the
//! membership with what was announced, by itself or by leaders before it, so that none of it is lost with a
//! leader and little is said twice.

use std::sync::Arc;
use std::time::Duration;

use csp_api::Text;
use csp_api::events::What;
use csp_control::{Member, MemberState, Membership};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Hub;
use super::hub::Announced;
use crate::leader::Leadership;

/// A new leader announces only after this time, so that the others' events have arrived.
const SETTLES: Duration = Duration::from_secs(1);
/// Longest time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

/// Announces while this node leads. Does not end.
pub async fn announce(
    hub: Arc<Hub>,
    mut membership: watch::Receiver<Membership>,
    mut leadership: watch::Receiver<Leadership>,
) {
    let mut leads_since = None;
    loop {
        let now = leadership.borrow_and_update().clone();
        match (&now, leads_since) {
            (Leadership::Own { view, .. }, None) => {
                hub.record(&What::LeaderElected { node: (&view.id).into() });
                leads_since = Some(Instant::now());
            }
            (Leadership::Own { .. }, Some(_)) => {}
            _ => leads_since = None,
        }
        let mut wait = INTERVAL;
        if let Some(since) = leads_since {
            match SETTLES.checked_sub(since.elapsed()) {
                Some(left) if !left.is_zero() => wait = left,
                _ => {
                    let membership = membership.borrow_and_update().clone();
                    compare(&hub, &membership);
                }
            }
        }
        tokio::select! {
            changed = membership.changed() => if changed.is_err() { return },
            changed = leadership.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn compare(hub: &Hub, membership: &Membership) {
    if !membership.synced {
        return;
    }
    hub.take_own();
    let mut announced = hub.announced();
    for (id, member) in &membership.nodes {
        let id = Text::from(id.to_string());
        for what in of_member(&id, member, announced.remove(&id)) {
            hub.record(&what);
        }
    }
    for (node, known) in announced {
        match known.late {
            // It is forgotten, and nobody has seen it leave.
            true => hub.forget(&node),
            false => hub.record(&What::NodeLeft { node, role: known.role }),
        }
    }
}

fn of_member(id: &Text, member: &Member, known: Option<Announced>) -> Vec<What> {
    let (record, node, is_new) = (&member.record, id.clone(), known.is_none());
    let known = known.unwrap_or_default();
    let role = Text::from(record.role.as_str());
    let mut news = Vec::new();
    match member.state {
        MemberState::Live if is_new || known.late || known.incarnation != record.incarnation => {
            let (version, incarnation) = ((&record.version).into(), record.incarnation);
            news.push(What::NodeJoined { node: node.clone(), role, version, incarnation });
        }
        MemberState::LeaseExpired if !known.late => {
            if is_new {
                let (version, incarnation) = ((&record.version).into(), record.incarnation);
                news.push(What::NodeJoined { node: node.clone(), role: role.clone(), version, incarnation });
            }
            news.push(What::NodeLate { node: node.clone(), role });
        }
        _ => {}
    }
    match (known.draining, record.draining) {
        (false, true) => news.push(What::NodeDrains { node }),
        (true, false) => news.push(What::NodeResumes { node }),
        _ => {}
    }
    news
}

#[cfg(test)]
mod tests {
    use csp_control::NodeRecord;
    use csp_daemon::Events;
    use csp_events::{Cursor, Filter};
    use csp_types::Role;

    use super::*;
    use crate::events::hub::Pusher;

    fn record(id: &str, incarnation: u64) -> NodeRecord {
        let record = NodeRecord::new(id.parse().unwrap(), Role::ProxyNode, String::new());
        NodeRecord { incarnation, ..record }
    }

    fn membership(members: &[(NodeRecord, MemberState)]) -> Membership {
        let member = |(record, state): &(NodeRecord, MemberState)| {
            (record.id, Member { record: record.clone(), state: *state })
        };
        Membership { revision: 1, synced: true, nodes: members.iter().map(member).collect() }
    }

    /// Takes over what `hub` has recorded.
    fn settle(hub: &Hub) -> Vec<String> {
        hub.take_own();
        let page = futures_util::FutureExt::now_or_never(hub.after(
            &Cursor::default(),
            &Filter::default(),
            1000,
            Duration::ZERO,
        ));
        page.map(|page| page.events.iter().map(|e| format!("{} {}", e.kind, e.object)).collect())
            .unwrap_or_default()
    }

    #[tokio::test]
    async fn what_a_leader_announced_its_successor_does_not_repeat() {
        let (first, second) = (Events::of(&record("mgmt-1", 1)), Events::of(&record("mgmt-2", 2)));
        let (one, other) = (Hub::new(first.clone()), Hub::new(second.clone()));
        let live = membership(&[(record("pn-1", 7), MemberState::Live)]);
        compare(&one, &live);
        assert_eq!(settle(&one), ["node_joined node/pn-1"]);
        compare(&one, &live);
        assert_eq!(settle(&one), ["node_joined node/pn-1"]);
        // The other one hears of it, and the first one ends before it has seen the node late.
        other.admit(first.after(0), Pusher::Management);
        let mut drains = record("pn-1", 7);
        drains.draining = true;
        let late = membership(&[(drains.clone(), MemberState::LeaseExpired)]);
        compare(&other, &late);
        let expected = ["node_joined node/pn-1", "node_late node/pn-1", "node_drains node/pn-1"];
        assert_eq!(settle(&other), expected);
        // It comes back as another incarnation, and leaves.
        let back = NodeRecord { incarnation: 8, draining: false, ..drains };
        compare(&other, &membership(&[(back, MemberState::Live)]));
        settle(&other);
        compare(&other, &membership(&[]));
        settle(&other);
        compare(&other, &membership(&[]));
        let all = settle(&other);
        assert_eq!(all[3..], ["node_joined node/pn-1", "node_resumes node/pn-1", "node_left node/pn-1"]);
        // Without etcd nothing is concluded.
        compare(&one, &Membership::default());
        assert_eq!(settle(&one).len(), 1);
    }
}
