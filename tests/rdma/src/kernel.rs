//! The guests' kernel: Debian's package, unpacked but not installed, and the modules that a guest loads.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Debian's package that depends on the newest kernel's.
const META_PACKAGE: &str = "linux-image-amd64";
/// The modules that a guest loads, in this order, in addition to their dependencies.
const MODULES: [&str; 15] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "bridge",
    "tun",
    "sch_netem",
    "tcp_diag",
    // Soft-RoCE requests its checksum from the crypto layer by name; the guest cannot load modules on demand.
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
];

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Path of the image.
    pub image: PathBuf,
    /// Paths of the modules, each after its dependencies.
    pub modules: Vec<PathBuf>,
}

/// Returns the kernel cached in `folder`. Downloads it from Debian's mirror at first.
///
/// # Errors
/// apt-get or dpkg-deb failed; the error contains their output.
pub fn obtain(folder: &Path) -> Result<Kernel> {
    let (kept, part) = (folder.join("kernel"), folder.join(format!("kernel.part{}", std::process::id())));
    if !kept.exists() {
        fs::create_dir_all(&part)?;
        let outcome = download(&part).context("Debian's kernel package");
        if let Err(error) = outcome {
            let _ = fs::remove_dir_all(&part);
            return Err(error);
        }
        // Another run may have been faster; its kernel will do.
        if fs::rename(&part, &kept).is_err() {
            fs::remove_dir_all(&part)?;
        }
    }
    let list = kept.join("modules.order");
    let names = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    Ok(Kernel { image: kept.join("vmlinuz"), modules: names.lines().map(|name| kept.join(name)).collect() })
}

/// Creates in `folder`: `vmlinuz`, the modules, and the list of their order.
fn download(folder: &Path) -> Result<()> {
    let package = match newest() {
        Ok(package) => package,
        Err(_) => {
            run(Command::new("apt-get").args(["update", "-qq"]))?;
            newest()?
        }
    };
    println!("fetching {package} from Debian's mirror");
    run(Command::new("apt-get")
        .args(["download", "-qq", "-o", "APT::Sandbox::User=root", &package])
        .current_dir(folder))?;
    let archive = only(folder, |name| name.ends_with(".deb"))?;
    let unpacked = folder.join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    fs::rename(only(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))?, folder.join("vmlinuz"))?;
    let mut files = HashMap::new();
    index(&only(&unpacked.join("lib/modules"), |_| true)?, &mut files)?;
    let mut order = Vec::new();
    for name in MODULES {
        take(name, &files, folder, &mut order)?;
    }
    fs::write(folder.join("modules.order"), order.join("\n"))?;
    fs::remove_dir_all(&unpacked)?;
    fs::remove_file(archive)?;
    Ok(())
}

/// Returns the name of the package of the newest kernel.
fn newest() -> Result<String> {
    let text = run(Command::new("apt-cache").args(["depends", "--important", META_PACKAGE]))?;
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| format!("{META_PACKAGE} depends on no kernel:\n{text}"))
}

/// Copies the dependencies of a module, and then the module, to `folder`. A name without a file is built into
/// the kernel.
fn take(name: &str, files: &HashMap<String, PathBuf>, folder: &Path, order: &mut Vec<String>) -> Result<()> {
    let file = format!("{name}.ko");
    if order.contains(&file) {
        return Ok(());
    }
    let Some(path) = files.get(name) else { return Ok(()) };
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    for needed in dependencies(&bytes) {
        take(&needed, files, folder, order)?;
    }
    fs::write(folder.join(&file), bytes)?;
    order.push(file);
    Ok(())
}

/// Returns the names after `depends=` in a module's `.modinfo`. The package has no modules.dep, which depmod
/// creates on installation.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(key).collect()
}

/// File names of modules have dashes where other places have underscores.
fn key(name: &str) -> String {
    name.replace('-', "_")
}

/// Collects all modules below `folder` by name.
fn index(folder: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            index(&path, files)?;
        } else if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(".ko") {
            files.insert(key(name), path);
        }
    }
    Ok(())
}

/// Returns the entry of `folder` whose name is `wanted`.
fn only(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut found = entries.filter_map(|entry| entry.ok().map(|e| e.path()));
    let found = found.find(|path| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())));
    found.with_context(|| format!("no matching entry in {}", folder.display()))
}

/// Runs a command to its end and returns its standard output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_depends_on() {
        let folder = std::env::temp_dir().join(format!("csp-rdma-modules-{}", std::process::id()));
        fs::create_dir_all(folder.join("in/deep")).expect("folder");
        let write = |path: &str, depends: &str| {
            fs::write(folder.join("in").join(path), format!("\x7fELF\0depends={depends}\0name=x\0"))
                .expect("file");
        };
        write("deep/rdma_rxe.ko", "ib_uverbs,udp_tunnel");
        write("ib_uverbs.ko", "ib-core");
        write("deep/ib-core.ko", "");
        let mut files = HashMap::new();
        index(&folder.join("in"), &mut files).expect("index");
        let mut order = Vec::new();
        // udp_tunnel has no file: it is built in.
        take("rdma_rxe", &files, &folder, &mut order).expect("take");
        take("ib_uverbs", &files, &folder, &mut order).expect("take");
        fs::remove_dir_all(&folder).expect("clean");
        assert_eq!(order, ["ib_core.ko", "ib_uverbs.ko", "rdma_rxe.ko"]);
    }
}
