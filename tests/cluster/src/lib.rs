//! Real daemons on hosts in network namespaces.
