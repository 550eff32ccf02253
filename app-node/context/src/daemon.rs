//! Sockets, threads and signals of `csp-context`.
