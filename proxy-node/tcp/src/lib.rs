//! The user-level TCP engine.
