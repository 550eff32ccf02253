//! The filter's single lock: a futex word, which does not depend on the program's threading library and can
//! be reset in a forked child. Also the flag that a thread is inside the filter.

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::sys::{self, syscall};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// A mutual exclusion word.
pub struct Word(AtomicU32);

impl Word {
    /// A free word.
    pub const fn new() -> Self {
        Word(AtomicU32::new(FREE))
    }

    /// Waits until the word is free, and takes it.
    pub fn lock(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word lives in a static; no time-out.
            let _ = unsafe { syscall!(libc::SYS_futex, self.0.as_ptr(), operation, WAITED_FOR, 0) };
        }
    }

    /// Releases the word. Only its holder may do so; a forked child's only thread holds what the forking
    /// thread held.
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word lives in a static.
            let _ = unsafe { syscall!(libc::SYS_futex, self.0.as_ptr(), operation, 1) };
        }
    }
}

thread_local! {
    // Const, without destructor: a plain load from the thread's static block (rule: no allocation, no
    // registration).
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside the filter: a call made now is the filter's own, or a signal handler's.
pub fn inside() -> bool {
    INSIDE.get()
}

/// Marks the thread as inside, and preserves errno from the filter's own calls.
pub struct Inside {
    errno: i32,
    before: bool,
}

impl Inside {
    /// Marks the thread until the value is dropped.
    pub fn enter() -> Self {
        let entered = Inside { errno: sys::errno(), before: INSIDE.replace(true) };
        // A signal handler of this thread must see it before anything else.
        compiler_fence(Ordering::SeqCst);
        entered
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        INSIDE.set(self.before);
        sys::set_errno(self.errno);
    }
}

/// The steps that end each use of a shared value.
pub trait Shared {
    /// Whether signal handlers have left changes for the next holder of the lock.
    fn is_unsettled() -> bool;

    /// Called before a thread releases the lock. Applies the changes of signal handlers, and does the work
    /// that other threads rely on.
    fn before_unlock(&mut self);
}

/// An identifier of this thread, unique among living threads.
pub fn thread() -> usize {
    INSIDE.with(|inside| core::ptr::from_ref(inside) as usize)
}

/// A value behind a [`Word`].
pub struct Locked<T> {
    word: Word,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only between `lock` and `unlock` of the word.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Returns an unlocked value.
    pub const fn new(value: T) -> Self {
        Locked { word: Word::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: Shared> Locked<T> {
    /// Runs `f` with the value. Must not be called if [`inside`] is true: the thread may hold the lock
    /// already.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let result = self.run(f);
        self.settled();
        result
    }

    fn run<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _inside = Inside::enter();
        self.word.lock();
        // SAFETY: the word is held, and `f` cannot access the value a second time, since `inside` is set.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value);
        value.before_unlock();
        self.word.unlock();
        result
    }

    /// Applies changes of a signal handler that ran after the last check while the thread was still inside.
    pub fn settled(&self) {
        while T::is_unsettled() && !inside() {
            self.run(|_| ());
        }
    }

    /// Whether any thread has the lock.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.word.0.load(Ordering::Relaxed) != FREE
    }

    /// Takes the lock for a fork and keeps it; the thread stays inside meanwhile.
    pub fn hold(&self) {
        INSIDE.set(true);
        compiler_fence(Ordering::SeqCst);
        self.word.lock();
    }

    /// Releases the lock that [`hold`](Self::hold) took.
    pub fn release(&self) {
        // SAFETY: the caller holds the word by `hold`, and has no other reference.
        unsafe { self.held() }.before_unlock();
        self.word.unlock();
        compiler_fence(Ordering::SeqCst);
        INSIDE.set(false);
        self.settled();
    }

    /// The value, for the thread that holds the lock across a fork.
    ///
    /// # Safety
    /// The calling thread must hold the lock through [`hold`](Self::hold), and use no other reference.
    #[expect(clippy::mut_from_ref, reason = "the lock that the caller holds is what makes it exclusive")]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: by this function's contract the caller holds the word and uses no other reference.
        unsafe { &mut *self.value.get() }
    }
}
