//! The guests' kernel: Debian's, unpacked and not installed, with the modules that a guest loads.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Debian's package that depends on the newest kernel.
const META_PACKAGE: &str = "linux-image-amd64";
/// What a guest loads besides what these depend on, in this order.
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
    // Soft-RoCE asks the crypto layer for its checksum by name; nothing in the guest could load it then.
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
];

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its image.
    pub image: PathBuf,
    /// Its modules, each after those it depends on.
    pub modules: Vec<PathBuf>,
}

/// The kernel kept in `folder`; from Debian's mirror where there is none yet.
///
/// # Errors
/// Where apt-get or dpkg-deb fails; their words are in the error.
pub fn obtain(folder: &Path) -> Result<Kernel> {
    let (kept, part) = (folder.join("kernel"), folder.join(format!("kernel.part{}", std::process::id())));
    if !kept.exists() {
        fs::create_dir_all(&part)?;
        let outcome = download(&part).context("Debian's kernel package");
        if let Err(error) = outcome {
            let _ = fs::remove_dir_all(&part);
            return Err(error);
        }
        // Another run may have been faster: its kernel is as good.
        if fs::rename(&part, &kept).is_err() {
            fs::remove_dir_all(&part)?;
        }
    }
    let list = kept.join("modules.order");
    let names = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    Ok(Kernel { image: kept.join("vmlinuz"), modules: names.lines().map(|name| kept.join(name)).collect() })
}

/// Leaves in `folder`: `vmlinuz`, the modules and their order.
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

/// The package that holds the newest kernel.
fn newest() -> Result<String> {
    let text = run(Command::new("apt-cache").args(["depends", "--important", META_PACKAGE]))?;
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| format!("{META_PACKAGE} depends on no kernel:\n{text}"))
}

/// Moves a module and, before it, those it depends on into `folder`. A name without a file is built into the kernel.
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

/// The names after `depends=` in a module's `.modinfo`. The package lacks modules.dep: depmod makes it on installation.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(key).collect()
}

/// Files name modules with dashes where others write underscores.
fn key(name: &str) -> String {
    name.replace('-', "_")
}

/// All modules below `folder` by name.
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

/// The one entry of `folder` whose name is `wanted`.
fn only(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut found = entries.filter_map(|entry| entry.ok().map(|e| e.path()));
    let found = found.find(|path| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())));
    found.with_context(|| format!("{} lacks what was looked for", folder.display()))
}

/// Runs a command to its end; its standard output.
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
        // udp_tunnel has no file: built in.
        take("rdma_rxe", &files, &folder, &mut order).expect("take");
        take("ib_uverbs", &files, &folder, &mut order).expect("take");
        fs::remove_dir_all(&folder).expect("clean");
        assert_eq!(order, ["ib_core.ko", "ib_uverbs.ko", "rdma_rxe.ko"]);
    }
}
