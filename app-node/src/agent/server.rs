//! The agent's socket: processes attach, are told of changes, and are noticed when they go.

use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csp_transport::token::{self, TokenClaims};
use csp_transport::{ClusterKey, ProcessId};
use csp_types::{NodeId, ProgramName, Role};
use csp_wire::agent::page::PAGE_LEN;
use csp_wire::agent::{self as wire, AgentMessage, AttachedRepr, Left, MESSAGE_LEN_MAX, Proxy};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::directory::Directory;
use super::processes::{ProcessInfo, Processes};
use crate::custody::{Charge, Custodian};

/// How long a token is good for.
const TOKEN_LIFETIME_S: u64 = 3600;
/// How long a process may take to say who it is.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// A process that does not read is told again after this time.
const RETRY: Duration = Duration::from_millis(500);

/// Why the agent's socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The path is taken or cannot be made.
    #[error("socket: {path}: {source}")]
    Socket {
        /// The configured path.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Another agent answers there.
    #[error("socket: {0}: another agent is listening there")]
    Taken(String),
}

/// What the agent goes by.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// This node.
    pub node: NodeId,
    /// Where to listen.
    pub socket: PathBuf,
    /// What tokens are signed with.
    pub key: ClusterKey,
    /// Accelerated ports; `None`: all.
    pub listen: Option<Vec<u16>>,
    /// Whether loopback addresses are accelerated.
    pub loopback: bool,
    /// Users that may attach; `None`: any.
    pub users: Option<Vec<u32>>,
    /// Who carries connections that processes share; `None`: nobody, they end.
    pub custodian: Option<Arc<Custodian>>,
}

/// Serves processes until dropped. Runs on a current-thread runtime's local set.
pub async fn serve(
    options: AgentOptions,
    directory: watch::Receiver<Directory>,
    processes: Rc<RefCell<Processes>>,
) -> Result<(), AgentError> {
    let wrong = |source: io::Error| AgentError::Socket { path: options.socket.display().to_string(), source };
    // A SEQPACKET socket in tokio's type for streams: accepting and waiting are the same, and datagrams are received and
    // sent by our own calls.
    let listener = std::os::unix::net::UnixListener::from(bind(&options.socket)?);
    let _file = SocketFile(options.socket.clone());
    let listener = UnixListener::from_std(listener).map_err(wrong)?;
    let options = Rc::new(options);
    if let Some(custodian) = options.custodian.clone() {
        tokio::task::spawn_local(tell_custodian(custodian, directory.clone()));
    }
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let (options, directory, processes) = (options.clone(), directory.clone(), processes.clone());
                tokio::task::spawn_local(
                    async move { converse(&options, &socket, directory, &processes).await },
                );
            }
            Err(error) => {
                tracing::warn!(%error, "a process could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The socket's name, which is gone when the agent ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // somebody else did
    }
}

fn bind(path: &Path) -> Result<OwnedFd, AgentError> {
    let wrong = |source: io::Error| AgentError::Socket { path: path.display().to_string(), source };
    let address = SocketAddrUnix::new(path).map_err(|e| wrong(e.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    if std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
        let probe = make().map_err(|e| wrong(e.into()))?;
        if rustix::net::connect(&probe, &address).is_ok() {
            return Err(AgentError::Taken(path.display().to_string()));
        }
        std::fs::remove_file(path).map_err(wrong)?;
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(wrong)?;
    }
    let socket = make().map_err(|e| wrong(e.into()))?;
    rustix::net::bind(&socket, &address).map_err(|e| wrong(e.into()))?;
    // Any user may knock; who may stay is decided by its credentials.
    std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(wrong)?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| wrong(e.into()))?;
    Ok(socket)
}

/// Milliseconds since the Unix epoch.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One process, from ATTACH to its end.
async fn converse(
    options: &AgentOptions,
    socket: &UnixStream,
    mut directory: watch::Receiver<Directory>,
    processes: &RefCell<Processes>,
) {
    let Ok(credentials) = sockopt::socket_peercred(socket) else { return };
    directory.mark_unchanged();
    let attached = attach(options, socket, &credentials, &directory, processes).await;
    let Some((key, process, program)) = attached else { return };
    let mut untold = false;
    loop {
        let retry = tokio::time::sleep(RETRY);
        tokio::select! {
            datagram = receive(socket) => match datagram {
                Ok((datagram, _)) if datagram.is_empty() => break,
                Ok((datagram, descriptor)) => match AgentMessage::parse(&datagram) {
                    Ok(AgentMessage::Renew) => renew(options, socket, &process, &credentials),
                    Ok(AgentMessage::Left(left)) => take(options, &process, left, descriptor),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(process = process.as_str(), %error, "an ill-formed message of a process");
                    }
                },
                Err(_) => break,
            },
            changed = directory.changed() => {
                if changed.is_err() {
                    break;
                }
                untold = !tell(socket, &program, &directory.borrow_and_update());
            }
            () = retry, if untold => untold = !tell(socket, &program, &directory.borrow()),
        }
    }
    processes.borrow_mut().exited(key, unix_ms());
    tracing::info!(process = process.as_str(), "a process detached");
}

/// A connection of a process for the agent's custody.
fn take(options: &AgentOptions, process: &ProcessId, left: Left, descriptor: Option<OwnedFd>) {
    match (&options.custodian, descriptor) {
        (Some(custodian), Some(socket)) => custodian.take(Charge { left, socket }),
        (None, _) => {
            tracing::warn!(process = process.as_str(), "a connection was left, and nobody carries it")
        }
        (_, None) => tracing::warn!(process = process.as_str(), "a connection was left without its socket"),
    }
}

/// Keeps the custodian up to date.
async fn tell_custodian(custodian: Arc<Custodian>, mut directory: watch::Receiver<Directory>) {
    directory.mark_changed();
    while directory.changed().await.is_ok() {
        let proxies =
            |d: &Directory| d.proxies.iter().map(|p| (p.node, p.worker, p.path.clone().into())).collect();
        while !custodian.set_proxies(proxies(&directory.borrow_and_update())) {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// A datagram, and at most one descriptor; further ones are closed.
async fn receive(socket: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut once = || {
        let parts = &mut [io::IoSliceMut::new(&mut buffer)];
        Ok(rustix::net::recvmsg(socket, parts, &mut control, flags)?.bytes)
    };
    let len = socket.async_io(Interest::READABLE, &mut once).await?;
    buffer.truncate(len);
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((buffer, descriptor))
}

fn send(socket: &UnixStream, message: &[u8], descriptor: Option<&File>) -> bool {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|file| [file.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [io::IoSlice::new(message)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

/// Hears ATTACH and answers it; the process's key and id, and its program, or `None` where it was refused.
async fn attach(
    options: &AgentOptions,
    socket: &UnixStream,
    credentials: &UCred,
    directory: &watch::Receiver<Directory>,
    processes: &RefCell<Processes>,
) -> Option<(u64, ProcessId, ProgramName)> {
    let uid = credentials.uid.as_raw();
    let pid = u32::try_from(credentials.pid.as_raw_pid()).unwrap_or(0);
    let (datagram, _) = tokio::time::timeout(ATTACH_TIMEOUT, receive(socket)).await.ok()?.ok()?;
    let refuse = |reason: &'static str, words: String| {
        tracing::warn!(pid, uid, reason, "a process was refused: {words}");
        processes.borrow_mut().refuse(reason);
        let mut buffer = [0; 512];
        if let Ok(len) = wire::emit_refused(&mut buffer, &words) {
            send(socket, &buffer[..len], None);
        }
        None
    };
    let (program, former) = match AgentMessage::parse(&datagram) {
        Ok(AgentMessage::Attach(attach)) => (attach.program, attach.former),
        Ok(_) => return refuse("protocol", "the first message must be ATTACH".to_owned()),
        Err(error) => return refuse("protocol", format!("ATTACH is ill-formed: {error}")),
    };
    if options.users.as_ref().is_some_and(|users| !users.contains(&uid)) {
        return refuse("user", format!("user {uid} is not in the agent's list of users"));
    }
    let id = processes.borrow_mut().id_for(&program, pid, &String::from_utf8_lossy(former));
    let Some(process) = ProcessId::parse(id.as_bytes()) else {
        return refuse("protocol", "the program's name is unusable".to_owned());
    };
    let page = match new_page() {
        Ok(page) => page,
        Err(error) => return refuse("memory", format!("no process page: {error}")),
    };
    let shared = page.try_clone().ok()?;
    let info = ProcessInfo { id, pid, uid, program, attached_unix_ms: unix_ms(), exited_unix_ms: None };
    let Some(key) = processes.borrow_mut().attached(info, page) else {
        return refuse("full", "the agent has no room for another process (capacity.processes)".to_owned());
    };
    if !welcome(options, socket, (&process, &program, uid), &directory.borrow(), &shared) {
        processes.borrow_mut().exited(key, unix_ms());
        return None;
    }
    tracing::info!(process = process.as_str(), pid, uid, "a process attached");
    Some((key, process, program))
}

/// The page that a process shares with us: it can write it, neither can change its size.
fn new_page() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("csp-process-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, PAGE_LEN as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
}

fn token_for(options: &AgentOptions, process: &ProcessId, uid: u32) -> (token::Token, u64) {
    let now = unix_ms() / 1000;
    let expires = now + TOKEN_LIFETIME_S;
    let claims = TokenClaims {
        role: Role::Process,
        node: options.node,
        process: *process,
        uid: Some(uid),
        not_before: now,
        expires,
        nonce: rand::random(),
    };
    (token::issue(&options.key, &claims), expires)
}

fn welcome(
    options: &AgentOptions,
    socket: &UnixStream,
    (process, program, uid): (&ProcessId, &ProgramName, u32),
    directory: &Directory,
    page: &File,
) -> bool {
    let (token, expires) = token_for(options, process, uid);
    let (proxies, listen) =
        (wire_proxies(directory), directory.listen_for(program, options.listen.as_deref()));
    let message = AttachedRepr {
        node: options.node,
        process: process.as_str().as_bytes(),
        token: token.as_bytes(),
        expires,
        listen: listen.as_deref(),
        connect: directory.connect_for(program),
        loopback: options.loopback,
        proxies: &proxies,
    };
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    match wire::emit_attached(&mut buffer, &message) {
        Ok(len) => send(socket, &buffer[..len], Some(page)),
        Err(error) => {
            tracing::error!(%error, "ATTACHED cannot be written");
            false
        }
    }
}

fn wire_proxies(directory: &Directory) -> Vec<Proxy<'_>> {
    let proxy = |p: &'_ super::ProxyEntry| (p.node, p.worker, p.direct);
    let with_path = directory.proxies.iter().map(|p| (proxy(p), p.path.as_bytes()));
    with_path.map(|((node, worker, direct), path)| Proxy { node, worker, path, direct }).collect()
}

fn tell(socket: &UnixStream, program: &ProgramName, directory: &Directory) -> bool {
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    match wire::emit_proxies(&mut buffer, &wire_proxies(directory), directory.connect_for(program)) {
        Ok(len) => send(socket, &buffer[..len], None),
        Err(error) => {
            tracing::error!(%error, "PROXIES cannot be written");
            true
        }
    }
}

fn renew(options: &AgentOptions, socket: &UnixStream, process: &ProcessId, credentials: &UCred) {
    let (token, expires) = token_for(options, process, credentials.uid.as_raw());
    let mut buffer = [0; 512];
    if let Ok(len) = wire::emit_token(&mut buffer, token.as_bytes(), expires) {
        send(socket, &buffer[..len], None);
    }
}
