//! The last-known-good policy on disk.
