//! Options of HTTP: bounds, times, connections to servers.

use csp_config::number;
use serde::{Deserialize, Deserializer, Serialize};

use super::RETRIES_MAX;

/// A field by which servers learn of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginField {
    /// `X-Forwarded-For`, `X-Forwarded-Host`, `X-Forwarded-Proto`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// Bounds of heads and bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpLimits {
    /// Longest head in KiB, of requests and responses.
    #[serde(deserialize_with = "head")]
    pub head_kib: u8,
    /// Most fields of a head.
    #[serde(deserialize_with = "fields")]
    pub fields: u8,
    /// Longest request target in KiB.
    #[serde(deserialize_with = "head")]
    pub target_kib: u8,
    /// Longest body of a request in MiB; 0: no bound.
    pub body_mib: u32,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits { head_kib: 32, fields: 100, target_kib: 8, body_mib: 0 }
    }
}

/// Times that clients and servers may take, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpTimeouts {
    /// For the head of a request, from its first byte or the start of the connection.
    #[serde(deserialize_with = "time")]
    pub head_ms: u32,
    /// Without progress of a body, in either direction.
    #[serde(deserialize_with = "time")]
    pub body_idle_ms: u32,
    /// For a connection to a server, with the time in the backlog of its service; 0: what that permits.
    #[serde(deserialize_with = "time_or_none")]
    pub connect_ms: u32,
    /// From the end of a request to the head of the response.
    #[serde(deserialize_with = "time")]
    pub response_ms: u32,
    /// For a client's connection between two requests.
    #[serde(deserialize_with = "time")]
    pub idle_ms: u32,
    /// For a kept connection to a server.
    #[serde(deserialize_with = "time")]
    pub upstream_idle_ms: u32,
    /// For a tunnel, such as WebSocket, without bytes; 0: any time.
    #[serde(deserialize_with = "time_or_none")]
    pub tunnel_idle_ms: u32,
    /// From a request's head to the end of its response; 0: any time.
    #[serde(deserialize_with = "time_or_none")]
    pub total_ms: u32,
}

impl Default for HttpTimeouts {
    fn default() -> Self {
        HttpTimeouts {
            head_ms: 10_000,
            body_idle_ms: 30_000,
            connect_ms: 10_000,
            response_ms: 60_000,
            idle_ms: 60_000,
            upstream_idle_ms: 30_000,
            tunnel_idle_ms: 3_600_000,
            total_ms: 0,
        }
    }
}

/// Times of a route that differ from those of its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteTimeouts {
    /// As [`HttpTimeouts::body_idle_ms`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_time")]
    pub body_idle_ms: Option<u32>,
    /// As [`HttpTimeouts::connect_ms`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_time_or_none")]
    pub connect_ms: Option<u32>,
    /// As [`HttpTimeouts::response_ms`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_time")]
    pub response_ms: Option<u32>,
    /// As [`HttpTimeouts::tunnel_idle_ms`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_time_or_none")]
    pub tunnel_idle_ms: Option<u32>,
    /// As [`HttpTimeouts::total_ms`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_time_or_none")]
    pub total_ms: Option<u32>,
}

/// Connections to servers that are kept for further requests, of each proxy worker and each service that
/// routes lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Upstream {
    /// Most that are idle.
    #[serde(deserialize_with = "idle")]
    pub idle: u32,
    /// Most requests of one; 0: any number.
    pub requests: u32,
    /// Which requests use one.
    pub reuse: UpstreamReuse,
}

impl Default for Upstream {
    fn default() -> Self {
        Upstream { idle: 64, requests: 0, reuse: UpstreamReuse::default() }
    }
}

/// Which requests use a connection to a server that had one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamReuse {
    /// Those that can be sent again if the server turns out to have closed it: of idempotent methods, and
    /// without a body.
    Repeatable,
    /// These, and to programs under the filter all with a short body: what a program has not read is sent
    /// again.
    #[default]
    Unread,
    /// All. One that cannot be sent again is answered with 502 then.
    Always,
}

pub(super) fn x_forwarded() -> Vec<OriginField> {
    vec![OriginField::XForwarded]
}

pub(super) fn is_x_forwarded(fields: &[OriginField]) -> bool {
    *fields == [OriginField::XForwarded]
}

pub(super) const fn one_retry() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(super) const fn is_one_retry(retries: &u8) -> bool {
    *retries == 1
}

pub(super) fn retries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 0, RETRIES_MAX.into(), "a number of retries")? as u8)
}

fn head<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 1, 63, "a length in KiB")? as u8)
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    Ok(number(deserializer, 1, 128, "a number of fields")? as u8)
}

fn idle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 65_536, "a number of connections")? as u32)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 1, 86_400_000, "a time in milliseconds")? as u32)
}

fn time_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer, 0, 86_400_000, "a time in milliseconds (0: any)")? as u32)
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    time(deserializer).map(Some)
}

fn some_time_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    time_or_none(deserializer).map(Some)
}
