//! Channels between clients and unmodified servers: both streams of a connection are cut into messages, which
//! pass unchanged and in order.
//!
//! ```text
//!  client ─ bytes ─▶ [PrefixReader] ─ each message ─▶ [MessageHook] ─▶ bytes ─ server of the pool
//!         ◀─ bytes ─ [MessageHook] ◀─ each message ─ [PrefixReader] ◀─ bytes ─
//! ```
//! Each connection has a server's connection of its own, so that nothing is dropped, doubled or reordered,
//! and either end holds the other back. The bytes of a message pass when they arrive; a header that is
//! refused does not, and resets both ends.

use std::collections::HashMap;

use csp_messages::{CacheCounters, ChannelCounters, ChannelStatus, SubscriptionCounts, Usage};
use csp_proxy_core::service::between::{Examined, Towards};
use csp_types::FlowLabel;
use csp_zmtp::{Counters, Cursor, Prefix, PrefixError, PrefixReader, Prefixed};

use crate::{ChannelSnapshot, Moved};

/// A channel whose messages pass between clients and servers of its pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSpec {
    /// [`ServiceSpec::between`](csp_proxy_core::ServiceSpec::between) of the services at the channel's
    /// addresses.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its ports, each with the header of its messages in both directions.
    pub ports: Vec<(u16, Prefix)>,
}

/// Processes each message of a flow, in either direction.
pub trait MessageHook {
    /// Processes a message, which is complete and has passed.
    fn on_message(&mut self, towards: Towards, message: Prefixed<'_>);
}

/// A hook that does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity;

impl MessageHook for Identity {
    fn on_message(&mut self, _: Towards, _: Prefixed<'_>) {}
}

/// Messages and bytes of a channel since the policy named it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamCounters {
    /// Messages from clients to servers.
    pub to_servers: u64,
    /// Messages from servers to clients.
    pub to_clients: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Connections reset because a length is smaller than the header that it includes.
    pub malformed_short: u64,
    /// Connections reset because a message is longer than the channel permits.
    pub malformed_too_long: u64,
    /// Connections reset because a stream ended within a message.
    pub cut_off: u64,
}

impl StreamCounters {
    /// Returns the number of connections that were reset because of malformed data.
    pub fn malformed(&self) -> u64 {
        self.malformed_short + self.malformed_too_long + self.cut_off
    }
}

#[derive(Debug)]
struct Channel {
    spec: StreamSpec,
    counters: StreamCounters,
    connections: u64,
    /// The policy names it.
    active: bool,
}

/// Both directions of one connection.
#[derive(Debug)]
struct Stream<H> {
    number: u32,
    to_application: PrefixReader,
    to_client: PrefixReader,
    hook: H,
    /// Whether the connection was counted as malformed. It is counted once, even if both directions are
    /// malformed.
    failed: bool,
}

impl<H> Stream<H> {
    fn reader(&mut self, towards: Towards) -> &mut PrefixReader {
        match towards {
            Towards::Application => &mut self.to_application,
            Towards::Client => &mut self.to_client,
        }
    }
}

/// The channels with a pool, and their connections.
#[derive(Debug, Default)]
pub(crate) struct Streams<H = Identity> {
    channels: HashMap<u32, Channel>,
    connections: HashMap<FlowLabel, Stream<H>>,
    /// Counters of all channels together.
    framing: Counters,
}

impl<H: MessageHook + Default> Streams<H> {
    /// Replaces the channels. Existing connections continue under the rules with which they began, also those
    /// of a removed channel.
    pub(crate) fn set_channels(&mut self, specs: Vec<StreamSpec>) {
        self.channels.values_mut().for_each(|channel| channel.active = false);
        for spec in specs {
            let counters = StreamCounters::default();
            let number = spec.number;
            let new = Channel { spec: spec.clone(), counters, connections: 0, active: true };
            let channel = self.channels.entry(number).or_insert(new);
            (channel.spec, channel.active) = (spec, true);
        }
        self.channels.retain(|_, channel| channel.active || channel.connections > 0);
    }

    /// Returns the state of each channel. Each connection both sends and receives, and a received message has
    /// been passed on.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = ChannelSnapshot> {
        self.channels.values().filter(|channel| channel.active).map(|channel| {
            let passed = channel.counters.to_servers + channel.counters.to_clients;
            let counters = ChannelCounters {
                published: passed,
                bytes_published: channel.counters.bytes,
                queued: passed,
                taken: passed,
                ..ChannelCounters::default()
            };
            ChannelSnapshot {
                name: channel.spec.name.clone(),
                senders: channel.connections,
                receivers: channel.connections,
                waiting: 0,
                malformed: channel.counters.malformed(),
                refused: 0,
                unknown_format: 0,
                unknown_dropped: 0,
                owner: None,
                moved: Moved::default(),
                status: ChannelStatus {
                    sequence: passed,
                    memory: Usage::default(),
                    subscriptions: SubscriptionCounts::default(),
                    backlog: 0,
                    cached: 0,
                    cache: CacheCounters::default(),
                    blocked: 0,
                    counters,
                },
            }
        })
    }

    pub(crate) fn begun(&mut self, label: FlowLabel, number: u32, port: u16) -> bool {
        let Some(channel) = self.channels.get_mut(&number).filter(|channel| channel.active) else {
            return false;
        };
        let Some((_, prefix)) = channel.spec.ports.iter().find(|(at, _)| *at == port) else { return false };
        let reader = PrefixReader::new(*prefix);
        let stream = Stream {
            number,
            to_application: reader.clone(),
            to_client: reader,
            hook: H::default(),
            failed: false,
        };
        self.connections.insert(label, stream);
        channel.connections += 1;
        true
    }

    pub(crate) fn examine<'a>(
        &mut self,
        label: FlowLabel,
        towards: Towards,
        at: u64,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Examined {
        let Streams { channels, connections, framing } = self;
        let Some(stream) = connections.get_mut(&label) else { return Examined { pass: 0, malformed: true } };
        let mut unknown = StreamCounters::default();
        let counters = channels.get_mut(&stream.number).map_or(&mut unknown, |channel| &mut channel.counters);
        let mut cursor = Cursor::new(at, bytes);
        let Stream { to_application, to_client, hook, failed, .. } = stream;
        let (reader, messages) = match towards {
            Towards::Application => (to_application, &mut counters.to_servers),
            Towards::Client => (to_client, &mut counters.to_clients),
        };
        loop {
            match reader.next(&mut cursor, framing) {
                Ok(Some(message)) => {
                    *messages += 1;
                    counters.bytes += (message.header.len() + message.body_len) as u64;
                    hook.on_message(towards, message);
                }
                Ok(None) => {
                    // Up to where it was examined: this may be less than what was examined before.
                    return Examined { pass: (cursor.position() - at) as usize, malformed: false };
                }
                Err(error) => {
                    let first = !std::mem::replace(failed, true);
                    let good = count(error, counters, first);
                    return Examined { pass: good.saturating_sub(at) as usize, malformed: true };
                }
            }
        }
    }

    /// Returns whether a stream is between two messages.
    pub(crate) fn may_end(&mut self, label: FlowLabel, towards: Towards) -> bool {
        let Some(stream) = self.connections.get_mut(&label) else { return true };
        let reader = stream.reader(towards);
        let may = reader.released() == reader.examined();
        if !may
            && !std::mem::replace(&mut stream.failed, true)
            && let Some(channel) = self.channels.get_mut(&stream.number)
        {
            channel.counters.cut_off += 1;
        }
        may
    }

    pub(crate) fn ended(&mut self, label: FlowLabel) {
        let Some(stream) = self.connections.remove(&label) else { return };
        let Some(channel) = self.channels.get_mut(&stream.number) else { return };
        channel.connections -= 1;
        if channel.connections == 0 && !channel.active {
            self.channels.remove(&stream.number);
        }
    }
}

/// Counts a connection that is reset, if this is its `first` error. Returns the stream position up to which
/// the bytes are valid.
fn count(error: PrefixError, counters: &mut StreamCounters, first: bool) -> u64 {
    let (at, counter) = match error {
        PrefixError::Short { at, .. } => (at, &mut counters.malformed_short),
        PrefixError::TooLong { at, .. } => (at, &mut counters.malformed_too_long),
        PrefixError::Gap { .. } => return 0, // not a mistake of a peer; nothing passes
    };
    *counter += u64::from(first);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direction, position and length of each message.
    #[derive(Default)]
    struct Log(Vec<(Towards, u64, usize)>);

    impl MessageHook for Log {
        fn on_message(&mut self, towards: Towards, message: Prefixed<'_>) {
            self.0.push((towards, message.at, message.body_len));
        }
    }

    #[test]
    fn a_hook_sees_each_message_once_also_if_its_bytes_are_examined_again() {
        let mut streams = Streams::<Log>::default();
        let ports = vec![(80, Prefix::sofh(1_000).expect("longer than its header"))];
        streams.set_channels(vec![StreamSpec { number: 1, name: "orders".to_owned(), ports }]);
        let label = FlowLabel::new(5, 0);
        assert!(
            !streams.begun(label, 1, 81) && !streams.begun(label, 2, 80),
            "no such port, no such channel"
        );
        assert!(streams.begun(label, 1, 80));
        let bytes = b"\0\0\0\x08\0\0ab\0\0\0\x06\0\0\0\0";
        let mut examine = |towards, at: usize, end: usize| {
            let slices = bytes[at..end].chunks(5);
            streams.examine(label, towards, at as u64, slices)
        };
        let all = |pass| Examined { pass, malformed: false };
        assert_eq!(examine(Towards::Application, 0, 7), all(7));
        assert_eq!(examine(Towards::Application, 0, 16), all(16), "there was no room for them");
        assert_eq!(examine(Towards::Application, 3, 9), all(6), "nor for all of these");
        assert_eq!(examine(Towards::Client, 0, 8), all(8));
        let (to, back) = (Towards::Application, Towards::Client);
        assert_eq!(streams.connections[&label].hook.0, [(to, 0, 2), (to, 8, 0), (back, 0, 2)]);
        assert!(streams.may_end(label, back) && !streams.may_end(label, to));
        streams.ended(label);
        assert!(streams.connections.is_empty());
    }
}
