//! Packet classification rules.
