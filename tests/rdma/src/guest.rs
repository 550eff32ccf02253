//! Guests: QEMU processes, the connections to their agents, and a set of guests on one Ethernet.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::frame::Frame;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::monitor::Monitor;
use crate::program::{Output, Program, Sink};
use crate::switch::{self, Switch};

/// Time limit for booting. A guest takes 5 s on an idle machine.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Prefix of the name of a run's directory; the process id follows.
const FOLDER_PREFIX: &str = "csp-rdma-";
/// The path of this tool's binary, which guests run, too.
const SELF: &str = "/proc/self/exe";

/// Memory, processors and network of each guest.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub cpus: u32,
    /// Largest IP packet on the guests' Ethernet, in bytes. The RDMA MTU is the power of two below it, at
    /// most 4096.
    pub mtu: u32,
}

/// The running programs: where their output goes, and the channel for their exit code.
type Programs = Arc<Mutex<HashMap<u32, (Arc<Sink>, Sender<u32>)>>>;

/// A running guest. Killed when dropped.
#[derive(Debug)]
pub struct Guest {
    number: u8,
    qemu: Child,
    agent: Arc<Mutex<UnixStream>>,
    programs: Programs,
    next: u32,
    console: PathBuf,
    monitor: PathBuf,
}

/// The guests of a run. QEMU is killed when the thread that booted them ends.
#[derive(Debug)]
pub struct Fleet {
    /// The guests, starting with number 1.
    pub guests: Vec<Guest>,
    switch: Option<Switch>,
    folder: PathBuf,
}

impl Fleet {
    /// Boots `count` guests in parallel and waits until each accepts commands. Sockets and console logs are
    /// in a directory in the system's temporary directory, which is removed when the fleet is dropped.
    ///
    /// # Errors
    /// QEMU cannot be started, or a guest does not boot; the error contains the end of its console log.
    pub fn boot(kernel: &Kernel, count: u8, sizes: Sizes) -> Result<Self> {
        remove_leftovers();
        let folder = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut fleet = Fleet { guests: Vec::new(), switch: None, folder };
        let initramfs = fleet.folder.join("initramfs");
        initramfs::write(kernel, &initramfs)?;
        let cables: Vec<PathBuf> =
            (1..=count).map(|number| fleet.folder.join(format!("cable{number}"))).collect();
        fleet.switch = Some(Switch::start(cables.iter().map(PathBuf::as_path))?);
        let mut booting = Vec::new();
        for number in 1..=count {
            booting.push(Booting::start(kernel, &initramfs, &fleet.folder, number, sizes)?);
        }
        for guest in booting {
            fleet.guests.push(guest.ready()?);
        }
        Ok(fleet)
    }

    /// Returns the directory of this run's sockets and console logs, which the caller may use, too.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.guests.clear();
        self.switch = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A guest that is booting.
struct Booting {
    number: u8,
    qemu: Killed,
    listener: UnixListener,
    console: PathBuf,
    monitor: PathBuf,
}

/// QEMU's process, killed if the guest does not boot.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Booting {
    fn start(kernel: &Kernel, initramfs: &Path, folder: &Path, number: u8, sizes: Sizes) -> Result<Self> {
        let (socket, console) =
            (folder.join(format!("agent{number}")), folder.join(format!("console{number}.log")));
        let monitor = folder.join(format!("monitor{number}"));
        let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
        listener.set_nonblocking(true)?;
        let tool = fs::read_link(SELF)?;
        let arguments = format!(
            "console=ttyS0 quiet panic=-1 rdinit=/init csp.guest={number} csp.agent={}",
            tool.display()
        );
        let (cable, mac) =
            (folder.join(format!("cable{number}")).display().to_string(), switch::address(number));
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none"])
            .args(["-machine", "q35", "-cpu", "max", "-accel", "tcg,thread=multi"])
            .args(["-m", &sizes.memory_mib.to_string(), "-smp", &sizes.cpus.to_string()])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", &arguments])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
            .args(["-serial", &format!("file:{}", console.display())])
            // The host's root contains mounts of other file systems.
            .args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"])
            .args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"])
            .args(["-chardev", &format!("socket,id=agent,path={}", socket.display())])
            .args(["-device", "virtio-serial-pci,max_ports=2", "-device", "virtserialport,chardev=agent"])
            .args(["-netdev", &format!("stream,id=san,server=off,addr.type=unix,addr.path={cable}")])
            // Without the boot ROM, which takes seconds and another package.
            .args([
                "-device",
                &format!("virtio-net-pci,netdev=san,mac={mac},host_mtu={},romfile=", sizes.mtu),
            ])
            .stdin(Stdio::null())
            .spawn()
            .context(
                "cannot start qemu-system-x86_64 by setpriv (Debian packages qemu-system-x86 and util-linux)",
            )?;
        Ok(Booting { number, qemu: Killed(Some(child)), listener, console, monitor })
    }

    /// Waits until the agent is ready.
    fn ready(mut self) -> Result<Guest> {
        let outcome = self.connect();
        let mut agent = outcome.with_context(|| {
            format!(
                "guest {} did not boot; the end of its console log:\n{}",
                self.number,
                tail(&self.console)
            )
        })?;
        let programs = Programs::default();
        let guest = Guest {
            number: self.number,
            qemu: self.qemu.0.take().context("QEMU is taken once")?,
            agent: Arc::new(Mutex::new(agent.try_clone()?)),
            programs: Arc::clone(&programs),
            next: 1,
            console: self.console.clone(),
            monitor: self.monitor.clone(),
        };
        thread::spawn(move || read_frames(&mut agent, &programs));
        Ok(guest)
    }

    fn connect(&mut self) -> Result<UnixStream> {
        let end = Instant::now() + BOOT_DEADLINE;
        let mut agent = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            self.check(end)?;
            thread::sleep(POLL);
        };
        agent.set_nonblocking(false)?;
        agent.set_read_timeout(Some(end.saturating_duration_since(Instant::now()).max(POLL)))?;
        match Frame::read(&mut agent)? {
            (_, Frame::Ready) => {}
            (_, frame) => bail!("unexpected first frame of its agent: {frame:?}"),
        }
        agent.set_read_timeout(None)?;
        Ok(agent)
    }

    fn check(&mut self, end: Instant) -> Result<()> {
        if let Some(status) = self.qemu.0.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
            bail!("QEMU ended with {status}");
        }
        if Instant::now() >= end {
            bail!("not within {BOOT_DEADLINE:?}");
        }
        Ok(())
    }
}

/// Passes the agent's reports to the programs they concern, until the guest ends. Then it drops the channels
/// of all programs, which ends the waits for them.
fn read_frames(agent: &mut UnixStream, programs: &Programs) {
    while let Ok((number, frame)) = Frame::read(agent) {
        let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
        match frame {
            Frame::Exited(code) => {
                if let Some((_, ended)) = programs.remove(&number) {
                    let _ = ended.send(code);
                }
            }
            Frame::Output(bytes) | Frame::Error(bytes) if bytes.is_empty() => {}
            Frame::Output(ref bytes) | Frame::Error(ref bytes) => {
                let sink = programs.get(&number).map(|(sink, _)| Arc::clone(sink));
                drop(programs);
                if let Some(sink) = sink {
                    sink.take(bytes, matches!(frame, Frame::Error(_)));
                }
            }
            Frame::Ready | Frame::Start(_) | Frame::Signal(_) => {}
        }
    }
    programs.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Guest {
    /// Returns the guest's address on the guests' Ethernet.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.number)
    }

    /// Returns the guest's IPv6 address on the guests' Ethernet.
    pub fn address6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, u16::from(self.number))
    }

    /// Starts a program in the caller's working directory.
    ///
    /// # Errors
    /// The guest has ended, or the command line is longer than a frame.
    pub fn start(&mut self, command: &[&str], output: Output) -> Result<Program> {
        let mut words = std::env::current_dir()?.to_string_lossy().into_owned().into_bytes();
        for word in command {
            words.push(0);
            words.extend_from_slice(word.as_bytes());
        }
        words.push(0);
        let (number, sink, (sender, ended)) = (self.next, Arc::new(Sink::new(output)), channel());
        self.next += 1;
        self.programs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, (Arc::clone(&sink), sender));
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        Frame::Start(words).write(number, &mut *agent).context("the guest is gone")?;
        drop(agent);
        let name = command.first().copied().unwrap_or_default().to_owned();
        Ok(Program { name, number, agent: Arc::clone(&self.agent), sink, ended, code: None })
    }

    /// Runs a program to its end and returns its output.
    ///
    /// # Errors
    /// It does not end with 0 within `deadline`; the error contains its output.
    pub fn run(&mut self, command: &[&str], deadline: Duration) -> Result<String> {
        let mut program = self.start(command, Output::Memory)?;
        let line = command.join(" ");
        let code = program.wait(deadline).with_context(|| format!("{line}\n{}", program.captured()))?;
        if code != 0 {
            bail!("guest {}: {line}: exit code {code}\n{}", self.number, program.captured());
        }
        Ok(program.captured())
    }

    /// Kills QEMU without notice, as a host that loses power.
    pub fn kill(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    /// Unplugs (`false`) or plugs in (`true`) the guest's network cable.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn plug(&mut self, plugged: bool) -> Result<()> {
        Monitor::connect(&self.monitor)?.link("san", plugged)
    }

    /// Stops (`true`) or resumes (`false`) the guest's processors, as a host that hangs.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn freeze(&mut self, frozen: bool) -> Result<()> {
        Monitor::connect(&self.monitor)?.frozen(frozen)
    }

    /// Returns the end of the console log.
    pub fn console(&self) -> String {
        tail(&self.console)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Removes the directories of runs that were killed.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(FOLDER_PREFIX).filter(|id| id.parse::<u32>().is_ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn tail(console: &Path) -> String {
    const LINES: usize = 30;
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
