//! The proxy node: user-level TCP termination and the SAN proxy service.
