//! Behaviour over the memory provider, against a scripted proxy.
