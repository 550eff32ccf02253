//! Connections to the agent's socket whose process has not attached yet: limited for each user and in total.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Largest number of such connections of one user.
pub const OF_USER_MAX: usize = 64;
/// Largest number of such connections in total.
pub const STRANGERS_MAX: usize = 1024;

/// The number of such connections of each user.
#[derive(Clone, Default, Debug)]
pub(super) struct Strangers(Rc<RefCell<HashMap<u32, usize>>>);

/// The share of one such connection, released when dropped.
#[derive(Debug)]
pub(super) struct Place {
    strangers: Strangers,
    uid: u32,
}

impl Strangers {
    /// Returns a share for a connection of this user; `None` if the user's limit or the total limit is reached.
    pub(super) fn enter(&self, uid: u32) -> Option<Place> {
        let mut all = self.0.borrow_mut();
        let own = all.get(&uid).copied().unwrap_or(0);
        if own >= OF_USER_MAX || all.values().sum::<usize>() >= STRANGERS_MAX {
            return None;
        }
        all.insert(uid, own + 1);
        Some(Place { strangers: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.strangers.0.borrow_mut();
        match all.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(all.remove(&self.uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_s_silent_connections_leave_room_for_another_s() {
        let strangers = Strangers::default();
        let mut places: Vec<Place> = (0..OF_USER_MAX).filter_map(|_| strangers.enter(65534)).collect();
        assert_eq!(places.len(), OF_USER_MAX);
        assert!(strangers.enter(65534).is_none() && strangers.enter(1000).is_some());
        places.pop();
        assert!(strangers.enter(65534).is_some());
        drop(places);
        let users = (0..STRANGERS_MAX as u32).map(|n| n / OF_USER_MAX as u32);
        let places: Vec<Place> = users.filter_map(|uid| strangers.enter(uid)).collect();
        assert_eq!(places.len(), STRANGERS_MAX);
        assert!(strangers.enter(65534).is_none(), "all are taken");
        drop(places);
        assert!(strangers.0.borrow().is_empty());
    }
}
