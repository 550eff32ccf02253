//! Metrics exposition, logging and the admin endpoint.
