//! The functions of `csp.h`: they check pointers, enter the context, and turn results into codes. The header
//! and the man pages describe each function.

use std::ffi::{CStr, OsString};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use csp_types::ProgramName;
use libc::{c_char, c_int, c_uint, c_void};

use crate::context::{Context, Options};
use crate::core::{Buffer, Event};
use crate::error::{ALL, Error, Result};
use crate::handle::{self, ContextId, Key, Kind};
use crate::pool::Work;
use crate::registry::{self, Entered};
use crate::system;

/// `struct csp_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    pub(crate) size: u32,
    pub(crate) buffer_size: u32,
    pub(crate) send_buffers: u32,
    pub(crate) receive_buffers: u32,
    pub(crate) connections: u32,
    pub(crate) reserved: u32,
    pub(crate) program: *const c_char,
    pub(crate) agent: *const c_char,
    pub(crate) channels: *const c_char,
}

const BUFFER_SIZE: u32 = 16_384;
const BUFFERS: u32 = 256;
const CONNECTIONS: u32 = 1024;
const AGENT: &str = "/run/csp/agent.sock";
const CHANNELS: &str = "/run/csp/channels";
/// Longest string that is accepted; a longer one fits no socket's path.
const TEXT_MAX: usize = 4096;

fn code(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Error(code)| code)
}

/// The bytes of a C string; `None` for a null pointer.
///
/// # Safety
/// A pointer that is not null points to a string that ends with a zero.
unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: a pointer that is not null is a C string, by this function's contract.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

fn path(bytes: Option<&[u8]>, variable: &CStr, otherwise: &str) -> Result<PathBuf> {
    let set = bytes.map(<[u8]>::to_vec).or_else(|| system::variable(variable)).map(OsString::from_vec);
    let path = set.unwrap_or_else(|| otherwise.into());
    if path.is_empty() || path.len() > TEXT_MAX { Err(Error::INVALID) } else { Ok(path.into()) }
}

/// The program's name: the given one, or that of its executable file.
fn program(given: Option<&[u8]>) -> Result<ProgramName> {
    if let Some(name) = given {
        return ProgramName::parse(name).map_err(|_| Error::INVALID);
    }
    let executable = std::env::current_exe().unwrap_or_default().into_os_string();
    Ok(ProgramName::of_executable(executable.as_bytes()).unwrap_or(ProgramName::UNKNOWN))
}

/// Reads the program's options. Options of an older header lack fields, whose default is 0; options of a
/// newer one may have more, which must be 0.
///
/// # Safety
/// `options` is null, or `options->size` bytes are readable there, the first four always.
unsafe fn read_options(options: *const COptions) -> Result<COptions> {
    // SAFETY: all-zero is a valid value: numbers and null pointers.
    let mut known: COptions = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok(known);
    }
    // SAFETY: `options` is not null, so its first four bytes are readable, by this function's contract.
    let size = unsafe { options.cast::<u32>().read() } as usize;
    if !(4..=TEXT_MAX).contains(&size) {
        return Err(Error::INVALID);
    }
    // SAFETY: by this function's contract, `size` bytes are readable.
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    let (ours, beyond) = bytes.split_at(size.min(size_of::<COptions>()));
    if beyond.iter().any(|b| *b != 0) {
        return Err(Error::INVALID);
    }
    // SAFETY: `known` is at least as long as the copied part; all bit patterns are valid in it.
    unsafe { std::ptr::copy_nonoverlapping(ours.as_ptr(), (&raw mut known).cast::<u8>(), ours.len()) };
    if known.reserved != 0 { Err(Error::INVALID) } else { Ok(known) }
}

/// # Safety
/// As [`read_options`], and its texts are null or C strings.
unsafe fn options(given: *const COptions) -> Result<Options> {
    // SAFETY: `given` is null or has its stated size, by this function's contract.
    let given = unsafe { read_options(given) }?;
    let or = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value } as usize;
    // SAFETY: the three texts are null or C strings, by this function's contract.
    let (name, agent, channels) = unsafe { (text(given.program), text(given.agent), text(given.channels)) };
    Ok(Options {
        buffer_len: or(given.buffer_size, BUFFER_SIZE),
        outgoing: or(given.send_buffers, BUFFERS),
        incoming: or(given.receive_buffers, BUFFERS),
        connections_max: or(given.connections, CONNECTIONS),
        agent: path(agent, c"CSP_AGENT", AGENT)?,
        channels: path(channels, c"CSP_CHANNELS", CHANNELS)?,
        program: program(name)?,
    })
}

fn on_context<T>(context: u64, run: impl FnOnce(&mut Context) -> Result<T>) -> Result<T> {
    let (mut entered, _) = registry::enter(context, Kind::Context)?;
    run(&mut entered)
}

/// Creates an object and stores its handle in `into`.
///
/// # Safety
/// `into` is null or writable.
unsafe fn make(
    context: u64,
    into: *mut u64,
    kind: Kind,
    run: impl FnOnce(&mut Context) -> Result<Key>,
) -> c_int {
    if into.is_null() {
        return Error::INVALID.0;
    }
    code(on_context(context, |context| {
        let key = run(context)?;
        // SAFETY: not null, hence writable by this function's contract.
        unsafe { into.write(key.handle(kind, context.id())) };
        Ok(0)
    }))
}

/// `csp_version`
#[unsafe(no_mangle)]
pub extern "C" fn csp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

fn described(
    error: c_int,
    of: impl Fn(&(c_int, &'static str, &'static str)) -> &'static str,
) -> *const c_char {
    let found = ALL.iter().find(|(code, ..)| *code == error);
    found.map_or(std::ptr::null(), |entry| of(entry).as_ptr().cast())
}

/// `csp_error_name`
#[unsafe(no_mangle)]
pub extern "C" fn csp_error_name(error: c_int) -> *const c_char {
    if error == 0 { c"CSP_OK".as_ptr() } else { described(error, |(_, name, _)| name) }
}

/// `csp_error_text`
#[unsafe(no_mangle)]
pub extern "C" fn csp_error_text(error: c_int) -> *const c_char {
    if error == 0 {
        return c"no error".as_ptr();
    }
    let known = described(error, |(.., text)| text);
    if known.is_null() { c"an unknown error".as_ptr() } else { known }
}

/// `csp_open`
///
/// # Safety
/// As in the header: `context` is null or writable, `given` null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_open(context: *mut u64, given: *const COptions) -> c_int {
    if context.is_null() {
        return Error::INVALID.0;
    }
    // SAFETY: `given` is null or valid options, by this function's contract.
    let opened = unsafe { options(given) }.and_then(registry::open);
    code(opened.map(|handle| {
        // SAFETY: not null, hence writable by this function's contract.
        unsafe { context.write(handle) };
        0
    }))
}

/// `csp_close`
#[unsafe(no_mangle)]
pub extern "C" fn csp_close(context: u64) -> c_int {
    code(registry::close(context).map(|()| 0))
}

/// `csp_fd`
#[unsafe(no_mangle)]
pub extern "C" fn csp_fd(context: u64) -> c_int {
    code(on_context(context, |context| Ok(context.fd())))
}

/// `csp_arm`
#[unsafe(no_mangle)]
pub extern "C" fn csp_arm(context: u64) -> c_int {
    code(on_context(context, |context| context.arm().map(c_int::from)))
}

/// The program's array of events.
///
/// # Safety
/// `events` is null, or `count` events are writable there.
unsafe fn array<'a>(events: *mut MaybeUninit<Event>, count: c_int) -> Result<&'a mut [MaybeUninit<Event>]> {
    match usize::try_from(count) {
        // SAFETY: `count` events are writable, by this function's contract; uninitialised elements are what
        // `MaybeUninit` is for.
        Ok(count) if !events.is_null() => Ok(unsafe { std::slice::from_raw_parts_mut(events, count) }),
        Ok(0) => Ok(&mut []),
        _ => Err(Error::INVALID),
    }
}

/// `csp_poll`
///
/// # Safety
/// As in the header: `count` events are writable at `events`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_poll(context: u64, events: *mut MaybeUninit<Event>, count: c_int) -> c_int {
    // SAFETY: `count` events are writable at `events`, by this function's contract.
    let into = unsafe { array(events, count) };
    code(into.and_then(|into| on_context(context, |context| Ok(context.poll(into) as c_int))))
}

/// `csp_wait`
///
/// # Safety
/// As in the header: `count` events are writable at `events`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_wait(
    context: u64,
    events: *mut MaybeUninit<Event>,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: `count` events are writable at `events`, by this function's contract.
    let into = unsafe { array(events, count) };
    code(into.and_then(|into| on_context(context, |context| Ok(context.wait(into, timeout_ms)? as c_int))))
}

/// `csp_buffer_get`
///
/// # Safety
/// As in the header: `buffer` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_buffer_get(context: u64, buffer: *mut Buffer) -> c_int {
    if buffer.is_null() {
        return Error::INVALID.0;
    }
    code(on_context(context, |context| {
        let taken = context.take_buffer()?;
        // SAFETY: not null, hence writable by this function's contract.
        unsafe { buffer.write(taken) };
        Ok(0)
    }))
}

/// `csp_buffer_release`
///
/// # Safety
/// As in the header: `buffer` is null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_buffer_release(buffer: *const Buffer) -> c_int {
    if buffer.is_null() {
        return Error::INVALID.0;
    }
    // SAFETY: not null, hence readable by this function's contract.
    let id = unsafe { (*buffer).id };
    let kind = if handle::kind(id) == Ok(Kind::InPlace) { Kind::InPlace } else { Kind::Buffer };
    code(registry::enter(id, kind).and_then(|(mut context, key)| {
        context.release_buffer(kind, key)?;
        Ok(0)
    }))
}

/// `csp_listen_stream`
///
/// # Safety
/// As in the header: `address` is null or a C string, `listener` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_listen_stream(
    context: u64,
    address: *const c_char,
    backlog: c_uint,
    user: *mut c_void,
    listener: *mut u64,
) -> c_int {
    // SAFETY: `address` is null or a C string, by this function's contract.
    let parsed = unsafe { parse_address(address) };
    let run = |context: &mut Context| context.listen_stream(parsed?, backlog, user as usize);
    // SAFETY: `listener` is null or writable, by this function's contract.
    unsafe { make(context, listener, Kind::Listener, run) }
}

/// `csp_connect_stream`
///
/// # Safety
/// As in the header: `address` is null or a C string, `connection` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_connect_stream(
    context: u64,
    address: *const c_char,
    user: *mut c_void,
    connection: *mut u64,
) -> c_int {
    // SAFETY: `address` is null or a C string, by this function's contract.
    let parsed = unsafe { parse_address(address) };
    let run = |context: &mut Context| {
        let address = parsed?;
        if address.port() == 0 { Err(Error::INVALID) } else { context.connect_stream(address, user as usize) }
    };
    // SAFETY: `connection` is null or writable, by this function's contract.
    unsafe { make(context, connection, Kind::Connection, run) }
}

/// # Safety
/// `address` is null or a C string.
unsafe fn parse_address(address: *const c_char) -> Result<SocketAddr> {
    // SAFETY: `address` is null or a C string, by this function's contract.
    let bytes = unsafe { text(address) }.ok_or(Error::INVALID)?;
    let text = std::str::from_utf8(bytes).map_err(|_| Error::INVALID)?;
    let port = text.strip_prefix(':').map(str::parse::<u16>);
    match port {
        Some(port) => Ok(SocketAddr::from(([0, 0, 0, 0], port.map_err(|_| Error::INVALID)?))),
        None => text.parse().map_err(|_| Error::INVALID),
    }
}

/// `csp_listen_channel`
///
/// # Safety
/// As in the header: `name` is null or a C string, `listener` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_listen_channel(
    context: u64,
    name: *const c_char,
    flags: c_uint,
    user: *mut c_void,
    listener: *mut u64,
) -> c_int {
    // SAFETY: `name` is null or a C string, by this function's contract.
    let name = unsafe { text(name) };
    let run =
        |context: &mut Context| context.listen_channel(name.ok_or(Error::INVALID)?, flags, user as usize);
    // SAFETY: `listener` is null or writable, by this function's contract.
    unsafe { make(context, listener, Kind::Listener, run) }
}

/// `csp_connect_channel`
///
/// # Safety
/// As in the header: `name` is null or a C string, `connection` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_connect_channel(
    context: u64,
    name: *const c_char,
    flags: c_uint,
    user: *mut c_void,
    connection: *mut u64,
) -> c_int {
    // SAFETY: `name` is null or a C string, by this function's contract.
    let name = unsafe { text(name) };
    let run =
        |context: &mut Context| context.connect_channel(name.ok_or(Error::INVALID)?, flags, user as usize);
    // SAFETY: `connection` is null or writable, by this function's contract.
    unsafe { make(context, connection, Kind::Connection, run) }
}

fn on_connection(handle: u64, run: impl FnOnce(&mut Entered, Key) -> Result<c_int>) -> c_int {
    code(registry::enter(handle, Kind::Connection).and_then(|(mut context, key)| run(&mut context, key)))
}

/// `csp_send`
///
/// # Safety
/// As in the header: `buffer` is null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_send(
    connection: u64,
    buffer: *const Buffer,
    immediate: u32,
    flags: c_uint,
    tag: u64,
) -> c_int {
    if buffer.is_null() {
        return Error::INVALID.0;
    }
    // SAFETY: not null, hence readable by this function's contract.
    let buffer = unsafe { *buffer };
    on_connection(connection, |context, key| {
        context.core().connection(key)?;
        let kind = handle::kind(buffer.id).unwrap_or(Kind::Context);
        if kind != Kind::Buffer && kind != Kind::InPlace {
            return Err(Error::BUFFER);
        }
        if ContextId::of(buffer.id) != context.id() {
            return Err(Error::CONTEXT);
        }
        let work = Work { length: buffer.length, immediate, flags, tag, ..Work::default() };
        context.send(key, kind, handle::key(buffer.id), buffer.data as usize, work)?;
        Ok(0)
    })
}

/// `csp_shutdown`
#[unsafe(no_mangle)]
pub extern "C" fn csp_shutdown(connection: u64) -> c_int {
    on_connection(connection, |context, key| context.shutdown(key).map(|()| 0))
}

/// `csp_end`
#[unsafe(no_mangle)]
pub extern "C" fn csp_end(handle: u64, flags: c_uint) -> c_int {
    if handle::kind(handle) != Ok(Kind::Listener) {
        return on_connection(handle, |context, key| context.end_connection(key, flags).map(|()| 0));
    }
    code(registry::enter(handle, Kind::Listener).and_then(|(mut context, key)| {
        if flags != 0 {
            return Err(Error::INVALID);
        }
        context.end_listener(key).map(|()| 0)
    }))
}

/// `csp_set_user`
#[unsafe(no_mangle)]
pub extern "C" fn csp_set_user(handle: u64, user: *mut c_void) -> c_int {
    if handle::kind(handle) != Ok(Kind::Listener) {
        return on_connection(handle, |context, key| {
            context.core().connection(key)?.user = user as usize;
            Ok(0)
        });
    }
    code(registry::enter(handle, Kind::Listener).and_then(|(mut context, key)| {
        context.core().listeners.get_mut(key).ok_or(Error::HANDLE)?.user = user as usize;
        Ok(0)
    }))
}

/// `csp_address`
///
/// # Safety
/// As in the header: `size` bytes are writable at `into`, or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_address(connection: u64, which: c_int, into: *mut c_char, size: usize) -> c_int {
    if into.is_null() {
        return Error::INVALID.0;
    }
    on_connection(connection, |context, key| {
        let connection = context.core().connection(key)?;
        if matches!(connection.transport, crate::connection::Transport::Channel { .. }) {
            return Err(Error::INVALID);
        }
        let (local, remote) = connection.ends.ok_or(Error::NOT_CONNECTED)?;
        let address = match which {
            0 => local,
            1 => remote,
            _ => return Err(Error::INVALID),
        };
        let text = format!("{address}\0");
        if text.len() > size {
            return Err(Error::MESSAGE_SIZE);
        }
        // SAFETY: `size` bytes are writable by this function's contract, and the length was checked against
        // `size`.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), text.len()) };
        Ok(text.len() as c_int - 1)
    })
}

/// `csp_peer_user`
///
/// # Safety
/// As in the header: `user` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn csp_peer_user(connection: u64, user: *mut u32) -> c_int {
    if user.is_null() {
        return Error::INVALID.0;
    }
    on_connection(connection, |context, key| {
        let found = context.core().connection(key)?.peer_user.ok_or(Error::INVALID)?;
        // SAFETY: not null, hence writable by this function's contract.
        unsafe { user.write(found) };
        Ok(0)
    })
}
