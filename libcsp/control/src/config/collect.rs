//! Reading a document although parts of it are wrong, so that all mistakes are found at once.
//!
//! serde stops at the first mistake. So a document is read again and again: after each mistake the [`Repairs`] get an entry
//! for it, which the next pass applies while it reads. An unknown field is skipped; a value that is missing or cannot be read
//! is replaced by a neutral one. The value that comes out at last holds neutral values at the paths of [`Repairs`]; it is good
//! for further checks and for nothing else.
//!
//! ```text
//!  text ─▶ serde_saphyr ─▶ Tracked (path, repairs) ─▶ T
//!             ▲                  │ Failure: path, kind
//!             └──── Repairs ◀────┘
//! ```
//! The work is bounded by [`PASSES_MAX`] and [`WORK_LEN_MAX`].

mod neutral;
mod tracked;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use neutral::CANDIDATES;
use tracked::Tracked;

/// Most passes over one document.
const PASSES_MAX: usize = 100;
/// Most bytes that all passes over one document read, the first pass excepted.
const WORK_LEN_MAX: usize = 32 << 20;

/// What kind of mistake a failure is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A field that the mapping at the path does not have; and those that it has.
    UnknownField(String, &'static [&'static str]),
    /// The mapping at the path lacks a field that has no default.
    MissingField(&'static str),
    /// A word that is none of those allowed.
    UnknownVariant(String, &'static [&'static str]),
    /// Anything else: the error's text says what.
    Other,
}

/// The first mistake of a pass.
#[derive(Debug)]
pub(super) struct Failure {
    /// Path of the value that is wrong, or of the mapping with an unknown or missing field.
    pub path: String,
    /// What is wrong.
    pub kind: Kind,
    /// Why the parser stopped.
    pub error: serde_saphyr::Error,
}

/// A document that was read as far as possible.
pub(super) struct Reading<T> {
    /// The value; `None` where the document cannot be read despite repairs.
    pub value: Option<T>,
    /// The mistakes, in the order of their discovery.
    pub failures: Vec<Failure>,
    /// Paths at which `value` is neutral.
    pub unreadable: BTreeSet<String>,
}

/// What a pass does about the mistakes that passes before it found.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Paths of unknown fields.
    skipped: BTreeSet<String>,
    /// Paths of values that are replaced, with the number of the candidate that is tried.
    neutral: BTreeMap<String, usize>,
    /// Fields to add, by the path of the mapping that lacks them.
    missing: BTreeMap<String, Vec<&'static str>>,
}

/// What became of a failure.
enum Repair {
    /// It is a mistake of its own.
    New,
    /// It follows from a mistake that is known.
    Known,
    /// It cannot be repaired.
    Impossible,
}

impl Repairs {
    fn apply(&mut self, failure: &Failure) -> Repair {
        let Failure { path, kind, .. } = failure;
        match kind {
            Kind::UnknownField(field, _) => match self.skipped.insert(join(path, field)) {
                true => Repair::New,
                false => Repair::Impossible,
            },
            Kind::MissingField(field) => {
                let fields = self.missing.entry(path.clone()).or_default();
                if fields.contains(field) {
                    return Repair::Impossible;
                }
                fields.push(field);
                self.neutral.insert(join(path, field), 0);
                if self.has_misspelt(path, field) { Repair::Known } else { Repair::New }
            }
            Kind::UnknownVariant(..) | Kind::Other if path.is_empty() => Repair::Impossible,
            Kind::UnknownVariant(..) | Kind::Other => match self.neutral.get_mut(path) {
                None => {
                    self.neutral.insert(path.clone(), 0);
                    Repair::New
                }
                Some(candidate) if *candidate + 1 < CANDIDATES => {
                    *candidate += 1;
                    Repair::Known
                }
                Some(_) => Repair::Impossible,
            },
        }
    }

    /// Whether the mapping at `path` has an unknown field that looks like `field`.
    fn has_misspelt(&self, path: &str, field: &str) -> bool {
        let unknown = |skipped: &String| match skipped.rsplit_once('.') {
            Some((mapping, name)) => mapping == path && alike(name, field),
            None => path.is_empty() && alike(skipped, field),
        };
        self.skipped.iter().any(unknown)
    }
}

/// Whether a word may be a misspelling of `right`. The threshold is that of clap's suggestions.
pub(super) fn alike(word: &str, right: &str) -> bool {
    strsim::jaro(word, right) > 0.7
}

/// Path of `field` in the mapping at `path`.
pub(super) fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// What the parts of one pass share.
struct Pass<'r> {
    repairs: &'r Repairs,
    /// Path of the value that is being read.
    path: RefCell<String>,
    failed: RefCell<Option<(String, Kind)>>,
    /// A value could not even be skipped.
    broken: Cell<bool>,
}

impl Pass<'_> {
    /// Notes a failure at the current path unless one is noted.
    fn note(&self, kind: Kind) {
        self.failed.borrow_mut().get_or_insert_with(|| (self.path.borrow().clone(), kind));
    }
}

/// Reads `text`, and goes on after a mistake until `failures_max` are found.
pub(super) fn read<T: DeserializeOwned>(text: &str, failures_max: usize) -> Reading<T> {
    let passes_max = 1 + (WORK_LEN_MAX / text.len().max(1)).min(PASSES_MAX - 1);
    let (mut repairs, mut failures, mut value) = (Repairs::default(), Vec::new(), None);
    for _ in 0..passes_max {
        let pass = Pass {
            repairs: &repairs,
            path: RefCell::default(),
            failed: RefCell::default(),
            broken: Cell::new(false),
        };
        let read = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
            T::deserialize(Tracked { inner: deserializer, pass: &pass }).map_err(|error| error.inner)
        });
        let error = match read {
            Ok(read) => {
                value = Some(read);
                break;
            }
            Err(error) => error,
        };
        let (path, kind) = pass.failed.take().unwrap_or((String::new(), Kind::Other));
        let (failure, broken) = (Failure { path, kind, error }, pass.broken.get());
        match repairs.apply(&failure) {
            Repair::Known if broken => break,
            Repair::Known => {}
            Repair::New => failures.push(failure),
            // No candidate fits the place of a mistake that is known.
            Repair::Impossible if repairs.neutral.contains_key(&failure.path) => break,
            Repair::Impossible => {
                failures.push(failure);
                break;
            }
        }
        if failures.len() >= failures_max {
            break;
        }
    }
    Reading { value, failures, unreadable: repairs.neutral.into_keys().collect() }
}
