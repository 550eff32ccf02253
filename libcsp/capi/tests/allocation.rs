//! Messages allocate nothing once a channel is in use: counted through the C functions themselves.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

// The functions are in the crate; it has no Rust interface.
use csp as _;
use csp_support::allocation;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

#[repr(C)]
#[derive(Clone, Copy)]
struct Buffer {
    id: u64,
    data: *mut c_void,
    capacity: u32,
    length: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    kind: u32,
    error: c_int,
    handle: u64,
    accepted: u64,
    user: *mut c_void,
    tag: u64,
    buffer: Buffer,
    immediate: u32,
    reserved: u32,
}

unsafe extern "C" {
    fn csp_open(context: *mut u64, options: *const c_void) -> c_int;
    fn csp_close(context: u64) -> c_int;
    fn csp_poll(context: u64, events: *mut Event, count: c_int) -> c_int;
    fn csp_arm(context: u64) -> c_int;
    fn csp_buffer_get(context: u64, buffer: *mut Buffer) -> c_int;
    fn csp_buffer_release(buffer: *const Buffer) -> c_int;
    fn csp_send(connection: u64, buffer: *const Buffer, immediate: u32, flags: c_uint, tag: u64) -> c_int;
    fn csp_listen_channel(
        context: u64,
        name: *const c_char,
        flags: c_uint,
        user: *mut c_void,
        listener: *mut u64,
    ) -> c_int;
    fn csp_connect_channel(
        context: u64,
        name: *const c_char,
        flags: c_uint,
        user: *mut c_void,
        connection: *mut u64,
    ) -> c_int;
}

const RECEIVED: u32 = 3;
const RELEASE: c_uint = 1;
const IN_PLACE: c_uint = 2;

fn poll(context: u64) -> Option<Event> {
    let mut event = MaybeUninit::<Event>::uninit();
    // SAFETY: one event is writable.
    let count = unsafe { csp_poll(context, event.as_mut_ptr(), 1) };
    assert!(count >= 0);
    // SAFETY: one event was written.
    (count == 1).then(|| unsafe { event.assume_init() })
}

/// Sends `count` messages from one context to the other, as many at once as there are buffers; both are armed
/// in between.
fn exchange(from: u64, to: u64, channel: u64, count: u32) {
    let (mut sent, mut received) = (0, 0);
    while received < count {
        let mut buffer = MaybeUninit::<Buffer>::uninit();
        // SAFETY: a buffer is writable, and readable once the call gave 0.
        unsafe {
            while sent < count && csp_buffer_get(from, buffer.as_mut_ptr()) == 0 {
                let mut filled = buffer.assume_init();
                filled.length = sent % 4096;
                if csp_send(channel, &raw const filled, sent, RELEASE, 0) != 0 {
                    assert_eq!(csp_buffer_release(&raw const filled), 0);
                    break;
                }
                sent += 1;
            }
        }
        assert!(poll(from).is_none());
        while let Some(event) = poll(to) {
            assert_eq!((event.kind, event.immediate), (RECEIVED, received));
            // SAFETY: the event's buffer is readable.
            assert_eq!(unsafe { csp_buffer_release(&raw const event.buffer) }, 0);
            received += 1;
        }
        // SAFETY: no pointers.
        assert!(unsafe { csp_arm(from) >= 0 && csp_arm(to) >= 0 });
    }
}

fn allocations_of_messages(flags: c_uint) -> u64 {
    let (mut client, mut server, mut listener, mut channel) = (0, 0, 0, 0);
    let name = CString::new(format!("allocation{flags}")).unwrap();
    let null = std::ptr::null_mut();
    // SAFETY: handles are writable, the name is a C string.
    unsafe {
        assert_eq!((csp_open(&raw mut client, null), csp_open(&raw mut server, null)), (0, 0));
        assert_eq!(csp_listen_channel(server, name.as_ptr(), flags, null, &raw mut listener), 0);
        assert_eq!(csp_connect_channel(client, name.as_ptr(), flags, null, &raw mut channel), 0);
    }
    while poll(client).is_none() {
        // CSP_ACCEPTED: the test has no use for that end.
        let _ = poll(server);
    }
    exchange(client, server, channel, 2_000);
    let before = allocation::count();
    exchange(client, server, channel, 10_000);
    let made = allocation::count() - before;
    // SAFETY: no pointers.
    unsafe { assert_eq!((csp_close(client), csp_close(server)), (0, 0)) };
    made
}

#[test]
fn messages_allocate_nothing() {
    let folder = std::env::temp_dir().join(format!("csp-capi-allocation-{}", std::process::id()));
    let path = CString::new(folder.as_os_str().as_bytes()).unwrap();
    // SAFETY: this is the binary's only test; no other thread reads the environment.
    unsafe { libc::setenv(c"CSP_CHANNELS".as_ptr(), path.as_ptr(), 1) };
    assert_eq!((allocations_of_messages(0), allocations_of_messages(IN_PLACE)), (0, 0));
    std::fs::remove_dir_all(folder).unwrap();
}
