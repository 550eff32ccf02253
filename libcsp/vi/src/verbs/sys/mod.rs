//! libibverbs and librdmacm: the parts of their interfaces that the provider uses, and how the libraries are
//! loaded.
//!
//! Transcribed from `infiniband/verbs.h` and `rdma/rdma_cma.h` of rdma-core 44 for 64-bit Linux. Structs that
//! the library allocates are declared up to the last field used; those that the provider allocates are
//! complete. Both libraries have kept these layouts since their first release. The symbols are found at run
//! time, so that hosts without the libraries run the programs, too.

pub(super) mod cm;
pub(super) mod ibv;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::ViError;
pub(super) use crate::clock::monotonic_ms;
use cm::{CmEvent, CmId, ConnParam, EventChannel};
use ibv::{AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, Qp, QpAttr, QpInitAttr, Srq};

macro_rules! functions {
    (
        verbs { $($vf:ident = $vs:literal: fn($($va:ty),* $(,)?) $(-> $vr:ty)?;)* }
        rdmacm { $($cf:ident = $cs:literal: fn($($ca:ty),* $(,)?) $(-> $cr:ty)?;)* }
    ) => {
        /// The libraries' functions.
        pub(super) struct Api {
            $(pub $vf: unsafe extern "C" fn($($va),*) $(-> $vr)?,)*
            $(pub $cf: unsafe extern "C" fn($($ca),*) $(-> $cr)?,)*
        }

        impl Api {
            fn find(verbs: Library, rdmacm: Library) -> Result<Api, ViError> {
                Ok(Api {
                    // SAFETY: `symbol` returned the address of the function of this name, which the library's
                    // header declares with this type; libraries are never unloaded.
                    $($vf: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($va),*) $(-> $vr)?>(
                            verbs.symbol(concat!($vs, "\0"))?)
                    },)*
                    // SAFETY: `symbol` returned the address of the function of this name, which the library's
                    // header declares with this type; libraries are never unloaded.
                    $($cf: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ca),*) $(-> $cr)?>(
                            rdmacm.symbol(concat!($cs, "\0"))?)
                    },)*
                })
            }
        }
    };
}

functions! {
    verbs {
        open_device = "ibv_open_device": fn(*mut Device) -> *mut Context;
        close_device = "ibv_close_device": fn(*mut Context) -> c_int;
        query_device = "ibv_query_device": fn(*mut Context, *mut DeviceAttr) -> c_int;
        query_port = "ibv_query_port": fn(*mut Context, u8, *mut ibv::PortAttr) -> c_int;
        alloc_pd = "ibv_alloc_pd": fn(*mut Context) -> *mut Pd;
        dealloc_pd = "ibv_dealloc_pd": fn(*mut Pd) -> c_int;
        reg_mr = "ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        dereg_mr = "ibv_dereg_mr": fn(*mut Mr) -> c_int;
        create_comp_channel = "ibv_create_comp_channel": fn(*mut Context) -> *mut CompChannel;
        destroy_comp_channel = "ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int;
        create_cq = "ibv_create_cq":
            fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        destroy_cq = "ibv_destroy_cq": fn(*mut Cq) -> c_int;
        get_cq_event = "ibv_get_cq_event": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ack_cq_events = "ibv_ack_cq_events": fn(*mut Cq, c_uint);
        create_srq = "ibv_create_srq": fn(*mut Pd, *mut ibv::SrqInitAttr) -> *mut Srq;
        destroy_srq = "ibv_destroy_srq": fn(*mut Srq) -> c_int;
        create_qp = "ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        modify_qp = "ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
        destroy_qp = "ibv_destroy_qp": fn(*mut Qp) -> c_int;
        get_async_event = "ibv_get_async_event": fn(*mut Context, *mut AsyncEvent) -> c_int;
        ack_async_event = "ibv_ack_async_event": fn(*mut AsyncEvent);
    }
    rdmacm {
        create_event_channel = "rdma_create_event_channel": fn() -> *mut EventChannel;
        destroy_event_channel = "rdma_destroy_event_channel": fn(*mut EventChannel);
        create_id = "rdma_create_id": fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_uint) -> c_int;
        destroy_id = "rdma_destroy_id": fn(*mut CmId) -> c_int;
        bind_addr = "rdma_bind_addr": fn(*mut CmId, *mut libc::sockaddr) -> c_int;
        listen = "rdma_listen": fn(*mut CmId, c_int) -> c_int;
        resolve_addr = "rdma_resolve_addr":
            fn(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        resolve_route = "rdma_resolve_route": fn(*mut CmId, c_int) -> c_int;
        init_qp_attr = "rdma_init_qp_attr": fn(*mut CmId, *mut QpAttr, *mut c_int) -> c_int;
        connect = "rdma_connect": fn(*mut CmId, *mut ConnParam) -> c_int;
        establish = "rdma_establish": fn(*mut CmId) -> c_int;
        accept = "rdma_accept": fn(*mut CmId, *mut ConnParam) -> c_int;
        reject = "rdma_reject": fn(*mut CmId, *const c_void, u8) -> c_int;
        disconnect = "rdma_disconnect": fn(*mut CmId) -> c_int;
        get_cm_event = "rdma_get_cm_event": fn(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        ack_cm_event = "rdma_ack_cm_event": fn(*mut CmEvent) -> c_int;
    }
}

/// A loaded library. It is never unloaded, since drivers do not support that.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    fn open(name: &'static CStr, package: &str) -> Result<Library, ViError> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: the name is a static string that ends with a zero byte; the constructors of rdma-core have
        // no effects on the process.
        let library = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if library.is_null() {
            let name = name.to_string_lossy();
            return Err(system("dlopen", format!("{name} cannot be loaded; install the package {package}")));
        }
        Ok(Library(library))
    }

    /// Returns the address of a symbol. `name` must end with a zero byte.
    fn symbol(self, name: &'static str) -> Result<*mut c_void, ViError> {
        // SAFETY: the library is open and never closed; the name ends with a zero byte, which the only
        // callers append.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr().cast()) };
        if at.is_null() {
            return Err(system("dlsym", format!("rdma-core has no {}", name.trim_end_matches('\0'))));
        }
        Ok(at)
    }
}

fn load() -> Result<Api, ViError> {
    let verbs = Library::open(c"libibverbs.so.1", "libibverbs1")?;
    let rdmacm = Library::open(c"librdmacm.so.1", "librdmacm1")?;
    Api::find(verbs, rdmacm)
}

/// Returns the libraries, loaded by the first call.
pub(super) fn api() -> Result<&'static Api, ViError> {
    static API: OnceLock<Result<Api, ViError>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

pub(super) fn system(call: &'static str, reason: String) -> ViError {
    ViError::System { call, reason }
}

/// Returns the error of the failed `call` from `errno`.
pub(super) fn failed(call: &'static str) -> ViError {
    system(call, std::io::Error::last_os_error().to_string())
}

/// Converts the result of a call that returns zero on success.
pub(super) fn check(call: &'static str, result: c_int) -> Result<(), ViError> {
    match result {
        0 => Ok(()),
        // Most functions of libibverbs return the error number; those of librdmacm return -1 and set errno.
        number if number > 0 => Err(system(call, std::io::Error::from_raw_os_error(number).to_string())),
        _ => Err(failed(call)),
    }
}

/// Converts the result of a call that returns null on failure.
pub(super) fn given<T>(call: &'static str, pointer: *mut T) -> Result<*mut T, ViError> {
    if pointer.is_null() { Err(failed(call)) } else { Ok(pointer) }
}

/// Makes reads from `fd` non-blocking.
pub(super) fn set_nonblocking(fd: c_int) -> Result<(), ViError> {
    // SAFETY: no pointers are passed.
    let result = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 { Err(failed("fcntl")) } else { Ok(()) }
}
