//! What a store holds for its guest, and the imports that the guest calls.
//!
//! Every import is accounted for before it does anything: it costs what it copies, and at least
//! [`IMPORT_COST`]. An import that is asked for what the ABI forbids stops the guest; the reason waits in
//! [`Guest::stopped`] until the call has been unwound.

use std::sync::Arc;

use csp_handlers::{Emit, FormatId, OUTPUTS_MAX, Piece};
use wasmtime::{Caller, FuncType, Linker, Memory, Result, Store};

use crate::abi::{
    Declaration, FRAMES_MAX, FULL, IMPORTS, NONE, OK, PARAMETERS_MAX, PIECE_LEN, PIECES_MAX, TEXT_MAX,
};
use crate::bridge::borrow;
use crate::engine::{Engine, Limits};
use crate::fields::{Fields, NoFields};
use crate::stopped::Reason;

/// What an import costs at least, in bytes copied.
pub(crate) const IMPORT_COST: u64 = 256;
/// Refused asks for memory or table after which a guest is stopped.
const GROWTHS_REFUSED_MAX: u32 = 16;
/// Growths, granted ones too, in a call.
const GROWTHS_MAX: u32 = 128;

/// Numbers of the call that imports return.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub now: u64,
    pub arrived: u64,
    pub sequence: u64,
    /// Length of the message in bytes.
    pub len: u32,
}

impl Facts {
    fn has(&self, start: u32, len: u32) -> bool {
        start.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

/// What a store holds for its guest.
pub(crate) struct Guest {
    pub memory: Option<Memory>,
    pub fields: Arc<dyn Fields>,
    pub outputs: u8,
    pub new_len_max: u32,
    pub facts: Facts,
    /// What the guest was asked to do when it was stopped by an import.
    pub stopped: Option<Reason>,
    /// An output had no room in this call.
    pub full: bool,
    pub emits_left: u32,
    pub copies_left: u64,
    pub parameters: Arc<str>,
    /// Why the guest refuses its parameters.
    pub refusal: String,
    /// The state block as it was before the call, if `has_written`.
    pub undo: Vec<u8>,
    pub has_written: bool,
    /// Pieces of a message that must be one.
    scratch: Vec<u8>,
    memory_max: u64,
    table_max: u32,
    growths: u32,
    growths_refused: u32,
}

impl Guest {
    /// Returns why the guest refuses its parameters, for which `configure` has returned this number.
    pub fn why_refused(&self, code: i32) -> String {
        match self.refusal.as_str() {
            "" => format!("the module refuses them with {code}"),
            why => why.to_owned(),
        }
    }

    pub fn new(limits: &Limits, fields: Arc<dyn Fields>) -> Self {
        Guest {
            memory: None,
            fields,
            outputs: OUTPUTS_MAX,
            new_len_max: 0,
            facts: Facts::default(),
            stopped: None,
            full: false,
            emits_left: 0,
            copies_left: 0,
            parameters: "".into(),
            refusal: String::new(),
            undo: Vec::new(),
            has_written: false,
            scratch: Vec::new(),
            memory_max: limits.memory_max,
            table_max: limits.table_max,
            growths: 0,
            growths_refused: 0,
        }
    }

    /// Begins a call.
    #[inline]
    pub fn begin(&mut self, limits: &Limits, facts: Facts) {
        self.facts = facts;
        self.emits_left = limits.emits_max;
        self.copies_left = limits.copied_max;
        (self.full, self.has_written) = (false, false);
        (self.growths, self.growths_refused) = (0, 0);
    }

    /// Makes room for what a call may need, so that none allocates.
    pub fn reserve(&mut self, declared: &Declaration) {
        (self.outputs, self.new_len_max) = (declared.outputs, declared.new_len_max);
        self.undo.reserve_exact(declared.state_len as usize);
        if declared.period_ms > 0 {
            self.scratch.reserve_exact(declared.new_len_max as usize);
        }
    }

    fn stop<T>(&mut self, reason: Reason) -> Result<T> {
        self.stopped = Some(reason);
        Err(wasmtime::Error::new(reason))
    }

    /// Accounts for an import that copies so many bytes.
    #[inline]
    fn charge(&mut self, bytes: u32) -> Result<()> {
        match self.copies_left.checked_sub(u64::from(bytes).max(IMPORT_COST)) {
            Some(left) => self.copies_left = left,
            None => return self.stop(Reason::Copied),
        }
        Ok(())
    }

    /// Accounts for a message that is emitted.
    #[inline]
    fn charge_emit(&mut self, output: u32, len: u32) -> Result<u8> {
        self.charge(len)?;
        let Some(left) = self.emits_left.checked_sub(1) else { return self.stop(Reason::Emits) };
        self.emits_left = left;
        if output >= u32::from(self.outputs) || len > self.new_len_max {
            return self.stop(Reason::Output);
        }
        Ok(output as u8)
    }

    /// Returns what the guest gets for an emit.
    #[inline]
    fn emitted(&mut self, emitted: Option<Result<(), csp_handlers::Full>>) -> Result<i32> {
        match emitted {
            Some(Ok(())) => Ok(OK),
            Some(Err(csp_handlers::Full)) => {
                self.full = true;
                Ok(FULL)
            }
            None => self.stop(Reason::Output),
        }
    }

    fn growth(&mut self, wanted: u64, max: u64) -> Result<bool> {
        self.growths += 1;
        self.growths_refused += u32::from(wanted > max);
        if self.growths > GROWTHS_MAX || self.growths_refused > GROWTHS_REFUSED_MAX {
            return self.stop(Reason::Memory);
        }
        Ok(wanted <= max)
    }
}

impl wasmtime::ResourceLimiter for Guest {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        self.growth(desired as u64, self.memory_max)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        self.growth(desired as u64, u64::from(self.table_max))
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        crate::engine::TABLES_MAX as usize
    }
}

/// Returns the bytes at an address of a guest.
#[inline]
fn at(memory: &[u8], address: u32, len: u32) -> Option<&[u8]> {
    memory.get(address as usize..)?.get(..len as usize)
}

#[inline]
fn at_mut(memory: &mut [u8], address: u32, len: u32) -> Option<&mut [u8]> {
    memory.get_mut(address as usize..)?.get_mut(..len as usize)
}

/// Returns the guest's memory and what its store holds.
#[inline]
fn split<'a>(caller: &'a mut Caller<'_, Guest>) -> Result<(&'a mut [u8], &'a mut Guest)> {
    match caller.data().memory {
        Some(memory) => Ok(memory.data_and_store_mut(caller)),
        // The start function of a module runs before its memory is known.
        None => caller.data_mut().stop(Reason::Abi),
    }
}

type Guests<'a> = Caller<'a, Guest>;

/// Defines the imports that a guest may have.
pub(crate) fn define(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap(IMPORTS, "read", read)?;
    linker.func_wrap(IMPORTS, "frame_len", frame_len)?;
    linker.func_wrap(IMPORTS, "emit", emit)?;
    linker.func_wrap(IMPORTS, "emit_same", emit_same)?;
    linker.func_wrap(IMPORTS, "emit_frames", emit_frames)?;
    linker.func_wrap(IMPORTS, "emit_range", emit_range)?;
    linker.func_wrap(IMPORTS, "emit_new", emit_new)?;
    linker.func_wrap(IMPORTS, "state_read", state_read)?;
    linker.func_wrap(IMPORTS, "state_write", state_write)?;
    linker.func_wrap(IMPORTS, "now", |caller: Guests<'_>| caller.data().facts.now as i64)?;
    linker.func_wrap(IMPORTS, "arrived", |caller: Guests<'_>| caller.data().facts.arrived as i64)?;
    linker.func_wrap(IMPORTS, "sequence", |caller: Guests<'_>| caller.data().facts.sequence as i64)?;
    linker.func_wrap(IMPORTS, "locate", locate)?;
    linker.func_wrap(IMPORTS, "parameters", parameters)?;
    linker.func_wrap(IMPORTS, "refuse", refuse)?;
    Ok(())
}

/// `read(offset, len, into) -> count`: copies bytes of the message.
fn read(mut caller: Guests<'_>, offset: u32, len: u32, into: u32) -> Result<u32> {
    let (memory, guest) = split(&mut caller)?;
    guest.charge(len)?;
    match at_mut(memory, into, len) {
        Some(into) => Ok(borrow(|bridge| bridge.copy(offset, into)) as u32),
        None => guest.stop(Reason::Pointer),
    }
}

/// `frame_len(frame) -> length or NONE`.
fn frame_len(mut caller: Guests<'_>, frame: u32) -> Result<i32> {
    caller.data_mut().charge(0)?;
    let frame = u8::try_from(frame).ok().and_then(|frame| borrow(|bridge| bridge.frame_len(frame)));
    Ok(frame.and_then(|len| i32::try_from(len).ok()).unwrap_or(NONE))
}

/// `emit(output, format, from, len) -> OK or FULL`: a message of one frame.
fn emit(mut caller: Guests<'_>, output: u32, format: u32, from: u32, len: u32) -> Result<i32> {
    let (memory, guest) = split(&mut caller)?;
    let output = guest.charge_emit(output, len)?;
    let Some(bytes) = at(memory, from, len) else { return guest.stop(Reason::Pointer) };
    let new = Emit::New { format: FormatId(format), frames: &[len], pieces: &[Piece::Bytes(bytes)] };
    let emitted = borrow(|bridge| bridge.emit(output, new));
    guest.emitted(emitted)
}

/// `emit_same(output) -> OK or FULL`: the message itself.
fn emit_same(mut caller: Guests<'_>, output: u32) -> Result<i32> {
    let guest = caller.data_mut();
    let output = guest.charge_emit(output, 0)?;
    let emitted = borrow(|bridge| bridge.emit(output, Emit::Same));
    guest.emitted(emitted)
}

/// `emit_frames(output, format, first, count) -> OK or FULL`: some of the message's frames.
fn emit_frames(mut caller: Guests<'_>, output: u32, format: u32, first: u32, count: u32) -> Result<i32> {
    let guest = caller.data_mut();
    let output = guest.charge_emit(output, 0)?;
    let (Ok(first), Ok(count)) = (u8::try_from(first), u8::try_from(count)) else {
        return guest.stop(Reason::Output);
    };
    let there = borrow(|bridge| {
        let last = count.checked_sub(1).and_then(|more| first.checked_add(more))?;
        bridge.frame_len(last)
    });
    if there.is_none() {
        return guest.stop(Reason::Output);
    }
    let frames = Emit::Frames { format: FormatId(format), first, count };
    let emitted = borrow(|bridge| bridge.emit(output, frames));
    guest.emitted(emitted)
}

/// `emit_range(output, format, start, len) -> OK or FULL`: some of the message's bytes.
fn emit_range(mut caller: Guests<'_>, output: u32, format: u32, start: u32, len: u32) -> Result<i32> {
    let guest = caller.data_mut();
    let output = guest.charge_emit(output, len)?;
    if !guest.facts.has(start, len) {
        return guest.stop(Reason::Output);
    }
    let range = Emit::Range { format: FormatId(format), start, len };
    let emitted = borrow(|bridge| bridge.emit(output, range));
    guest.emitted(emitted)
}

/// `emit_new(output, format, frames, frame_count, pieces, piece_count) -> OK or FULL`: a message of frames
/// from pieces.
fn emit_new(
    mut caller: Guests<'_>,
    output: u32,
    format: u32,
    frames: u32,
    frame_count: u32,
    pieces: u32,
    piece_count: u32,
) -> Result<i32> {
    let (memory, guest) = split(&mut caller)?;
    let memory = &*memory;
    if !(1..=FRAMES_MAX as u32).contains(&frame_count) || piece_count > PIECES_MAX as u32 {
        return guest.stop(Reason::Output);
    }
    let lists = (at(memory, frames, frame_count * 4), at(memory, pieces, piece_count * PIECE_LEN as u32));
    let (Some(frames), Some(list)) = lists else { return guest.stop(Reason::Pointer) };
    let mut lens = [0; FRAMES_MAX];
    for (len, bytes) in lens.iter_mut().zip(frames.as_chunks::<4>().0) {
        *len = u32::from_le_bytes(*bytes);
    }
    let lens = &lens[..frame_count as usize];
    let mut parts = [Piece::Bytes(&[]); PIECES_MAX];
    let mut sum = 0u64;
    for (part, words) in parts.iter_mut().zip(list.as_chunks::<PIECE_LEN>().0) {
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let (kind, start, len) = (word(0), word(4), word(8));
        sum += u64::from(len);
        *part = match kind {
            0 => match at(memory, start, len) {
                Some(bytes) => Piece::Bytes(bytes),
                None => return guest.stop(Reason::Pointer),
            },
            1 if guest.facts.has(start, len) => Piece::Of { start, len },
            _ => return guest.stop(Reason::Output),
        };
    }
    let parts = &parts[..piece_count as usize];
    let total = lens.iter().map(|len| u64::from(*len)).sum::<u64>();
    if total != sum {
        return guest.stop(Reason::Output);
    }
    let output = guest.charge_emit(output, u32::try_from(total).unwrap_or(u32::MAX))?;
    let format = FormatId(format);
    let emitted = match borrow(|bridge| bridge.is_plain()) {
        false => borrow(|bridge| bridge.emit(output, Emit::New { format, frames: lens, pieces: parts })),
        true => emit_plain(guest, output, format, lens, parts),
    };
    guest.emitted(emitted)
}

/// Emits pieces as one, where there is no message of which they could be parts.
fn emit_plain(
    guest: &mut Guest,
    output: u8,
    format: FormatId,
    frames: &[u32],
    pieces: &[Piece<'_>],
) -> Option<Result<(), csp_handlers::Full>> {
    guest.scratch.clear();
    for piece in pieces {
        let Piece::Bytes(bytes) = piece else { return None };
        guest.scratch.extend_from_slice(bytes);
    }
    let pieces = &[Piece::Bytes(&guest.scratch)];
    borrow(|bridge| bridge.emit(output, Emit::New { format, frames, pieces }))
}

/// `state_read(offset, len, into) -> count`: copies bytes of the state block.
fn state_read(mut caller: Guests<'_>, offset: u32, len: u32, into: u32) -> Result<u32> {
    let (memory, guest) = split(&mut caller)?;
    guest.charge(len)?;
    let Some(into) = at_mut(memory, into, len) else { return guest.stop(Reason::Pointer) };
    Ok(borrow(|bridge| {
        let rest = bridge.state().block().get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count as u32
    }))
}

/// `state_write(offset, len, from)`: changes bytes of the state block. A guest that writes outside it is
/// stopped.
fn state_write(mut caller: Guests<'_>, offset: u32, len: u32, from: u32) -> Result<()> {
    let (memory, guest) = split(&mut caller)?;
    guest.charge(len)?;
    let Some(bytes) = at(memory, from, len) else { return guest.stop(Reason::Pointer) };
    if !borrow(|bridge| bridge.may_write()) {
        return guest.stop(Reason::Abi);
    }
    let written = borrow(|bridge| {
        let block = bridge.state().block();
        if at(block, offset, len).is_none() {
            return false;
        }
        if !guest.has_written {
            guest.has_written = true;
            guest.undo.clear();
            guest.undo.extend_from_slice(block);
        }
        at_mut(block, offset, len).is_some_and(|into| {
            into.copy_from_slice(bytes);
            true
        })
    });
    if written { Ok(()) } else { guest.stop(Reason::Pointer) }
}

/// `locate(format, path, path_len, into) -> OK or NONE`: where a field lies, as [`crate::FieldAt::encode`]
/// has it.
fn locate(mut caller: Guests<'_>, format: u32, path: u32, path_len: u32, into: u32) -> Result<i32> {
    let (memory, guest) = split(&mut caller)?;
    // A schema is searched, which takes longer than a copy.
    guest.charge(16 * TEXT_MAX as u32)?;
    let Some(path) = at(memory, path, path_len) else { return guest.stop(Reason::Pointer) };
    let path = std::str::from_utf8(path).ok().filter(|path| path.len() <= TEXT_MAX);
    let Some(found) = path.and_then(|path| guest.fields.locate(FormatId(format), path)) else {
        return Ok(NONE);
    };
    let bytes = found.encode();
    match at_mut(memory, into, bytes.len() as u32) {
        Some(into) => into.copy_from_slice(&bytes),
        None => return guest.stop(Reason::Pointer),
    }
    Ok(OK)
}

/// `parameters(offset, len, into) -> count`: copies bytes of the parameters; those of the last `configure`
/// outside it.
fn parameters(mut caller: Guests<'_>, offset: u32, len: u32, into: u32) -> Result<u32> {
    let (memory, guest) = split(&mut caller)?;
    guest.charge(len.min(PARAMETERS_MAX as u32))?;
    let Some(into) = at_mut(memory, into, len) else { return guest.stop(Reason::Pointer) };
    let rest = guest.parameters.as_bytes().get(offset as usize..).unwrap_or(&[]);
    let count = rest.len().min(into.len());
    into[..count].copy_from_slice(&rest[..count]);
    Ok(count as u32)
}

/// `refuse(from, len)`: why `configure` refuses its parameters.
fn refuse(mut caller: Guests<'_>, from: u32, len: u32) -> Result<()> {
    let (memory, guest) = split(&mut caller)?;
    guest.charge(TEXT_MAX as u32)?;
    let Some(text) = at(memory, from, len.min(TEXT_MAX as u32)) else { return guest.stop(Reason::Pointer) };
    let text = String::from_utf8_lossy(text);
    guest.refusal = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Ok(())
}

/// Returns the signature of an import; `None`: it is not offered.
pub(crate) fn signature(engine: &Engine, module: &str, name: &str) -> Option<FuncType> {
    let shared = engine.shared();
    let mut store = Store::new(&shared.wasmtime, Guest::new(&shared.limits, Arc::new(NoFields)));
    Some(shared.linker.get(&mut store, module, name).ok()?.into_func()?.ty(&store))
}
