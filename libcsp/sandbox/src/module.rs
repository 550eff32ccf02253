//! A module: checked, compiled, and named by its SHA-256.

use std::sync::Arc;

use csp_handlers::State;
use sha2::Digest as _;
use thiserror::Error;
use wasmtime::{ExternType, FuncType, InstancePre, ValType};

use crate::abi::{self, Declaration, DeclarationError, StateKind};
use crate::bridge::Quiet;
use crate::engine::{AdmissionError, Engine};
use crate::fields::NoFields;
use crate::guest::Guest;
use crate::instance::Instance;
use crate::stopped::Stopped;

/// Why a module is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ModuleError {
    /// The engine cannot be made; contains what the runtime reports.
    #[error("WebAssembly cannot run here: {0}")]
    Engine(String),
    /// It is too long; contains its length and the longest.
    #[error("the module has {0} bytes, and may have {1}")]
    Len(usize, usize),
    /// It is no valid module, uses an extension of WebAssembly that is not offered, or needs more memory or
    /// tables than an instance may have; contains what the compiler reports.
    #[error("the module is not valid: {0}")]
    Invalid(String),
    /// Its trial failed ([`crate::Trial`]); contains why.
    #[error("{0}")]
    Trial(String),
    /// It imports what the host does not offer.
    #[error("the module imports `{0}`, which is not offered")]
    Import(String),
    /// It imports a function with another signature; contains its name, its signature and what it should be.
    #[error("the module imports `{0}` as {1}, which is {2}")]
    ImportType(String, String, String),
    /// It lacks a function or its memory.
    #[error("the module does not export `{0}`")]
    Missing(&'static str),
    /// It exports a function of the ABI with another signature; contains its name, and what it should be.
    #[error("the module exports `{0}`, which should be {1}")]
    ExportType(&'static str, String),
    /// It has a timer function or period without the other, or half of what hands state over.
    #[error("the module has {0} and lacks {1}")]
    Half(&'static str, &'static str),
    /// It follows another version of the ABI; contains that.
    #[error("the module follows version {0} of the ABI, and the host version {version}", version = abi::VERSION)]
    Version(i32),
    /// Its declaration is wrong.
    #[error("the module's declaration {0}")]
    Declaration(DeclarationError),
    /// It follows another version of the packet ABI; contains that.
    #[error("the module follows version {0} of the packet ABI, and the host version {version}", version = crate::packets::VERSION)]
    PacketVersion(i32),
    /// Its declaration for packets is wrong; contains how.
    #[error("the module's declaration {0}")]
    PacketDeclaration(String),
    /// It declares more than a handler may have; contains of what, how much, and the most.
    #[error("the module declares {1} bytes of {0}, and may have {2}")]
    Declared(&'static str, u32, u32),
    /// It was stopped when it was tried.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// There is no room to try it.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
}

/// The SHA-256 of a module's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// Computes it.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Sha256(sha2::Sha256::digest(bytes).into())
    }
}

impl std::fmt::Display for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Functions of the ABI that a module may leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Optional {
    pub on_timer: bool,
    pub configure: bool,
    pub accepts: bool,
    pub yields: bool,
    pub hands_over: bool,
    declaration: bool,
}

/// A module that was checked and compiled. It can be shared by threads.
pub struct Module {
    pub(crate) engine: Engine,
    pub(crate) pre: InstancePre<Guest>,
    pub(crate) optional: Optional,
    sha256: Sha256,
    len: usize,
    declaration: Declaration,
    memory: u64,
}

impl Module {
    /// Checks and compiles a module, and starts it once to read what it declares.
    ///
    /// This takes milliseconds to seconds of the calling thread, by the module's length: daemons call it on a
    /// background thread.
    ///
    /// # Errors
    /// What is wrong with the module.
    pub fn compile(engine: &Engine, bytes: &[u8]) -> Result<Arc<Self>, ModuleError> {
        let (sha256, compiled) = compile(engine, bytes, &|_| true)?;
        let optional = check_exports(&compiled)?;
        let memory = check_memory(engine, &compiled)?;
        let pre = link(engine, &compiled)?;
        let declaration = Declaration::default();
        let mut module =
            Module { engine: engine.clone(), pre, optional, sha256, len: bytes.len(), declaration, memory };
        module.declaration = module.try_out()?;
        Ok(Arc::new(module))
    }

    /// Starts the module once, and reads its declaration.
    fn try_out(&self) -> Result<Declaration, ModuleError> {
        let _room = self.engine.admit(self.memory)?;
        let mut state = State::default();
        let mut instance = Instance::start(self, Arc::new(NoFields), &mut Quiet(&mut state))?;
        let version = instance.version(&mut Quiet(&mut state))?;
        if version != abi::VERSION {
            return Err(ModuleError::Version(version));
        }
        if !self.optional.declaration {
            return Ok(Declaration::default());
        }
        let at = instance.declaration(&mut Quiet(&mut state))?;
        let declared = Declaration::read(instance.memory(), at).map_err(ModuleError::Declaration)?;
        self.check_declaration(&declared)?;
        Ok(declared)
    }

    fn check_declaration(&self, declared: &Declaration) -> Result<(), ModuleError> {
        let limits = self.engine.limits();
        if declared.state_len > limits.state_max {
            return Err(ModuleError::Declared("state", declared.state_len, limits.state_max));
        }
        if declared.new_len_max > limits.new_len_max {
            return Err(ModuleError::Declared("message", declared.new_len_max, limits.new_len_max));
        }
        if declared.period_ms > 0 && !self.optional.on_timer {
            return Err(ModuleError::Half("a period", "`on_timer`"));
        }
        if declared.state == StateKind::HandedOver && !self.optional.hands_over {
            return Err(ModuleError::Half("state to hand over", "`csp_state_export` and `csp_state_import`"));
        }
        Ok(())
    }

    /// Returns the SHA-256 of its bytes, by which it is stored and named.
    #[must_use]
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes; a module has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns what it declares.
    #[must_use]
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Returns the bytes of memory that are reserved for an instance of it.
    #[must_use]
    pub fn memory_reserved(&self) -> u64 {
        self.memory
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("sha256", &self.sha256).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Compiles a module of any ABI, if its length is right and it imports nothing but what is `allowed`.
pub(crate) fn compile(
    engine: &Engine,
    bytes: &[u8],
    allowed: &dyn Fn(&str) -> bool,
) -> Result<(Sha256, wasmtime::Module), ModuleError> {
    let limits = engine.limits();
    if bytes.len() > limits.module_len_max {
        return Err(ModuleError::Len(bytes.len(), limits.module_len_max));
    }
    let sha256 = Sha256::of(bytes);
    engine.try_compile(bytes)?;
    let compiled = wasmtime::Module::from_binary(&engine.shared().wasmtime, bytes);
    let compiled = compiled.map_err(|error| ModuleError::Invalid(one_line(&error)))?;
    check_imports(engine, &compiled, allowed)?;
    Ok((sha256, compiled))
}

/// Binds a module's imports, so that instances only have to be started.
pub(crate) fn link(engine: &Engine, compiled: &wasmtime::Module) -> Result<InstancePre<Guest>, ModuleError> {
    let pre = engine.shared().linker.instantiate_pre(compiled);
    pre.map_err(|error| ModuleError::Invalid(one_line(&error)))
}

pub(crate) fn one_line(error: &wasmtime::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

fn check_imports(
    engine: &Engine,
    module: &wasmtime::Module,
    allowed: &dyn Fn(&str) -> bool,
) -> Result<(), ModuleError> {
    for import in module.imports() {
        let name = format!("{}.{}", import.module(), import.name());
        let offered = crate::guest::signature(engine, import.module(), import.name());
        let Some(offered) = offered.filter(|_| allowed(import.name())) else {
            return Err(ModuleError::Import(name));
        };
        match import.ty() {
            ExternType::Func(wanted) if same(&wanted, &offered) => {}
            ExternType::Func(wanted) => {
                return Err(ModuleError::ImportType(name, show(&wanted), show(&offered)));
            }
            _ => return Err(ModuleError::ImportType(name, "no function".to_owned(), show(&offered))),
        }
    }
    Ok(())
}

/// Functions that a module exports: name, number of parameters of 32 bits, and result: `i` 32 bits, `l` 64
/// bits.
const ABI: [(&str, usize, char); 9] = [
    ("csp_abi", 0, 'i'),
    ("on_message", 3, 'i'),
    ("csp_declaration", 0, 'i'),
    ("on_timer", 0, 'i'),
    ("configure", 1, 'i'),
    ("csp_accepts", 1, 'i'),
    ("csp_yields", 2, 'i'),
    ("csp_state_export", 0, 'l'),
    ("csp_state_import", 2, 'i'),
];

/// Returns which of these functions a module exports; those must have the right types.
pub(crate) fn check_functions<const N: usize>(
    module: &wasmtime::Module,
    abi: [(&'static str, usize, char); N],
) -> Result<[bool; N], ModuleError> {
    let mut has = [false; N];
    for ((name, params, result), has) in abi.into_iter().zip(&mut has) {
        let Some(export) = module.get_export(name) else { continue };
        let ExternType::Func(kind) = &export else {
            return Err(ModuleError::ExportType(name, "a function".to_owned()));
        };
        let narrow = kind.params().all(|kind| matches!(kind, ValType::I32)) && kind.params().len() == params;
        let right = |kind: ValType| match result {
            'l' => matches!(kind, ValType::I64),
            _ => matches!(kind, ValType::I32),
        };
        if !narrow || kind.results().len() != 1 || !kind.results().all(right) {
            let result = if result == 'l' { "i64" } else { "i32" };
            return Err(ModuleError::ExportType(
                name,
                format!("({}) -> {result}", vec!["i32"; params].join(", ")),
            ));
        }
        *has = true;
    }
    Ok(has)
}

fn check_exports(module: &wasmtime::Module) -> Result<Optional, ModuleError> {
    let has = check_functions(module, ABI)?;
    let [abi, on_message, declaration, on_timer, configure, accepts, yields, export, import] = has;
    match (abi, on_message) {
        (false, _) => return Err(ModuleError::Missing("csp_abi")),
        (_, false) => return Err(ModuleError::Missing("on_message")),
        _ => {}
    }
    match (export, import) {
        (true, false) => return Err(ModuleError::Half("`csp_state_export`", "`csp_state_import`")),
        (false, true) => return Err(ModuleError::Half("`csp_state_import`", "`csp_state_export`")),
        _ => {}
    }
    Ok(Optional { on_timer, configure, accepts, yields, hands_over: export, declaration })
}

/// Returns the bytes to reserve for an instance. The pool has refused larger memories and tables than it has
/// room for.
pub(crate) fn check_memory(engine: &Engine, module: &wasmtime::Module) -> Result<u64, ModuleError> {
    let limits = engine.limits();
    let Some(ExternType::Memory(memory)) = module.get_export("memory") else {
        return Err(ModuleError::Missing("memory"));
    };
    let most = memory.maximum().map(|pages| pages.saturating_mul(memory.page_size()));
    Ok(most.unwrap_or(limits.memory_max).min(limits.memory_max))
}

fn same(one: &FuncType, other: &FuncType) -> bool {
    let pairs = |a: &mut dyn Iterator<Item = ValType>, b: &mut dyn Iterator<Item = ValType>| loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a.matches(&b) && b.matches(&a) => {}
            _ => return false,
        }
    };
    pairs(&mut one.params(), &mut other.params()) && pairs(&mut one.results(), &mut other.results())
}

fn show(kind: &FuncType) -> String {
    let list = |values: &mut dyn Iterator<Item = ValType>| {
        values.map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
    };
    format!("({}) -> ({})", list(&mut kind.params()), list(&mut kind.results()))
}
