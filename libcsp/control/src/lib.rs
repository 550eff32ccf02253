//! Registration, membership, policy schema and last-known-good store.
