//! The application's side of sockets over channels (being written).
