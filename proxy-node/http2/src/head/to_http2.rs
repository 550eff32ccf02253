//! Heads and trailers of HTTP/1.1 as those of HTTP/2: without the fields that belong to a connection
//! (RFC 9113 §8.2.2).

use csp_http::body::trailer_fields;
use csp_http::head::{FieldText, Request, Response, Scheme};
use csp_http::name::{Name, elements};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version};

use crate::error::SendError;

/// Converts a response. `websocket`: the request was an extended CONNECT, which 200 accepts (RFC 8441 §5)
/// where HTTP/1.1 has 101.
pub(crate) fn response(head: &Response<'_>, websocket: bool) -> Result<http::Response<()>, SendError> {
    let status = match head.status() {
        101 if websocket && head.is_upgrade() => 200,
        101 => return Err(SendError::Switched),
        // It would accept the WebSocket that the member has not.
        200..=299 if websocket => return Err(SendError::NotSwitched),
        status => status,
    };
    let mut response = http::Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| SendError::Head)?;
    let switched = head.status() == 101;
    let keeps = |field: &FieldText<'_>| {
        !(switched
            && (field.known == Name::ContentLength
                || field.name.eq_ignore_ascii_case(b"sec-websocket-accept")))
    };
    fields(response.headers_mut(), head.fields(), keeps)?;
    Ok(response)
}

/// Converts a request to a member, as it was written for one of HTTP/1.1. Upgrades are not converted.
pub(crate) fn request(head: &Request<'_>, scheme: Scheme) -> Result<http::Request<()>, SendError> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| SendError::Head);
    let host = head.host().ok_or(SendError::Head)?;
    let mut authority = text(host.name)?.to_owned();
    if let Some(port) = host.port {
        authority.push(':');
        authority.push_str(&port.to_string());
    }
    let mut target = text(head.path())?.to_owned();
    if let Some(query) = head.query() {
        target.push('?');
        target.push_str(text(query)?);
    }
    let uri = Uri::builder()
        .scheme(scheme.name())
        .authority(Authority::try_from(authority).map_err(|_| SendError::Head)?)
        .path_and_query(PathAndQuery::try_from(target).map_err(|_| SendError::Head)?)
        .build()
        .map_err(|_| SendError::Head)?;
    let mut request = http::Request::new(());
    *request.method_mut() = Method::from_bytes(head.method_name()).map_err(|_| SendError::Head)?;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    fields(request.headers_mut(), head.fields(), |field| field.known != Name::Host)?;
    if head.accepts_trailers() {
        request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(request)
}

/// Converts a trailer section without what may not trail; empty if nothing is left.
pub(crate) fn trailers(section: &[u8]) -> Result<HeaderMap, SendError> {
    let mut map = HeaderMap::new();
    for field in trailer_fields(section) {
        append(&mut map, &field)?;
    }
    Ok(map)
}

fn fields<'a>(
    map: &mut HeaderMap,
    fields: impl Iterator<Item = FieldText<'a>> + Clone,
    keeps: impl Fn(&FieldText<'_>) -> bool,
) -> Result<(), SendError> {
    let is_nominated = |name: &[u8]| {
        fields
            .clone()
            .filter(|field| field.known == Name::Connection)
            .any(|field| elements(field.value).any(|option| option.eq_ignore_ascii_case(name)))
    };
    // At most as many as a head can have.
    map.try_reserve(fields.clone().count() + 1).map_err(|_| SendError::Head)?;
    for field in fields.clone() {
        if !field.known.is_hop_by_hop() && keeps(&field) && !is_nominated(field.name) {
            append(map, &field)?;
        }
    }
    Ok(())
}

fn append(map: &mut HeaderMap, field: &FieldText<'_>) -> Result<(), SendError> {
    let name = HeaderName::from_bytes(field.name).map_err(|_| SendError::Head)?;
    let value = HeaderValue::from_bytes(field.value).map_err(|_| SendError::Head)?;
    map.try_append(name, value).map_err(|_| SendError::Head)?;
    Ok(())
}
