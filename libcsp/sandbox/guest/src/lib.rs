//! Handlers for CSP written in Rust: WebAssembly modules of ABI version 1 (`docs/handlers.md`).
//!
//! ```ignore
//! #[derive(Default)]
//! struct Every { count: u32 }
//!
//! impl csp_guest::Handler for Every {
//!     fn on_message(&mut self, message: &csp_guest::Message) -> Result<(), csp_guest::Stop> {
//!         if self.count % 2 == 0 {
//!             message.emit_same(0)?;
//!         }
//!         self.count += 1;
//!         Ok(())
//!     }
//! }
//!
//! csp_guest::export!(Every, buffer: 4096, csp_guest::Declaration::DEFAULT);
//! ```
//! Packet plug-ins are another kind of module: [`packet`].
//!
//! The crate is `no_std` and allocates nothing. Build with `--target wasm32-unknown-unknown`, as a `cdylib`.
//! On other targets it builds, so that it can be checked there, and its imports return that there is nothing.
//!
//! **Unsafe code.** Calls of imports, and the module's only mutable value: `export!` and [`Cell`] are correct
//! because a module has one thread and is not entered while it runs. What runs here runs inside the sandbox.
#![no_std]
#![deny(clippy::undocumented_unsafe_blocks)]

mod imports;
pub mod packet;

use core::cell::UnsafeCell;

/// Why a call ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// An output has no room: the handler has changed no state in this call, and is called again with the
    /// same.
    Full,
    /// The handler gives the message up, with a number of its own of 2 or more.
    GiveUp(i32),
}

impl Stop {
    /// Returns the number of the ABI.
    #[must_use]
    pub fn code(result: Result<(), Stop>) -> i32 {
        match result {
            Ok(()) => 0,
            Err(Stop::Full) => 1,
            Err(Stop::GiveUp(code)) => code.max(2),
        }
    }
}

/// What a module declares of itself: the numbers of the ABI in their order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Bytes of the declaration.
    pub size: u32,
    /// Outputs, 1 to 8.
    pub outputs: u32,
    /// Length in bytes of the longest message that it makes; 0: none.
    pub new_len_max: u32,
    /// How often `on_timer` is called, in milliseconds; 0: never.
    pub period_ms: u32,
    /// Address of the buffer: `export!` sets it.
    pub buffer: usize,
    /// Length of the buffer: `export!` sets it.
    pub buffer_len: u32,
    /// What becomes of the state: 0 dropped, 1 the block is kept.
    pub state: u32,
    /// Bytes of the state block.
    pub state_len: u32,
    /// The version of the state's layout.
    pub layout: u32,
    /// 0.
    pub reserved: u32,
}

impl Declaration {
    /// One output, no new messages, no timer, no state.
    pub const DEFAULT: Declaration = Declaration {
        size: 40,
        outputs: 1,
        new_len_max: 0,
        period_ms: 0,
        buffer: 0,
        buffer_len: 0,
        state: 0,
        state_len: 0,
        layout: 0,
        reserved: 0,
    };
}

/// Where a field lies.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Field {
    /// Bytes before it in the frame of the format, its header included.
    pub offset: u32,
    /// Its length in bytes.
    pub size: u32,
    /// `c` text, `i` signed, `u` unsigned, `f` floating point, `x` composite.
    pub kind: u32,
    /// Bit 0: big-endian. From bit 16 on: the schema version that added it.
    pub flags: u32,
}

/// Code that processes messages.
pub trait Handler: Default {
    /// Sets parameters.
    ///
    /// # Errors
    /// Why they are refused; the former ones stay in force.
    fn configure(&mut self, parameters: &Parameters) -> Result<(), &'static str> {
        if parameters.len() == 0 { Ok(()) } else { Err("the module has no parameters") }
    }

    /// Processes a message.
    ///
    /// # Errors
    /// [`Stop::Full`] to be called again with it, [`Stop::GiveUp`] to give it up.
    fn on_message(&mut self, message: &Message) -> Result<(), Stop>;

    /// Processes the end of a period.
    ///
    /// # Errors
    /// As [`on_message`](Self::on_message).
    fn on_timer(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// The message of a call.
#[derive(Debug)]
pub struct Message {
    /// Its format.
    pub format: u32,
    /// Its length in bytes.
    pub len: u32,
    /// Its frames.
    pub frames: u32,
    buffered: &'static [u8],
}

impl Message {
    /// The message of a call; `buffer` has it if it fits.
    #[must_use]
    pub fn new(format: u32, len: u32, frames: u32, buffer: &'static [u8]) -> Self {
        Message { format, len, frames, buffered: buffer.get(..len as usize).unwrap_or(&[]) }
    }

    /// Returns the bytes of the message if it fits the buffer; `None`: [`read`](Self::read) has them.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        (self.buffered.len() == self.len as usize).then_some(self.buffered)
    }

    /// Copies bytes from `offset` on. Returns how many there were.
    pub fn read(&self, offset: u32, into: &mut [u8]) -> usize {
        imports::read(offset, into) as usize
    }

    /// Returns the length of a frame.
    #[must_use]
    pub fn frame_len(&self, frame: u32) -> Option<u32> {
        u32::try_from(imports::frame_len(frame)).ok()
    }

    /// Returns the number of the message in its channel.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        imports::sequence()
    }

    /// Returns when it arrived, in nanoseconds of the host's monotonic clock.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        imports::arrived()
    }

    /// Emits the message as it is.
    ///
    /// # Errors
    /// When the output has no room.
    pub fn emit_same(&self, output: u32) -> Result<(), Stop> {
        full(imports::emit_same(output))
    }

    /// Emits some of its bytes.
    ///
    /// # Errors
    /// When the output has no room.
    pub fn emit_range(&self, output: u32, format: u32, start: u32, len: u32) -> Result<(), Stop> {
        full(imports::emit_range(output, format, start, len))
    }
}

/// Emits a message of one frame.
///
/// # Errors
/// When the output has no room.
pub fn emit(output: u32, format: u32, bytes: &[u8]) -> Result<(), Stop> {
    full(imports::emit(output, format, bytes))
}

/// Returns the time of the call, in nanoseconds of the host's monotonic clock.
#[must_use]
pub fn now() -> u64 {
    imports::now()
}

/// Finds a field of a format by its path.
#[must_use]
pub fn locate(format: u32, path: &str) -> Option<Field> {
    let mut field = Field::default();
    (imports::locate(format, path, &mut field) == 0).then_some(field)
}

/// Copies bytes of the state block from `offset` on. Returns how many there were.
pub fn state_read(offset: u32, into: &mut [u8]) -> usize {
    imports::state_read(offset, into) as usize
}

/// Changes bytes of the state block.
pub fn state_write(offset: u32, bytes: &[u8]) {
    imports::state_write(offset, bytes);
}

fn full(code: i32) -> Result<(), Stop> {
    if code == 0 { Ok(()) } else { Err(Stop::Full) }
}

/// Parameters that are to be set.
#[derive(Debug)]
pub struct Parameters(u32);

impl Parameters {
    /// Parameters of so many bytes.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Parameters(len)
    }

    /// Returns their length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0 as usize
    }

    /// Copies them. `None`: they are longer than `into`, or no UTF-8.
    pub fn read<'a>(&self, into: &'a mut [u8]) -> Option<&'a str> {
        let into = into.get_mut(..self.len())?;
        let count = imports::parameters(0, into) as usize;
        core::str::from_utf8(into.get(..count)?).ok()
    }
}

/// Returns the number of the ABI for an answer to parameters, and says why they are refused.
#[must_use]
pub fn configured(answer: Result<(), &'static str>) -> i32 {
    match answer {
        Ok(()) => 0,
        Err(why) => {
            imports::refuse(why);
            2
        }
    }
}

/// The module's only mutable value.
#[derive(Debug)]
pub struct Cell<T>(UnsafeCell<Option<T>>);

// SAFETY: a module has one thread.
unsafe impl<T> Sync for Cell<T> {}

impl<T: Default> Cell<T> {
    /// A value that is made when it is first used.
    #[must_use]
    pub const fn new() -> Self {
        Cell(UnsafeCell::new(None))
    }

    /// Uses the value. Only `export!` calls this, once in each exported function, which the host does not
    /// enter while one runs.
    pub fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: no other reference lives: see above.
        let slot = unsafe { &mut *self.0.get() };
        run(slot.get_or_insert_with(T::default))
    }
}

impl<T: Default> Default for Cell<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The buffer into which the host copies messages.
#[derive(Debug)]
pub struct Buffer<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: a module has one thread, and the host writes only before a call.
unsafe impl<const N: usize> Sync for Buffer<N> {}

impl<const N: usize> Buffer<N> {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Buffer(UnsafeCell::new([0; N]))
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.get() as usize
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&'static self) -> &'static [u8] {
        // SAFETY: the host writes only while no exported function runs, and what holds these bytes ends with
        // the function.
        unsafe { &*self.0.get() }
    }
}

impl<const N: usize> Default for Buffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Exports a handler: its type, the length of the buffer for messages, and its declaration.
#[macro_export]
macro_rules! export {
    ($handler:ty, buffer: $len:expr, $declaration:expr) => {
        static HANDLER: $crate::Cell<$handler> = $crate::Cell::new();
        static BUFFER: $crate::Buffer<{ $len }> = $crate::Buffer::new();
        static DECLARED: $crate::Cell<Option<$crate::Declaration>> = $crate::Cell::new();

        #[unsafe(no_mangle)]
        extern "C" fn csp_abi() -> i32 {
            1
        }

        #[unsafe(no_mangle)]
        extern "C" fn csp_declaration() -> usize {
            DECLARED.with(|slot| {
                let declared =
                    $crate::Declaration { buffer: BUFFER.address(), buffer_len: $len as u32, ..$declaration };
                core::ptr::from_ref(slot.insert(declared)) as usize
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn configure(len: u32) -> i32 {
            let parameters = $crate::Parameters::new(len);
            $crate::configured(HANDLER.with(|handler| $crate::Handler::configure(handler, &parameters)))
        }

        #[unsafe(no_mangle)]
        extern "C" fn on_message(format: u32, len: u32, frames: u32) -> i32 {
            let message = $crate::Message::new(format, len, frames, BUFFER.bytes());
            $crate::Stop::code(HANDLER.with(|handler| $crate::Handler::on_message(handler, &message)))
        }

        #[unsafe(no_mangle)]
        extern "C" fn on_timer() -> i32 {
            $crate::Stop::code(HANDLER.with($crate::Handler::on_timer))
        }
    };
}

/// What a module that panics does: it traps, and is stopped.
#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
