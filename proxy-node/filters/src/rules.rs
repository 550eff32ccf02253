//! Rules: what becomes of the requests that meet a condition.

use std::net::IpAddr;
use std::sync::Arc;

use csp_http::head::Fields;
use csp_http::route::{Found, PathSpec, Redirect, RouteMistake, RouteSpec, Routes, Subject, TextSpec};
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

/// Who asks, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// The client's address, or that of the peer where no other is known.
    pub source: IpAddr,
    /// The request is a preflight of CORS. Rules that depend on a field or a cookie, which it has not, are
    /// passed over; behind such an [`Act::Allow`] nothing is denied or redirected. For limits its method
    /// is OPTIONS, otherwise that of the request that it is about.
    pub is_preflight: bool,
}

/// How large tables are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tables {
    Whole,
    /// For a check.
    Least,
}

#[derive(Clone, Debug)]
enum Acting {
    Allow,
    Deny(u16),
    Redirect(Redirect),
    Rate(Key, Arc<RateTable>),
    Concurrent(Key, Arc<ConcurrentTable>),
}

/// Its conditions are tables of one route each; `None`: every request meets it.
#[derive(Clone, Debug)]
struct Rule {
    path: Option<Routes>,
    /// Fields and cookies, which no preflight has.
    fields: Option<Routes>,
    rest: Option<Routes>,
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
    pub(crate) fn new(specs: Vec<RuleSpec>, secret: [u64; 2], tables: Tables) -> Result<Rules, FilterError> {
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
            .map(|(at, spec)| Rule::new(spec, tables).map_err(|mistake| mistake.at(Part::Rule(at))));
        let rules = rules.collect::<Result<Box<[Rule]>, _>>()?;
        Ok(Rules { has_paths: rules.iter().any(|rule| rule.path.is_some()), rules, secret })
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns which rules a request meets if its path is theirs: a bit of each that names a path.
    pub fn with_path(&self, subject: &Subject<'_, impl Fields>, source: IpAddr) -> u64 {
        if !self.has_paths {
            return 0;
        }
        let asker = Asker { source, is_preflight: false };
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| rule.path.is_some());
        let met = rules.filter(|(_, rule)| {
            let subject = rule.seen(subject, asker);
            meets(&rule.rest, &subject) && meets(&rule.fields, &subject)
        });
        met.fold(0, |all, (at, _)| all | 1 << at)
    }

    /// Returns which of these rules the path of a request meets.
    pub fn by_path(&self, among: u64, subject: &Subject<'_, impl Fields>) -> u64 {
        if among == 0 {
            return 0;
        }
        let rules = self.rules.iter().enumerate().filter(|(at, _)| among & 1 << at != 0);
        rules.filter(|(_, rule)| meets(&rule.path, subject)).fold(0, |all, (at, _)| all | 1 << at)
    }

    /// Returns why a request goes no further; `None`: it does. It counts for limits, for some until the
    /// permits are dropped.
    pub fn judge<'a>(
        &'a self,
        subject: &Subject<'_, impl Fields>,
        asker: Asker,
        now: Instant,
        mut permit: impl FnMut(Permit),
    ) -> Option<Stop<'a>> {
        let (source, mut may_be_allowed) = (asker.source, false);
        for rule in &self.rules {
            let subject = &rule.seen(subject, asker);
            if asker.is_preflight && rule.has_field() {
                may_be_allowed |= matches!(rule.acting, Acting::Allow)
                    && meets(&rule.rest, subject)
                    && meets(&rule.path, subject);
                continue;
            }
            let Some(found) = rule.find(subject) else { continue };
            match &rule.acting {
                Acting::Allow => return None,
                Acting::Deny(_) | Acting::Redirect(_) if may_be_allowed => {}
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
    fn new(spec: RuleSpec, tables: Tables) -> Result<Rule, Mistake> {
        let [path, fields, rest] = compiled(spec.of, spec.act == Act::Allow)?;
        let entries = |entries| match tables {
            Tables::Whole => entries,
            Tables::Least => 0,
        };
        let acting = match spec.act {
            Act::Allow => Acting::Allow,
            Act::Deny(status @ (401 | 405 | 407)) => return Err(Mistake::StatusWithField(status)),
            Act::Deny(status) if (400..600).contains(&status) => Acting::Deny(status),
            Act::Deny(status) => return Err(Mistake::Status(status)),
            Act::Redirect(to) => {
                to.check()?;
                Acting::Redirect(to)
            }
            Act::Rate(limit) => {
                limit.of.check()?;
                check_table(&limit.key, limit.entries)?;
                Acting::Rate(limit.key, Arc::new(RateTable::new(limit.of, entries(limit.entries))))
            }
            Act::Concurrent(limit) => {
                if limit.of == 0 {
                    return Err(Mistake::Zero);
                }
                check_table(&limit.key, limit.entries)?;
                Acting::Concurrent(limit.key, ConcurrentTable::new(limit.of, entries(limit.entries)))
            }
        };
        Ok(Rule { path, fields, rest, acting })
    }

    /// Returns whether it depends on a field or a cookie.
    fn has_field(&self) -> bool {
        let of_key = match &self.acting {
            Acting::Rate(key, _) | Acting::Concurrent(key, _) => key.is_field(),
            Acting::Allow | Acting::Deny(_) | Acting::Redirect(_) => false,
        };
        of_key || self.fields.is_some()
    }

    /// Returns a request as the rule sees it. A source that is not known is allowed nothing, and is the
    /// peer's for other rules. A preflight counts as what it is, not as the request that it is about.
    fn seen<'a, F>(&self, subject: &Subject<'a, F>, asker: Asker) -> Subject<'a, F> {
        let is_limit = matches!(self.acting, Acting::Rate(..) | Acting::Concurrent(..));
        let source = match self.acting {
            Acting::Allow => subject.source,
            _ => Some(asker.source),
        };
        let method = if asker.is_preflight && is_limit { b"OPTIONS" } else { subject.method };
        Subject { source, method, ..*subject }
    }

    fn find(&self, subject: &Subject<'_, impl Fields>) -> Option<Found> {
        if !meets(&self.rest, subject) || !meets(&self.fields, subject) {
            return None;
        }
        match &self.path {
            Some(path) => path.find(subject),
            None => Some(Found { route: 0, prefix_len: 0 }),
        }
    }
}

/// Compiles the conditions of a rule: the path, fields and cookies, and the rest.
fn compiled(mut rest: RouteSpec, is_allow: bool) -> Result<[Option<Routes>; 3], RouteMistake> {
    let path = RouteSpec { path: std::mem::take(&mut rest.path), ..RouteSpec::default() };
    let (headers, cookies) = (std::mem::take(&mut rest.headers), std::mem::take(&mut rest.cookies));
    let fields = RouteSpec { headers, cookies, ..RouteSpec::default() };
    let one = |spec: RouteSpec| match is_allow {
        _ if spec == RouteSpec::default() => Ok(None),
        true => Routes::compile(&[spec]).map(Some).map_err(|error| error.what),
        false => Routes::guard(&spec).map(Some),
    };
    Ok([one(path)?, one(fields)?, one(rest)?])
}

fn meets(of: &Option<Routes>, subject: &Subject<'_, impl Fields>) -> bool {
    of.as_ref().is_none_or(|of| of.find(subject).is_some())
}

fn check_table(key: &Key, entries: usize) -> Result<(), Mistake> {
    match (ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) {
        true => key.check(),
        false => Err(Mistake::Entries(entries)),
    }
}
