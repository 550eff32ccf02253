//! Which addresses the node answers for on the LAN: those of the policy that are in no group, and those of
//! groups that it holds. They are announced when they come, so that hosts and switches learn where they are.

use std::net::IpAddr;

use csp_election::GroupId;
use csp_types::{Duration, Instant};

use super::api::{NetworkOutput, PortId};
use super::node::NetworkCore;

/// Number of announcements of a new address, and their interval. RFC 5227 §2.3 requires two, two seconds
/// apart; the third one reaches a switch port that comes up late.
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(2);
/// Largest number of addresses that one call announces, so that many of them do not delay the worker.
const ANNOUNCED_PER_CALL_MAX: usize = 64;
/// How often an address is announced again that another host claims (RFC 5227 §2.4 (c) allows once in ten
/// seconds to a host that may give up its address; this one keeps it).
const DEFENCE_INTERVAL: Duration = Duration::from_secs(1);

/// An address that has announcements left to send.
pub(super) struct Announcement {
    address: IpAddr,
    left: u8,
    pub(super) due: Instant,
}

impl NetworkCore {
    /// Sets the time that says which groups of addresses are held
    /// ([`AddressGroup::held`](super::AddressGroup::held)). It is read once in each turn, right before frames
    /// are received and sent: the process may have been stopped.
    pub fn set_lan_time(&mut self, now: Instant) {
        self.lan_time = now;
    }

    /// Returns the time that was set last.
    pub fn lan_time(&self) -> Instant {
        self.lan_time
    }

    /// Returns whether there are groups of addresses.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns whether this node answers for an address: it is the cluster's, and in no group, or in one that
    /// this node holds.
    pub(super) fn answers_for(&self, address: IpAddr) -> bool {
        self.classifier.owns(address) && self.may_speak_for(address)
    }

    fn may_speak_for(&self, address: IpAddr) -> bool {
        let group = self.groups.iter().find(|group| group.contains(address));
        group.is_none_or(|group| group.held.is_at(self.lan_time))
    }

    /// Announces all addresses of a group, because this node holds it from now on.
    pub fn announce_group(&mut self, now: Instant, group: GroupId, out: &mut impl NetworkOutput) {
        let Some(group) = self.groups.iter().find(|known| known.id == group) else { return };
        self.announcements.retain(|waiting| !group.contains(waiting.address));
        let addresses = self.classifier.addresses().iter().filter(|address| group.contains(**address));
        for address in addresses.rev() {
            self.announcements.push_front(Announcement { address: *address, left: ANNOUNCEMENTS, due: now });
        }
        self.announce_due(now, out);
    }

    /// Processes another host's claim of an address of the cluster: counts it as a conflict, and announces
    /// the address again, if this node answers for it. Otherwise the other host is the address's owner.
    pub(super) fn on_foreign_claim(&mut self, now: Instant, address: IpAddr, out: &mut impl NetworkOutput) {
        if !self.answers_for(address) {
            return;
        }
        self.counters.address_conflicts += 1;
        let rested = self.defended_at.is_none_or(|at| at + DEFENCE_INTERVAL <= now);
        if rested && self.groups.iter().any(|group| group.contains(address)) {
            self.defended_at = Some(now);
            self.announcements.push_front(Announcement { address, left: 1, due: now });
            self.announce_due(now, out);
        }
    }

    /// Announces addresses that the rules have brought, and forgets those that they have not.
    pub(super) fn announce_new(
        &mut self,
        now: Instant,
        new: impl DoubleEndedIterator<Item = IpAddr>,
        out: &mut impl NetworkOutput,
    ) {
        self.announcements.retain(|waiting| self.classifier.owns(waiting.address));
        // Before all that are due again later: the queue is in the order of its times.
        for address in new.rev() {
            self.announcements.push_front(Announcement { address, left: ANNOUNCEMENTS, due: now });
        }
        self.announce_due(now, out);
    }

    pub(super) fn announce_due(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        for _ in 0..ANNOUNCED_PER_CALL_MAX {
            let Some(due) = self.announcements.pop_front_if(|first| first.due <= now) else { return };
            if !self.may_speak_for(due.address) {
                continue;
            }
            for port in 0..self.port_count() {
                self.announce(PortId(port as u16), due.address, out);
            }
            if due.left > 1 {
                let again = Announcement { left: due.left - 1, due: now + ANNOUNCEMENT_INTERVAL, ..due };
                self.announcements.push_back(again);
            }
        }
    }
}
