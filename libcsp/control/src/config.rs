//! Configuration files: strict YAML, the sections all daemons share, and errors that say where and what is allowed.

mod load;
mod sections;

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
