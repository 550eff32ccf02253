//! The callbacks of the library. Each runs within one of the provider's own calls into the library, on the
//! provider's thread, while the provider holds no reference to its core.

use std::ffi::c_void;
use std::slice;

use super::core::Core;
use super::end::Context;
use super::sys::{self, AmRecvParam, ConnRequest, Endpoint, Status};

/// Returns the `size` bytes at `at`; none for a null pointer.
///
/// # Safety
/// `at` is null or points to `size` bytes that are readable and unchanged for `'a`.
unsafe fn bytes<'a>(at: *const c_void, size: usize) -> &'a [u8] {
    if at.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: `at` is not null, so the caller guarantees `size` readable, unchanged bytes for `'a`.
    unsafe { slice::from_raw_parts(at.cast(), size) }
}

pub(super) unsafe extern "C" fn message(
    core: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> Status {
    // SAFETY: the handler was registered with the worker's core, which is freed after the worker. The
    // provider makes no call into the library while it holds a reference to the core, so this reference is
    // the only one.
    let core = unsafe { &mut *core.cast::<Core>() };
    // SAFETY: the library passes a parameter that is valid during the callback.
    let param = unsafe { &*param };
    // SAFETY: the library passes `header_length` bytes at `header`, valid during the callback.
    let header = unsafe { bytes(header, header_length) };
    if param.recv_attr & sys::AM_RECV_RNDV != 0 {
        // With rendezvous `data` is a descriptor of data to fetch, not the data. Correct peers never send it.
        core.counters.violations += 1;
        return sys::OK;
    }
    // SAFETY: without rendezvous the library passes `length` bytes at `data`, valid during the callback.
    let data = unsafe { bytes(data, length) };
    let has_reply = param.recv_attr & sys::AM_RECV_REPLY_EP != 0;
    core.on_message(header, data, if has_reply { param.reply_ep } else { std::ptr::null_mut() });
    // OK releases `data` to the library: it has been copied.
    sys::OK
}

pub(super) unsafe extern "C" fn failure(core: *mut c_void, endpoint: *mut Endpoint, status: Status) {
    // SAFETY: `core` is the registered core, alive and unreferenced, as in `message`.
    let core = unsafe { &mut *core.cast::<Core>() };
    core.failures.push_back((endpoint, status));
}

pub(super) unsafe extern "C" fn connection(request: *mut ConnRequest, core: *mut c_void) {
    // SAFETY: `core` is the registered core, alive and unreferenced, as in `message`.
    let core = unsafe { &mut *core.cast::<Core>() };
    core.on_connection(request);
}

pub(super) unsafe extern "C" fn sent(request: *mut c_void, status: Status, context: *mut c_void) {
    // SAFETY: `context` is the pointer passed to `Worker::send`, into a box of an end. The end is removed
    // only after all its send buffers were released, which for this buffer happens below.
    let Some(context) = (unsafe { *context.cast::<Option<Context>>() }) else { return };
    // SAFETY: the library passes a completed request, whose owner is the provider; it is not used after this.
    unsafe { (context.api.request_free)(request) };
    // SAFETY: `context.core` is the worker's core, alive and unreferenced, as in `message`.
    let core = unsafe { &mut *context.core };
    core.on_sent(context.vi, context.buffer, status == sys::OK);
}

/// The core and the library, for [`closed`].
pub(super) struct Closing {
    pub core: *mut Core,
    pub api: &'static sys::Api,
}

pub(super) unsafe extern "C" fn closed(request: *mut c_void, _status: Status, closing: *mut c_void) {
    // SAFETY: `closing` is the worker's own `Closing`, which is freed after the worker.
    let closing = unsafe { &*closing.cast::<Closing>() };
    // SAFETY: the library passes a completed request, whose owner is the provider; it is not used after this.
    unsafe { (closing.api.request_free)(request) };
    // SAFETY: `closing.core` is the worker's core, alive and unreferenced, as in `message`.
    let core = unsafe { &mut *closing.core };
    core.closing = core.closing.saturating_sub(1);
}
