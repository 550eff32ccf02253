//! Sessions with servers that can be resumed: rustls' own store needs its feature `std`, which no pure crate
//! has.
//!
//! A session that is resumed is not verified by rustls again. Of what a verification depends on only the time
//! changes, since other authorities get another store. So nothing is resumed any more when the first
//! certificate of a chain has expired by which a server of that name was verified.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, Error, NamedGroup};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Number of servers' names; those that came first make room.
const NAMES_MAX: usize = 256;
/// Tickets of one name; the oldest makes room. Each is used once (RFC 8446 §C.4).
const TICKETS_MAX: usize = 8;

/// What is known of the servers of one name.
#[derive(Debug, Default)]
struct Known {
    /// Until when sessions are resumed, in seconds since 1970; `None` before the first handshake.
    until: Option<u64>,
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
pub(crate) struct Store {
    names: Mutex<Names>,
    time: Arc<dyn TimeProvider>,
    /// Whether certificates are verified, so that they can be too old.
    verifies: bool,
}

impl Store {
    pub(super) fn new(time: Arc<dyn TimeProvider>, verifies: bool) -> Self {
        Store { names: Mutex::default(), time, verifies }
    }

    /// Returns an empty one.
    pub(super) fn empty(&self) -> Self {
        Store::new(Arc::clone(&self.time), self.verifies)
    }

    /// Records that a handshake with a server of this name is complete, whose chain was verified, or was when
    /// the session began that this one `resumed`.
    ///
    /// # Errors
    /// If a certificate of the resumed session's has expired since. Nothing is resumed after that.
    pub(crate) fn established(
        &self,
        name: ServerName<'static>,
        chain: &[CertificateDer<'_>],
        resumed: bool,
    ) -> Result<(), Error> {
        let until = if self.verifies { until(chain) } else { u64::MAX };
        if until > self.now() {
            self.change(name, |known| known.until = Some(known.until.map_or(until, |at| at.min(until))));
            return Ok(());
        }
        self.change(name, |known| *known = Known::default());
        match resumed {
            true => Err(Error::InvalidCertificate(CertificateError::Expired)),
            false => Ok(()), // it was verified, and is just too old for another time
        }
    }

    /// Returns what is known of a name whose sessions may be resumed now.
    fn resumable<T>(&self, name: &ServerName<'_>, take: impl FnOnce(&mut Known) -> Option<T>) -> Option<T> {
        let now = self.now();
        let mut names = self.names();
        let known = names.known.get_mut(&name.to_owned())?;
        if known.until.is_some_and(|until| until <= now) {
            *known = Known::default();
        }
        known.until?;
        take(known)
    }

    /// A clock that fails resumes nothing.
    fn now(&self) -> u64 {
        self.time.current_time().map_or(u64::MAX, |time| time.as_secs())
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
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

impl fmt::Debug for Store {
    /// Without sessions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("verifies", &self.verifies).finish_non_exhaustive()
    }
}

/// Returns until when all of these certificates are valid, in seconds since 1970. One that cannot be read is
/// never valid.
fn until(chain: &[CertificateDer<'_>]) -> u64 {
    let of = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(parsed.validity().not_after.timestamp()).ok()
    };
    chain.iter().map(|certificate| of(certificate).unwrap_or(0)).min().unwrap_or(0)
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
        self.resumable(name, |known| known.tls12.clone())
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
        self.resumable(name, |known| known.tickets.pop_back())
    }
}
