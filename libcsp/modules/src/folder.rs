//! A folder of modules supplied by administrators, named by the SHA-256 of their bytes: `9f86…15b0.wasm`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::{lock, sha256, verify};

/// Suffix of the files.
const SUFFIX: &str = "wasm";
/// Largest number of modules in a folder.
pub(crate) const MODULES_MAX: usize = 256;

/// Why a module cannot be removed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoveError {
    /// The active policy names it, or it is running.
    #[error("the active policy names the module, or it still runs")]
    Used,
    /// No such module exists.
    #[error("there is no such module")]
    Unknown,
    /// The file system returned an error; with its text.
    #[error("{0}")]
    File(String),
}

/// A folder of modules. It is created with the first module.
#[derive(Debug)]
pub struct ModuleFolder {
    path: PathBuf,
    /// Largest module in bytes.
    len_max: usize,
    /// The commands that add and remove modules, for messages.
    commands: (&'static str, &'static str),
    writing: Mutex<()>,
}

/// Returns whether a name is that of a module, and so of a file in a folder.
fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl ModuleFolder {
    /// Creates a folder for modules of up to `len_max` bytes. `commands` are the commands that add and remove
    /// modules.
    #[must_use]
    pub fn new(path: PathBuf, len_max: usize, commands: (&'static str, &'static str)) -> Self {
        ModuleFolder { path, len_max, commands, writing: Mutex::default() }
    }

    fn file(&self, hash: &str) -> PathBuf {
        self.path.join(format!("{hash}.{SUFFIX}"))
    }

    /// Returns whether the folder has a module.
    #[must_use]
    pub fn has(&self, hash: &str) -> bool {
        is_hash(hash) && self.file(hash).exists()
    }

    /// Stores a module that `check` accepts.
    ///
    /// # Errors
    /// The bytes have another hash, there is no room, `check` fails, or the file system returns an error.
    pub fn put(
        &self,
        hash: &str,
        bytes: &[u8],
        check: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        verify(hash, bytes)?;
        let _alone = lock(&self.writing);
        let stored = self.stored();
        if stored.len() >= MODULES_MAX && !stored.iter().any(|(known, _)| known == hash) {
            let (count, remove) = (stored.len(), self.commands.1);
            return Err(format!(
                "there are {count} modules, as many as there may be; `{remove}` removes one"
            ));
        }
        check()?;
        let cannot = |error: std::io::Error| format!("{}: cannot be written: {error}", self.path.display());
        std::fs::create_dir_all(&self.path).map_err(cannot)?;
        // A file with the name of a module is complete, even after a power failure.
        let draft = self.path.join(format!("{hash}.draft"));
        std::fs::write(&draft, bytes).map_err(cannot)?;
        std::fs::File::open(&draft).and_then(|file| file.sync_all()).map_err(cannot)?;
        std::fs::rename(&draft, self.file(hash)).map_err(cannot)
    }

    /// Reads a module.
    ///
    /// # Errors
    /// The module is missing (the error says how to add it), or the file has other bytes.
    pub fn load(&self, hash: &str) -> Result<Vec<u8>, String> {
        let path = self.file(hash);
        let absent = || format!("module {hash} is not here; bring it with `{}`", self.commands.0);
        if !is_hash(hash) {
            return Err(absent());
        }
        let bytes = self.read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => absent(),
            _ => format!("{}: cannot be read: {error}", path.display()),
        })?;
        match sha256(&bytes) {
            found if found == hash => Ok(bytes),
            found => Err(format!("{}: its bytes have the SHA-256 {found}", path.display())),
        }
    }

    /// Returns the modules in the folder, each with its length.
    #[must_use]
    pub fn stored(&self) -> Vec<(String, u64)> {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Vec::new() };
        let module = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.ok()?;
            let path = entry.path();
            let name = path.file_stem()?.to_str()?.to_owned();
            let is_module = path.extension().is_some_and(|extension| extension == SUFFIX);
            Some((name, entry.metadata().ok()?.len())).filter(|_| is_module)
        };
        let mut all: Vec<_> = entries.filter_map(module).collect();
        all.sort();
        all
    }

    /// Removes an unused module.
    ///
    /// # Errors
    /// The module is missing or used, or its file cannot be removed.
    pub fn remove(&self, hash: &str, is_used: impl FnOnce() -> bool) -> Result<(), RemoveError> {
        let _alone = lock(&self.writing);
        if is_used() {
            return Err(RemoveError::Used);
        }
        if !self.has(hash) {
            return Err(RemoveError::Unknown);
        }
        let file = self.file(hash);
        std::fs::remove_file(&file).map_err(|error| RemoveError::File(format!("{}: {error}", file.display())))
    }

    /// Reads at most one byte more than the largest module has.
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        use std::io::Read as _;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(self.len_max as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
