//! A module that processes packets: checked, compiled, and named by its SHA-256.

use std::sync::Arc;

use wasmtime::InstancePre;

use super::instance::Instance;
use super::{PacketDeclaration, VERSION};
use crate::engine::Engine;
use crate::guest::Guest;
use crate::module::{self, ModuleError, Sha256, check_functions, check_memory};

/// Functions that a module exports: name, number of parameters of 32 bits, result.
const ABI: [(&str, usize, char); 4] = [
    ("csp_packet_abi", 0, 'i'),
    ("csp_packet_declaration", 0, 'i'),
    ("on_packet", 0, 'i'),
    ("configure", 1, 'i'),
];
/// What it may import.
const IMPORTS: [&str; 2] = ["parameters", "refuse"];

/// A module that was checked and compiled. Threads share it.
pub struct PacketModule {
    pub(super) engine: Engine,
    pub(super) pre: InstancePre<Guest>,
    pub(super) declared: PacketDeclaration,
    pub(super) configures: bool,
    sha256: Sha256,
    memory: u64,
}

impl PacketModule {
    /// Checks and compiles a module, and starts it once to read what it declares.
    ///
    /// This takes milliseconds to seconds of the calling thread, by the module's length: daemons call it on a
    /// background thread.
    ///
    /// # Errors
    /// What is wrong with the module.
    pub fn compile(engine: &Engine, bytes: &[u8]) -> Result<Arc<Self>, ModuleError> {
        let (sha256, compiled) = module::compile(engine, bytes, &|name| IMPORTS.contains(&name))?;
        let [abi, declaration, on_packet, configures] = check_functions(&compiled, ABI)?;
        for (has, (name, ..)) in [abi, declaration, on_packet].into_iter().zip(ABI) {
            if !has {
                return Err(ModuleError::Missing(name));
            }
        }
        let memory = check_memory(engine, &compiled)?;
        let pre = module::link(engine, &compiled)?;
        let (engine, declared) = (engine.clone(), PacketDeclaration::default());
        let mut module = PacketModule { engine, pre, declared, configures, sha256, memory };
        module.declared = module.try_out()?;
        Ok(Arc::new(module))
    }

    /// Starts the module once, and reads its declaration.
    fn try_out(&self) -> Result<PacketDeclaration, ModuleError> {
        let _room = self.engine.admit(self.memory)?;
        let mut instance = Instance::start(self)?;
        let version = instance.number("csp_packet_abi")?;
        if version != VERSION {
            return Err(ModuleError::PacketVersion(version));
        }
        let at = instance.number("csp_packet_declaration")?;
        PacketDeclaration::read(instance.memory(), at.cast_unsigned())
    }

    /// Returns the SHA-256 of its bytes, by which it is stored and named.
    #[must_use]
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Returns the number of its outputs.
    #[must_use]
    pub fn outputs(&self) -> u8 {
        self.declared.outputs
    }

    /// Returns the bytes of memory that are reserved for an instance of it.
    #[must_use]
    pub fn memory_reserved(&self) -> u64 {
        self.memory
    }
}

impl std::fmt::Debug for PacketModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketModule").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}
