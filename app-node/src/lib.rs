//! The application node: agent and launcher.
