//! Has no code. Its manifest names the features that libraries get when the whole workspace is built and
//! tested: built beside any part of the workspace (`cargo test -p csp-tcp -p csp-features`), it lets cargo
//! choose the same ones, so that no library is compiled twice.
