//! Access to the folder's files: locked, read up to a size limit, and replaced atomically.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::PkiError;

/// The registry. A folder with this file is an authority's folder.
pub(crate) const REGISTRY: &str = "pki.json";
const LOCK: &str = "lock";
/// Largest file that is read, in bytes. A registry with the most records has about 30 MB.
const FILE_LEN_MAX: u64 = 64 << 20;
/// Mode of private keys.
const SECRET: u32 = 0o600;
/// Mode of all other files. Others cannot enter the folder itself; hosts get copies.
const PUBLIC: u32 = 0o644;

/// An authority's folder, to which only this process may write while the value lives.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// The lock file.
    lock: File,
    /// Number of write steps that succeed before one fails (tests only).
    #[cfg(test)]
    pub(crate) steps_left: std::cell::Cell<Option<u32>>,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has just forked holds the descriptor
        // until it executes its program.
        let _ = self.lock.unlock();
    }
}

impl Folder {
    /// Creates the folder with mode 0700 and locks it. An existing folder must be empty, or be an
    /// authority's.
    pub(crate) fn make(root: &Path) -> Result<Self, PkiError> {
        let cannot = |source| PkiError::Write { path: root.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(cannot)?;
        if !root.join(LOCK).exists() && !root.join(REGISTRY).exists() {
            // The mode must not be changed on a folder that has other content.
            if fs::read_dir(root).map_err(cannot)?.next().is_some() {
                return Err(PkiError::Foreign { dir: root.to_owned() });
            }
            fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(cannot)?;
        }
        let parent = root.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(cannot)?;
        Folder::lock(root)
    }

    /// Locks the folder of an existing authority.
    pub(crate) fn open(root: &Path) -> Result<Self, PkiError> {
        if !root.join(REGISTRY).try_exists().map_err(|source| reading(&root.join(REGISTRY), source))? {
            return Err(PkiError::Missing { dir: root.to_owned() });
        }
        Folder::lock(root)
    }

    fn lock(root: &Path) -> Result<Self, PkiError> {
        let path = root.join(LOCK);
        let cannot = |source| PkiError::Write { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(SECRET)
            .open(&path)
            .map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(PkiError::Busy { dir: root.to_owned(), holder: holder(file) });
            }
            Err(TryLockError::Error(source)) => return Err(cannot(source)),
        }
        // Only for the message of the next process. The lock itself is the kernel's and ends with this
        // process.
        file.set_len(0).and_then(|()| write!(file, "process {}", std::process::id())).map_err(cannot)?;
        Ok(Folder {
            root: root.to_owned(),
            lock: file,
            #[cfg(test)]
            steps_left: std::cell::Cell::new(None),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Reads the file `name`, a path relative to the folder; `None` if it does not exist.
    pub(crate) fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        read(&self.path(name))
    }

    /// Reads the private key `name`, and rejects it if others can read it.
    pub(crate) fn read_secret(&self, name: &str) -> Result<Option<String>, PkiError> {
        let path = self.path(name);
        if let Ok(metadata) = fs::metadata(&path) {
            let mode = metadata.permissions().mode() & 0o7777;
            if mode & 0o077 != 0 {
                return Err(PkiError::Exposed { path, mode });
            }
        }
        read(&path)
    }

    /// Replaces the file `name` by `text`.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), PkiError> {
        self.replace(name, text, PUBLIC)
    }

    /// Replaces the private key `name`.
    pub(crate) fn write_secret(&self, name: &str, text: &str) -> Result<(), PkiError> {
        self.replace(name, text, SECRET)
    }

    /// Creates the folder `name` and its parents with mode 0700.
    pub(crate) fn make_folder(&self, name: &str) -> Result<(), PkiError> {
        let mut path = self.root.clone();
        for part in Path::new(name) {
            let above = path.clone();
            path.push(part);
            let cannot = |source| PkiError::Write { path: path.clone(), source };
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.and_then(|()| File::open(above)?.sync_all()).map_err(cannot)?,
            }
        }
        Ok(())
    }

    /// Removes the file `name` if it exists.
    pub(crate) fn remove(&self, name: &str) -> Result<(), PkiError> {
        let path = self.path(name);
        let done = self.step().and_then(|()| fs::remove_file(&path));
        match done {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                removed.and_then(|()| sync_parent(&path)).map_err(|source| PkiError::Write { path, source })
            }
        }
    }

    fn replace(&self, name: &str, text: &str, mode: u32) -> Result<(), PkiError> {
        let path = self.path(name);
        let done = || {
            let new = self.path(&format!("{name}.new"));
            // A file left by a crash may have another mode.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.step()?,
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
            file.write_all(text.as_bytes())?;
            // The umask has restricted the mode, and identity folders are copied with their modes.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.sync_all()?;
            self.step()?;
            fs::rename(&new, &path)?;
            sync_parent(&path)
        };
        done().map_err(|source| PkiError::Write { path: path.clone(), source })
    }

    /// Counts one step of writing. Tests let it fail, as a crash before the step would.
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(left) = self.steps_left.get() {
            let Some(left) = left.checked_sub(1) else { return Err(io::Error::other("crash")) };
            self.steps_left.set(Some(left));
        }
        Ok(())
    }
}

/// Synchronises the directory as well, so that the rename itself is durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// Reads a text file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|source| reading(path, source))?,
    };
    let mut octets = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut octets).map_err(|source| reading(path, source))?;
    let damaged = |problem: String| PkiError::Damaged { path: path.to_owned(), problem };
    if octets.len() as u64 > FILE_LEN_MAX {
        return Err(damaged(format!("it is longer than {} MiB", FILE_LEN_MAX >> 20)));
    }
    String::from_utf8(octets).map(Some).map_err(|_| damaged("it is no text".to_owned()))
}

fn reading(path: &Path, source: io::Error) -> PkiError {
    PkiError::Read { path: path.to_owned(), source }
}

/// Returns what the holder of the lock wrote into the file.
fn holder(file: File) -> String {
    let mut text = String::new();
    let read = file.take(64).read_to_string(&mut text);
    match read {
        Ok(1..) if text.chars().all(|c| c.is_ascii_alphanumeric() || c == ' ') => text,
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child forked by another thread holds the descriptor until it executes its program.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_folder() {
        let root = std::env::temp_dir().join(format!("csp-authority-copy-{}", std::process::id()));
        let folder = Folder::make(&root).expect("a folder");
        let copy = folder.lock.try_clone().expect("a copy");
        assert!(matches!(Folder::lock(&root), Err(PkiError::Busy { .. })));
        drop(folder);
        drop(Folder::lock(&root).expect("it is free"));
        drop(copy);
        fs::remove_dir_all(&root).expect("the folder");
    }
}
