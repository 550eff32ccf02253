//! Attaches the program to interfaces.

use std::fs;

use aya::programs::XdpMode;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;

use super::{Driver, DriverError, folder_error, remove};

impl Driver {
    /// Attaches the program to an interface. The program of an earlier process is replaced atomically: no
    /// frame bypasses both.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), DriverError> {
        let path = self.folder.as_ref().map(|folder| folder.join(format!("link-{ifindex}")));
        if let Some(path) = path.as_ref().filter(|path| path.exists()) {
            let link: XdpLink = FdLink::from(PinnedLink::from_pin(path)?).try_into()?;
            match self.program("csp_level1")?.attach_to_link(link) {
                Ok(id) => {
                    self.links.push((ifindex, id));
                    return Ok(());
                }
                // The interface with this number no longer exists.
                Err(_) => fs::remove_file(path).map_err(folder_error(path))?,
            }
        }
        let program = self.program("csp_level1")?;
        let id = program.attach_to_if_index(ifindex, XdpMode::Default)?;
        let id = match path {
            Some(path) => {
                let link: FdLink = program.take_link(id)?.try_into()?;
                let link: XdpLink = FdLink::from(link.pin(path)?).try_into()?;
                program.attach_to_link(link)?
            }
            None => id,
        };
        self.links.push((ifindex, id));
        Ok(())
    }

    /// Detaches the program from all ports except these interfaces, also where an earlier process attached
    /// it. Its maps stay.
    pub fn detach_ports(&mut self, keep: &[u32]) -> Result<(), DriverError> {
        self.unpin_links(|ifindex| keep.contains(&ifindex))?;
        for (ifindex, id) in core::mem::take(&mut self.links) {
            match keep.contains(&ifindex) {
                true => self.links.push((ifindex, id)),
                false => self.program("csp_level1")?.detach(id)?,
            }
        }
        Ok(())
    }

    /// Unpins the links of interfaces that are not to have the program.
    pub(super) fn unpin_links(&self, keep: impl Fn(u32) -> bool) -> Result<(), DriverError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        for entry in fs::read_dir(folder).map_err(folder_error(folder))?.flatten() {
            let name = entry.file_name();
            let ifindex = name.to_str().and_then(|name| name.strip_prefix("link-")?.parse().ok());
            if ifindex.is_some_and(|ifindex| !keep(ifindex)) {
                fs::remove_file(entry.path()).map_err(folder_error(folder))?;
            }
        }
        Ok(())
    }

    /// Detaches the program from all ports, and unpins everything.
    pub fn detach(mut self) -> Result<(), DriverError> {
        self.detach_ports(&[])?;
        let Some(folder) = self.folder.take() else { return Ok(()) };
        drop(self);
        remove(&folder)?;
        // The node's folder is removed unless it has other content.
        let _ = folder.parent().map(fs::remove_dir);
        Ok(())
    }
}
