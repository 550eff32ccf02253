//! The part of libucp's interface (UCX 1.13, `ucp/api/ucp.h`) that the provider uses, loaded at run time.
//!
//! Types and constants are transcribed from the header, so UCX is not needed to build. The library is
//! isolated from the process: `dlopen` loads it with local symbols bound to itself first, and its environment
//! variables keep it from installing signal handlers, memory hooks and log output.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::ViError;

pub(super) type Status = i8;
/// Null: completed. A small negative number: an error. Any other value: a request in progress.
pub(super) type StatusPtr = *mut c_void;

pub(super) const OK: Status = 0;
pub(super) const ERR_REJECTED: Status = -23;
pub(super) const ERR_BUSY: Status = -15;
pub(super) const ERR_LAST: isize = -100;

macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        })*
    };
}

opaque!(Context, Config, Worker, Endpoint, Listener, ConnRequest);

pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const FEATURE_AM: u64 = 1 << 6;
pub(super) const PARAM_FEATURES: u64 = 1 << 0;

#[repr(C)]
pub(super) struct Params {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: *mut c_void,
    pub request_cleanup: *mut c_void,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: *const c_char,
}

pub(super) const WORKER_PARAM_THREAD_MODE: u64 = 1 << 0;
pub(super) const WORKER_PARAM_FLAGS: u64 = 1 << 5;
pub(super) const WORKER_IGNORE_REQUEST_LEAK: u64 = 1;
/// One thread at a time, not always the same.
pub(super) const THREAD_MODE_SERIALIZED: c_uint = 1;

#[repr(C)]
pub(super) struct WorkerParams {
    pub field_mask: u64,
    pub thread_mode: c_uint,
    pub cpu_mask: [u64; 16],
    pub events: c_uint,
    pub user_data: *mut c_void,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: *const c_char,
    pub am_alignment: usize,
    pub client_id: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SockAddr {
    pub addr: *const c_void,
    pub addrlen: u32,
}

pub(super) const LISTENER_PARAM_SOCK_ADDR: u64 = 1 << 0;
pub(super) const LISTENER_PARAM_CONN_HANDLER: u64 = 1 << 2;

pub(super) type ConnHandler = unsafe extern "C" fn(request: *mut ConnRequest, arg: *mut c_void);

#[repr(C)]
pub(super) struct ListenerParams {
    pub field_mask: u64,
    pub sockaddr: SockAddr,
    pub accept_cb: *mut c_void,
    pub accept_arg: *mut c_void,
    pub conn_cb: Option<ConnHandler>,
    pub conn_arg: *mut c_void,
}

pub(super) const EP_PARAM_ERR_MODE: u64 = 1 << 1;
pub(super) const EP_PARAM_ERR_HANDLER: u64 = 1 << 2;
pub(super) const EP_PARAM_SOCK_ADDR: u64 = 1 << 4;
pub(super) const EP_PARAM_FLAGS: u64 = 1 << 5;
pub(super) const EP_PARAM_CONN_REQUEST: u64 = 1 << 6;
pub(super) const EP_CLIENT_SERVER: c_uint = 1;
pub(super) const ERR_MODE_PEER: c_uint = 1;

pub(super) type ErrHandler = unsafe extern "C" fn(arg: *mut c_void, ep: *mut Endpoint, status: Status);

#[repr(C)]
pub(super) struct EpParams {
    pub field_mask: u64,
    pub address: *const c_void,
    pub err_mode: c_uint,
    pub err_cb: Option<ErrHandler>,
    pub err_arg: *mut c_void,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub sockaddr: SockAddr,
    pub conn_request: *mut ConnRequest,
    pub name: *const c_char,
    pub local_sockaddr: SockAddr,
}

pub(super) const OP_CALLBACK: u32 = 1 << 1;
pub(super) const OP_USER_DATA: u32 = 1 << 2;
pub(super) const OP_DATATYPE: u32 = 1 << 3;
pub(super) const OP_FLAGS: u32 = 1 << 4;
/// `ucp_dt_make_contig(1)`: the count is in bytes.
pub(super) const DATATYPE_BYTES: u64 = 1 << 3;
/// `ucp_dt_make_iov()`: the count is in [`Iov`]s.
pub(super) const DATATYPE_IOV: u64 = 2;
pub(super) const AM_SEND_REPLY: u32 = 1;
pub(super) const AM_SEND_EAGER: u32 = 2;
pub(super) const CLOSE_FORCE: u32 = 1;

/// A part of a message (`ucp_dt_iov_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Iov {
    pub buffer: *const c_void,
    pub length: usize,
}

pub(super) type SendCallback =
    unsafe extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);

#[repr(C)]
pub(super) struct RequestParam {
    pub op_attr_mask: u32,
    pub flags: u32,
    pub request: *mut c_void,
    pub send_cb: Option<SendCallback>,
    pub datatype: u64,
    pub user_data: *mut c_void,
    pub reply_buffer: *mut c_void,
    pub memory_type: c_uint,
    pub recv_info: *mut c_void,
    pub memh: *mut c_void,
}

pub(super) const AM_HANDLER_ID: u64 = 1 << 0;
pub(super) const AM_HANDLER_FLAGS: u64 = 1 << 1;
pub(super) const AM_HANDLER_CB: u64 = 1 << 2;
pub(super) const AM_HANDLER_ARG: u64 = 1 << 3;
pub(super) const AM_WHOLE_MSG: u32 = 1;
pub(super) const AM_RECV_REPLY_EP: u64 = 1;
pub(super) const AM_RECV_RNDV: u64 = 1 << 17;

#[repr(C)]
pub(super) struct AmRecvParam {
    pub recv_attr: u64,
    pub reply_ep: *mut Endpoint,
}

pub(super) type AmHandler = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> Status;

#[repr(C)]
pub(super) struct AmHandlerParam {
    pub field_mask: u64,
    pub id: c_uint,
    pub flags: u32,
    pub cb: Option<AmHandler>,
    pub arg: *mut c_void,
}

// Sizes of the structs of the 1.13 header on 64-bit Linux.
const _: () = {
    assert!(size_of::<Params>() == 80);
    assert!(size_of::<WorkerParams>() == 200);
    assert!(size_of::<ListenerParams>() == 56);
    assert!(size_of::<EpParams>() == 104);
    assert!(size_of::<RequestParam>() == 72);
    assert!(size_of::<AmHandlerParam>() == 32);
};

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: *mut c_void) -> Result<Api, ViError> {
                Ok(Api {
                    $($field: {
                        // SAFETY: `library` is open and never closed; the name is a static string that ends
                        // with a zero byte.
                        let at = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast()) };
                        if at.is_null() {
                            return Err(system("dlsym", format!("libucp.so.0 has no {}", $symbol)));
                        }
                        // SAFETY: `at` is the address of the function of this name, which the library's
                        // header declares with this type; the library is never unloaded.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(at)
                        }
                    },)*
                })
            }
        }
    };
}

api! {
    version = "ucp_get_version": fn(*mut c_uint, *mut c_uint, *mut c_uint);
    config_read = "ucp_config_read": fn(*const c_char, *const c_char, *mut *mut Config) -> Status;
    config_modify = "ucp_config_modify": fn(*mut Config, *const c_char, *const c_char) -> Status;
    config_release = "ucp_config_release": fn(*mut Config);
    init_version = "ucp_init_version":
        fn(c_uint, c_uint, *const Params, *const Config, *mut *mut Context) -> Status;
    cleanup = "ucp_cleanup": fn(*mut Context);
    worker_create = "ucp_worker_create": fn(*mut Context, *const WorkerParams, *mut *mut Worker) -> Status;
    worker_destroy = "ucp_worker_destroy": fn(*mut Worker);
    worker_progress = "ucp_worker_progress": fn(*mut Worker) -> c_uint;
    worker_get_efd = "ucp_worker_get_efd": fn(*mut Worker, *mut c_int) -> Status;
    worker_arm = "ucp_worker_arm": fn(*mut Worker) -> Status;
    set_am_handler = "ucp_worker_set_am_recv_handler": fn(*mut Worker, *const AmHandlerParam) -> Status;
    listener_create = "ucp_listener_create":
        fn(*mut Worker, *const ListenerParams, *mut *mut Listener) -> Status;
    listener_destroy = "ucp_listener_destroy": fn(*mut Listener);
    listener_reject = "ucp_listener_reject": fn(*mut Listener, *mut ConnRequest) -> Status;
    ep_create = "ucp_ep_create": fn(*mut Worker, *const EpParams, *mut *mut Endpoint) -> Status;
    ep_close = "ucp_ep_close_nbx": fn(*mut Endpoint, *const RequestParam) -> StatusPtr;
    am_send = "ucp_am_send_nbx": fn(
        *mut Endpoint, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam,
    ) -> StatusPtr;
    request_free = "ucp_request_free": fn(*mut c_void);
    status_string = "ucs_status_string": fn(Status) -> *const c_char;
}

impl Api {
    /// Returns the library's text for a status.
    pub(super) fn text(&self, status: Status) -> String {
        // SAFETY: `ucs_status_string` returns a static string that ends with a zero byte, for every number.
        let text = unsafe { CStr::from_ptr((self.status_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), ViError> {
        if status == OK { Ok(()) } else { Err(system(call, self.text(status))) }
    }
}

pub(super) fn system(call: &'static str, reason: String) -> ViError {
    ViError::System { call, reason }
}

/// Returns a random key, which is sent only to the peer of one VI.
pub(super) fn new_key() -> Result<u32, ViError> {
    let mut key = [0u8; 4];
    // SAFETY: `key` is a local of four writable bytes that outlives the call.
    let got = unsafe { libc::getrandom(key.as_mut_ptr().cast(), 4, 0) };
    if got == 4 {
        Ok(u32::from_ne_bytes(key))
    } else {
        Err(system("getrandom", std::io::Error::last_os_error().to_string()))
    }
}

/// Returns the error status in a [`StatusPtr`], if it is one.
pub(super) fn error_of(result: StatusPtr) -> Option<Status> {
    let number = result as isize;
    (ERR_LAST..0).contains(&number).then_some(number as Status)
}

/// Environment variables set before the library is loaded. All other variables named UCX_* are removed.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("UCX_HANDLE_ERRORS", "none"),
    ("UCX_DEBUG_SIGNO", "0"),
    ("UCX_MEM_EVENTS", "n"),
    ("UCX_MODULES", ""),
    ("UCX_LOG_LEVEL", "fatal"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
    // A restarted daemon can listen while connections of its predecessor are in TIME-WAIT.
    ("UCX_CM_REUSEADDR", "y"),
    // Keeps a message of the usual 16 KiB in one segment.
    ("UCX_TCP_TX_SEG_SIZE", "64k"),
];

fn load() -> Result<Api, ViError> {
    let foreign: Vec<_> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_encoded_bytes().starts_with(b"UCX_"))
        .collect();
    // SAFETY: no other thread reads or changes the environment during these calls: `super::load` requires
    // daemons to call it before they start threads.
    unsafe {
        foreign.iter().for_each(|name| std::env::remove_var(name));
        ENVIRONMENT.iter().for_each(|(name, value)| std::env::set_var(name, value));
    }
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the name is a static string that ends with a zero byte. The environment set above keeps the
    // library's constructors from installing handlers and hooks.
    let library = unsafe { libc::dlopen(c"libucp.so.0".as_ptr(), flags) };
    if library.is_null() {
        let reason = "libucp.so.0 cannot be loaded; install the Debian package libucx0".to_owned();
        return Err(system("dlopen", reason));
    }
    let api = Api::find(library)?;
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the three pointers refer to locals that outlive the call.
    unsafe { (api.version)(&raw mut major, &raw mut minor, &raw mut release) };
    if (major, minor) < (1, 13) {
        return Err(system("ucp_get_version", format!("UCX {major}.{minor} is too old: 1.13 is needed")));
    }
    Ok(api)
}

/// Returns the library, loaded by the first call.
pub(super) fn api() -> Result<&'static Api, ViError> {
    static API: OnceLock<Result<Api, ViError>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}
