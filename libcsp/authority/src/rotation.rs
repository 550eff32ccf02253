//! Replacing the authority while all hosts go on.
//!
//! ```text
//!            start                  switch                       finish
//! 1 issuing ------> 1 issuing  ----------> 1 previous --------------------> 1 retired
//!                   2 next                 2 issuing                        2 issuing
//!          distribute ca.pem      issue and distribute certificates   distribute ca.pem
//! ```
//!
//! Each step can be repeated: one that is done already changes nothing. Between the steps the operator copies
//! identity folders to all hosts; programs notice the new files by themselves.

use std::time::Duration;

use crate::authority::Authority;
use crate::request::check_lifetime;
use crate::{AuthorityState, PkiError, Registry, Timestamp};

/// Progress of a rotation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No rotation is in progress: one authority is trusted.
    Settled {
        /// Number of the issuing authority.
        issuing: u32,
    },
    /// Two authorities are trusted, the old one issues.
    Started {
        /// Number of the old one.
        issuing: u32,
        /// Number of the new one.
        next: u32,
    },
    /// Two authorities are trusted, the new one issues.
    Switched {
        /// Number of the new one.
        issuing: u32,
        /// Number of the old one.
        previous: u32,
    },
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotated {
    /// Whether the step changed anything; false if it was done before.
    pub changed: bool,
    /// Progress after the step.
    pub phase: Phase,
}

impl Phase {
    /// Returns the progress of the rotation.
    pub fn of(registry: &Registry) -> Self {
        let number = |state| registry.in_state(state);
        // A registry has exactly one issuing authority.
        let issuing = number(AuthorityState::Issuing).unwrap_or_default();
        match (number(AuthorityState::Next), number(AuthorityState::Previous)) {
            (Some(next), _) => Phase::Started { issuing, next },
            (None, Some(previous)) => Phase::Switched { issuing, previous },
            (None, None) => Phase::Settled { issuing },
        }
    }
}

impl Authority {
    /// Creates a new authority, valid for `lifetime`, that is trusted beside the issuing one.
    pub fn rotate_start(&mut self, lifetime: Duration, now: Timestamp) -> Result<Rotated, PkiError> {
        check_lifetime(lifetime)?;
        let changed = matches!(Phase::of(&self.registry), Phase::Settled { .. });
        if changed {
            self.add_signer(AuthorityState::Next, lifetime, now)?;
            self.settle(now)?;
        }
        Ok(self.rotated(changed))
    }

    /// Makes the new authority the issuing one.
    pub fn rotate_switch(&mut self, now: Timestamp) -> Result<Rotated, PkiError> {
        match Phase::of(&self.registry) {
            Phase::Settled { .. } => Err(PkiError::NotStarted),
            Phase::Switched { .. } => Ok(self.rotated(false)),
            Phase::Started { issuing, next } => {
                self.set_state(issuing, AuthorityState::Previous);
                self.set_state(next, AuthorityState::Issuing);
                self.write_registry()?;
                self.settle(now)?;
                Ok(self.rotated(true))
            }
        }
    }

    /// Retires the old authority and removes its key. Fails while owners still have certificates of it.
    pub fn rotate_finish(&mut self, now: Timestamp) -> Result<Rotated, PkiError> {
        match Phase::of(&self.registry) {
            Phase::Settled { .. } => Ok(self.rotated(false)),
            Phase::Started { next, .. } => Err(PkiError::NotSwitched { next }),
            Phase::Switched { previous, .. } => {
                let owners = self.owners_on(previous, now);
                if !owners.is_empty() {
                    return Err(PkiError::InUse { authority: previous, owners });
                }
                self.set_state(previous, AuthorityState::Retired);
                self.signers.retain(|signer| signer.record.number != previous);
                self.renew_lists(now)?;
                self.settle(now)?;
                Ok(self.rotated(true))
            }
        }
    }

    /// Returns the owners whose identity folder has a valid certificate of this authority.
    fn owners_on(&self, authority: u32, now: Timestamp) -> Vec<String> {
        let dir = self.folder.path("");
        let newest = self.registry.newest();
        let on = |(role, id): &&(_, _)| {
            // The newest record may belong to a command that was interrupted before it wrote the certificate.
            let found = Authority::inspect(&dir, *role, *id).ok().flatten().and_then(|found| found.serial);
            let current = self.registry.of(*role, *id).find(|c| found == Some(c.serial));
            let current = current.or_else(|| newest.get(&(*role, *id)));
            current.is_some_and(|c| c.authority == authority && c.is_live(now))
        };
        newest.keys().filter(on).map(|(role, id)| format!("{role} {id}")).collect()
    }

    fn set_state(&mut self, number: u32, state: AuthorityState) {
        for authority in self.registry.authorities.iter_mut().filter(|a| a.number == number) {
            authority.state = state;
        }
        for signer in self.signers.iter_mut().filter(|signer| signer.record.number == number) {
            signer.record.state = state;
        }
    }

    fn rotated(&self, changed: bool) -> Rotated {
        Rotated { changed, phase: Phase::of(&self.registry) }
    }
}
