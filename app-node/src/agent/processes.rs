//! The attached processes, and the last pages of those that exited.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;

use csp_transport::ProcessId;
use csp_types::{FlowLabel, ProgramName, TraceEvent};
use csp_wire::agent::page::{COUNTER_NAMES, PAGE_LEN, PageView, SocketEntry};

/// Numbers in ids assigned by earlier agents must be below this limit, so that processes cannot exhaust them.
const NUMBER_MAX: u64 = 1 << 48;

/// Identity of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// Its name in the cluster, unique on this node during the agent's lifetime.
    pub id: String,
    /// Its process id, as reported by the kernel.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The program name, as reported by the process.
    pub program: ProgramName,
    /// When it attached, in milliseconds of the Unix epoch.
    pub attached_unix_ms: u64,
    /// When it exited, likewise.
    pub exited_unix_ms: Option<u64>,
}

/// A copy of a process's page. The process writes its content, which is not trusted.
#[derive(Clone, Debug)]
pub struct PageCopy {
    bytes: Vec<u8>,
}

impl PageCopy {
    fn of(file: &File) -> Option<PageCopy> {
        let mut bytes = vec![0; PAGE_LEN];
        file.read_exact_at(&mut bytes, 0).ok()?;
        PageView::parse(&bytes).ok()?;
        Some(PageCopy { bytes })
    }

    fn view(&self) -> Option<PageView<'_>> {
        PageView::parse(&self.bytes).ok()
    }

    /// Returns the counters, in the order of [`COUNTER_NAMES`].
    pub fn counters(&self) -> [u64; COUNTER_NAMES.len()] {
        let view = self.view();
        std::array::from_fn(|i| view.map_or(0, |v| v.counter(i)))
    }

    /// Returns the sockets.
    pub fn sockets(&self) -> Vec<SocketEntry> {
        self.view().map(|v| v.sockets().collect()).unwrap_or_default()
    }

    /// Returns the trace, oldest event first.
    pub fn trace(&self) -> Vec<TraceEvent> {
        let mut events: Vec<_> = self.view().map(|v| v.trace().collect()).unwrap_or_default();
        events.sort_by_key(|(number, _)| *number);
        events.into_iter().map(|(_, event)| event).collect()
    }
}

struct Process {
    info: ProcessInfo,
    page: File,
}

struct Exited {
    info: ProcessInfo,
    page: PageCopy,
}

/// The superuser, whose processes may use the whole capacity.
const ROOT: u32 = 0;

/// The table.
pub struct Processes {
    live: BTreeMap<u64, Process>,
    exited: VecDeque<Exited>,
    capacity: usize,
    exited_capacity: usize,
    next: u64,
    /// Sum of the counters of exited processes, so that totals never decrease.
    past: [u64; COUNTER_NAMES.len()],
    /// Attachments since the start.
    pub attached_total: u64,
    /// Refused attachments by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

/// Why a process was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// Its user is not in the agent's list.
    User,
    /// It is outside the agent's PID namespace.
    Namespace,
    /// Its first message was not a valid ATTACH.
    Protocol,
    /// The table is full, or its user has its share of it.
    Full,
    /// No page could be created for it.
    Memory,
    /// Too many connections to the agent's socket have not attached.
    Strangers,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 6] = [
        Refusal::User,
        Refusal::Namespace,
        Refusal::Protocol,
        Refusal::Full,
        Refusal::Memory,
        Refusal::Strangers,
    ];

    /// The reason's name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::User => "user",
            Refusal::Namespace => "namespace",
            Refusal::Protocol => "protocol",
            Refusal::Full => "full",
            Refusal::Memory => "memory",
            Refusal::Strangers => "strangers",
        }
    }
}

/// Counters that describe the present state; those of exited processes are not added.
const GAUGES: [&str; 2] = ["sockets_now", "flows_now"];

/// Returns whether the counter of this name is a gauge.
pub fn is_gauge(name: &str) -> bool {
    GAUGES.contains(&name)
}

impl Processes {
    /// Creates an empty table for `capacity` processes and `exited_capacity` exited ones.
    pub fn new(capacity: usize, exited_capacity: usize) -> Self {
        Processes {
            live: BTreeMap::new(),
            exited: VecDeque::new(),
            capacity,
            exited_capacity,
            next: 0,
            past: [0; COUNTER_NAMES.len()],
            attached_total: 0,
            refused: BTreeMap::new(),
        }
    }

    /// Returns the id for a process: program, process id, and a number. An id assigned by an earlier agent is
    /// kept if it contains this process id and no attached process has it.
    pub fn id_for(&mut self, program: &ProgramName, pid: u32, former: &str) -> String {
        let mut parts = former.rsplitn(3, '-');
        let number = parts.next().and_then(|n| n.parse::<u64>().ok().filter(|n| *n < NUMBER_MAX));
        let names_it = parts.next().is_some_and(|p| p == pid.to_string()) && parts.next().is_some();
        if let (Some(number), true) = (number, names_it)
            && !self.live.values().any(|p| p.info.id == former)
        {
            self.next = self.next.max(number);
            return former.to_owned();
        }
        self.next += 1;
        ProcessId::of_program(program, pid, Some(self.next)).as_str().to_owned()
    }

    /// Adds a process; `None` if the table is full, or if its user has as many processes as there are free
    /// entries (a single user other than root thus gets at most half). The returned key is the argument of
    /// [`exited`](Self::exited).
    pub fn attached(&mut self, info: ProcessInfo, page: File) -> Option<u64> {
        let free = self.capacity.saturating_sub(self.live.len());
        let own = self.live.values().filter(|process| process.info.uid == info.uid).count();
        if free == 0 || (info.uid != ROOT && own > free) {
            return None;
        }
        self.attached_total += 1;
        let key = self.attached_total;
        self.live.insert(key, Process { info, page });
        Some(key)
    }

    /// Removes a process that has exited. Its last page is kept for a limited time.
    pub fn exited(&mut self, key: u64, unix_ms: u64) {
        let Some(process) = self.live.remove(&key) else { return };
        let Some(page) = PageCopy::of(&process.page) else { return };
        for ((past, last), name) in self.past.iter_mut().zip(page.counters()).zip(COUNTER_NAMES) {
            if !is_gauge(name) {
                *past = past.wrapping_add(last);
            }
        }
        if self.exited_capacity == 0 {
            return;
        }
        if self.exited.len() >= self.exited_capacity {
            self.exited.pop_front();
        }
        let info = ProcessInfo { exited_unix_ms: Some(unix_ms), ..process.info };
        self.exited.push_back(Exited { info, page });
    }

    /// Counts a refusal.
    pub fn refuse(&mut self, reason: Refusal) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Returns the number of attached processes, and the capacity.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.live.len(), self.capacity)
    }

    /// Returns every process with a copy of its page, attached ones first.
    pub fn pages(&self) -> Vec<(ProcessInfo, PageCopy)> {
        let live = self.live.values().filter_map(|p| Some((p.info.clone(), PageCopy::of(&p.page)?)));
        let exited = self.exited.iter().rev().map(|e| (e.info.clone(), e.page.clone()));
        live.chain(exited).collect()
    }

    /// Returns the attached processes.
    pub fn live(&self) -> Vec<ProcessInfo> {
        self.live.values().map(|p| p.info.clone()).collect()
    }

    /// Returns all counters, summed over attached and exited processes; gauges over the attached ones only.
    pub fn totals(&self) -> [u64; COUNTER_NAMES.len()] {
        let mut totals = self.past;
        for process in self.live.values() {
            let Some(page) = PageCopy::of(&process.page) else { continue };
            for (total, value) in totals.iter_mut().zip(page.counters()) {
                *total = total.wrapping_add(value);
            }
        }
        totals
    }

    /// Returns the latest event of each recently seen label, newest first.
    pub fn recent_events(&self, limit: usize) -> Vec<TraceEvent> {
        let mut events: Vec<TraceEvent> = self.pages().iter().flat_map(|(_, page)| page.trace()).collect();
        events.sort_by_key(|e| std::cmp::Reverse(e.at));
        let mut newest: Vec<TraceEvent> = Vec::new();
        let mut seen: HashSet<FlowLabel> = HashSet::new();
        for event in events {
            if newest.len() >= limit {
                break;
            }
            if seen.insert(event.label) {
                newest.push(event);
            }
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_types::{Instant, TraceKind};
    use csp_wire::agent::page::{counter_offset, emit_header, emit_trace, trace_offset};

    fn page(bytes_read: u64) -> File {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, PAGE_LEN as u64).unwrap();
        let file = File::from(fd);
        file.write_all_at(&emit_header(), 0).unwrap();
        file.write_all_at(&bytes_read.to_le_bytes(), counter_offset(11) as u64).unwrap();
        for count in 0..2 {
            let label = FlowLabel::new(7 + count, 0);
            let at = Instant::from_nanos(u64::from(count) + 1);
            let event = TraceEvent { label, at, kind: TraceKind::AppOpen, ..TraceEvent::default() };
            let place = trace_offset(count.into()) as u64;
            file.write_all_at(&emit_trace(count.into(), &event), place).unwrap();
        }
        file
    }

    fn info(id: &str) -> ProcessInfo {
        let id = id.to_owned();
        ProcessInfo {
            id,
            pid: 1,
            uid: 0,
            program: ProgramName::UNKNOWN,
            attached_unix_ms: 0,
            exited_unix_ms: None,
        }
    }

    #[test]
    fn totals_keep_what_exited_processes_did() {
        let mut table = Processes::new(2, 1);
        let a = table.attached(info("a"), page(100)).unwrap();
        let b = table.attached(info("b"), page(50)).unwrap();
        assert_eq!(table.attached(info("c"), page(1)), None, "the table is full");
        assert_eq!(table.totals()[11], 150);
        table.exited(a, 1);
        table.exited(b, 2);
        assert_eq!((table.totals()[11], table.occupancy()), (150, (0, 2)));
        let kept: Vec<_> = table.pages().into_iter().map(|(i, _)| (i.id, i.exited_unix_ms)).collect();
        assert_eq!(kept, [("b".to_owned(), Some(2))], "only the last one is kept");
        assert_eq!(
            table.recent_events(1).iter().map(|e| e.label).collect::<Vec<_>>(),
            [FlowLabel::new(8, 0)]
        );
    }

    #[test]
    fn a_user_s_processes_leave_room_for_another_s() {
        let mut table = Processes::new(8, 0);
        let of = |uid| ProcessInfo { uid, ..info("p") };
        let attached = (0..8).filter(|_| table.attached(of(65534), page(0)).is_some()).count();
        assert_eq!(attached, 5, "one more than it leaves free");
        assert!(table.attached(of(1000), page(0)).is_some(), "another user");
        assert!(table.attached(of(65534), page(0)).is_none());
        assert!((0..2).all(|_| table.attached(of(0), page(0)).is_some()), "root takes what there is");
        assert!(table.attached(of(0), page(0)).is_none(), "the table is full");
    }

    #[test]
    fn a_process_keeps_its_name_over_agents_but_takes_no_others() {
        let mut table = Processes::new(2, 0);
        let nginx = &"nginx".parse().unwrap();
        assert_eq!(table.id_for(nginx, 42, ""), "nginx-42-1");
        assert_eq!(table.id_for(nginx, 42, "nginx-42-7"), "nginx-42-7");
        assert_eq!(table.id_for(nginx, 42, "nginx-43-3"), "nginx-42-8", "another process's");
        table.attached(info("nginx-42-8"), page(0)).unwrap();
        assert_eq!(table.id_for(nginx, 42, "nginx-42-8"), "nginx-42-9", "no id is assigned twice");
        let last = format!("nginx-42-{}", u64::MAX);
        assert_eq!(table.id_for(nginx, 42, &last), "nginx-42-10", "the numbers are not used up");
    }

    #[test]
    fn a_page_of_nonsense_counts_nothing() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut table = Processes::new(2, 2);
        let key = table.attached(info("a"), File::from(fd)).unwrap();
        assert_eq!(table.totals()[11], 0);
        table.exited(key, 1);
        assert!(table.pages().is_empty());
    }
}
