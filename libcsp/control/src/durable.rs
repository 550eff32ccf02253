//! Files that a crash at any moment leaves either as they were or as they are to be.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the file `name` in `directory` by `text`, through a file `name.new` and a rename. Readable by owner and
/// group. On an error the file stays as it was, and `name.new` takes no room.
pub(crate) fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let written = write(&new, text).and_then(|()| fs::rename(&new, directory.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    // The rename itself must reach the disk, too.
    File::open(directory)?.sync_all()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
