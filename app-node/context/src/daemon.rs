//! Sockets, threads and signals of `csp-context`: a thread for each connection of a proxy worker, which reads, calls handlers and writes.
//!
//! Reading and writing block. That holds nobody up: the proxy reads what a context emits whatever it has to send itself, and holds records
//! of stages without room within their bounds ([`crate::session`]).
#![allow(clippy::disallowed_types, reason = "it owns sockets and a clock")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use csp_daemon::{DaemonError, clock};
use tokio::signal::unix::{SignalKind, signal};

use crate::library;
use crate::session::{Limits, Session, SessionEvent};

/// Bytes read at once: the window that a proxy has.
const READ_LEN: usize = 64 * 1024;
/// Pause after an error of accept, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where proxy workers connect.
    pub listen: Vec<SocketAddr>,
    /// Most connections, and with them threads.
    pub connections_max: usize,
    /// Bounds of each connection.
    pub limits: Limits,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When an address cannot be had, or the operating system refuses a thread.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminated, mut interrupted) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let live = Arc::new(AtomicUsize::new(0));
    for address in &options.listen {
        let listener = TcpListener::bind(address)
            .map_err(|error| DaemonError::Unavailable(format!("--listen {address}: {error}")))?;
        let (live, options) = (live.clone(), options.clone());
        thread::Builder::new()
            .name(format!("accept {}", address.port()))
            .spawn(move || accept(&listener, &options, &live))?;
        tracing::info!(%address, handlers = ?csp_handlers::builtin::NAMES, "waiting for proxy workers");
    }
    runtime.block_on(async {
        tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
    });
    // Messages that handlers have not answered stay at the proxies, which give them to the next context of the pool.
    tracing::info!(connections = live.load(Ordering::Relaxed), "stopped");
    Ok(())
}

/// One more connection; counted until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(live: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let added = live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
        added.ok().map(|_| Counted(live.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, options: &Options, live: &Arc<AtomicUsize>) {
    for number in 0u64.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let Some(counted) = Counted::new(live, options.connections_max) else {
            tracing::warn!(most = options.connections_max, "a connection is refused: there are too many");
            continue;
        };
        let limits = options.limits;
        let begun = thread::Builder::new().name(format!("context {number}")).spawn(move || {
            let _counted = counted;
            tracing::info!(connection = number, "a proxy worker has connected");
            let mut session = Session::new(limits, library::make);
            let end = converse(&stream, &mut session, number);
            let (profile, waiting) = (session.profile(), session.waiting());
            let (messages, emitted, faults) = (profile.messages, profile.emitted, profile.faults);
            match end {
                Ok(()) => tracing::info!(connection = number, messages, emitted, faults, waiting, "closed"),
                Err(error) => {
                    tracing::warn!(connection = number, messages, emitted, faults, waiting, error, "lost");
                }
            }
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "a connection is refused: there is no thread for it");
        }
    }
}

/// Serves a connection until the proxy ends it. The error says why it was lost.
fn converse(mut stream: &TcpStream, session: &mut Session, number: u64) -> Result<(), String> {
    let mut bytes = vec![0; READ_LEN];
    let mut out = Vec::with_capacity(READ_LEN);
    loop {
        let len = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        let processed = session.receive(clock::now(), &bytes[..len], &mut out);
        for event in session.take_events() {
            log(number, &event);
        }
        processed.map_err(|error| error.to_string())?;
        stream.write_all(&out).map_err(|error| error.to_string())?;
        out.clear();
    }
}

fn log(connection: u64, event: &SessionEvent) {
    match event {
        SessionEvent::Runs { handler, parameters } => {
            tracing::info!(connection, handler, parameters, "a stage runs");
        }
        SessionEvent::NoHandler { handler } => {
            tracing::error!(
                connection,
                handler,
                "there is no such handler here: its messages wait at the proxy"
            );
        }
        SessionEvent::Refused { handler, error } => {
            tracing::error!(connection, handler, error, "a handler refuses its parameters");
        }
    }
}
