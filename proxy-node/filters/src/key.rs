//! By what requests are counted.

use std::hash::Hasher as _;
use std::net::IpAddr;

use csp_http::head::{Fields, cookies};
use csp_http::name::is_token;
use csp_http::route::Subject;
use siphasher::sip::SipHasher13;

use crate::Mistake;
use crate::cors::one;

/// By what a rule counts requests. Requests without it have one key together, so that nobody escapes a limit
/// by leaving it out; those with several values have that one, too, since a server may take any of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// All requests together.
    All,
    /// The client's address; of IPv6 its first 64 bits, since a client has all addresses of its network.
    Source,
    /// The host's name.
    Host,
    /// The value of this field.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
}

impl Key {
    pub(crate) fn check(&self) -> Result<(), Mistake> {
        match self {
            Key::Header(name) if !is_token(name.as_bytes()) => Err(Mistake::Name(quoted(name), "field")),
            Key::Cookie(name) if !is_token(name.as_bytes()) => Err(Mistake::Name(quoted(name), "cookie")),
            _ => Ok(()),
        }
    }

    /// Returns whether it is a field or a cookie.
    pub(crate) fn is_field(&self) -> bool {
        matches!(self, Key::Header(_) | Key::Cookie(_))
    }

    /// Returns the hash of a request's key.
    pub(crate) fn hash(&self, secret: [u64; 2], subject: &Subject<'_, impl Fields>, source: IpAddr) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(secret[0], secret[1]);
        match self {
            Key::All => {}
            Key::Source => match source.to_canonical() {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()[..8]),
            },
            Key::Host => {
                let host = subject.host.unwrap_or_default();
                let host = host.strip_suffix(b".").unwrap_or(host);
                host.iter().for_each(|byte| hasher.write_u8(byte.to_ascii_lowercase()));
            }
            Key::Header(name) => {
                if let Some(value) = one(subject.fields, name.as_bytes()) {
                    part(&mut hasher, value);
                }
            }
            Key::Cookie(name) => {
                let mut values = cookies(subject.fields).filter(|(of, _)| *of == name.as_bytes());
                if let (Some((_, value)), None) = (values.next(), values.next()) {
                    part(&mut hasher, value);
                }
            }
        }
        hasher.finish()
    }
}

/// With the length, so that an empty value is not a missing one.
fn part(hasher: &mut SipHasher13, value: &[u8]) {
    hasher.write_usize(value.len());
    hasher.write(value);
}

fn quoted(text: &str) -> String {
    text.chars().take(80).collect()
}
