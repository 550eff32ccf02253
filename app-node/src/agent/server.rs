//! The agent's socket: processes attach, receive changes of the directory, and are removed when they exit.

use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use csp_daemon::clock;
use csp_policy::{AccessRule, Subject};
use csp_telemetry::{Place, Shares};
use csp_transport::token::{Token, TokenClaims};
use csp_transport::{Keys, ProcessId};
use csp_types::{Grant, NodeId, ProgramName, Role};
use csp_vi::kernel::{Credentials, peer_credentials, take_descriptors};
use csp_wire::agent::page::PAGE_LEN;
use csp_wire::agent::{
    self as wire, AgentMessage, AttachedRepr, CarriedOption, Left, MESSAGE_LEN_MAX, Proxy,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::directory::Directory;
use super::helper::Helpers;
use super::kernel::{bindable, held};
use super::processes::{ProcessInfo, Processes, Refusal};
use super::receive::{Received, readable, receive, receive_first};
use crate::custody::{Custodian, LeftConnection};

/// Lifetime of a token.
const TOKEN_LIFETIME_S: u64 = 1800;
/// How long a process may take to send ATTACH.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest number of connections that have not attached, of one user and in total.
const STRANGERS_OF_USER_MAX: usize = 64;
const STRANGERS_MAX: usize = 1024;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Interval after which a message is sent again to a process whose socket buffer is full.
const RETRY: Duration = Duration::from_millis(500);

/// Why the agent's socket is not available.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The path is in use or cannot be created.
    #[error("socket: {path}: {source}")]
    Socket {
        /// The configured path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another agent listens there.
    #[error("socket: {0}: another agent is listening there")]
    Taken(String),
}

/// Configuration of the agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// This node.
    pub node: NodeId,
    /// The path to listen on.
    pub socket: PathBuf,
    /// The keys that sign tokens: this node's.
    pub keys: Keys,
    /// Accelerated ports; `None`: all.
    pub listen: Option<Vec<u16>>,
    /// Whether loopback addresses are accelerated.
    pub loopback: bool,
    /// Users that may attach; `None`: any.
    pub users: Option<Vec<u32>>,
    /// Runs all work that receives, examines or closes descriptors of processes.
    pub helpers: Helpers,
    /// Carries connections that several processes share; `None`: such connections end.
    pub custodian: Option<Arc<Custodian>>,
}

/// Serves processes until dropped. Runs on a current-thread runtime's local set.
pub async fn serve(
    options: AgentOptions,
    directory: watch::Receiver<Directory>,
    processes: Rc<RefCell<Processes>>,
) -> Result<(), AgentError> {
    let wrong = |source: io::Error| AgentError::Socket { path: options.socket.display().to_string(), source };
    // A SEQPACKET socket in tokio's type for streams: accepting and waiting are the same, and datagrams are
    // received and sent by system calls of our own.
    let listener = std::os::unix::net::UnixListener::from(bind(&options.socket)?);
    let _file = SocketFile(options.socket.clone());
    let listener = UnixListener::from_std(listener).map_err(wrong)?;
    let (options, strangers) = (Rc::new(options), Shares::new(STRANGERS_OF_USER_MAX, STRANGERS_MAX));
    if let Some(custodian) = options.custodian.clone() {
        tokio::task::spawn_local(update_custodian(custodian, directory.clone()));
    }
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let (options, directory, processes) = (options.clone(), directory.clone(), processes.clone());
                let strangers = strangers.clone();
                tokio::task::spawn_local(async move {
                    let Ok(credentials) = peer_credentials(&socket) else { return };
                    match strangers.enter(credentials.uid) {
                        Some(place) => {
                            serve_process(&options, &socket, (credentials, place), directory, &processes)
                                .await;
                        }
                        None => processes.borrow_mut().refuse(Refusal::Strangers),
                    }
                    // Closing it may close descriptors that were never received.
                    options.helpers.drop_for(credentials.uid, socket.into_std()).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of a process could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The socket's path, which is removed when the agent ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // another program may have removed it
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
    // Any user may connect; the agent admits or refuses a process by its credentials.
    std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(wrong)?;
    // Older kernels drop descriptors that arrive before admission when the datagram is received.
    let _ = take_descriptors(&socket, false);
    rustix::net::listen(&socket, BACKLOG).map_err(|e| wrong(e.into()))?;
    Ok(socket)
}

/// Serves one process, from ATTACH until it exits.
async fn serve_process(
    options: &AgentOptions,
    socket: &UnixStream,
    (credentials, place): (Credentials, Place<u32>),
    mut directory: watch::Receiver<Directory>,
    processes: &RefCell<Processes>,
) {
    directory.mark_unchanged();
    let attached = attach(options, socket, &credentials, &directory, processes).await;
    drop(place);
    let Some((key, process, program)) = attached else { return };
    let mut pending = false;
    loop {
        let retry = tokio::time::sleep(RETRY);
        tokio::select! {
            ready = readable(socket) => {
                // Outside of `select!`: receiving a datagram must not be cancelled in favour of another
                // event.
                let received = match ready {
                    Ok(()) => receive(&options.helpers, socket, credentials).await,
                    Err(error) => Err(error),
                };
                let Ok(Received { datagram, socket: given }) = received else { break };
                if datagram.is_empty() {
                    break;
                }
                match AgentMessage::parse(&datagram) {
                    Ok(AgentMessage::Renew) => {
                        let rules = directory.borrow().access.clone();
                        renew(options, socket, (&process, &program), credentials, &rules).await;
                    }
                    Ok(AgentMessage::Left(left)) => take(options, &process, (left, credentials.uid), given),
                    Ok(AgentMessage::Option(option)) => set_option(options, option),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(process = process.as_str(), %error, "a malformed message of a process");
                    }
                }
            },
            changed = directory.changed() => {
                if changed.is_err() {
                    break;
                }
                pending = !send_directory(socket, &program, &directory.borrow_and_update());
            }
            () = retry, if pending => pending = !send_directory(socket, &program, &directory.borrow()),
        }
    }
    processes.borrow_mut().exited(key, clock::unix_now_ms());
    tracing::info!(process = process.as_str(), "a process detached");
}

/// Takes a connection that a process left into the agent's custody.
fn take(options: &AgentOptions, process: &ProcessId, (left, uid): (Left, u32), descriptor: Option<OwnedFd>) {
    match (&options.custodian, descriptor) {
        (Some(custodian), Some(socket)) => custodian.take(LeftConnection { left, uid, socket }),
        (None, _) => {
            tracing::warn!(
                process = process.as_str(),
                "a process left a connection, but this agent has no custody: the connection ends"
            )
        }
        (_, None) => tracing::warn!(
            process = process.as_str(),
            "a connection was left without a socket pair of the process's own"
        ),
    }
}

/// Passes on an option of a connection in custody. The ticket in it is the authorisation.
fn set_option(options: &AgentOptions, option: CarriedOption) {
    if let Some(custodian) = &options.custodian {
        custodian.set_option(option);
    }
}

/// Sends changes of the directory to the custodian.
async fn update_custodian(custodian: Arc<Custodian>, mut directory: watch::Receiver<Directory>) {
    directory.mark_changed();
    while directory.changed().await.is_ok() {
        let proxies =
            |d: &Directory| d.proxies.iter().map(|p| (p.node, p.worker, p.path.clone().into())).collect();
        while !custodian.set_proxies(proxies(&directory.borrow_and_update())) {
            tokio::time::sleep(RETRY).await;
        }
    }
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

/// Returns why a peer may not attach, by its credentials: the reason and the error text.
fn refuse_peer(options: &AgentOptions, peer: &Credentials) -> Option<(Refusal, String)> {
    if peer.pid == 0 {
        let words = "the process is not in the agent's PID namespace or below it, so that the agent cannot identify it";
        return Some((Refusal::Namespace, words.to_owned()));
    }
    let admitted = options.users.as_ref().is_none_or(|users| users.contains(&peer.uid));
    (!admitted).then(|| (Refusal::User, format!("user {} is not in the agent's list of users", peer.uid)))
}

/// Receives ATTACH and answers it. Returns the process's key and id, and its program; `None` if it was
/// refused.
async fn attach(
    options: &AgentOptions,
    socket: &UnixStream,
    credentials: &Credentials,
    directory: &watch::Receiver<Directory>,
    processes: &RefCell<Processes>,
) -> Option<(u64, ProcessId, ProgramName)> {
    let Credentials { pid, uid, .. } = *credentials;
    let refuse = |reason: Refusal, words: String| {
        tracing::warn!(pid, uid, reason = reason.as_str(), "a process was refused: {words}");
        processes.borrow_mut().refuse(reason);
        let mut buffer = [0; 512];
        if let Ok(len) = wire::emit_refused(&mut buffer, &words) {
            send(socket, &buffer[..len], None);
        }
        None
    };
    let datagram = tokio::time::timeout(ATTACH_TIMEOUT, receive_first(&options.helpers, socket, uid))
        .await
        .ok()?
        .ok()?;
    // Checked only now: if the socket were closed before its request was read, the process would not receive
    // the answer.
    if let Some((reason, words)) = refuse_peer(options, credentials) {
        return refuse(reason, words);
    }
    let (program, former) = match AgentMessage::parse(&datagram) {
        Ok(AgentMessage::Attach(attach)) => (attach.program, attach.former),
        Ok(AgentMessage::Option(option)) => {
            set_option(options, option);
            return None;
        }
        Ok(_) => return refuse(Refusal::Protocol, "the first message must be ATTACH".to_owned()),
        Err(error) => return refuse(Refusal::Protocol, format!("ATTACH is malformed: {error}")),
    };
    let id = processes.borrow_mut().id_for(&program, pid, &String::from_utf8_lossy(former));
    let Some(process) = ProcessId::parse(id.as_bytes()) else {
        return refuse(Refusal::Protocol, "the program's name cannot be part of a process id".to_owned());
    };
    let page = match new_page() {
        Ok(page) => page,
        Err(error) => return refuse(Refusal::Memory, format!("the process page cannot be created: {error}")),
    };
    let shared = page.try_clone().ok()?;
    let info =
        ProcessInfo { id, pid, uid, program, attached_unix_ms: clock::unix_now_ms(), exited_unix_ms: None };
    let Some(key) = processes.borrow_mut().attached(info, page) else {
        return refuse(
            Refusal::Full,
            "the agent has no room for another process (capacity.processes)".to_owned(),
        );
    };
    let rules = directory.borrow().access.clone();
    let grant = grant_for(options, *credentials, &program, &rules).await;
    let _ = take_descriptors(socket, true); // older kernels never refuse descriptors: no error
    if !welcome(options, socket, (&process, &program, uid, grant), &directory.borrow(), &shared) {
        processes.borrow_mut().exited(key, clock::unix_now_ms());
        return None;
    }
    tracing::info!(process = process.as_str(), pid, uid, "a process attached");
    Some((key, process, program))
}

/// Creates the page that a process shares with the agent. The process can write it; neither side can change
/// its size.
fn new_page() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("csp-process-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, PAGE_LEN as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
}

/// Returns the ports and destinations that a process may use: by the policy's rule, or without a rule by what
/// the kernel permits.
async fn grant_for(
    options: &AgentOptions,
    peer: Credentials,
    program: &ProgramName,
    rules: &[AccessRule],
) -> Grant {
    // Root may listen in its own name wherever its processes hold sockets.
    let held = match peer.uid {
        0 => None,
        uid => options.helpers.run(uid, move || held(peer)).await,
    };
    let subject = Subject { uid: peer.uid, gid: peer.gid, program };
    AccessRule::grant(AccessRule::of(rules, &subject), bindable(peer)).holding(held.unwrap_or_default())
}

fn token_for(options: &AgentOptions, process: &ProcessId, uid: u32, grant: Grant) -> (Token, u64) {
    let now = clock::unix_now_s();
    let expires = now + TOKEN_LIFETIME_S;
    let claims = TokenClaims {
        role: Role::Process,
        node: options.node,
        process: *process,
        uid: Some(uid),
        grant,
        not_before: now,
        expires,
        nonce: rand::random(),
    };
    (options.keys.issue(&claims), expires)
}

fn welcome(
    options: &AgentOptions,
    socket: &UnixStream,
    (process, program, uid, grant): (&ProcessId, &ProgramName, u32, Grant),
    directory: &Directory,
    page: &File,
) -> bool {
    let (token, expires) = token_for(options, process, uid, grant);
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
    let mut proxies = Vec::with_capacity(directory.proxies.len());
    for super::ProxyEntry { node, worker, path, direct, draining, .. } in &directory.proxies {
        let (path, direct) = (path.as_bytes(), *direct);
        proxies.push(Proxy { node: *node, worker: *worker, path, direct, draining: *draining });
    }
    proxies
}

fn send_directory(socket: &UnixStream, program: &ProgramName, directory: &Directory) -> bool {
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    match wire::emit_proxies(&mut buffer, &wire_proxies(directory), directory.connect_for(program)) {
        Ok(len) => send(socket, &buffer[..len], None),
        Err(error) => {
            tracing::error!(%error, "PROXIES cannot be written");
            true
        }
    }
}

async fn renew(
    options: &AgentOptions,
    socket: &UnixStream,
    (process, program): (&ProcessId, &ProgramName),
    peer: Credentials,
    rules: &[AccessRule],
) {
    let grant = grant_for(options, peer, program, rules).await;
    let (token, expires) = token_for(options, process, peer.uid, grant);
    let mut buffer = [0; 1024];
    if let Ok(len) = wire::emit_token(&mut buffer, token.as_bytes(), expires) {
        send(socket, &buffer[..len], None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_admitted_by_its_user_and_never_from_outside_the_pid_namespace() {
        let options = |users| AgentOptions {
            node: "an-1".parse().unwrap(),
            socket: PathBuf::from("/run/csp/agent.sock"),
            keys: csp_transport::ClusterKey::from_bytes([1; 32]).into(),
            listen: None,
            loopback: false,
            users,
            helpers: Helpers::default(),
            custodian: None,
        };
        let refused = |users: Option<Vec<u32>>, pid, uid| {
            let peer = Credentials { pid, uid, gid: 0 };
            refuse_peer(&options(users), &peer).map(|(reason, _)| reason)
        };
        assert_eq!(refused(None, 7, 65534), None);
        assert_eq!(refused(Some(vec![33]), 7, 33), None);
        assert_eq!(refused(Some(vec![33]), 7, 0), Some(Refusal::User));
        // SO_PEERCRED reports 0 for a process without a number in the reader's PID namespace.
        assert_eq!(refused(None, 0, 0), Some(Refusal::Namespace));
        assert_eq!(refused(Some(vec![33]), 0, 33), Some(Refusal::Namespace));
    }
}
