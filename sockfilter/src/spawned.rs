//! The effects of posix_spawn's file actions that concern the filter: the descriptors that they duplicate,
//! and the working directory in which the child executes its program.
//!
//! A connection with close-on-exec still reaches a child if an action names it, so it must be handed over
//! like one without close-on-exec. glibc's own list of actions is private, hence this list. It takes no lock,
//! so that a child forked meanwhile can use it.

use core::ffi::{CStr, c_char};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use libc::c_int;

/// Largest number of recorded actions, of all actions objects.
const NAMED_MAX: usize = 256;
const FREE: usize = 0;
const BEING_WRITTEN: usize = 1;
/// Stands for a descriptor if the action changes the working directory.
const CHANGES_FOLDER: c_int = -1;

/// One action of an actions object, which is identified by its address.
struct Named {
    actions: AtomicUsize,
    /// The descriptor that the action duplicates, or [`CHANGES_FOLDER`].
    fd: AtomicI32,
    /// The directory, a CString; null if a descriptor names it.
    folder: AtomicPtr<c_char>,
    /// Position among all recorded actions: changes of the folder apply in this order.
    order: AtomicUsize,
}

/// The working directory in which the child of posix_spawn executes its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Folder {
    /// This directory; empty for the parent's.
    At(PathBuf),
    /// It cannot be determined: a descriptor names it (which other actions may have opened), or the list was
    /// full.
    Unknown,
}

/// The list.
pub struct Actions {
    list: [Named; NAMED_MAX],
    recorded: AtomicUsize,
    /// Number of changes of the working directory that found the list full, over the process's life.
    lost: AtomicUsize,
}

/// The actions of this process.
pub static ACTIONS: Actions = Actions::new();

impl Actions {
    const fn new() -> Self {
        Actions {
            list: [const {
                Named {
                    actions: AtomicUsize::new(FREE),
                    fd: AtomicI32::new(0),
                    folder: AtomicPtr::new(null_mut()),
                    order: AtomicUsize::new(0),
                }
            }; NAMED_MAX],
            recorded: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        }
    }

    /// Records that the object at this address duplicates `fd`. Returns `false` if the list is full.
    pub fn remember(&self, actions: usize, fd: c_int) -> bool {
        self.record(actions, fd, null_mut())
    }

    /// Records that the object at this address changes the folder; `None`: to that of a descriptor.
    pub fn remember_folder(&self, actions: usize, folder: Option<&CStr>) {
        let folder = folder.map_or(null_mut(), |folder| folder.to_owned().into_raw());
        if !self.record(actions, CHANGES_FOLDER, folder) {
            free(folder);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn record(&self, actions: usize, fd: c_int, folder: *mut c_char) -> bool {
        let (taken, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let unused = |n: &&Named| n.actions.compare_exchange(FREE, BEING_WRITTEN, taken, relaxed).is_ok();
        let Some(named) = self.list.iter().find(unused) else { return false };
        named.fd.store(fd, Ordering::Relaxed);
        named.folder.store(folder, Ordering::Relaxed);
        named.order.store(self.recorded.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        named.actions.store(actions, Ordering::Release);
        true
    }

    /// Removes the records of the object at this address, which is new or destroyed.
    pub fn release(&self, actions: usize) {
        // A plain load first: most entries are free.
        for named in self.list.iter().filter(|n| n.actions.load(Ordering::Relaxed) == actions) {
            let (taken, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            if named.actions.compare_exchange(actions, BEING_WRITTEN, taken, relaxed).is_ok() {
                free(named.folder.swap(null_mut(), Ordering::Relaxed));
                named.actions.store(FREE, Ordering::Release);
            }
        }
    }

    fn recorded_of(&self, actions: usize) -> impl Iterator<Item = &Named> {
        let of_it = move |n: &&Named| n.actions.load(Ordering::Acquire) == actions && actions > BEING_WRITTEN;
        self.list.iter().filter(of_it)
    }

    /// The descriptors that the object at this address duplicates.
    pub fn of(&self, actions: usize) -> impl Iterator<Item = c_int> {
        self.recorded_of(actions).map(|n| n.fd.load(Ordering::Relaxed)).filter(|fd| *fd != CHANGES_FOLDER)
    }

    /// Returns the working directory in which the object at this address lets the program be executed.
    pub fn folder(&self, actions: usize) -> Folder {
        if self.lost.load(Ordering::Relaxed) > 0 {
            return Folder::Unknown;
        }
        let changes = |n: &&Named| n.fd.load(Ordering::Relaxed) == CHANGES_FOLDER;
        let mut changes: Vec<&Named> = self.recorded_of(actions).filter(changes).collect();
        changes.sort_unstable_by_key(|n| n.order.load(Ordering::Relaxed));
        let mut at = PathBuf::new();
        for change in changes {
            let folder = change.folder.load(Ordering::Relaxed);
            if folder.is_null() {
                return Folder::Unknown;
            }
            // SAFETY: a folder that is not null comes from `CString::into_raw`, and lives as long as its
            // object's records: by POSIX no object is destroyed while it is used.
            let folder = unsafe { CStr::from_ptr(folder) };
            at.push(OsStr::from_bytes(folder.to_bytes()));
        }
        Folder::At(at)
    }
}

/// Frees a folder of the list.
fn free(folder: *mut c_char) {
    if !folder.is_null() {
        // SAFETY: the list's folders come from `CString::into_raw`, and the caller has taken this one out of
        // it.
        drop(unsafe { CString::from_raw(folder) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_remembered_until_their_object_goes() {
        let list = Actions::new();
        assert!(list.remember(0x1000, 5) && list.remember(0x2000, 6) && list.remember(0x1000, 7));
        assert_eq!(list.of(0x1000).collect::<Vec<_>>(), [5, 7]);
        assert_eq!(list.of(0).count(), 0);
        list.release(0x1000);
        assert_eq!(list.of(0x1000).count(), 0);
        assert_eq!(list.of(0x2000).collect::<Vec<_>>(), [6]);
        let room = (0..).take_while(|_| list.remember(0x3000, 8)).count();
        assert_eq!(room, NAMED_MAX - 1);
    }

    #[test]
    fn folders_change_in_the_order_of_the_actions() {
        let list = Actions::new();
        let at = |path: &str| Folder::At(PathBuf::from(path));
        assert_eq!(list.folder(0x1000), at(""));
        // A free entry in front must not come first.
        assert!(list.remember(0x2000, 6));
        list.remember_folder(0x1000, Some(c"/tmp"));
        list.release(0x2000);
        list.remember_folder(0x1000, Some(c"sub"));
        assert_eq!((list.folder(0x1000), list.of(0x1000).count()), (at("/tmp/sub"), 0));
        list.remember_folder(0x1000, Some(c"/var"));
        assert_eq!((list.folder(0x1000), list.folder(0x2000)), (at("/var"), at("")));
        list.remember_folder(0x1000, None);
        assert_eq!(list.folder(0x1000), Folder::Unknown);
        list.release(0x1000);
        assert_eq!(list.folder(0x1000), at(""));
        while list.remember(0x3000, 8) {}
        list.remember_folder(0x1000, Some(c"/tmp"));
        assert_eq!(list.folder(0x1000), Folder::Unknown, "it could not be recorded");
    }
}
