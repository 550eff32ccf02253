//! Converts the ports of channels.

use csp_messages::Role;
use csp_policy::{Channel, ChannelPort, Clients, Framing, Headers, LengthHeader, Pattern, SOFH_ENCODING};
use csp_services::{Header, PrefixedPort, StreamSpec};
use csp_zmtp::{Description, Prefix, Width};

/// Returns the ports whose peers send and receive length-prefixed messages. `derived`: they only receive,
/// because nobody publishes to the channel.
pub(super) fn prefixed_ports(channel: &Channel, derived: bool) -> Vec<PrefixedPort> {
    let port = |port: ChannelPort| {
        let header = match port.header {
            Headers::Keep => Header::Kept,
            Headers::Strip => Header::Stripped {
                encoding: (port.framing == Framing::Sofh).then(|| port.encoding.unwrap_or(SOFH_ENCODING)),
            },
        };
        let role = match (channel.pattern, port.clients) {
            (Pattern::Publish, _) if derived => Role::Subscriber,
            (Pattern::Publish, None | Some(Clients::Both)) => Role::Both,
            (Pattern::Publish, Some(Clients::Publish)) => Role::Publisher,
            (Pattern::Publish, Some(Clients::Subscribe)) => Role::Subscriber,
            (Pattern::Push, Some(Clients::Subscribe)) => Role::Puller,
            (Pattern::Push, _) => Role::Pusher,
        };
        Some(PrefixedPort { port: port.port, prefix: prefix(channel, &port)?, header, role })
    };
    channel.ports().filter_map(port).collect()
}

/// Returns a channel whose messages pass to servers of its pool.
pub(super) fn stream(channel: &Channel, number: u32) -> StreamSpec {
    let ports = channel.ports().filter_map(|port| Some((port.port, prefix(channel, &port)?))).collect();
    StreamSpec { number, name: channel.name.clone(), ports }
}

/// Returns the header of a port's messages; `None` with ZMTP. The longest message is as long as the channel
/// permits, with the header where it is a part of the message.
fn prefix(channel: &Channel, port: &ChannelPort) -> Option<Prefix> {
    let most = (channel.message_kib as usize) << 10;
    let extra = if port.header == Headers::Strip { port.header_len()? } else { 0 };
    let message_len_max = most + extra;
    match port.framing {
        Framing::Zmtp => None,
        Framing::Sofh => Prefix::sofh(message_len_max).ok(),
        Framing::Length(header) => described(header, message_len_max),
    }
}

/// Returns `None` for a header that the policy's checks refuse.
fn described(header: LengthHeader, message_len_max: usize) -> Option<Prefix> {
    let description = Description {
        header_len: header.header_len(),
        length_offset: header.offset.into(),
        width: Width::from_bytes(header.bytes.into())?,
        order: header.order,
        counted_from: header.counted_from(),
        message_len_max,
    };
    Prefix::new(description).ok()
}

#[cfg(test)]
mod tests {
    use csp_policy::Policy;
    use csp_zmtp::ByteOrder;

    use super::*;

    fn channel(fields: &str) -> Channel {
        let text = format!(
            "apiVersion: csp/v1\nchannels:\n  - {{name: t, vip: 10.76.0.100, port: 1, message_kib: 2, {fields}}}\n"
        );
        Policy::parse_yaml(&text, "p.yaml").expect("it is valid").channels.remove(0)
    }

    #[test]
    fn ports_become_what_the_policy_says() {
        let ports = prefixed_ports(
            &channel(
                "listen: [{port: 2, framing: sofh}, {port: 3, framing: sofh, header: strip, clients: subscribe}, \
             {port: 4, framing: {length: {offset: 1, bytes: 2, order: little, header: 5, counts: rest}}, clients: publish}]",
            ),
            false,
        );
        let sofh = |len| Prefix::sofh(len).expect("longer than the header");
        let expected = [
            PrefixedPort { port: 2, prefix: sofh(2048), header: Header::Kept, role: Role::Both },
            PrefixedPort {
                port: 3,
                prefix: sofh(2054),
                header: Header::Stripped { encoding: Some(SOFH_ENCODING) },
                role: Role::Subscriber,
            },
        ];
        assert_eq!(ports[..2], expected, "port 1 speaks ZMTP");
        let last = ports[2].prefix.description();
        assert_eq!((last.header_len, last.length_offset, last.counted_from), (5, 1, 3));
        assert_eq!((last.width, last.order, ports[2].role), (Width::Two, ByteOrder::Little, Role::Publisher));
        let push = "pattern: push, framing: sofh, clients: subscribe";
        assert_eq!(prefixed_ports(&channel(push), false)[0].role, Role::Puller);
        let derived = prefixed_ports(&channel("framing: sofh"), true);
        assert_eq!(derived[0].role, Role::Subscriber, "nobody publishes to a derived channel");
    }
}
