//! Names of plain servers: the host's resolver is asked again and again, and a change has the policy applied
//! anew. What was known stays while a name cannot be looked up.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Time between two look-ups of a name. The resolver keeps answers for their TTL, if it is one that does.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a look-up may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of look-ups at a time.
const AT_ONCE: usize = 16;
/// Largest number of servers of one name: the first ones in ascending order.
const ADDRESSES_MAX: usize = 32;

/// The names of the policy in force, and what they stand for.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Names were added.
    added: Notify,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<String, Known>,
    changed: bool,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<IpAddr>,
    /// Why the last look-up failed.
    fault: Option<String>,
}

impl Names {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the names that are looked up. New ones are at once.
    pub fn set<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut state = self.state();
        let mut former = std::mem::take(&mut state.known);
        state.known = names
            .into_iter()
            .map(|name| former.remove_entry(name).unwrap_or_else(|| (name.to_owned(), Known::default())))
            .collect();
        self.0.added.notify_one();
    }

    /// Returns the addresses of a name, in ascending order; none if they are not known.
    pub fn addresses(&self, name: &str) -> Vec<IpAddr> {
        self.state().known.get(name).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    /// Returns whether any addresses have changed since the last call.
    pub fn take_changed(&self) -> bool {
        std::mem::take(&mut self.state().changed)
    }

    /// Looks names up for as long as it runs.
    pub async fn serve(self) {
        loop {
            self.look_up_all().await;
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.0.added.notified() => {}
            }
        }
    }

    async fn look_up_all(&self) {
        let names: Vec<String> = self.state().known.keys().cloned().collect();
        let mut under_way = JoinSet::new();
        for name in names {
            if under_way.len() >= AT_ONCE {
                under_way.join_next().await;
            }
            let all = self.clone();
            under_way.spawn(async move {
                let result = look_up(&name).await;
                all.looked_up(&name, result);
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    fn looked_up(&self, name: &str, result: Result<Vec<IpAddr>, String>) {
        let mut state = self.state();
        let Some(known) = state.known.get_mut(name) else { return };
        let changed = match result {
            Ok(addresses) => {
                known.fault = None;
                let changed = known.addresses != addresses;
                if changed {
                    tracing::info!(name, ?addresses, "a name of servers stands for other addresses");
                    known.addresses = addresses;
                }
                changed
            }
            Err(fault) => {
                if known.fault.is_none() {
                    let kept = &known.addresses;
                    tracing::warn!(name, fault, ?kept, "a name of servers cannot be looked up");
                }
                known.fault = Some(fault);
                false
            }
        };
        state.changed |= changed;
    }
}

async fn look_up(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((name, 0))).await;
    let found = found.map_err(|_| format!("no answer within {} s", TIMEOUT.as_secs()))?;
    let mut addresses: Vec<IpAddr> =
        found.map_err(|error| error.to_string())?.map(|address| address.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_looked_up_and_what_was_known_stays() {
        let names = Names::default();
        names.set(["localhost", "a.invalid"]);
        names.look_up_all().await;
        assert!(names.take_changed() && !names.take_changed());
        assert!(names.addresses("localhost").contains(&IpAddr::from([127, 0, 0, 1])));
        assert!(names.addresses("a.invalid").is_empty() && names.addresses("b").is_empty());
        names.look_up_all().await;
        assert!(!names.take_changed(), "the same addresses");
        let before = names.addresses("localhost");
        names.looked_up("localhost", Err("no answer".to_owned()));
        assert_eq!((names.addresses("localhost"), names.take_changed()), (before.clone(), false));
        names.set(["localhost"]);
        assert_eq!(names.addresses("localhost"), before, "it is in the new policy, too");
        names.looked_up("localhost", Ok(vec![[10, 1, 2, 3].into()]));
        assert!(names.take_changed());
        names.set([]);
        names.looked_up("localhost", Ok(before));
        assert!(names.addresses("localhost").is_empty() && !names.take_changed(), "nobody asks any more");
    }

    #[tokio::test]
    async fn a_new_name_is_looked_up_at_once() {
        let names = Names::default();
        let task = tokio::spawn(names.clone().serve());
        tokio::task::yield_now().await;
        names.set(["localhost"]);
        let known = async {
            while names.addresses("localhost").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(INTERVAL / 2, known).await.unwrap();
        task.abort();
    }
}
