//! The whole data path in one process on virtual time.
