//! The imports of the ABI behind safe functions. On targets without them they return that there is nothing.

use crate::Field;

#[cfg(target_arch = "wasm32")]
mod host {
    #[link(wasm_import_module = "csp")]
    unsafe extern "C" {
        pub fn read(offset: u32, len: u32, into: *mut u8) -> u32;
        pub safe fn frame_len(frame: u32) -> i32;
        pub fn emit(output: u32, format: u32, from: *const u8, len: u32) -> i32;
        pub safe fn emit_same(output: u32) -> i32;
        pub safe fn emit_range(output: u32, format: u32, start: u32, len: u32) -> i32;
        pub fn state_read(offset: u32, len: u32, into: *mut u8) -> u32;
        pub fn state_write(offset: u32, len: u32, from: *const u8);
        pub safe fn now() -> u64;
        pub safe fn arrived() -> u64;
        pub safe fn sequence() -> u64;
        pub fn locate(format: u32, path: *const u8, path_len: u32, into: *mut super::Field) -> i32;
        pub fn parameters(offset: u32, len: u32, into: *mut u8) -> u32;
        pub fn refuse(from: *const u8, len: u32);
    }
}

/// Stands in for the host where there is none.
#[cfg(not(target_arch = "wasm32"))]
#[allow(clippy::missing_safety_doc)]
mod host {
    pub unsafe fn read(_: u32, _: u32, _: *mut u8) -> u32 {
        0
    }
    pub fn frame_len(_: u32) -> i32 {
        -1
    }
    pub unsafe fn emit(_: u32, _: u32, _: *const u8, _: u32) -> i32 {
        1
    }
    pub fn emit_same(_: u32) -> i32 {
        1
    }
    pub fn emit_range(_: u32, _: u32, _: u32, _: u32) -> i32 {
        1
    }
    pub unsafe fn state_read(_: u32, _: u32, _: *mut u8) -> u32 {
        0
    }
    pub unsafe fn state_write(_: u32, _: u32, _: *const u8) {}
    pub fn now() -> u64 {
        0
    }
    pub fn arrived() -> u64 {
        0
    }
    pub fn sequence() -> u64 {
        0
    }
    pub unsafe fn locate(_: u32, _: *const u8, _: u32, _: *mut super::Field) -> i32 {
        -1
    }
    pub unsafe fn parameters(_: u32, _: u32, _: *mut u8) -> u32 {
        0
    }
    pub unsafe fn refuse(_: *const u8, _: u32) {}
}

pub use host::{arrived, emit_range, emit_same, frame_len, now, sequence};

pub fn read(offset: u32, into: &mut [u8]) -> u32 {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { host::read(offset, into.len() as u32, into.as_mut_ptr()) }
}

pub fn emit(output: u32, format: u32, bytes: &[u8]) -> i32 {
    // SAFETY: the host reads as many bytes as the slice has, and keeps no address.
    unsafe { host::emit(output, format, bytes.as_ptr(), bytes.len() as u32) }
}

pub fn state_read(offset: u32, into: &mut [u8]) -> u32 {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { host::state_read(offset, into.len() as u32, into.as_mut_ptr()) }
}

pub fn state_write(offset: u32, bytes: &[u8]) {
    // SAFETY: the host reads as many bytes as the slice has, and keeps no address.
    unsafe { host::state_write(offset, bytes.len() as u32, bytes.as_ptr()) }
}

pub fn locate(format: u32, path: &str, into: &mut Field) -> i32 {
    // SAFETY: the host reads the path, and writes the 16 bytes that a field has.
    unsafe { host::locate(format, path.as_ptr(), path.len() as u32, into) }
}

pub fn parameters(offset: u32, into: &mut [u8]) -> u32 {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { host::parameters(offset, into.len() as u32, into.as_mut_ptr()) }
}

pub fn refuse(why: &str) {
    // SAFETY: the host reads as many bytes as the text has.
    unsafe { host::refuse(why.as_ptr(), why.len() as u32) }
}
