//! Tokens, whose claims are parsed before their signature is verified, and grants.

use csp_transport::keys::{KeySet, NodeKey};
use csp_transport::token::{SECRET_LEN, TOKEN_LEN_MAX, issue, verify};
use csp_transport::{ClusterKey, ProcessId, TokenClaims};
use csp_types::grant::{GRANT_LEN_MAX, Held, Ports, Target as Destination};
use csp_types::{Grant, NodeId, Prefix, Role};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Bounds, Check, Target};

const KEY: [u8; 32] = [7; 32];
const NOW: u64 = 10_000;
const MAC_LEN: usize = 32;

/// What a token signs, as a peer sends it and behind a right signature: one encoding only.
pub static TOKENS: Target = Target {
    name: "tokens",
    check: Check::Parser(tokens),
    examples: token_examples,
    words: &[],
    len_max: 1_024,
    bounds: Bounds { held: (4 << 10, 8), allocated: (8 << 10, 32) },
};

/// A grant and what follows it: one encoding only.
pub static GRANTS: Target = Target {
    name: "grants",
    check: Check::Parser(grants),
    examples: || {
        let written = |grant: Grant| [&emitted(&grant)[..], b"rest"].concat();
        grant_examples().map(written).to_vec()
    },
    words: &[],
    len_max: 1_024,
    bounds: Bounds { held: (1 << 10, 8), allocated: (4 << 10, 32) },
};

fn tokens(signed: &[u8]) -> bool {
    let keys = KeySet::from(ClusterKey::from_bytes(KEY));
    assert!(keys.verify(signed, NOW, None).is_err(), "a token without a signature is verified");
    let key = NodeKey::from_bytes(KEY);
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&KEY) else { return false };
    mac.update(signed);
    let token = [signed, &mac.finalize().into_bytes()[..]].concat();
    let Ok(verified) = verify(&key, &token, NOW) else { return false };
    let again = issue(&key, &verified.claims);
    assert_eq!(again.split().map(|(token, secret)| (token, *secret)), Some((&token[..], verified.secret)));
    assert!(token.len() + SECRET_LEN <= TOKEN_LEN_MAX && token.len() > MAC_LEN);
    true
}

fn token_examples() -> Vec<Vec<u8>> {
    let claims = |role: Role, node: &str, process: &[u8], grant: Grant| {
        let (Ok(node), Some(process)) = (NodeId::parse(node.as_bytes()), ProcessId::parse(process)) else {
            panic!("{node} is no node")
        };
        let uid = (role == Role::Process).then_some(33);
        TokenClaims { role, node, process, uid, grant, not_before: NOW, expires: NOW + 60, nonce: 1 << 60 }
    };
    let [all, some, none] = grant_examples();
    let claims = [
        claims(Role::Process, "an-1", b"nginx.17", all),
        claims(Role::Process, &"n".repeat(63), &[b'p'; 63], some),
        claims(Role::NetworkNode, "nn-1", b"", none),
    ];
    let signed = |claims: &TokenClaims| {
        let token = issue(&NodeKey::from_bytes(KEY), claims);
        let (token, _) = token.split().expect("there is a secret");
        token[..token.len() - MAC_LEN].to_vec()
    };
    claims.iter().map(signed).collect()
}

fn emitted(grant: &Grant) -> Vec<u8> {
    let mut bytes = Vec::new();
    grant.write(|part| bytes.extend_from_slice(part));
    bytes
}

fn grants(bytes: &[u8]) -> bool {
    let Some((grant, rest)) = Grant::parse(bytes) else { return false };
    let written = emitted(&grant);
    assert!(written.len() <= GRANT_LEN_MAX);
    assert_eq!([&written, rest].concat(), bytes);
    true
}

fn grant_examples() -> [Grant; 3] {
    let network =
        |text: &str, ports| text.parse::<Prefix>().ok().map(|network| Destination { network, ports });
    let to = [network("10.0.0.0/8", Ports::ALL), network("2001:db8::/32", Ports::UNPRIVILEGED)];
    let some = Grant::new([Ports { first: 80, last: 80 }, Ports::UNPRIVILEGED], to.into_iter().flatten());
    let held = [Held { port: 80, uid: 0 }, Held { port: 443, uid: 33 }];
    [Grant::all().holding(held), some.shared(true), Grant::NONE]
}
