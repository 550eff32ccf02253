//! Supplied programs in the graph: loaded, put at the place of an instance, given parameters, read.
//!
//! ```text
//!   supplied[place] ─▶ the object's program ─▶ csp_continue[verdict] ─▶ csp_verdict_N ─▶ resume[0] ─▶ csp_resume
//! ```
//! The three arrays are pinned with the program: what is in them lives as long as something holds them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Array, Map, MapData, PerCpuArray, ProgramArray};
use aya::programs::{ProgramFd, Xdp};
use csp_plugins::{Answer, InDriverOnly, OBJECT_NUMBERS_MAX, Row};

use super::{Driver, DriverError, folder_error, take};
use crate::INSTANCES_MAX;
use crate::maps::{RawParameters, State};
use crate::object::{self, CONTINUE, COUNTERS, PARAMETERS, VERDICTS};
use crate::slots::{Kind, Wanted};

/// Indexed by verdict number.
const VERDICT_PROGRAMS: [&str; VERDICTS as usize] = [
    "csp_verdict_0",
    "csp_verdict_1",
    "csp_verdict_2",
    "csp_verdict_3",
    "csp_verdict_4",
    "csp_verdict_5",
    "csp_verdict_6",
    "csp_verdict_7",
    "csp_verdict_8",
];

/// The maps of an instance that this process reads and writes.
#[derive(Default)]
struct Maps {
    parameters: Option<Map>,
    counters: Option<Map>,
    /// The parameters in force, if this process has set them.
    text: Option<String>,
}

/// A loaded program without a slot.
struct Ready {
    kind: Kind,
    program: ProgramFd,
    maps: Maps,
}

/// A supplied object that the kernel has not verified yet.
pub struct Loading {
    wanted: Wanted,
    parameters: String,
    bytes: Vec<u8>,
    continuations: PathBuf,
}

/// A supplied program that the kernel has verified.
pub struct Loaded {
    name: String,
    ready: Ready,
}

impl Loading {
    /// Makes the kernel create the maps and verify the program. Blocks for as long as that takes; there is no
    /// upper bound.
    ///
    /// # Errors
    /// Why the instance cannot run at level 1, as text.
    pub fn run(self) -> Result<Loaded, String> {
        let Loading { wanted, parameters, bytes, continuations } = self;
        let mut ebpf = object::contained(|| object::load(&bytes, Some(&continuations)))
            .map_err(|error| error.to_string())?;
        let program = object::program_of(&mut ebpf).map_err(|error| error.to_string())?;
        let program = program
            .fd()
            .map_err(DriverError::from)
            .and_then(|fd| fd.try_clone().map_err(folder_error(Path::new("a program"))));
        let ready = program.and_then(|program| {
            let mut maps = Maps::of(&mut ebpf);
            maps.set(&parameters)?;
            Ok(Ready { kind: wanted.kind, program, maps })
        });
        Ok(Loaded { name: wanted.name, ready: ready.map_err(|error| error.to_string())? })
    }
}

/// The supplied programs of a driver.
pub(super) struct Supplied {
    programs: ProgramArray<MapData>,
    /// Held so that its entries stay.
    _continue: ProgramArray<MapData>,
    _resume: ProgramArray<MapData>,
    /// By instance name.
    ready: HashMap<String, Ready>,
    /// Indexed by slot.
    at: Vec<Maps>,
}

impl Supplied {
    /// Puts the programs for the way back into their arrays.
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, DriverError> {
        let mut back: ProgramArray<MapData> = take(ebpf, CONTINUE)?;
        let mut resume: ProgramArray<MapData> = take(ebpf, "resume")?;
        resume.set(0, loaded(ebpf, "csp_resume")?, 0)?;
        for (verdict, name) in VERDICT_PROGRAMS.into_iter().enumerate() {
            back.set(verdict as u32, loaded(ebpf, name)?, 0)?;
        }
        let at = (0..INSTANCES_MAX).map(|_| Maps::default()).collect();
        let programs = take(ebpf, "supplied")?;
        Ok(Supplied { programs, _continue: back, _resume: resume, ready: HashMap::new(), at })
    }
}

fn loaded<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a ProgramFd, DriverError> {
    let program = ebpf.program_mut(name).ok_or(DriverError::Missing(name))?;
    let program: &mut Xdp = program.try_into()?;
    program.load()?;
    Ok(program.fd()?)
}

impl Maps {
    fn of(ebpf: &mut Ebpf) -> Self {
        Maps { parameters: ebpf.take_map(PARAMETERS), counters: ebpf.take_map(COUNTERS), text: None }
    }

    /// Writes parameters into the element that is not in force, then makes that element the one in force.
    fn set(&mut self, text: &str) -> Result<bool, DriverError> {
        if self.text.as_deref() == Some(text) {
            return Ok(false);
        }
        if let Some(map) = &mut self.parameters {
            let mut map: Array<&mut MapData, RawParameters> = map.try_into()?;
            let other = 1 - (map.get(&2, 0)?.length & 1);
            map.set(other, RawParameters::new(text), 0)?;
            map.set(2, RawParameters { length: other, ..RawParameters::default() }, 0)?;
        }
        self.text = Some(text.to_owned());
        Ok(self.parameters.is_some())
    }

    fn rows(&self) -> Result<Vec<Row>, DriverError> {
        let values: Vec<u64> = match &self.counters {
            None => Vec::new(),
            Some(map @ Map::Array(_)) => {
                let map: Array<&MapData, u64> = map.try_into()?;
                (0..map.len()).map(|at| map.get(&at, 0)).collect::<Result<_, _>>()?
            }
            Some(map) => {
                let map: PerCpuArray<&MapData, u64> = map.try_into()?;
                let sum =
                    |values: aya::maps::PerCpuValues<u64>| values.iter().copied().fold(0, u64::wrapping_add);
                (0..map.len()).map(|at| map.get(&at, 0).map(sum)).collect::<Result<_, _>>()?
            }
        };
        let row = |(at, value): (usize, u64)| {
            let numbers = vec![("value", value)];
            Row { key: format!("counter-{at}"), numbers, ..Row::default() }
        };
        Ok(values.into_iter().enumerate().map(row).collect())
    }
}

impl RawParameters {
    /// Converts a text into the form that programs read, truncating it if it is too long.
    fn new(text: &str) -> Self {
        let mut raw = RawParameters::default();
        let len = text.len().min(raw.text.len());
        raw.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        raw.length = len as u32;
        let words = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
        for (to, number) in raw.numbers.iter_mut().zip(words.take(OBJECT_NUMBERS_MAX)) {
            *to = number;
            raw.count += 1;
        }
        raw
    }
}

impl Driver {
    /// Returns the object of an instance to load; `None` if it runs already or is loaded. `bytes` is called
    /// to obtain the object.
    ///
    /// # Errors
    /// Why the instance cannot run at level 1, as text.
    pub fn to_load(
        &self,
        name: &str,
        module: &str,
        parameters: &str,
        bytes: impl FnOnce() -> Result<Vec<u8>, String>,
    ) -> Result<Option<Loading>, String> {
        let wanted = Wanted::supplied(name, module).ok_or("the module is no SHA-256")?;
        let known = self.supplied.ready.get(name).is_some_and(|ready| ready.kind == wanted.kind);
        if known || self.slots.0.iter().flatten().any(|slot| *slot == wanted) {
            return Ok(None);
        }
        let Some(folder) = &self.folder else {
            return Err(
                "there is no BPF file system, where supplied programs meet those of the node".to_owned()
            );
        };
        let continuations = folder.join(CONTINUE);
        Ok(Some(Loading { wanted, parameters: parameters.to_owned(), bytes: bytes()?, continuations }))
    }

    /// Adds a loaded program, for the next [`apply`](Self::apply).
    pub fn add_loaded(&mut self, Loaded { name, ready }: Loaded) {
        self.supplied.ready.insert(name, ready);
    }

    /// Loads the object of an instance, unless it runs already or is loaded, and waits for the kernel.
    ///
    /// # Errors
    /// Why the instance cannot run at level 1, as text.
    pub fn load(
        &mut self,
        name: &str,
        module: &str,
        parameters: &str,
        bytes: impl FnOnce() -> Result<Vec<u8>, String>,
    ) -> Result<(), String> {
        if let Some(loading) = self.to_load(name, module, parameters, bytes)? {
            self.add_loaded(loading.run()?);
        }
        Ok(())
    }

    /// Puts a loaded program into a slot, and pins what the next process needs.
    pub(super) fn place_supplied(&mut self, at: usize, wanted: &Wanted) -> Result<(), DriverError> {
        let ready = self.supplied.ready.remove(&wanted.name).filter(|ready| ready.kind == wanted.kind);
        let Some(Ready { program, maps, .. }) = ready else { return Err(DriverError::Missing("supplied")) };
        self.unpin(at);
        for (what, map) in [("parameters", &maps.parameters), ("counters", &maps.counters)] {
            if let (Some(path), Some(map)) = (self.pin_path(what, at), map) {
                map.pin(path)?;
            }
        }
        self.supplied.programs.set(at as u32, &program, 0)?;
        self.supplied.at[at] = maps;
        Ok(())
    }

    /// Opens the objects that an earlier process has pinned for the instance in a slot.
    pub(super) fn take_over_supplied(&mut self, at: usize) -> Result<(), DriverError> {
        let open = |what: &str| match self.pin_path(what, at) {
            Some(path) if path.exists() => MapData::from_pin(path).and_then(Map::from_map_data).map(Some),
            _ => Ok(None),
        };
        let (parameters, counters) = (open("parameters")?, open("counters")?);
        self.supplied.at[at] = Maps { parameters, counters, text: None };
        Ok(())
    }

    /// Sets the parameters of running instances. When this returns, no packet is processed with the former
    /// ones.
    pub(super) fn set_parameters(&mut self, all: &[(String, String)]) -> Result<(), DriverError> {
        let mut changed = false;
        for (name, text) in all {
            let Some(at) = self.slots.place(name) else { continue };
            changed |= self.supplied.at[usize::from(at)].set(text)?;
        }
        if changed { self.wait_for_packets() } else { Ok(()) }
    }

    /// Frees the program in a slot that no packet can reach.
    pub(super) fn remove_supplied(&mut self, at: usize) {
        // Clearing an empty slot is an error of the kernel, which is ignored.
        let _ = self.supplied.programs.clear_index(&(at as u32));
        self.supplied.at[at] = Maps::default();
        self.unpin(at);
    }

    /// Drops loaded programs, except those of instances that no rule leads to, so that they are not verified
    /// again with each plan.
    pub(super) fn keep_ready(&mut self, idle: &HashMap<String, String>) {
        self.supplied.ready.retain(|name, _| idle.contains_key(name));
    }

    pub(super) fn read_supplied(
        &self,
        at: usize,
        state: &State,
        given: u64,
        dropped: u64,
    ) -> Result<Answer, DriverError> {
        let mut rows = vec![InDriverOnly::row(given, state.first.packets, dropped, 0)];
        rows.extend(self.supplied.at[at].rows()?);
        Ok(Answer::Rows(rows))
    }

    fn unpin(&self, at: usize) {
        for what in ["parameters", "counters"] {
            let _ = self.pin_path(what, at).map(fs::remove_file);
        }
    }

    fn pin_path(&self, what: &str, at: usize) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{what}-{at}")))
    }
}
