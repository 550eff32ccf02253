//! Bounds of connections of HTTP/2, of clients and of members.

/// Most turns of one call; then other connections have their turn.
pub(crate) const TURNS_MAX: usize = 16;
/// Readable bytes that are passed to a machine at once.
pub(crate) const READ_MAX: usize = 32 << 10;
