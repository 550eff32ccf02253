//! Reading a document although parts of it are wrong, so that all mistakes are found at once.
//!
//! serde stops at the first mistake. So the tree is repaired where the mistake is, and read again: an unknown
//! field is taken out; a value that is missing or cannot be read is replaced by a neutral one. The value that
//! comes out at last holds neutral values at some paths; it is good for further checks and for nothing else.
//! The work is bounded by [`PASSES_MAX`] and [`WORK_LEN_MAX`].

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use crate::neutral::CANDIDATES;
use crate::read::{Kind, Mistake, read};
use crate::tree::{Entry, Node, Place, Step, Value};

/// Most passes over one document.
const PASSES_MAX: usize = 100;
/// Most bytes of text whose trees all passes over one document read, the first pass excepted.
const WORK_LEN_MAX: usize = 32 << 20;

/// A mistake, and where it is.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Path of the value that is wrong, or of the mapping with an unknown or missing field.
    pub path: String,
    /// What is wrong.
    pub kind: Kind,
    /// Where it is; `None`: where the path leads.
    pub at: Option<Place>,
}

/// A document that was read as far as possible.
pub(crate) struct Reading<T> {
    /// The value; `None` where the document cannot be read despite repairs.
    pub value: Option<T>,
    /// The mistakes, in the order of their discovery.
    pub failures: Vec<Failure>,
    /// Paths at which `value` is neutral.
    pub unreadable: BTreeSet<String>,
}

/// What became of a mistake.
enum Repair {
    /// It is a mistake of its own.
    New,
    /// It follows from a mistake that is known.
    Known,
    /// It cannot be repaired, and was known.
    Stuck,
    /// It cannot be repaired.
    Impossible,
}

/// A tree under repair.
struct Repairs<'t> {
    root: Cow<'t, Node>,
    /// Paths of fields that were taken out.
    skipped: BTreeSet<String>,
    /// Paths of values that were replaced.
    neutral: BTreeSet<String>,
}

impl Repairs<'_> {
    fn apply(&mut self, mistake: &Mistake, steps: &[Step], path: &str) -> Repair {
        let Some(node) = self.root.to_mut().find_mut(steps) else { return Repair::Impossible };
        match &mistake.kind {
            Kind::UnknownField(field, _) => {
                let Some(entries) = node.entries_mut() else { return Repair::Impossible };
                let before = entries.len();
                entries.retain(|entry| entry.key != *field);
                if entries.len() == before {
                    return Repair::Impossible;
                }
                self.skipped.insert(join(path, field));
                Repair::New
            }
            Kind::MissingField(field) => {
                let at = node.at;
                let Some(entries) = node.entries_mut() else { return Repair::Impossible };
                if entries.iter().any(|entry| entry.key == *field) {
                    return Repair::Impossible;
                }
                let node = Node { value: Value::Neutral(0), at };
                entries.push(Entry { key: (*field).to_owned(), key_at: at, node });
                self.neutral.insert(join(path, field));
                if self.has_misspelt(path, field) { Repair::Known } else { Repair::New }
            }
            _ => match &mut node.value {
                Value::Neutral(candidate) if *candidate + 1 < CANDIDATES => {
                    *candidate += 1;
                    Repair::Known
                }
                // No candidate fits the place of a mistake that is known.
                Value::Neutral(_) => Repair::Stuck,
                _ if steps.is_empty() => Repair::Impossible,
                value => {
                    *value = Value::Neutral(0);
                    self.neutral.insert(path.to_owned());
                    Repair::New
                }
            },
        }
    }

    /// Whether an unknown field of the mapping at `path` looks like `field`.
    fn has_misspelt(&self, path: &str, field: &str) -> bool {
        let unknown = |skipped: &String| match skipped.rsplit_once('.') {
            Some((mapping, name)) => mapping == path && alike(name, field),
            None => path.is_empty() && alike(skipped, field),
        };
        self.skipped.iter().any(unknown)
    }
}

/// Whether a word may be a misspelling of `right`. The threshold is that of clap's suggestions.
pub(crate) fn alike(word: &str, right: &str) -> bool {
    strsim::jaro(word, right) > 0.7
}

/// Path of `field` in the mapping at `path`.
pub(crate) fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// The path to which steps lead.
pub(crate) fn path_of(steps: &[Step]) -> String {
    steps.iter().fold(String::new(), |path, step| match step {
        Step::Field(field) => join(&path, field),
        Step::Index(index) => format!("{path}[{index}]"),
    })
}

/// Reads a tree that was parsed from `text_len` bytes, and goes on after a mistake until `failures_max` are
/// found.
pub(crate) fn collect<T: DeserializeOwned>(root: &Node, text_len: usize, failures_max: usize) -> Reading<T> {
    let passes_max = 1 + (WORK_LEN_MAX / text_len.max(1)).min(PASSES_MAX - 1);
    let mut repairs =
        Repairs { root: Cow::Borrowed(root), skipped: BTreeSet::new(), neutral: BTreeSet::new() };
    let (mut failures, mut value) = (Vec::new(), None);
    for _ in 0..passes_max {
        let mistake = match read::<T>(&repairs.root) {
            Ok(read) => {
                value = Some(read);
                break;
            }
            Err(mistake) => mistake,
        };
        let steps = mistake.steps();
        let path = path_of(&steps);
        let repair = repairs.apply(&mistake, &steps, &path);
        if matches!(repair, Repair::New | Repair::Impossible) {
            failures.push(Failure { path, kind: mistake.kind, at: None });
        }
        if matches!(repair, Repair::Stuck | Repair::Impossible) || failures.len() >= failures_max {
            break;
        }
    }
    Reading { value, failures, unreadable: repairs.neutral }
}
