//! Links, credits and flow multiplexing over Virtual Interfaces.
