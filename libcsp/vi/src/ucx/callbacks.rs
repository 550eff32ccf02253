//! What the library calls. Each is called from within one of the provider's own calls into the library, on the
//! provider's thread, while the provider holds no reference to its core.

use std::ffi::c_void;
use std::slice;

use super::core::Core;
use super::end::Context;
use super::sys::{self, AmRecvParam, ConnRequest, Endpoint, Status};

/// `size` bytes at `at`; none for a null pointer.
///
/// # Safety
/// Bytes that `at` points to must be readable for `'a`.
unsafe fn bytes<'a>(at: *const c_void, size: usize) -> &'a [u8] {
    if at.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: by the caller.
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
    // SAFETY: registered with the core, which outlives the worker; nobody holds a reference to it now.
    let core = unsafe { &mut *core.cast::<Core>() };
    // SAFETY: the library passes a valid parameter.
    let param = unsafe { &*param };
    // SAFETY: the library passes `header_length` bytes.
    let header = unsafe { bytes(header, header_length) };
    if param.recv_attr & sys::AM_RECV_RNDV != 0 {
        // `data` is no data but a promise of it, which our peers never make.
        core.counters.violations += 1;
        return sys::OK;
    }
    // SAFETY: without rendezvous the library passes `length` bytes.
    let data = unsafe { bytes(data, length) };
    let has_reply = param.recv_attr & sys::AM_RECV_REPLY_EP != 0;
    core.on_message(header, data, if has_reply { param.reply_ep } else { std::ptr::null_mut() });
    // The data was copied.
    sys::OK
}

pub(super) unsafe extern "C" fn failure(core: *mut c_void, endpoint: *mut Endpoint, status: Status) {
    // SAFETY: as for `message`.
    let core = unsafe { &mut *core.cast::<Core>() };
    core.failures.push_back((endpoint, status));
}

pub(super) unsafe extern "C" fn connection(request: *mut ConnRequest, core: *mut c_void) {
    // SAFETY: as for `message`.
    let core = unsafe { &mut *core.cast::<Core>() };
    core.on_connection(request);
}

pub(super) unsafe extern "C" fn sent(request: *mut c_void, status: Status, context: *mut c_void) {
    // SAFETY: the context lies in an end that stays until its send buffers are back.
    let Some(context) = (unsafe { *context.cast::<Option<Context>>() }) else { return };
    // SAFETY: the request is the library's, and this the last use of it.
    unsafe { (context.api.request_free)(request) };
    // SAFETY: as for `message`.
    let core = unsafe { &mut *context.core };
    core.on_sent(context.vi, context.buffer, status == sys::OK);
}

/// The core and the library, for [`closed`].
pub(super) struct Closing {
    pub core: *mut Core,
    pub api: &'static sys::Api,
}

pub(super) unsafe extern "C" fn closed(request: *mut c_void, _status: Status, closing: *mut c_void) {
    // SAFETY: the provider's own, which outlives the worker.
    let closing = unsafe { &*closing.cast::<Closing>() };
    // SAFETY: as for `sent`.
    unsafe { (closing.api.request_free)(request) };
    // SAFETY: as for `message`.
    let core = unsafe { &mut *closing.core };
    core.closing = core.closing.saturating_sub(1);
}
