//! The initial root of a guest: busybox, the kernel modules, and the scripts that switch to the host's root.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cpio::Archive;
use crate::kernel::Kernel;

/// Statically linked (package busybox-static): the initial root has no libraries.
const BUSYBOX: &str = "/bin/busybox";

/// Writes the archive for `kernel` to `path`.
pub fn write(kernel: &Kernel, path: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for folder in ["bin", "modules"] {
        archive.directory(folder);
    }
    archive.file("bin/busybox", &read(Path::new(BUSYBOX))?);
    archive.file("init", include_bytes!("init.sh"));
    archive.file("setup.sh", include_bytes!("setup.sh"));
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{name}"), &read(module)?);
        order += &format!("{name}\n");
    }
    archive.file("modules/order", order.as_bytes());
    fs::write(path, archive.finish()).with_context(|| path.display().to_string())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}
