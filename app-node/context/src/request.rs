//! Requests of sessions to the [`HandlerBuilder`](crate::builder::HandlerBuilder) to build a handler, and the
//! results. Missing modules and formats are requested from the proxy.

use std::collections::HashMap;
use std::sync::Arc;

use csp_handlers::Handler;
use csp_sandbox::{Report, Sha256};
use csp_types::options::OnStop;
use csp_wire::context::{Hash, OBJECT_LEN_MAX, Place, Supply};

use crate::session::SessionError;

/// A request to build a supplied handler for a stage.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The stage.
    pub place: Place,
    /// Number of the request in its session.
    pub serial: u64,
    /// Parameters.
    pub parameters: String,
    /// The module.
    pub module: Hash,
    /// The formats of the stage's messages.
    pub formats: Option<Hash>,
    /// Action after the module was stopped.
    pub on_stop: OnStop,
    /// Objects that the proxy has sent for this request.
    pub objects: Vec<(Hash, Arc<[u8]>)>,
}

impl BuildRequest {
    /// Returns an object that the proxy has sent.
    pub fn object(&self, hash: &Hash) -> Option<&Arc<[u8]>> {
        self.objects.iter().find(|(known, _)| known == hash).map(|(_, bytes)| bytes)
    }
}

/// Result of a request.
#[derive(Debug)]
pub enum BuildResult {
    /// The handler, with its parameters set, and its counters.
    Ready(Box<dyn Handler>, Arc<Report>),
    /// These objects are missing.
    Missing(Vec<Hash>),
    /// The handler cannot be built; with the reason.
    Refused(String),
}

/// A stage's request that is not complete.
#[derive(Debug)]
pub(crate) struct Pending {
    pub request: BuildRequest,
    /// Number of objects that must arrive before the request is repeated.
    pub missing: usize,
}

impl Pending {
    pub fn new(place: Place, serial: u64, parameters: &str, module: &Hash, supply: &Supply<'_>) -> Self {
        let request = BuildRequest {
            place,
            serial,
            parameters: parameters.to_owned(),
            module: *module,
            formats: supply.formats.copied(),
            on_stop: supply.on_stop,
            objects: Vec::new(),
        };
        Pending { request, missing: 0 }
    }

    /// Returns whether a stage that is described again has the same handler.
    pub fn is_of(&self, supply: &Supply<'_>) -> bool {
        let same =
            (Some(&self.request.module), self.request.formats.as_ref()) == (supply.module, supply.formats);
        same && self.request.on_stop == supply.on_stop
    }
}

#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// `None` until the first part has arrived.
    total: Option<u32>,
    requests: Vec<(Place, u64)>,
}

/// Objects requested from the proxy, as far as they have arrived.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    incoming: HashMap<Hash, Incoming>,
    /// Total length of the objects.
    bytes: usize,
}

/// The bytes that have arrived, and the requests that wait for them.
pub(crate) type Arrived = (Arc<[u8]>, Vec<(Place, u64)>);

impl Objects {
    /// Records that a request waits for an object. Returns whether the object must be requested from the
    /// proxy.
    pub fn want(&mut self, hash: Hash, request: (Place, u64)) -> bool {
        let incoming = self.incoming.entry(hash).or_default();
        incoming.requests.push(request);
        incoming.requests.len() == 1
    }

    /// Records that the proxy no longer has an object, because the stage that requested it has ended. Returns
    /// the place of another stage that waits for the object, as `is_waiting` reports; the object must be
    /// requested for that stage.
    pub fn not_there(
        &mut self,
        hash: &Hash,
        is_waiting: impl Fn(&(Place, u64)) -> bool,
    ) -> Result<Option<Place>, SessionError> {
        let incoming = self.incoming.get_mut(hash).filter(|incoming| incoming.total.is_none());
        let incoming = incoming.ok_or(SessionError::Object("was not asked for"))?;
        incoming.requests.retain(is_waiting);
        let next = incoming.requests.first().map(|(place, _)| *place);
        if next.is_none() {
            self.incoming.remove(hash);
        }
        Ok(next)
    }

    /// Adds a part. Returns the object once it is complete and its hash matches.
    pub fn part(
        &mut self,
        hash: &Hash,
        (total, offset): (u32, u32),
        bytes: &[u8],
        most: usize,
    ) -> Result<Option<Arrived>, SessionError> {
        let wrong = SessionError::Object;
        let incoming = self.incoming.get_mut(hash).ok_or(wrong("was not asked for"))?;
        let len = usize::try_from(total).unwrap_or(usize::MAX);
        if incoming.total.is_none() {
            if len > OBJECT_LEN_MAX || self.bytes + len > most {
                return Err(wrong("is longer than permitted"));
            }
            self.bytes += len;
            incoming.bytes.reserve_exact(len);
            incoming.total = Some(total);
        }
        if incoming.total != Some(total) || incoming.bytes.len() != offset as usize {
            return Err(wrong("does not come in order"));
        }
        incoming.bytes.extend_from_slice(bytes);
        if incoming.bytes.len() < len {
            return Ok(None);
        }
        let Some(whole) = self.incoming.remove(hash) else { return Ok(None) };
        self.bytes -= len;
        match Sha256::of(&whole.bytes).0 == *hash {
            true => Ok(Some((whole.bytes.into(), whole.requests))),
            false => Err(wrong("has another SHA-256")),
        }
    }
}
