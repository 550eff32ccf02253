//! Shares of a worker's resources that users' outgoing connections occupy: entries of its tables, and memory
//! for windows.
//!
//! A user's processes may open another connection only while they hold no more of each resource than is free.
//! A single user therefore holds at most half, and always leaves room for others. Connections of clients do
//! not count, since the serving process does not control their number.

use std::collections::HashMap;

use csp_types::NodeId;

/// The user of a process: node and number.
pub(crate) type User = (NodeId, u32);

/// An amount of each shared resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    /// Connections through network nodes.
    pub(crate) connections: usize,
    /// Memory for their windows, in bytes.
    pub(crate) memory: u64,
    /// Ends of hairpins.
    pub(crate) hairpin_ends: usize,
}

/// What one flow holds on a user's account; [`NONE`](Charge::NONE) if it is not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    account: u32,
    /// Bytes of memory for its window; 0 for an end of a hairpin.
    memory: u32,
}

impl Charge {
    /// No charge: a client's connection, or one of an unlimited user.
    pub const NONE: Charge = Charge { account: u32::MAX, memory: 0 };
}

#[derive(Debug)]
struct Account {
    user: User,
    held: Amount,
}

/// The accounts of users with open connections.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    accounts: Vec<Option<Account>>,
    numbers: HashMap<User, u32>,
}

impl Shares {
    /// Returns whether a user's processes may open a connection through a network node while this much is
    /// free.
    pub(crate) fn admit_connection(&self, user: Option<User>, free: Amount) -> bool {
        let held = self.held(user);
        held.connections <= free.connections && held.memory <= free.memory
    }

    /// Returns whether a user's processes may open a hairpin while this much is free.
    pub(crate) fn admit_hairpin(&self, user: Option<User>, free: Amount) -> bool {
        self.held(user).hairpin_ends <= free.hairpin_ends
    }

    /// Charges a connection with this much memory for its window.
    pub(crate) fn charge_connection(&mut self, user: Option<User>, memory: u64) -> Charge {
        // Windows are far smaller than 4 GiB, and a connection's memory is never 0.
        self.charge(user, u32::try_from(memory).unwrap_or(u32::MAX).max(1))
    }

    /// Charges an end of a hairpin.
    pub(crate) fn charge_hairpin_end(&mut self, user: Option<User>) -> Charge {
        self.charge(user, 0)
    }

    /// Releases what a flow held.
    pub(crate) fn release(&mut self, charge: Charge) {
        let Some(slot) = self.accounts.get_mut(charge.account as usize) else { return };
        let Some(account) = slot else { return };
        let held = &mut account.held;
        match charge.memory {
            0 => held.hairpin_ends = held.hairpin_ends.saturating_sub(1),
            memory => {
                held.connections = held.connections.saturating_sub(1);
                held.memory = held.memory.saturating_sub(memory.into());
            }
        }
        if *held == Amount::default() {
            self.numbers.remove(&account.user);
            *slot = None;
        }
    }

    fn held(&self, user: Option<User>) -> Amount {
        let number = user.and_then(|user| self.numbers.get(&user));
        let account = number.and_then(|number| self.accounts.get(*number as usize)?.as_ref());
        account.map_or_else(Amount::default, |account| account.held)
    }

    fn charge(&mut self, user: Option<User>, memory: u32) -> Charge {
        let Some(user) = user else { return Charge::NONE };
        let number = self.number(user);
        let Some(Some(account)) = self.accounts.get_mut(number as usize) else { return Charge::NONE };
        match memory {
            0 => account.held.hairpin_ends += 1,
            memory => {
                account.held.connections += 1;
                account.held.memory += u64::from(memory);
            }
        }
        Charge { account: number, memory }
    }

    /// Returns the number of a user's account, which is opened if there is none. There are no more accounts
    /// than flows.
    fn number(&mut self, user: User) -> u32 {
        if let Some(number) = self.numbers.get(&user) {
            return *number;
        }
        let account = Some(Account { user, held: Amount::default() });
        let number = match self.accounts.iter().position(Option::is_none) {
            Some(free) => {
                self.accounts[free] = account;
                free
            }
            None => {
                self.accounts.push(account);
                self.accounts.len() - 1
            }
        } as u32;
        self.numbers.insert(user, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_holds_at_most_half_and_an_account_ends_with_its_last_flow() {
        const ALL: usize = 100;
        let user = |uid| Some(("an-1".parse().unwrap(), uid));
        let mut shares = Shares::default();
        let mut charges = Vec::new();
        let free = |held: usize| Amount { connections: ALL - held, memory: 10_000, hairpin_ends: 1 };
        while shares.admit_connection(user(65534), free(charges.len())) {
            charges.push(shares.charge_connection(user(65534), 70));
        }
        assert_eq!(charges.len(), 51, "one more than it leaves free");
        assert!(shares.admit_connection(user(1000), free(51)) && shares.admit_connection(None, free(ALL)));
        let little = Amount { memory: 51 * 70 - 1, connections: ALL, hairpin_ends: 1 };
        assert!(!shares.admit_connection(user(65534), little), "memory is shared too");
        charges.push(shares.charge_hairpin_end(user(65534)));
        charges.push(shares.charge_hairpin_end(user(65534)));
        assert!(!shares.admit_hairpin(user(65534), free(0)) && shares.admit_hairpin(user(1000), free(0)));
        assert_eq!(shares.charge_connection(None, 70), Charge::NONE, "root is not limited");
        charges.push(Charge::NONE);
        charges.into_iter().for_each(|charge| shares.release(charge));
        assert!(shares.numbers.is_empty() && shares.accounts.iter().all(Option::is_none));
        shares.charge_hairpin_end(user(1));
        assert_eq!(shares.accounts.len(), 1, "accounts are used again");
    }
}
