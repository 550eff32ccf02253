//! Times that bound what clients and members may take.

use csp_types::Duration;

use super::Mistake;

/// Times of a service or a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// From a connection's start, or from a request's first byte, to the end of its head. Of the service
    /// only.
    pub head: Duration,
    /// Without progress of a body, in either direction.
    pub body_idle: Duration,
    /// Until a member has accepted a connection, with the time in its pool's backlog. 0: the limits of that
    /// backlog alone.
    pub connect: Duration,
    /// From the end of the request to the head of its response.
    pub response: Duration,
    /// A client's connection between two requests. Of the service only.
    pub idle: Duration,
    /// A kept connection to a member.
    pub upstream_idle: Duration,
    /// A tunnel without bytes in either direction; 0: any time.
    pub tunnel_idle: Duration,
    /// From the end of a request's head to the end of its response; 0: any time. Tunnels are exempt.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            head: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            connect: Duration::from_secs(10),
            response: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            upstream_idle: Duration::from_secs(30),
            tunnel_idle: Duration::from_secs(3_600),
            total: Duration::ZERO,
        }
    }
}

impl Timeouts {
    pub(super) fn check(&self) -> Result<(), Mistake> {
        let named = [
            (self.head, "head"),
            (self.body_idle, "body_idle"),
            (self.response, "response"),
            (self.idle, "idle"),
            (self.upstream_idle, "upstream_idle"),
        ];
        match named.into_iter().find(|(time, _)| time.is_zero()) {
            Some((_, name)) => Err(Mistake::Timeout(name)),
            None => Ok(()),
        }
    }
}

/// Times of a rule that differ from those of its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeoutOverrides {
    /// [`Timeouts::body_idle`].
    pub body_idle: Option<Duration>,
    /// [`Timeouts::connect`].
    pub connect: Option<Duration>,
    /// [`Timeouts::response`].
    pub response: Option<Duration>,
    /// [`Timeouts::tunnel_idle`].
    pub tunnel_idle: Option<Duration>,
    /// [`Timeouts::total`].
    pub total: Option<Duration>,
}

impl TimeoutOverrides {
    pub(super) fn over(&self, service: &Timeouts) -> Timeouts {
        Timeouts {
            body_idle: self.body_idle.unwrap_or(service.body_idle),
            connect: self.connect.unwrap_or(service.connect),
            response: self.response.unwrap_or(service.response),
            tunnel_idle: self.tunnel_idle.unwrap_or(service.tunnel_idle),
            total: self.total.unwrap_or(service.total),
            ..*service
        }
    }
}
