//! Handlers that programs bring to a channel by request: who may, and how much each may use.

use csp_config::{Problems, number};
use csp_types::options::OnStop;
use serde::{Deserialize, Deserializer, Serialize};

use crate::channels::Channel;
use crate::requests::{REQUESTED_MAX, Requests};

/// Longest module that a policy may allow, in KiB.
const MODULE_KIB_MAX: u64 = 1_024;
/// Most memory of a module that a policy may allow, in KiB.
const MEMORY_KIB_MAX: u64 = 4_096;
/// Most fuel of a call that a policy may allow: some 3 ms of a worker.
const FUEL_MAX: u64 = 2_000_000;
/// What a request has beside the module, in KiB.
const REQUEST_KIB: u32 = 16;

/// `requests.handlers:` of a channel: programs may bring handlers of their own, as WebAssembly modules. Each
/// makes a channel of its own of the channel's messages, at one of the ports of `requests`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BroughtHandlers {
    /// Handlers of one identity at a time: of the owner of a key, or of an address.
    #[serde(deserialize_with = "each")]
    pub each: u16,
    /// Longest module in KiB.
    #[serde(deserialize_with = "module_kib")]
    pub module_kib: u32,
    /// Most memory of a module in KiB, which is reserved for it.
    #[serde(deserialize_with = "memory_kib")]
    pub memory_kib: u32,
    /// Fuel of a call, about an instruction each.
    #[serde(deserialize_with = "fuel")]
    pub fuel: u64,
    /// What happens when a module was stopped.
    pub on_stop: OnStop,
    /// On a channel without keys, programs may bring handlers. With keys, those may that have the right
    /// `supply`.
    pub anyone: bool,
}

impl Default for BroughtHandlers {
    fn default() -> Self {
        BroughtHandlers {
            each: 1,
            module_kib: 256,
            memory_kib: 1_024,
            fuel: 200_000,
            on_stop: OnStop::default(),
            anyone: false,
        }
    }
}

impl BroughtHandlers {
    /// Describes it in words, for a difference.
    pub(crate) fn summary(&self) -> String {
        let BroughtHandlers { each, module_kib, memory_kib, fuel, on_stop, anyone } = self;
        let anyone = if *anyone { " anyone," } else { "" };
        format!(
            " handlers of programs:{anyone} {each} each, modules of {module_kib} KiB, {memory_kib} KiB of memory, {fuel} fuel, on stop \
             {on_stop:?},"
        )
    }

    /// Notes what is wrong; `at` is the path of `requests`.
    pub(crate) fn check(&self, channel: &Channel, at: &str, problems: &mut Problems) {
        let at = format!("{at}.handlers");
        match &channel.curve {
            Some(_) if self.anyone => {
                let message = "the channel has keys: give the right `supply` to those that may bring handlers, or to `any`";
                problems.add(format!("{at}.anyone"), message);
            }
            None if !self.anyone => {
                let message = "nobody may bring any: give the channel keys, some with the right `supply`, or say `anyone: true`";
                problems.add(&at, message);
            }
            _ => {}
        }
        if self.module_kib.saturating_add(REQUEST_KIB) > channel.message_kib {
            let (len, most) = (self.module_kib, channel.message_kib);
            let message = format!(
                "a module comes in one message of the channel, with up to {REQUEST_KIB} KiB beside it: {len} KiB need a `message_kib` of \
                 {}, which is {most}",
                len.saturating_add(REQUEST_KIB)
            );
            problems.add(format!("{at}.module_kib"), message);
        }
    }
}

impl Requests {
    /// Returns the length in KiB of messages of a place: handlers make them of the channel's, and the topic
    /// is added.
    pub(crate) fn place_message_kib(&self, channel: &Channel, of_query: u32) -> u32 {
        match self.handlers {
            Some(_) => of_query.max(channel.message_kib).saturating_add(1),
            None => of_query,
        }
    }
}

fn each<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    Ok(number(deserializer, 1, REQUESTED_MAX as u64, "a number of handlers")? as u16)
}

fn module_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, MODULE_KIB_MAX, "the length of a module in KiB")? as u32)
}

fn memory_kib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 64, MEMORY_KIB_MAX, "memory of a module in KiB (64: a page)")? as u32)
}

fn fuel<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, 1_000, FUEL_MAX, "fuel of a call")
}
