//! Rules: what becomes of the requests that meet a condition.

use std::net::IpAddr;
use std::sync::Arc;

use csp_http::head::Fields;
use csp_http::route::{Found, PathSpec, Redirect, RouteSpec, Routes, Subject, TextSpec};
use csp_types::Instant;

use crate::concurrent::{ConcurrentTable, Permit};
use crate::rate::{RateSpec, RateTable};
use crate::{FilterError, Key, Mistake, Part};

/// Most rules of a service, and of a route.
pub const RULES_MAX: usize = 64;
/// Most rules with [`Act::Concurrent`] among them: each has a permit of a request.
pub const CONCURRENT_MAX: usize = 2;
/// Most places of a table.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Fewest places of a table.
const ENTRIES_MIN: usize = 64;

/// A limit by key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit<T> {
    /// By what requests are counted.
    pub key: Key,
    /// How many.
    pub of: T,
    /// Keys that are counted at a time.
    pub entries: usize,
}

/// What a rule does with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// The rules behind it in the same list do not count.
    Allow,
    /// The request is answered with this status, 400 to 599.
    Deny(u16),
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// Beyond a rate the request is answered with 429.
    Rate(Limit<RateSpec>),
    /// Beyond so many requests at the same time it is answered with 429.
    Concurrent(Limit<u32>),
}

/// What a policy says of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleSpec {
    /// The requests that it is about: all that is named has to match.
    pub of: RouteSpec,
    /// What it does.
    pub act: Act,
}

impl RuleSpec {
    /// Returns the number of expressions and of places in tables.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let named = [&self.of.headers, &self.of.cookies, &self.of.query].into_iter().flatten();
        let texts = named.filter(|(_, text)| matches!(text, TextSpec::Regex(_))).count();
        let entries = match &self.act {
            Act::Rate(limit) => limit.entries,
            Act::Concurrent(limit) => limit.entries,
            Act::Allow | Act::Deny(_) | Act::Redirect(_) => 0,
        };
        (texts + usize::from(matches!(self.of.path, PathSpec::Regex(_))), entries)
    }
}

/// Why a request goes no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop<'a> {
    /// A rule denies it, with this status.
    Denied(u16),
    /// A rule redirects it.
    Redirected(&'a Redirect, Found),
    /// It is beyond its rate. After so many seconds one will pass.
    Limited(u32),
    /// Its key has as many requests as it may have at the same time.
    TooMany,
}

#[derive(Clone, Debug)]
enum Acting {
    Allow,
    Deny(u16),
    Redirect(Redirect),
    Rate(Key, Arc<RateTable>),
    Concurrent(Key, Arc<ConcurrentTable>),
}

#[derive(Clone, Debug)]
struct Rule {
    /// One route; `None`: every request meets it.
    of: Option<Routes>,
    has_path: bool,
    acting: Acting,
}

/// Rules that were checked.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Box<[Rule]>,
    has_paths: bool,
    secret: [u64; 2],
}

impl Rules {
    /// Compiles rules.
    pub(crate) fn new(specs: Vec<RuleSpec>, secret: [u64; 2]) -> Result<Rules, FilterError> {
        if specs.len() > RULES_MAX {
            return Err(Mistake::Rules(specs.len()).at(Part::Rules));
        }
        let concurrent = specs.iter().filter(|spec| matches!(spec.act, Act::Concurrent(_))).count();
        if concurrent > CONCURRENT_MAX {
            return Err(Mistake::Concurrent.at(Part::Rules));
        }
        let rules = specs
            .into_iter()
            .enumerate()
            .map(|(at, spec)| Rule::new(spec).map_err(|mistake| mistake.at(Part::Rule(at))));
        let rules = rules.collect::<Result<Box<[Rule]>, _>>()?;
        Ok(Rules { has_paths: rules.iter().any(|rule| rule.has_path), rules, secret })
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns which rules that name a path a request meets: a bit of each.
    pub fn by_path(&self, subject: &Subject<'_, impl Fields>) -> u64 {
        if !self.has_paths {
            return 0;
        }
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| rule.has_path);
        rules.filter(|(_, rule)| rule.find(subject).is_some()).fold(0, |all, (at, _)| all | 1 << at)
    }

    /// Returns why a request goes no further; `None`: it does. It counts for limits, for some until the
    /// permits are dropped. `source`: its client's address, or that of the peer where no other is known.
    pub fn judge<'a>(
        &'a self,
        subject: &Subject<'_, impl Fields>,
        source: IpAddr,
        now: Instant,
        mut permit: impl FnMut(Permit),
    ) -> Option<Stop<'a>> {
        let met = self.rules.iter().filter_map(|rule| Some((rule, rule.find(subject)?)));
        for (rule, found) in met {
            match &rule.acting {
                Acting::Allow => return None,
                Acting::Deny(status) => return Some(Stop::Denied(*status)),
                Acting::Redirect(to) => return Some(Stop::Redirected(to, found)),
                Acting::Rate(key, table) => {
                    if let Err(wait_s) = table.take(key.hash(self.secret, subject, source), now) {
                        return Some(Stop::Limited(wait_s));
                    }
                }
                Acting::Concurrent(key, table) => match table.enter(key.hash(self.secret, subject, source)) {
                    Ok(entered) => entered.into_iter().for_each(&mut permit),
                    Err(_) => return Some(Stop::TooMany),
                },
            }
        }
        None
    }

    /// Returns how many keys were evicted before they were within their rate again, and how many requests
    /// were not counted.
    pub fn lost(&self) -> u64 {
        let of = |rule: &Rule| match &rule.acting {
            Acting::Rate(_, table) => table.evicted(),
            Acting::Concurrent(_, table) => table.uncounted(),
            Acting::Allow | Acting::Deny(_) | Acting::Redirect(_) => 0,
        };
        self.rules.iter().map(of).sum()
    }
}

impl Rule {
    fn new(spec: RuleSpec) -> Result<Rule, Mistake> {
        let acting = match spec.act {
            Act::Allow => Acting::Allow,
            Act::Deny(status) if (400..600).contains(&status) => Acting::Deny(status),
            Act::Deny(status) => return Err(Mistake::Status(status)),
            Act::Redirect(to) => {
                to.check()?;
                Acting::Redirect(to)
            }
            Act::Rate(limit) => {
                limit.of.check()?;
                check_table(&limit.key, limit.entries)?;
                Acting::Rate(limit.key, Arc::new(RateTable::new(limit.of, limit.entries)))
            }
            Act::Concurrent(limit) => {
                if limit.of == 0 {
                    return Err(Mistake::Zero);
                }
                check_table(&limit.key, limit.entries)?;
                Acting::Concurrent(limit.key, ConcurrentTable::new(limit.of, limit.entries))
            }
        };
        let has_path = spec.of.path != PathSpec::Any;
        let of = match spec.of == RouteSpec::default() {
            true => None,
            false => Some(Routes::compile(std::slice::from_ref(&spec.of)).map_err(|error| error.what)?),
        };
        Ok(Rule { of, has_path, acting })
    }

    fn find(&self, subject: &Subject<'_, impl Fields>) -> Option<Found> {
        match &self.of {
            Some(of) => of.find(subject),
            None => Some(Found { route: 0, prefix_len: 0 }),
        }
    }
}

fn check_table(key: &Key, entries: usize) -> Result<(), Mistake> {
    match (ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) {
        true => key.check(),
        false => Err(Mistake::Entries(entries)),
    }
}
