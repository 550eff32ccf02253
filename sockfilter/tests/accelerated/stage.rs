//! The environment of each test: a folder, the agent in a thread, the proxy, and programs that end with the
//! test.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant as Clock};

use csp_app_node::agent::helper::Helpers;
use csp_app_node::agent::{self, AgentOptions, Directory, Processes, ProxyEntry};
use csp_app_node::custody::{self, CustodyOptions};
use csp_transport::ClusterKey;
use csp_wire::agent::Destination;
use tokio::sync::{mpsc, watch};

use crate::proxy::{PATIENCE, Proxy};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The library under test: the one built with this test, or that of CSP_SOCKFILTER.
pub fn filter() -> PathBuf {
    if let Some(path) = std::env::var_os("CSP_SOCKFILTER") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps.join("libcsp_sockfilter.so"), deps.parent().unwrap().join("libcsp_sockfilter.so")];
    let newest = places.iter().filter_map(|p| Some((fs::metadata(p).ok()?.modified().ok()?, p))).max();
    newest.expect("libcsp_sockfilter.so was not built").1.clone()
}

type Question = Box<dyn FnOnce(&Processes) + Send>;

pub struct Stage {
    pub folder: PathBuf,
    pub proxy: Proxy,
    sender: watch::Sender<Directory>,
    questions: Option<mpsc::UnboundedSender<Question>>,
    thread: Option<std::thread::JoinHandle<()>>,
    children: Vec<Child>,
    ports: Option<Vec<u16>>,
    loopback: bool,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(None, false)
    }

    /// A stage whose rules accelerate nothing that a program here does.
    pub fn passive() -> Stage {
        Stage::with(Some(vec![1]), false)
    }

    /// A stage where applications reach each other on loopback addresses.
    pub fn loopback() -> Stage {
        let mut stage = Stage::with(None, true);
        stage.proxy.pair_applications();
        stage
    }

    fn with(ports: Option<Vec<u16>>, loopback: bool) -> Stage {
        let name = format!("csp-filter-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let key = ClusterKey::from_bytes([5; 32]);
        let path = folder.join("pn-1.w0.sock");
        let proxy = Proxy::listen(&path, key.clone());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let (node, path) = ("pn-1".parse().unwrap(), path.display().to_string());
        let entry = ProxyEntry {
            node,
            worker: 0,
            address: path.clone(),
            path,
            provider: "shm",
            direct: None,
            draining: false,
        };
        let connect = vec![Destination { prefix: "10.76.0.0/24".parse().unwrap(), except: false }];
        let (sender, directory) = watch::channel(Directory {
            proxies: vec![entry],
            connect,
            programs: Vec::new(),
            access: Vec::new(),
        });
        let (questions, thread, children) = (None, None, Vec::new());
        let mut stage = Stage { folder, proxy, sender, questions, thread, children, ports, loopback };
        stage.start_agent(directory);
        stage
    }

    fn start_agent(&mut self, directory: watch::Receiver<Directory>) {
        let path = self.folder.join("agent.sock");
        let key = ClusterKey::from_bytes([5; 32]);
        let node = "an-1".parse().unwrap();
        let (socket_path, loopback) = (path.clone(), self.loopback);
        let custody = CustodyOptions { node, keys: key.clone().into(), seed: std::process::id().into() };
        let custodian = Some(Arc::new(custody::start(custody, csp_types::spin::SpinSetting::Auto).unwrap()));
        let (socket, listen, users) = (socket_path, self.ports.clone(), None);
        let helpers = Helpers::default();
        let options =
            AgentOptions { node, socket, keys: key.into(), listen, loopback, users, helpers, custodian };
        let (questions, asked) = mpsc::unbounded_channel();
        self.questions = Some(questions);
        self.thread = Some(std::thread::spawn(move || run_agent(options, directory, asked)));
        let deadline = Clock::now() + PATIENCE;
        while !path.exists() {
            assert!(Clock::now() < deadline, "the agent did not start");
            std::thread::yield_now();
        }
    }

    /// The agent ends and comes back.
    pub fn restart_agent(&mut self) {
        drop(self.questions.take());
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.folder.join("agent.sock").exists(), "an agent that ends takes its socket with it");
        self.start_agent(self.sender.subscribe());
    }

    /// The proxy dies and comes back as new at the same address.
    pub fn restart_proxy(&mut self) {
        let path = self.folder.join("pn-1.w0.sock");
        // The old one's links hang up when it is dropped.
        let placeholder = Proxy::listen(&self.folder.join("unused.sock"), ClusterKey::from_bytes([5; 32]));
        drop(std::mem::replace(&mut self.proxy, placeholder));
        let _ = fs::remove_file(&path);
        self.proxy = Proxy::listen(&path, ClusterKey::from_bytes([5; 32]));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    }

    /// A command with the filter.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", filter()).env("CSP_AGENT", self.folder.join("agent.sock"));
        command.current_dir(&self.folder);
        command
    }

    /// Starts a program that is killed with the test; its number names it in [`wait`](Self::wait).
    pub fn start(&mut self, mut command: Command) -> usize {
        // Files, not pipes: nobody reads while the program runs.
        let output = fs::File::create(self.output(self.children.len())).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output).stdin(Stdio::null());
        self.children.push(command.spawn().unwrap());
        self.children.len() - 1
    }

    /// Starts a Python program with the filter.
    pub fn python(&mut self, script: &str, arguments: &[&str]) -> usize {
        let file = self.write("script.py", script.as_bytes());
        let mut command = self.command("/usr/bin/python3");
        // What a child prints before `os._exit` is output, too.
        command.arg(file).args(arguments).env("PYTHONUNBUFFERED", "1");
        self.start(command)
    }

    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub fn pid(&self, child: usize) -> i32 {
        self.children[child].id() as i32
    }

    /// Lets the proxy run until the program ends; its exit code and output.
    pub fn wait(&mut self, child: usize) -> (Option<i32>, String) {
        let (status, output) = self.wait_status(child);
        (status.code(), output)
    }

    /// The same with the signal that ended it, if one did.
    pub fn wait_status(&mut self, child: usize) -> (ExitStatus, String) {
        let mut status = None;
        let Stage { proxy, children, .. } = self;
        proxy.until("the program to end", |_| {
            status = children[child].try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), fs::read_to_string(self.output(child)).unwrap())
    }

    /// For a program that takes long and leads a process group: its end, or none when it was killed after
    /// `time`; what it printed. What it left behind of its group is killed.
    pub fn wait_at_most(&mut self, child: usize, time: Duration) -> (Option<ExitStatus>, String) {
        let deadline = Clock::now() + time;
        let mut status = None;
        while status.is_none() && Clock::now() < deadline {
            self.proxy.run_for(Duration::from_millis(20));
            status = self.children[child].try_wait().unwrap();
        }
        // SAFETY: no pointers; the group was made for this program, and nothing joins a group of another
        // session.
        unsafe { libc::kill(-self.pid(child), libc::SIGKILL) };
        if status.is_none() {
            self.children[child].wait().unwrap();
        }
        (status, String::from_utf8_lossy(&fs::read(self.output(child)).unwrap()).into_owned())
    }

    /// Whether a program has printed this.
    pub fn has_said(&self, child: usize, text: &str) -> bool {
        fs::read_to_string(self.output(child)).unwrap().contains(text)
    }

    fn output(&self, child: usize) -> PathBuf {
        self.folder.join(format!("output.{child}"))
    }

    /// The program must end by itself with success; its output.
    pub fn succeeds(&mut self, child: usize) -> String {
        let (code, output) = self.wait(child);
        assert_eq!(code, Some(0), "{output}");
        output
    }

    /// How many kernel TCP sockets of a running program and its descendants listen on `port` or are connected
    /// from or to it. Other programs of the machine may use the same number.
    pub fn kernel_sockets(&self, child: usize, port: u16) -> usize {
        let hex = format!(":{port:04X}");
        let own: Vec<String> = descendants(self.pid(child)).into_iter().flat_map(sockets_of).collect();
        // sl local_address rem_address st queues timer retrnsmt uid timeout inode ... (proc(5)).
        let of_port = |line: &&str| line.split_whitespace().skip(1).take(2).any(|end| end.ends_with(&hex));
        let is_own =
            |line: &&str| line.split_whitespace().nth(9).is_some_and(|inode| own.iter().any(|i| i == inode));
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|f| fs::read_to_string(f).unwrap_or_default());
        tables.iter().flat_map(|table| table.lines()).filter(of_port).filter(is_own).count()
    }

    /// Asks the agent's table of processes.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(&Processes) -> T + Send + 'static) -> T {
        let (reply, answer) = std::sync::mpsc::channel();
        let question = Box::new(move |table: &Processes| reply.send(question(table)).unwrap());
        self.questions.as_ref().unwrap().send(question).ok().unwrap();
        answer.recv_timeout(PATIENCE).unwrap()
    }

    /// Announces other proxies to processes.
    pub fn directory(&self) -> &watch::Sender<Directory> {
        &self.sender
    }
}

fn run_agent(
    options: AgentOptions,
    directory: watch::Receiver<Directory>,
    mut asked: mpsc::UnboundedReceiver<Question>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let processes = Rc::new(RefCell::new(Processes::new(64, 16)));
    let answer = async {
        while let Some(question) = asked.recv().await {
            question(&processes.borrow());
        }
    };
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            ended = agent::serve(options, directory, processes.clone()) => ended.unwrap(),
            () = answer => {}
        }
    });
}

/// Signals a process.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: no pointers; the process is a child of this test.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Daemons of a test stop by SIGTERM and take their children along; what is left is killed.
            if matches!(child.try_wait(), Ok(None)) {
                // SAFETY: no pointers; a child that was waited for is not signalled (its number may be
                // another's).
                unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                let deadline = Clock::now() + Duration::from_secs(2);
                while matches!(child.try_wait(), Ok(None)) && Clock::now() < deadline {
                    self.proxy.run_for(Duration::from_millis(5));
                }
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        drop(self.questions.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Bytes whose position is recognisable wherever they are cut.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Header and body of an HTTP response.
pub fn split_response(response: &[u8]) -> (String, &[u8]) {
    let at = response.windows(4).position(|w| w == b"\r\n\r\n");
    let at = at.unwrap_or_else(|| panic!("no header in {:?}", String::from_utf8_lossy(response)));
    (String::from_utf8_lossy(&response[..at]).into_owned(), &response[at + 4..])
}

/// A process and those that descend from it.
fn descendants(root: i32) -> Vec<i32> {
    // pid (name) state parent ...; the name may hold anything (proc(5)).
    let parent = |pid: &i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let all = entries.filter_map(|name| name.to_str()?.parse().ok());
    let parents: Vec<(i32, i32)> = all.filter_map(|pid| Some((pid, parent(&pid)?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&of) = found.get(at) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

/// Inodes of the sockets that a process has.
fn sockets_of(pid: i32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inode =
        |target: PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    targets.filter_map(inode).collect()
}
