//! Rewritten paths, and where a redirect leads.

use super::Found;
use crate::head::{Host, Request, Scheme};

/// How a path changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathRewrite {
    /// All of the path becomes this.
    Full(String),
    /// The part that the route names becomes this: under the prefix `/a`, `/a/b` becomes `/new/b`. Of an
    /// expression nothing is named, and this stands before the path.
    Prefix(String),
}

/// A redirect. What it does not name stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// The scheme. With another scheme than the client's, the client's port is left out.
    pub scheme: Option<Scheme>,
    /// The host.
    pub host: Option<String>,
    /// The port.
    pub port: Option<u16>,
    /// The path. The query stays.
    pub path: Option<PathRewrite>,
}

/// Why a rewrite or a redirect is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RewriteError {
    /// The path has characters that no path has.
    #[error("{0:?} is no path: expected /SEGMENT/… of visible ASCII without ?, # and \\")]
    Path(String),
    /// The status is no redirect.
    #[error("{0} is no redirect: expected 301, 302, 303, 307 or 308")]
    Status(u16),
    /// The host is no host.
    #[error("{0:?} is no host: expected a name or an address without a port")]
    Host(String),
}

impl PathRewrite {
    /// Checks the text.
    pub fn check(&self) -> Result<(), RewriteError> {
        let (PathRewrite::Full(text) | PathRewrite::Prefix(text)) = self;
        let is_right = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\');
        match text.starts_with('/') && text.bytes().all(is_right) {
            true => Ok(()),
            false => Err(RewriteError::Path(text.clone())),
        }
    }

    /// Writes what becomes of `path` to `room`. `*` stays.
    pub fn apply<'a>(&self, path: &'a [u8], found: Found, room: &'a mut Vec<u8>) -> &'a [u8] {
        if path == b"*" {
            return path;
        }
        room.clear();
        match self {
            PathRewrite::Full(text) => room.extend_from_slice(text.as_bytes()),
            PathRewrite::Prefix(text) => {
                let rest = path.get(found.prefix_len..).unwrap_or_default();
                let text = text.strip_suffix('/').filter(|_| rest.starts_with(b"/")).unwrap_or(text);
                room.extend_from_slice(text.as_bytes());
                room.extend_from_slice(rest);
            }
        }
        room
    }
}

impl Redirect {
    /// Checks status, host and path.
    pub fn check(&self) -> Result<(), RewriteError> {
        if !matches!(self.status, 301 | 302 | 303 | 307 | 308) {
            return Err(RewriteError::Status(self.status));
        }
        if let Some(host) = &self.host
            && Host::parse(host.as_bytes()).is_none_or(|parsed| parsed.port.is_some())
        {
            return Err(RewriteError::Host(host.clone()));
        }
        self.path.as_ref().map_or(Ok(()), PathRewrite::check)
    }

    /// Appends the value of `Location` to `out`: an absolute URI (RFC 9110 §10.2.2). `scheme`: of the
    /// client's connection; `path`: in its normal form. Returns `false`, and appends nothing, if neither the
    /// redirect nor the request names a host.
    pub fn location(
        &self,
        request: &Request<'_>,
        scheme: Scheme,
        path: &[u8],
        found: Found,
        out: &mut Vec<u8>,
    ) -> bool {
        let asked = request.host();
        let Some(name) = self.host.as_deref().map(str::as_bytes).or(asked.map(|host| host.name)) else {
            return false;
        };
        let to = self.scheme.unwrap_or(scheme);
        let kept_port = asked.and_then(|host| host.port).filter(|_| to == scheme && self.host.is_none());
        out.extend_from_slice(to.name().as_bytes());
        out.extend_from_slice(b"://");
        out.extend_from_slice(name);
        if let Some(port) = self.port.or(kept_port).filter(|port| *port != to.default_port()) {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
        let mut room = Vec::new();
        let path = match &self.path {
            Some(rewrite) => rewrite.apply(path, found, &mut room),
            None => path,
        };
        out.extend_from_slice(if path == b"*" { b"/" } else { path });
        if let Some(query) = request.query() {
            out.push(b'?');
            out.extend_from_slice(query);
        }
        true
    }
}
