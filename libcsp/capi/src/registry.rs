//! Contexts by handle. One thread at a time is in a context; a second one is refused and does not wait. In a
//! forked child the parent's contexts return `CSP_EFORK`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use crate::context::{Context, Options};
use crate::error::{Error, Result};
use crate::fork::{self, ProcessNumber};
use crate::handle::{self, CONTEXT_GENERATION_MASK, ContextId, Key, Kind};

/// Contexts of one process (`CSP_CONTEXTS_MAX`).
pub const CONTEXTS_MAX: usize = 64;

struct Slot {
    /// Whether a thread is in it.
    busy: AtomicBool,
    /// The generation of the slot; changed by the thread that is in it.
    generation: AtomicU16,
    inner: UnsafeCell<Option<(ProcessNumber, Box<Context>)>>,
}

// SAFETY: `inner` is accessed only by the thread that set `busy`.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; CONTEXTS_MAX] = [const {
    Slot { busy: AtomicBool::new(false), generation: AtomicU16::new(1), inner: UnsafeCell::new(None) }
}; CONTEXTS_MAX];

/// Where the search for the next free slot starts, so that a slot, and with it an old handle, is reused late.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A slot that this thread is in.
struct Inside(&'static Slot);

impl Inside {
    fn enter(slot: &'static Slot) -> Option<Inside> {
        // Created only if entering succeeded: dropping it leaves the slot.
        if slot.busy.swap(true, Ordering::Acquire) { None } else { Some(Inside(slot)) }
    }

    fn inner(&mut self) -> &mut Option<(ProcessNumber, Box<Context>)> {
        // SAFETY: `enter` set `busy`, so only one `Inside` of a slot exists; `&mut self` allows one reference
        // at a time.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// A context that this thread is in.
pub struct Entered {
    inside: Inside,
}

impl Deref for Entered {
    type Target = Context;
    fn deref(&self) -> &Context {
        // SAFETY: as in `Inside::inner`. The context exists, since `enter` found it and no other thread is in
        // the slot.
        match unsafe { &*self.inside.0.inner.get() } {
            Some((_, context)) => context,
            None => unreachable!("an entered slot has a context"),
        }
    }
}

impl Drop for Entered {
    /// The call may have created a deadline earlier than the one for which the program waits.
    fn drop(&mut self) {
        self.keep_time();
    }
}

impl DerefMut for Entered {
    fn deref_mut(&mut self) -> &mut Context {
        match self.inside.inner() {
            Some((_, context)) => context,
            None => unreachable!("an entered slot has a context"),
        }
    }
}

fn slot_of(id: ContextId) -> Result<&'static Slot> {
    let slot = SLOTS.get(usize::from(id.slot)).ok_or(Error::HANDLE)?;
    // The generation of a closed context differs, whichever context uses its slot now.
    if slot.generation.load(Ordering::Acquire) != id.generation {
        return Err(Error::HANDLE);
    }
    Ok(slot)
}

/// Enters the context of a handle of `kind`; returns the handle's key.
pub fn enter(handle: u64, kind: Kind) -> Result<(Entered, Key)> {
    if handle::kind(handle)? != kind {
        return Err(Error::HANDLE);
    }
    let id = ContextId::of(handle);
    let slot = slot_of(id)?;
    let process = fork::current().ok_or(Error::FORK)?;
    let mut inside = match Inside::enter(slot) {
        Some(inside) => inside,
        None => return Err(Error::BUSY),
    };
    // It may have been closed, and another opened in its slot, since the look-up.
    if slot.generation.load(Ordering::Acquire) != id.generation {
        return Err(Error::HANDLE);
    }
    match inside.inner() {
        Some((made_in, _)) if *made_in == process => Ok((Entered { inside }, handle::key(handle))),
        Some(_) => Err(Error::FORK),
        None => Err(Error::HANDLE),
    }
}

/// Opens a context; returns its handle.
pub fn open(options: Options) -> Result<u64> {
    let process = fork::establish()?;
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    for at in (0..CONTEXTS_MAX).map(|i| first.wrapping_add(i) % CONTEXTS_MAX) {
        let Some(slot) = SLOTS.get(at) else { continue };
        let Some(mut inside) = Inside::enter(slot) else { continue };
        if inside.inner().is_some() {
            continue;
        }
        let id = ContextId { slot: at as u8, generation: slot.generation.load(Ordering::Relaxed) };
        let context = Context::new(id, options)?;
        *inside.inner() = Some((process, Box::new(context)));
        return Ok(id.handle());
    }
    Err(Error::TOO_MANY)
}

/// Closes a context. For a parent's context in a forked child: releases the child's resources of it; nothing
/// is sent to any peer.
pub fn close(handle: u64) -> Result<()> {
    if handle::kind(handle)? != Kind::Context {
        return Err(Error::HANDLE);
    }
    let id = ContextId::of(handle);
    let slot = slot_of(id)?;
    let process = fork::current();
    let Some(mut inside) = Inside::enter(slot) else {
        // A thread of the parent was in the context during the fork; it never leaves it in this process.
        return Err(if process.is_none() { Error::FORK } else { Error::BUSY });
    };
    if slot.generation.load(Ordering::Acquire) != id.generation {
        return Err(Error::HANDLE);
    }
    let (made_in, context) = inside.inner().take().ok_or(Error::HANDLE)?;
    let next = (id.generation + 1) & CONTEXT_GENERATION_MASK;
    slot.generation.store(next.max(1), Ordering::Release);
    if Some(made_in) == process {
        drop(context);
    } else {
        context.abandon_after_fork();
    }
    Ok(())
}
