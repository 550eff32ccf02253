//! Behaviour of the core, by frames and records made byte by byte.

mod fixture;
mod flows;
mod hostile;
mod neighbours;
mod proxies;
