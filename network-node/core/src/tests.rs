//! Behaviour of the core, tested with frames and records built byte by byte.

mod channels;
mod fixture;
mod flows;
mod forward;
mod fragments;
mod groups;
mod hostile;
mod in_parts;
mod kernel;
mod neighbours;
mod plugins;
mod proxies;
mod search;
mod tunnel;
