//! Sockets, threads and signals of `csp-context`: one thread for each connection of a proxy worker, which
//! reads, calls handlers and writes; one thread that builds supplied handlers for all connections. The store
//! of their modules has one that bounds their time.
//!
//! Reading and writing block. This cannot deadlock: the proxy reads a context's records even while it cannot
//! send, and holds the records of stages without room within their bounds ([`crate::session`]).
#![allow(clippy::disallowed_types, reason = "it owns sockets and a clock")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use csp_daemon::background::lower_priority;
use csp_daemon::trial::Trial;
use csp_daemon::{DaemonError, clock};
use csp_wire::context::Place;
use tokio::signal::unix::{SignalKind, signal};

use crate::builder::HandlerBuilder;
use crate::library;
use crate::request::{BuildRequest, BuildResult};
use crate::session::{Limits, REPORT_INTERVAL, Session, SessionEvent};

/// Bytes read at once, equal to a proxy's window.
const READ_LEN: usize = 64 * 1024;
/// Pause after an error of accept, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a connection checks whether a requested handler was built.
const MADE_INTERVAL: Duration = Duration::from_millis(1);

/// Result of building a stage's handler.
type Answer = (Place, u64, BuildResult);
/// A request to build a handler, and where the result is sent.
type Job = (BuildRequest, Sender<Answer>);

/// The command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The addresses at which proxy workers connect.
    pub listen: Vec<SocketAddr>,
    /// Largest number of connections, and thus of threads.
    pub connections_max: usize,
    /// Bounds of each connection.
    pub limits: Limits,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When an address is not available, or the operating system refuses a thread.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminated, mut interrupted) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let live = Arc::new(AtomicUsize::new(0));
    let (jobs, requests) = channel();
    thread::Builder::new().name("modules".to_owned()).spawn(move || make_handlers(&requests))?;
    for address in &options.listen {
        let listener = TcpListener::bind(address)
            .map_err(|error| DaemonError::Unavailable(format!("--listen {address}: {error}")))?;
        let (live, options, jobs) = (live.clone(), options.clone(), jobs.clone());
        thread::Builder::new()
            .name(format!("accept {}", address.port()))
            .spawn(move || accept(&listener, &options, &live, &jobs))?;
        tracing::info!(%address, handlers = ?csp_handlers::builtin::NAMES, "waiting for proxy workers");
    }
    runtime.block_on(async {
        tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
    });
    // Messages that handlers have not answered stay at the proxies, which send them to the next context of
    // the pool.
    tracing::info!(connections = live.load(Ordering::Relaxed), "stopped");
    Ok(())
}

/// Counts a connection until dropped.
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

fn accept(listener: &TcpListener, options: &Options, live: &Arc<AtomicUsize>, jobs: &Sender<Job>) {
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
        let (limits, jobs) = (options.limits, jobs.clone());
        let begun = thread::Builder::new().name(format!("context {number}")).spawn(move || {
            let _counted = counted;
            tracing::info!(connection = number, "a proxy worker has connected");
            let mut session = Session::new(limits, library::make);
            session.set_clock(clock::now);
            let end = converse(&stream, &mut session, number, &jobs);
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

/// Builds the handlers that sessions request, while the sessions continue.
fn make_handlers(requests: &Receiver<Job>) {
    lower_priority();
    let mut builder = HandlerBuilder::with_trial(csp_sandbox::Limits::default(), Some(Trial::default()));
    for (request, reply) in requests {
        let made = builder.make(&request);
        let _ = reply.send((request.place, request.serial, made)); // its connection may be over
    }
}

/// Serves a connection until the proxy ends it. The error is the reason why the connection was lost.
fn converse(
    mut stream: &TcpStream,
    session: &mut Session,
    number: u64,
    jobs: &Sender<Job>,
) -> Result<(), String> {
    let mut bytes = vec![0; READ_LEN];
    let mut out = Vec::with_capacity(READ_LEN);
    let (reply, answers) = channel::<Answer>();
    let (mut ordered, mut timeout) = (0usize, None);
    loop {
        // The timeout is set only when it changes, not for each read.
        let wanted = match ordered {
            0 => session.is_unreported().then_some(REPORT_INTERVAL),
            _ => Some(MADE_INTERVAL),
        };
        if timeout != wanted {
            stream.set_read_timeout(wanted).map_err(|error| error.to_string())?;
            timeout = wanted;
        }
        let len = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        let now = clock::now();
        let processed = session.receive(now, &bytes[..len], &mut out);
        for (place, serial, made) in answers.try_iter() {
            ordered -= 1;
            session.built(now, (place, serial), made, &mut out);
        }
        for event in session.take_events() {
            log(number, &event);
        }
        processed.map_err(|error| error.to_string())?;
        for request in session.take_requests() {
            ordered += 1;
            jobs.send((request, reply.clone()))
                .map_err(|_| "the thread that makes handlers has ended".to_owned())?;
        }
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
