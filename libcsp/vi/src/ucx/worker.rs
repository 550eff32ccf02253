//! The library's objects of one provider: context, worker, listeners; and the calls on them.

use std::ffi::{CString, c_int, c_void};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::null_mut;

use super::callbacks::{self, Closing};
use super::core::Core;
use super::sys::{self, Api, Endpoint, Listener, StatusPtr};
use crate::ViError;

/// The id of our active messages.
const AM_ID: u32 = 0x43;

pub(super) struct Worker {
    pub api: &'static Api,
    context: *mut sys::Context,
    worker: *mut sys::Worker,
    listeners: Vec<*mut Listener>,
    event_fd: c_int,
    /// What the callbacks are given; owned, freed after the worker.
    pub core: *mut Core,
    closing: *mut Closing,
}

/// What follows a message's header.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// So many bytes.
    Bytes(*const u8, usize),
    /// So many parts, one after another.
    Parts(*const sys::Iov, usize),
}

/// No signal shall be delivered to the thread that the library starts.
fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are valid sigset_t; the old mask is put back.
    unsafe {
        let (mut all, mut old) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        result
    }
}

fn start_context(api: &'static Api) -> Result<*mut sys::Context, ViError> {
    let mut config = null_mut();
    // SAFETY: null prefix and file are allowed; `config` is writable.
    let read = unsafe { (api.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config) };
    api.check("ucp_config_read", read)?;
    // Processes of one host have the shm provider, so TCP is all that is wanted of UCX here.
    for (name, value) in
        [("TLS", "tcp"), ("RNDV_THRESH", "inf"), ("MAX_EAGER_LANES", "1"), ("MAX_RNDV_LANES", "1")]
    {
        let (name, value) = (CString::new(name), CString::new(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            // SAFETY: both are zero-terminated. An option that a later version lacks is not needed there.
            unsafe { (api.config_modify)(config, name.as_ptr(), value.as_ptr()) };
        }
    }
    // SAFETY: Params is plain; zero is a value of it.
    let mut params: sys::Params = unsafe { zeroed() };
    params.field_mask = sys::PARAM_FEATURES;
    params.features = sys::FEATURE_AM | sys::FEATURE_WAKEUP;
    let mut context = null_mut();
    // SAFETY: valid parameters; `context` is writable; `config` is released once.
    let started = unsafe {
        let status = (api.init_version)(1, 13, &raw const params, config, &raw mut context);
        (api.config_release)(config);
        status
    };
    api.check("ucp_init", started)?;
    Ok(context)
}

fn start_worker(api: &'static Api, context: *mut sys::Context) -> Result<*mut sys::Worker, ViError> {
    // SAFETY: WorkerParams is plain; zero is a value of it.
    let mut params: sys::WorkerParams = unsafe { zeroed() };
    params.field_mask = sys::WORKER_PARAM_THREAD_MODE | sys::WORKER_PARAM_FLAGS;
    params.thread_mode = sys::THREAD_MODE_SERIALIZED;
    params.flags = sys::WORKER_IGNORE_REQUEST_LEAK;
    let mut worker = null_mut();
    // SAFETY: valid parameters; `worker` is writable.
    let status = unsafe { (api.worker_create)(context, &raw const params, &raw mut worker) };
    api.check("ucp_worker_create", status)?;
    Ok(worker)
}

impl Worker {
    pub(super) fn new() -> Result<Self, ViError> {
        let api = sys::api()?;
        let core = Box::into_raw(Box::new(Core::new()));
        let closing = Box::into_raw(Box::new(Closing { core, api }));
        // From here on `Drop` takes everything down that was made.
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
            this.context = start_context(api)?;
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
        // SAFETY: a valid parameter; the core outlives the worker.
        let status = unsafe { (api.set_am_handler)(this.worker, &raw const handler) };
        api.check("ucp_worker_set_am_recv_handler", status)?;
        // SAFETY: `event_fd` is writable.
        let status = unsafe { (api.worker_get_efd)(this.worker, &raw mut this.event_fd) };
        api.check("ucp_worker_get_efd", status)?;
        // SAFETY: no pointers; the library leaves the descriptor inheritable.
        unsafe { libc::fcntl(this.event_fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(this)
    }

    /// What the callbacks change. No call into the library may be made while it is borrowed.
    pub(super) fn core(&self) -> &Core {
        // SAFETY: owned by this; callbacks run only within calls that take `&mut self`.
        unsafe { &*self.core }
    }

    /// The same, to change it.
    pub(super) fn core_mut(&mut self) -> &mut Core {
        // SAFETY: as above, borrowed exclusively.
        unsafe { &mut *self.core }
    }

    pub(super) fn event_fd(&self) -> c_int {
        self.event_fd
    }

    pub(super) fn listen(&mut self, address: SocketAddr) -> Result<(), ViError> {
        let (storage, len) = socket_address(address);
        // SAFETY: ListenerParams is plain; zero is a value of it.
        let mut params: sys::ListenerParams = unsafe { zeroed() };
        params.field_mask = sys::LISTENER_PARAM_SOCK_ADDR | sys::LISTENER_PARAM_CONN_HANDLER;
        params.sockaddr = sys::SockAddr { addr: (&raw const storage).cast(), addrlen: len };
        params.conn_cb = Some(callbacks::connection);
        params.conn_arg = self.core.cast();
        let mut listener = null_mut();
        // SAFETY: valid parameters that live through the call; `listener` is writable.
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
        // SAFETY: valid parameters that live through the call; `endpoint` is writable.
        let status = unsafe { (self.api.ep_create)(self.worker, &raw const params, &raw mut endpoint) };
        if status == sys::OK { Ok(endpoint) } else { Err(status) }
    }

    pub(super) fn connect(&mut self, address: SocketAddr) -> Result<*mut Endpoint, sys::Status> {
        let (storage, len) = socket_address(address);
        // SAFETY: EpParams is plain; zero is a value of it.
        let mut params: sys::EpParams = unsafe { zeroed() };
        params.field_mask = sys::EP_PARAM_SOCK_ADDR | sys::EP_PARAM_FLAGS;
        params.flags = sys::EP_CLIENT_SERVER;
        params.sockaddr = sys::SockAddr { addr: (&raw const storage).cast(), addrlen: len };
        self.endpoint(params)
    }

    /// An endpoint for an announced connection; the library takes the request back in any case.
    pub(super) fn admit(&mut self, request: *mut sys::ConnRequest) -> Result<*mut Endpoint, sys::Status> {
        // SAFETY: as above.
        let mut params: sys::EpParams = unsafe { zeroed() };
        params.field_mask = sys::EP_PARAM_CONN_REQUEST;
        params.conn_request = request;
        self.endpoint(params)
    }

    /// Rejects an announced connection.
    pub(super) fn reject(&mut self, request: *mut sys::ConnRequest) {
        if let Some(&listener) = self.listeners.first() {
            // SAFETY: the request was not answered before.
            unsafe { (self.api.listener_reject)(listener, request) };
        }
    }

    /// Sends a header of `header_len` bytes at `at`, and a body.
    ///
    /// # Safety
    /// Both stay readable, and `context` stays, until the callback was called or the result is not a request.
    pub(super) unsafe fn send(
        &mut self,
        endpoint: *mut Endpoint,
        (at, header_len): (*const u8, usize),
        body: Body,
        flags: u32,
        context: *mut c_void,
    ) -> StatusPtr {
        // SAFETY: RequestParam is plain; zero is a value of it.
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
        // SAFETY: by the caller.
        unsafe { (self.api.am_send)(endpoint, AM_ID, at.cast(), header_len, body, count, &raw const param) }
    }

    /// Closes an endpoint at once; what it still had to send is lost.
    pub(super) fn close(&mut self, endpoint: *mut Endpoint) {
        if endpoint.is_null() {
            return;
        }
        self.core_mut().owners.remove(&endpoint);
        // SAFETY: RequestParam is plain; zero is a value of it.
        let mut param: sys::RequestParam = unsafe { zeroed() };
        param.op_attr_mask = sys::OP_CALLBACK | sys::OP_USER_DATA | sys::OP_FLAGS;
        param.flags = sys::CLOSE_FORCE;
        param.send_cb = Some(callbacks::closed);
        param.user_data = self.closing.cast();
        // SAFETY: each endpoint is closed once: whoever had it has taken it out.
        let result = unsafe { (self.api.ep_close)(endpoint, &raw const param) };
        if !result.is_null() && sys::error_of(result).is_none() {
            self.core_mut().closing += 1;
        }
    }

    /// Lets the library work; how much it did.
    pub(super) fn progress(&mut self) -> u32 {
        // SAFETY: the worker lives; no reference to the core is held.
        unsafe { (self.api.worker_progress)(self.worker) }
    }

    /// Whether the event descriptor was armed; otherwise there is more to do.
    pub(super) fn arm(&mut self) -> Result<bool, ViError> {
        // SAFETY: the worker lives.
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
            // Closing by force needs a few turns of the library, not the peers.
            for _ in 0..10_000 {
                if self.core().closing == 0 {
                    break;
                }
                self.progress();
            }
        }
        // SAFETY: each is destroyed once, in the order worker-made things, worker, context; then what callbacks used.
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

fn socket_address(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: sockaddr_storage is plain; zero is a value of it, and it is large and aligned enough for both families.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let at = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => {
                let mut to: libc::sockaddr_in = zeroed();
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = v4.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                at.cast::<libc::sockaddr_in>().write(to);
                (storage, size_of::<libc::sockaddr_in>() as u32)
            }
            SocketAddr::V6(v6) => {
                let mut to: libc::sockaddr_in6 = zeroed();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = v6.port().to_be();
                to.sin6_addr.s6_addr = v6.ip().octets();
                to.sin6_scope_id = v6.scope_id();
                at.cast::<libc::sockaddr_in6>().write(to);
                (storage, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }
}
