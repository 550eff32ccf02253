//! Behaviour of endpoints, tunnel batches and channels over real providers, in virtual time.

mod channel;
mod credit;
mod handshake;
mod harness;
mod hostile;
mod liveness;
mod tunnel;
