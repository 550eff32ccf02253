//! The last-known members on disk, by which a daemon that starts while etcd is unreachable finds its peers.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use super::{Member, Membership, NODES_MAX};
use crate::state_files::StateFiles;

/// Name of the file in a node's state directory.
const FILE: &str = "members.json";
/// Shortest interval between two writes, so that members that start together cause one.
const INTERVAL: Duration = Duration::from_secs(1);
/// Largest size of the file: 4,096 members of at most 16 KiB.
const FILE_LEN_MAX: u64 = 64 << 20;

/// Writes the members to the state directory whenever they change. Returns when all senders are dropped.
pub(crate) async fn keep(mut members: watch::Receiver<Membership>, files: StateFiles) {
    let mut kept = Vec::new();
    while members.changed().await.is_ok() {
        let now = members.borrow_and_update().clone();
        let nodes: Vec<Member> = now.nodes.into_values().collect();
        if !now.synced || nodes == kept {
            continue;
        }
        kept.clone_from(&nodes);
        files.submit(FILE, move || serde_json::to_string(&nodes)).await;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Puts the members on disk into the channel, unless it has members from etcd.
pub(crate) fn recall(sender: &watch::Sender<Membership>, directory: &Path) {
    let Some(nodes) = load(&directory.join(FILE)) else { return };
    let count = nodes.len();
    let used = sender.send_if_modified(|members| {
        let unknown = members.revision == 0;
        if unknown {
            members.nodes = nodes.into_iter().map(|member| (member.record.id, member)).collect();
        }
        unknown
    });
    if used {
        tracing::warn!(members = count, "etcd is away: using the members last known");
    }
}

/// Reads the file. Returns `None` if it is missing, or truncated, which is logged.
fn load(path: &Path) -> Option<Vec<Member>> {
    let problem = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Ok(file) if file.len() > FILE_LEN_MAX => format!("it has {} bytes", file.len()),
        _ => match fs::read(path).map(|text| serde_json::from_slice::<Vec<Member>>(&text)) {
            Ok(Ok(nodes)) if nodes.len() <= NODES_MAX => return Some(nodes),
            Ok(Ok(nodes)) => format!("it has {} members", nodes.len()),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        },
    };
    tracing::error!(file = %path.display(), problem, "not using the last-known members");
    None
}

#[cfg(test)]
mod tests {
    use csp_types::Role;

    use super::*;
    use crate::membership::MemberState;
    use crate::registry::NodeRecord;

    #[test]
    fn members_come_back_unless_etcd_has_answered_or_the_file_is_torn() {
        let directory = std::env::temp_dir().join(format!("csp-members-{}", std::process::id()));
        let record =
            NodeRecord::new("pn-1".parse().unwrap(), Role::ProxyNode, "http://127.0.0.1:1".to_owned());
        let member = Member { record, state: MemberState::Live };
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(FILE), serde_json::to_vec(&[&member]).unwrap()).unwrap();

        let (sender, receiver) = watch::channel(Membership::default());
        recall(&sender, &directory);
        assert_eq!(receiver.borrow().nodes.values().collect::<Vec<_>>(), [&member]);
        assert!(!receiver.borrow().synced);

        let (sender, receiver) = watch::channel(Membership { revision: 5, ..Membership::default() });
        recall(&sender, &directory);
        assert!(receiver.borrow().nodes.is_empty(), "etcd has answered that there are none");

        let good = fs::read(directory.join(FILE)).unwrap();
        for cut in 0..good.len() {
            fs::write(directory.join(FILE), &good[..cut]).unwrap();
            assert!(load(&directory.join(FILE)).is_none(), "used a file cut at byte {cut}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
