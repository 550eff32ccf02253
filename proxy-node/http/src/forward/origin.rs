//! Where a request comes from: X-Forwarded-For, -Host, -Proto, -Port, and Forwarded (RFC 7239).

use std::io::Write as _;
use std::net::IpAddr;

use super::edits::Edits;
use super::writer::Writer;
use crate::head::{Request, Scheme};
use crate::name::{Name, is_of_certificate, is_same, trimmed};

/// Which fields a request gets of its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OriginFields {
    /// `X-Forwarded-For`, `X-Forwarded-Host` and `X-Forwarded-Proto`.
    pub x_forwarded: bool,
    /// `Forwarded`.
    pub forwarded: bool,
}

/// The address of a connection's peer as text, written once for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerText {
    bytes: [u8; 46],
    len: u8,
    is_v6: bool,
}

impl PeerText {
    /// Writes an address. An IPv4-mapped IPv6 address is written as the IPv4 address.
    pub fn new(peer: IpAddr) -> Self {
        let peer = peer.to_canonical();
        let mut bytes = [0; 46];
        let mut rest = &mut bytes[..];
        // The longest address has 45 characters.
        let _ = write!(rest, "{peer}");
        let len = 46 - rest.len();
        PeerText { bytes, len: len as u8, is_v6: peer.is_ipv6() }
    }

    /// Returns the text.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The origin of a request, from the view of the proxy.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The peer of the client's connection.
    pub peer: &'a PeerText,
    /// Whether the policy trusts this peer: then what it says of clients before it is kept and extended.
    /// Otherwise it is removed.
    pub is_trusted: bool,
    /// The scheme of the client's connection.
    pub scheme: Scheme,
    /// The fields that are written.
    pub fields: OriginFields,
}

impl Origin<'_> {
    /// Returns whether a field of the client is kept as it is. The fields that [`write`](Self::write) writes
    /// are not.
    #[inline]
    pub(super) fn keeps(&self, known: Name) -> bool {
        match known {
            Name::XForwardedFor | Name::XForwardedHost | Name::XForwardedProto => {
                self.is_trusted && !self.fields.x_forwarded
            }
            Name::XForwardedPort => self.is_trusted,
            Name::Forwarded => self.is_trusted && !self.fields.forwarded,
            _ => true,
        }
    }

    /// Returns whether a field of another name is kept: not if members take it for what a proxy before them
    /// says, and no trusted one has said it; and never what is said of a client's certificate.
    #[inline]
    pub(super) fn keeps_other(&self, name: &[u8]) -> bool {
        if !matches!(name, [b'x' | b'X' | b'p' | b'P' | b'c' | b'C', ..]) {
            return true;
        }
        if is_of_certificate(name) {
            return false;
        }
        if self.is_trusted {
            return true;
        }
        let begins = name.get(..12).is_some_and(|start| is_same(start, b"X-Forwarded-"));
        !begins
            && ![&b"X-Real-IP"[..], b"X-Original-URL", b"X-Rewrite-URL", b"Proxy"]
                .iter()
                .any(|known| is_same(known, name))
    }

    /// Writes the fields but those that edits remove.
    pub(super) fn write(&self, out: &mut Writer<'_>, request: &Request<'_>, edits: &Edits) {
        if self.fields.x_forwarded {
            if !edits.removes(b"X-Forwarded-For") {
                self.list(out, request, b"X-Forwarded-For: ", Name::XForwardedFor);
                out.put(self.peer.bytes());
                out.put(b"\r\n");
            }
            if !edits.removes(b"X-Forwarded-Host") {
                let host = request.host_text().unwrap_or_default();
                self.one(out, request, b"X-Forwarded-Host", Name::XForwardedHost, host);
            }
            if !edits.removes(b"X-Forwarded-Proto") {
                let scheme = self.scheme.name().as_bytes();
                self.one(out, request, b"X-Forwarded-Proto", Name::XForwardedProto, scheme);
            }
        }
        if self.fields.forwarded && !edits.removes(b"Forwarded") {
            self.list(out, request, b"Forwarded: ", Name::Forwarded);
            self.element(out, request);
            out.put(b"\r\n");
        }
    }

    /// Writes a field's name and, from a trusted peer, the values that it has sent.
    fn list(&self, out: &mut Writer<'_>, request: &Request<'_>, name: &[u8], known: Name) {
        out.put(name);
        let values = request.fields().filter(|field| field.known == known && !field.value.is_empty());
        for field in values.filter(|_| self.is_trusted) {
            out.put(field.value);
            out.put(b", ");
        }
    }

    /// Writes a field with one value: the first one that a trusted peer has sent, or `own`.
    fn one(&self, out: &mut Writer<'_>, request: &Request<'_>, name: &[u8], known: Name, own: &[u8]) {
        let sent = request.fields().find(|field| field.known == known && self.is_trusted);
        let value = sent.map(|field| field.value).filter(|value| !value.is_empty()).unwrap_or(own);
        if !value.is_empty() {
            out.field(name, value);
        }
    }

    /// RFC 7239 §4: values that are no tokens are quoted.
    fn element(&self, out: &mut Writer<'_>, request: &Request<'_>) {
        let (before, behind): (&[u8], &[u8]) =
            if self.peer.is_v6 { (b"for=\"[", b"]\"") } else { (b"for=", b"") };
        out.put(before);
        out.put(self.peer.bytes());
        out.put(behind);
        // A host that was accepted has no characters that need a backslash.
        if let Some(host) = request.host_text().map(trimmed) {
            out.put(b";host=\"");
            out.put(host);
            out.put(b"\"");
        }
        out.put(b";proto=");
        out.put(self.scheme.name().as_bytes());
    }
}
