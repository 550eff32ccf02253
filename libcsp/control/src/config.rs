//! Configuration files: strict YAML, the sections all daemons share, and errors with the place and what is allowed.

mod collect;
mod load;
mod sections;
mod words;

pub use load::{
    ConfigError, FILE_LEN_MAX, PROBLEMS_MAX, Problem, Problems, load, load_checked, parse, parse_checked,
};
pub use sections::{
    AdminSection, EtcdSection, LogFormat, LogSection, NodeSection, SanProvider, SanSection, serde_node_id,
    serde_prefixes, spin,
};

pub(crate) use sections::{ip_address, number, port};

#[cfg(test)]
mod tests;
