//! What the next library has (RTLD_NEXT), looked up when it is first asked for, or before.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys;

/// One function of the next library, or a variable: the C library's where no other filter comes between.
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

    /// Where it is, if it was looked up; null where it was not, or where there is none.
    pub fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// Where it is; null where there is none.
    pub fn find(&self) -> *mut c_void {
        let mut found = self.known();
        if found.is_null() {
            // SAFETY: the name is a C string; RTLD_NEXT is allowed in a preloaded library.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }

    /// Where it is; ends the process where there is none, as calling a function that is not there would.
    pub extern "C" fn get(&self) -> *mut c_void {
        let found = self.find();
        if found.is_null() {
            sys::complain(&format!("the C library has no {}", self.name.to_str().unwrap_or("?")));
            // SAFETY: takes nothing.
            unsafe { libc::abort() };
        }
        found
    }
}
