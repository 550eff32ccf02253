//! The library objects of one provider (context, worker, listeners) and the calls on them.

use std::ffi::{CString, c_int, c_void};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::null_mut;

use super::callbacks::{self, Closing};
use super::core::Core;
use super::sys::{self, Api, Endpoint, Listener, StatusPtr};
use crate::ViError;
use crate::sockaddr::socket_address;

/// The id of the provider's active messages.
const AM_ID: u32 = 0x43;

pub(super) struct Worker {
    pub api: &'static Api,
    context: *mut sys::Context,
    worker: *mut sys::Worker,
    listeners: Vec<*mut Listener>,
    event_fd: c_int,
    /// The argument of the callbacks; owned by this value and freed after the worker.
    pub core: *mut Core,
    closing: *mut Closing,
}

/// The body of a message, after its header.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// Contiguous bytes: address and length.
    Bytes(*const u8, usize),
    /// A list of parts that are sent in sequence: address and number of parts.
    Parts(*const sys::Iov, usize),
}

/// Runs `run` with all signals blocked, so that the thread that the library starts receives none.
fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are locals, initialised by sigfillset and pthread_sigmask before they are read; the
    // old mask is restored.
    unsafe {
        let (mut all, mut old) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        result
    }
}

/// `device`: the only network interface whose address the library listens on; `None`: those of all.
fn start_context(api: &'static Api, device: Option<&str>) -> Result<*mut sys::Context, ViError> {
    let mut config = null_mut();
    // SAFETY: null prefix and file select the defaults; `config` is a local that outlives the call.
    let read = unsafe { (api.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config) };
    api.check("ucp_config_read", read)?;
    // Processes of one host use the shm provider, so TCP is the only transport needed here.
    let options = [
        ("TLS", "tcp"),
        ("RNDV_THRESH", "inf"),
        ("MAX_EAGER_LANES", "1"),
        ("MAX_RNDV_LANES", "1"),
        ("NET_DEVICES", device.unwrap_or("all")),
    ];
    for (name, value) in options {
        let (name, value) = (CString::new(name), CString::new(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            // SAFETY: both strings end with a zero byte and outlive the call; `config` was read above. A
            // later version may lack an option; the error is then harmless.
            unsafe { (api.config_modify)(config, name.as_ptr(), value.as_ptr()) };
        }
    }
    // SAFETY: all-zero bytes are valid Params.
    let mut params: sys::Params = unsafe { zeroed() };
    params.field_mask = sys::PARAM_FEATURES;
    params.features = sys::FEATURE_AM | sys::FEATURE_WAKEUP;
    let mut context = null_mut();
    // SAFETY: `params` and `context` are locals that outlive the call, and `field_mask` names the fields that
    // are set; `config` is released once, after its last use.
    let started = unsafe {
        let status = (api.init_version)(1, 13, &raw const params, config, &raw mut context);
        (api.config_release)(config);
        status
    };
    api.check("ucp_init", started)?;
    Ok(context)
}

fn start_worker(api: &'static Api, context: *mut sys::Context) -> Result<*mut sys::Worker, ViError> {
    // SAFETY: all-zero bytes are valid WorkerParams.
    let mut params: sys::WorkerParams = unsafe { zeroed() };
    params.field_mask = sys::WORKER_PARAM_THREAD_MODE | sys::WORKER_PARAM_FLAGS;
    params.thread_mode = sys::THREAD_MODE_SERIALIZED;
    params.flags = sys::WORKER_IGNORE_REQUEST_LEAK;
    let mut worker = null_mut();
    // SAFETY: `params` and `worker` are locals that outlive the call, and `field_mask` names the fields that
    // are set; the context exists.
    let status = unsafe { (api.worker_create)(context, &raw const params, &raw mut worker) };
    api.check("ucp_worker_create", status)?;
    Ok(worker)
}

impl Worker {
    pub(super) fn new(device: Option<&str>) -> Result<Self, ViError> {
        let api = sys::api()?;
        let core = Box::into_raw(Box::new(Core::new()));
        let closing = Box::into_raw(Box::new(Closing { core, api }));
        // From here on `Drop` destroys whatever has been created.
        let mut this = Worker {
            api,
            context: null_mut(),
            worker: null_mut(),
            listeners: Vec::new(),
            event_fd: -1,
            core,
            closing,
        };
        with_signals_blocked(|| {
            this.context = start_context(api, device)?;
            this.worker = start_worker(api, this.context)?;
            Ok(())
        })?;
        let handler = sys::AmHandlerParam {
            field_mask: sys::AM_HANDLER_ID | sys::AM_HANDLER_FLAGS | sys::AM_HANDLER_CB | sys::AM_HANDLER_ARG,
            id: AM_ID,
            flags: sys::AM_WHOLE_MSG,
            cb: Some(callbacks::message),
            arg: core.cast(),
        };
        // SAFETY: `handler` is a local that outlives the call. Its argument, the core, is freed after the
        // worker.
        let status = unsafe { (api.set_am_handler)(this.worker, &raw const handler) };
        api.check("ucp_worker_set_am_recv_handler", status)?;
        // SAFETY: `event_fd` is a field of a local that outlives the call; the worker exists.
        let status = unsafe { (api.worker_get_efd)(this.worker, &raw mut this.event_fd) };
        api.check("ucp_worker_get_efd", status)?;
        // SAFETY: no pointers are passed. The library leaves the descriptor inheritable.
        unsafe { libc::fcntl(this.event_fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(this)
    }

    /// Returns the state that the callbacks change. The caller must not call into the library while it holds
    /// the reference.
    pub(super) fn core(&self) -> &Core {
        // SAFETY: `core` was allocated by `new` and is freed by `Drop`. Callbacks, the only other access, run
        // within calls of methods with `&mut self`, which cannot overlap with this borrow.
        unsafe { &*self.core }
    }

    /// Returns the state that the callbacks change, for writing.
    pub(super) fn core_mut(&mut self) -> &mut Core {
        // SAFETY: `core` was allocated by `new` and is freed by `Drop`; `&mut self` excludes other references
        // and calls that run callbacks.
        unsafe { &mut *self.core }
    }

    pub(super) fn event_fd(&self) -> c_int {
        self.event_fd
    }

    pub(super) fn listen(&mut self, address: SocketAddr) -> Result<(), ViError> {
        let (storage, len) = socket_address(address);
        // SAFETY: all-zero bytes are valid ListenerParams.
        let mut params: sys::ListenerParams = unsafe { zeroed() };
        params.field_mask = sys::LISTENER_PARAM_SOCK_ADDR | sys::LISTENER_PARAM_CONN_HANDLER;
        params.sockaddr = sys::SockAddr { addr: (&raw const storage).cast(), addrlen: len };
        params.conn_cb = Some(callbacks::connection);
        params.conn_arg = self.core.cast();
        let mut listener = null_mut();
        // SAFETY: `params`, `storage` and `listener` are locals that outlive the call; the core outlives the
        // listener.
        let status = unsafe { (self.api.listener_create)(self.worker, &raw const params, &raw mut listener) };
        self.api.check("ucp_listener_create", status)?;
        self.listeners.push(listener);
        Ok(())
    }

    fn endpoint(&mut self, mut params: sys::EpParams) -> Result<*mut Endpoint, sys::Status> {
        params.field_mask |= sys::EP_PARAM_ERR_MODE | sys::EP_PARAM_ERR_HANDLER;
        params.err_mode = sys::ERR_MODE_PEER;
        params.err_cb = Some(callbacks::failure);
        params.err_arg = self.core.cast();
        let mut endpoint = null_mut();
        // SAFETY: `params` is a local; it, the address that it points to and `endpoint` outlive the call. The
        // core outlives the endpoint.
        let status = unsafe { (self.api.ep_create)(self.worker, &raw const params, &raw mut endpoint) };
        if status == sys::OK { Ok(endpoint) } else { Err(status) }
    }

    pub(super) fn connect(&mut self, address: SocketAddr) -> Result<*mut Endpoint, sys::Status> {
        let (storage, len) = socket_address(address);
        // SAFETY: all-zero bytes are valid EpParams.
        let mut params: sys::EpParams = unsafe { zeroed() };
        params.field_mask = sys::EP_PARAM_SOCK_ADDR | sys::EP_PARAM_FLAGS;
        params.flags = sys::EP_CLIENT_SERVER;
        params.sockaddr = sys::SockAddr { addr: (&raw const storage).cast(), addrlen: len };
        self.endpoint(params)
    }

    /// Creates the endpoint of an announced connection. The library releases the request in any case.
    pub(super) fn admit(&mut self, request: *mut sys::ConnRequest) -> Result<*mut Endpoint, sys::Status> {
        // SAFETY: all-zero bytes are valid EpParams.
        let mut params: sys::EpParams = unsafe { zeroed() };
        params.field_mask = sys::EP_PARAM_CONN_REQUEST;
        params.conn_request = request;
        self.endpoint(params)
    }

    /// Rejects an announced connection.
    pub(super) fn reject(&mut self, request: *mut sys::ConnRequest) {
        if let Some(&listener) = self.listeners.first() {
            // SAFETY: the library announced the request, and it was neither accepted nor rejected so far; the
            // listener exists until `Drop`.
            unsafe { (self.api.listener_reject)(listener, request) };
        }
    }

    /// Sends a header of `header_len` bytes at `at`, and a body.
    ///
    /// # Safety
    /// `endpoint` is open. Header and body stay readable and unchanged, and `context` valid, until the
    /// callback has run, or the call has returned null or an error.
    pub(super) unsafe fn send(
        &mut self,
        endpoint: *mut Endpoint,
        (at, header_len): (*const u8, usize),
        body: Body,
        flags: u32,
        context: *mut c_void,
    ) -> StatusPtr {
        // SAFETY: all-zero bytes are a valid RequestParam.
        let mut param: sys::RequestParam = unsafe { zeroed() };
        param.op_attr_mask = sys::OP_CALLBACK | sys::OP_USER_DATA | sys::OP_FLAGS | sys::OP_DATATYPE;
        param.flags = flags | sys::AM_SEND_EAGER;
        param.send_cb = Some(callbacks::sent);
        param.user_data = context;
        let (body, count) = match body {
            Body::Bytes(bytes, len) => {
                param.datatype = sys::DATATYPE_BYTES;
                (bytes.cast(), len)
            }
            Body::Parts(parts, count) => {
                param.datatype = sys::DATATYPE_IOV;
                (parts.cast(), count)
            }
        };
        // SAFETY: the caller guarantees an open endpoint, and header, body and context for as long as the
        // library uses them; `param` is a local that outlives the call.
        unsafe { (self.api.am_send)(endpoint, AM_ID, at.cast(), header_len, body, count, &raw const param) }
    }

    /// Closes an endpoint at once; messages not yet sent are lost.
    pub(super) fn close(&mut self, endpoint: *mut Endpoint) {
        if endpoint.is_null() {
            return;
        }
        self.core_mut().owners.remove(&endpoint);
        // SAFETY: all-zero bytes are a valid RequestParam.
        let mut param: sys::RequestParam = unsafe { zeroed() };
        param.op_attr_mask = sys::OP_CALLBACK | sys::OP_USER_DATA | sys::OP_FLAGS;
        param.flags = sys::CLOSE_FORCE;
        param.send_cb = Some(callbacks::closed);
        param.user_data = self.closing.cast();
        // SAFETY: each endpoint is closed once: its owner has removed its pointer before. `closing` is freed
        // after the worker.
        let result = unsafe { (self.api.ep_close)(endpoint, &raw const param) };
        if !result.is_null() && sys::error_of(result).is_none() {
            self.core_mut().closing += 1;
        }
    }

    /// Lets the library make progress. Returns a measure of the work done, 0 for none.
    pub(super) fn progress(&mut self) -> u32 {
        // SAFETY: the worker exists until `Drop`; `&mut self` ensures that no reference to the core is held
        // while callbacks run.
        unsafe { (self.api.worker_progress)(self.worker) }
    }

    /// Arms the event descriptor. Returns `false` if there is more to do first.
    pub(super) fn arm(&mut self) -> Result<bool, ViError> {
        // SAFETY: the worker exists until `Drop`.
        match unsafe { (self.api.worker_arm)(self.worker) } {
            sys::ERR_BUSY => Ok(false),
            status => self.api.check("ucp_worker_arm", status).map(|()| true),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.worker.is_null() {
            let endpoints: Vec<_> = self.core().owners.keys().copied().collect();
            endpoints.into_iter().for_each(|endpoint| self.close(endpoint));
            // Closing by force takes a few calls of progress and does not depend on the peers.
            for _ in 0..10_000 {
                if self.core().closing == 0 {
                    break;
                }
                self.progress();
            }
        }
        // SAFETY: each object is destroyed once: listeners before the worker, the worker before the context.
        // `closing` and `core` come from `Box::into_raw` in `new` and are freed last, when no callback can
        // run.
        unsafe {
            self.listeners.drain(..).for_each(|listener| (self.api.listener_destroy)(listener));
            if !self.worker.is_null() {
                (self.api.worker_destroy)(self.worker);
            }
            if !self.context.is_null() {
                (self.api.cleanup)(self.context);
            }
            drop(Box::from_raw(self.closing));
            drop(Box::from_raw(self.core));
        }
    }
}
