//! Compiled modules by hash, within bounds.

use std::sync::{Arc, Weak};

use crate::folder::MODULES_MAX;

/// How long a compiled module is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Until others need its place: the one used longest ago goes. Its instances keep it.
    Recent,
    /// As long as something outside of the store has it. While those fill the bounds, others are refused.
    Used,
}

/// Bounds of a store's compiled modules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Most modules.
    pub modules_max: usize,
    /// Most bytes of them, as they came.
    pub bytes_max: usize,
    /// What happens beyond.
    pub keep: Keep,
}

impl Bounds {
    /// As many modules as a folder has, of up to so many bytes.
    #[must_use]
    pub const fn of_folder(module_len_max: usize) -> Self {
        Bounds { modules_max: MODULES_MAX, bytes_max: MODULES_MAX * module_len_max, keep: Keep::Recent }
    }
}

#[derive(Debug)]
enum Kept<T> {
    Recent(Arc<T>),
    Used(Weak<T>),
    /// It was refused, for this reason.
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Entry<T> {
    hash: String,
    len: usize,
    kept: Kept<T>,
}

/// Compiled modules, the one used last at the end.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    bounds: Bounds,
    entries: Vec<Entry<T>>,
}

impl<T> Cache<T> {
    pub fn new(bounds: Bounds) -> Self {
        Cache { bounds, entries: Vec::new() }
    }

    /// Returns a module, or why it was refused; `None`: it is not here.
    pub fn get(&mut self, hash: &str) -> Option<Result<Arc<T>, String>> {
        let at = self.entries.iter().position(|entry| entry.hash == hash)?;
        let entry = self.entries.remove(at);
        let found = match &entry.kept {
            Kept::Recent(code) => Ok(code.clone()),
            Kept::Used(code) => Ok(code.upgrade()?),
            Kept::Refused(why) => Err(why.clone()),
        };
        self.entries.push(entry);
        Some(found)
    }

    /// Checks that a module of so many bytes may be kept.
    pub fn admit(&mut self, len: usize) -> Result<(), String> {
        let Bounds { modules_max, bytes_max, keep } = self.bounds;
        self.entries.retain(|entry| !matches!(&entry.kept, Kept::Used(code) if code.strong_count() == 0));
        let (count, bytes) = (self.entries.len(), self.bytes());
        match keep == Keep::Recent || (count < modules_max && bytes + len <= bytes_max) {
            true => Ok(()),
            false => Err(format!(
                "{count} modules with {bytes} bytes run here, and this one has {len}: there may be {modules_max} with {bytes_max} bytes"
            )),
        }
    }

    /// Keeps a module of so many bytes, or why it was refused. Returns those that have made room: the caller
    /// drops them without a lock.
    #[must_use]
    pub fn insert(&mut self, hash: &str, len: usize, made: &Result<Arc<T>, String>) -> Vec<Entry<T>> {
        let Bounds { modules_max, bytes_max, keep } = self.bounds;
        let mut evicted: Vec<_> = self.entries.extract_if(.., |entry| entry.hash == hash).collect();
        while keep == Keep::Recent
            && !self.entries.is_empty()
            && (self.entries.len() >= modules_max || self.bytes() + len > bytes_max)
        {
            evicted.push(self.entries.remove(0));
        }
        let kept = match (made, keep) {
            (Ok(code), Keep::Recent) => Kept::Recent(code.clone()),
            (Ok(code), Keep::Used) => Kept::Used(Arc::downgrade(code)),
            (Err(why), _) => Kept::Refused(why.clone()),
        };
        self.entries.push(Entry { hash: hash.to_owned(), len, kept });
        evicted
    }

    pub fn remove(&mut self, hash: &str) {
        self.entries.retain(|entry| entry.hash != hash);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.len).sum()
    }
}
