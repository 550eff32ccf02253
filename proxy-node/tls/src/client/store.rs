//! Sessions with servers that can be resumed: rustls' own store needs its feature `std`, which no pure crate
//! has.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Number of servers' names; those that came first make room.
const NAMES_MAX: usize = 256;
/// Tickets of one name; the oldest makes room. Each is used once (RFC 8446 §C.4).
const TICKETS_MAX: usize = 8;

/// What is known of the servers of one name.
#[derive(Debug, Default)]
struct Known {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

#[derive(Debug, Default)]
struct Names {
    known: HashMap<ServerName<'static>, Known>,
    /// In the order in which they came.
    order: VecDeque<ServerName<'static>>,
}

/// A store that workers share.
#[derive(Debug, Default)]
pub(super) struct Store(Mutex<Names>);

impl Store {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, name: ServerName<'static>, change: impl FnOnce(&mut Known)) {
        let mut names = self.names();
        if !names.known.contains_key(&name) {
            if names.order.len() >= NAMES_MAX
                && let Some(oldest) = names.order.pop_front()
            {
                names.known.remove(&oldest);
            }
            names.order.push_back(name.clone());
        }
        change(names.known.entry(name).or_default());
    }
}

impl ClientSessionStore for Store {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.change(name, |known| known.group = Some(group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.names().known.get(&name.to_owned())?.group
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.change(name, |known| known.tls12 = Some(value));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.names().known.get(&name.to_owned())?.tls12.clone()
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        if let Some(known) = self.names().known.get_mut(name) {
            known.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.change(name, |known| {
            if known.tickets.len() >= TICKETS_MAX {
                known.tickets.pop_front();
            }
            known.tickets.push_back(value);
        });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.names().known.get_mut(name)?.tickets.pop_back()
    }
}
