//! The socket filter: accelerated sockets for unmodified programs.
