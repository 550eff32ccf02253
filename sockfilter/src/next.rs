//! Functions of the next library (RTLD_NEXT), resolved at their first use or before.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys;

/// One function, or variable, of the next library: the C library's, unless another filter lies between.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name, which must end with a zero byte.
    pub const fn new(name: &'static str) -> Next {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("no zero byte at the end") };
        Next { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address, if it was resolved; null if it was not, or does not exist.
    pub fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// Its address; null if it does not exist.
    pub fn find(&self) -> *mut c_void {
        let mut found = self.known();
        if found.is_null() {
            // SAFETY: the name is a C string; RTLD_NEXT is allowed in a preloaded library.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }

    /// Its address; aborts the process if it does not exist, as a call of a missing function would.
    pub extern "C" fn get(&self) -> *mut c_void {
        let found = self.find();
        if found.is_null() {
            sys::log_line(&format!("the C library has no {}", self.name.to_str().unwrap_or("?")));
            // SAFETY: takes nothing.
            unsafe { libc::abort() };
        }
        found
    }
}
