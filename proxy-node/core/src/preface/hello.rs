//! Pass-through by the server's name (SNI, RFC 6066 §3): a service looks at the ClientHello of each
//! connection, and those with certain names go on to the pools of other services, still encrypted.
//!
//! ```text
//!                    ┌ a name of `sni` ──────────▶ the service that it names: pool, counters, log
//!  ClientHello ──────┤
//!                    ├ another name, none, no TLS ▶ the service itself: TLS, HTTP, pool
//!                    └ … and it has none of these ▶ alert unrecognized_name, reset
//! ```
//! The bytes stay with the TCP engine, and go on as they came.

use csp_tls::{CLIENT_HELLO_LEN_MAX, Hello, HelloReader, server_name};
use csp_types::{Duration, FlowLabel, FourTuple};

use super::first_bytes::{FirstBytes, Waiting};
use crate::ProxyOutput;
use crate::connection_log::{End, TlsNote};
use crate::context::Turn;
use crate::service::local::LocalServices;

/// How long a ClientHello may take: as long as a handshake.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is safe from giving way to others.
const HELLO_MIN: Duration = Duration::from_secs(1);
/// A fatal alert (RFC 8446 §6), without what it says.
const ALERT: [u8; 6] = [21, 3, 3, 0, 2, 2];
const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;

/// The connections whose ClientHello is awaited.
#[derive(Debug, Default)]
pub(super) struct Hellos {
    pub(super) waiting: FirstBytes<HelloReader>,
    /// The message of the connection that is decided.
    message: Vec<u8>,
}

/// Where a connection goes.
enum Goes {
    /// To this service, as the client asks for a name of it.
    To(u32),
    /// To the service at its address.
    On,
    /// Nowhere.
    Ends(End),
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Has a connection wait for its ClientHello, if its service goes by the name in it.
    pub(crate) fn awaits_hello(&mut self, label: FlowLabel, service: u32, tuple: FourTuple) -> bool {
        if self.dispatcher.service(service).is_none_or(|service| service.spec.sni.is_none()) {
            return false;
        }
        let deadline = self.cx.now + HELLO_TIMEOUT;
        let reader = HelloReader::default();
        self.prefaces.hellos.waiting.begin(label, (service, tuple), deadline, reader);
        self.read_hello(label);
        true
    }

    /// Reads on in the ClientHello of a connection that waits for it.
    pub(super) fn read_hello(&mut self, label: FlowLabel) {
        let finished = self.has_finished(label);
        let Some(waiting) = self.prefaces.hellos.waiting.get_mut(label) else { return };
        let hello = waiting.so_far.read(self.cx.tcp.peek(label, CLIENT_HELLO_LEN_MAX));
        if hello == Hello::Partial && !finished {
            return;
        }
        let (service, tuple) = (waiting.service, waiting.tuple);
        match self.goes(label, service, hello) {
            Goes::To(target) => {
                self.prefaces.forget(label);
                self.begin_client(label, target, tuple);
                let name = server_name(&self.prefaces.hellos.message).ok().flatten();
                self.cx.recorder.log.note(label, name, None);
            }
            Goes::On => {
                self.prefaces.forget(label);
                self.begin_client(label, service, tuple);
            }
            // A check: the client connects, and no more.
            Goes::Ends(_) if self.cx.tcp.readable(label) == 0 => {
                self.prefaces.forget(label);
                return self.cx.abort_client(label);
            }
            Goes::Ends(end) => {
                match hello {
                    Hello::Whole => self.alert(label, UNRECOGNIZED_NAME),
                    Hello::Malformed => self.alert(label, DECODE_ERROR),
                    Hello::Partial | Hello::Other => {}
                }
                return self.refuse_hello(label, end);
            }
        }
        self.finished_before(label, finished);
    }

    /// Decides where a connection goes whose ClientHello is whole, or that has none.
    fn goes(&mut self, label: FlowLabel, number: u32, hello: Hello) -> Goes {
        let Some(service) = self.dispatcher.service(number) else { return Goes::On };
        let spec = &service.spec;
        let otherwise = match spec.tls.is_some() || spec.local.is_some() || !spec.pool.is_empty() {
            true => Goes::On,
            false if hello == Hello::Whole => Goes::Ends(End::UnknownName),
            false => Goes::Ends(End::Handshake),
        };
        let Some(names) = spec.sni.as_ref().filter(|_| hello == Hello::Whole) else { return otherwise };
        let message = &mut self.prefaces.hellos.message;
        message.clear();
        HelloReader::gather(self.cx.tcp.peek(label, CLIENT_HELLO_LEN_MAX), message);
        let name = server_name(message).ok().flatten();
        let Some(target) = name.and_then(|name| names.find(name)) else { return otherwise };
        match self.dispatcher.service_named(target) {
            Some((target, _)) => Goes::To(target),
            None => Goes::Ends(End::Proxy), // no checked policy has it
        }
    }

    fn alert(&mut self, label: FlowLabel, description: u8) {
        // Only while there is memory that nobody was promised.
        let Some(window) = self.pump.reserve() else { return };
        self.pump.release(window);
        let [a, b, c, d, e, f] = ALERT;
        self.cx.tcp.write(self.cx.now, label, &[a, b, c, d, e, f, description]);
    }

    /// Ends a connection that goes nowhere, after what was written.
    pub(super) fn refuse_hello(&mut self, label: FlowLabel, end: End) {
        let Some(Waiting { service, tuple, .. }) = self.prefaces.hellos.waiting.remove(label) else { return };
        let message = &self.prefaces.hellos.message;
        self.cx.recorder.log.refused_because(self.cx.now, (label, tuple, service), end, || {
            let name = server_name(message).ok().flatten().filter(|_| end == End::UnknownName)?;
            Some(TlsNote { server_name: name.into(), ..TlsNote::default() })
        });
        self.cx.recorder.services.refused(self.dispatcher.counted(service), end);
        self.cx.recorder.counters.tls_handshakes_failed += 1;
        self.cx.tcp.reset(self.cx.now, label);
    }

    /// Resets the connection that has waited longest for its ClientHello; `false` if none has for a second.
    pub(super) fn oldest_hello_gives_way(&mut self) -> bool {
        let waiting = &self.prefaces.hellos.waiting;
        let latest = self.cx.now + (HELLO_TIMEOUT - HELLO_MIN);
        let Some(label) = waiting.oldest().filter(|_| waiting.deadline().is_some_and(|at| at <= latest))
        else {
            return false;
        };
        self.refuse_hello(label, End::Handshake);
        true
    }
}
