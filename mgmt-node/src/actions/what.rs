//! What a request changes, in words for the audit log: bounded, and without anything secret.

use axum::http::{Method, Uri};
use serde_json::Value;

/// Longest text, in characters.
const LEN_MAX: usize = 300;

/// Cuts a text that is too long.
pub(super) fn bounded(text: &str) -> String {
    match text.char_indices().nth(LEN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// What a request changes. Bodies of policies and modules are named by their hash: they may hold keys.
pub(super) fn of(method: &Method, uri: &Uri, body: &[u8]) -> String {
    let parts: Vec<&str> = uri.path().trim_start_matches("/api/v1/").split('/').collect();
    let text = match (method.as_str(), parts.as_slice()) {
        ("PUT", ["nodes", id, "drain"]) => format!("drain {id}{}", query(uri)),
        ("DELETE", ["nodes", id, "drain"]) => format!("resume {id}"),
        ("POST", ["policy"]) => format!("apply a policy: {}", hash(body)),
        ("POST", ["policy", "rollback"]) => format!("roll back:{}", query(uri)),
        ("PUT", ["link", "scheme"]) => format!("switch the link's scheme: {}", words(body)),
        ("POST", ["plugins", instance, operation]) => format!("{operation} at {instance}: {}", words(body)),
        ("POST", ["cache", "purge"]) => format!("purge the HTTP cache: {}", words(body)),
        ("POST", ["captures", instance]) => format!("take the capture of {instance}"),
        ("POST", [kind @ ("handlers" | "plugin-modules")]) => format!("bring to {kind}: {}", hash(body)),
        ("POST", ["certificates", name, "renew"]) => format!("renew certificate {name}"),
        ("DELETE", [kind, module]) => format!("remove {module} from {kind}"),
        _ => String::new(),
    };
    bounded(&text)
}

fn hash(body: &[u8]) -> String {
    format!("{} bytes, sha256 {}", body.len(), csp_policy::sha256(body))
}

/// What the query says beside the generation, which has a field of its own.
fn query(uri: &Uri) -> String {
    let pairs = uri.query().unwrap_or_default().split('&');
    let others = pairs.filter(|pair| !pair.is_empty() && !pair.starts_with("if_generation="));
    others.map(|pair| format!(" {pair}")).collect()
}

/// A short JSON document as text.
fn words(body: &[u8]) -> String {
    serde_json::from_slice::<Value>(body).map(|value| value.to_string()).unwrap_or_else(|_| hash(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_named_without_the_policys_text() {
        let of = |method: Method, path: &'static str, body: &str| {
            of(&method, &Uri::from_static(path), body.as_bytes())
        };
        assert_eq!(
            of(Method::PUT, "/api/v1/nodes/pn-1/drain?force=true&if_generation=7", ""),
            "drain pn-1 force=true"
        );
        assert_eq!(of(Method::DELETE, "/api/v1/nodes/pn-1/drain", ""), "resume pn-1");
        let applied = of(Method::POST, "/api/v1/policy", "secret");
        assert!(applied.starts_with("apply a policy: 6 bytes, sha256 2bb80d53"), "{applied}");
        let blocked =
            of(Method::POST, "/api/v1/plugins/blocked/add", r#"{"arguments":{"prefix":"192.0.2.0/24"}}"#);
        assert_eq!(blocked, r#"add at blocked: {"arguments":{"prefix":"192.0.2.0/24"}}"#);
        let purged = of(Method::POST, "/api/v1/cache/purge", r#"{"tag":"a"}"#);
        assert_eq!(purged, r#"purge the HTTP cache: {"tag":"a"}"#);
        let long = of(Method::POST, "/api/v1/plugins/x/add", &format!("\"{}\"", "ä".repeat(5000)));
        assert_eq!(long.chars().count(), LEN_MAX + 1);
    }
}
