//! The address of an end: a provider or kind of socket, and its address.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use csp_vi::ViAddress;

/// `shm:PATH`, `vi-tcp:IP:PORT`, `ucx:IP:PORT`, `verbs:IP:PORT`, `tcp:IP:PORT` or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A provider of Virtual Interfaces.
    Vi(Kind, ViAddress),
    /// The kernel's TCP.
    Tcp(SocketAddr),
    /// The kernel's Unix stream sockets.
    Unix(PathBuf),
}

/// A provider of Virtual Interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory shared by two processes of one host.
    Shm,
    /// Kernel TCP.
    Tcp,
    /// UCX.
    Ucx,
    /// RDMA verbs.
    Verbs,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no address; allowed are shm:PATH, vi-tcp:IP:PORT, ucx:IP:PORT, verbs:IP:PORT, \
                 tcp:IP:PORT, unix:PATH"
            )
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        if rest.is_empty() {
            return Err(wrong());
        }
        let ip = || rest.parse::<SocketAddr>().map_err(|_| wrong());
        Ok(match kind {
            "shm" => Address::Vi(Kind::Shm, ViAddress::Path(rest.into())),
            "vi-tcp" => Address::Vi(Kind::Tcp, ViAddress::Ip(ip()?)),
            "ucx" => Address::Vi(Kind::Ucx, ViAddress::Ip(ip()?)),
            "verbs" => Address::Vi(Kind::Verbs, ViAddress::Ip(ip()?)),
            "tcp" => Address::Tcp(ip()?),
            "unix" => Address::Unix(rest.into()),
            _ => return Err(wrong()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Vi(_, at) => write!(f, "{}:{at}", self.kind()),
            Address::Tcp(at) => write!(f, "tcp:{at}"),
            Address::Unix(at) => write!(f, "unix:{}", at.display()),
        }
    }
}

impl Address {
    /// Returns the part before the colon.
    pub fn kind(&self) -> &'static str {
        match self {
            Address::Vi(Kind::Shm, _) => "shm",
            Address::Vi(Kind::Tcp, _) => "vi-tcp",
            Address::Vi(Kind::Ucx, _) => "ucx",
            Address::Vi(Kind::Verbs, _) => "verbs",
            Address::Tcp(_) => "tcp",
            Address::Unix(_) => "unix",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "shm:/run/p",
            "vi-tcp:10.0.0.1:7",
            "ucx:10.0.0.1:7",
            "verbs:[fe80::1]:7",
            "tcp:127.0.0.1:80",
            "unix:/x",
        ] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "shm", "shm:", "tcp:localhost", "rdma:1.2.3.4:5", "ucx:1.2.3.4"] {
            assert!(text.parse::<Address>().is_err_and(|why| why.contains("allowed are")), "{text}");
        }
    }
}
