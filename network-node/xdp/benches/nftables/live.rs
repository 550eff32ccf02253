//! Packets for the kernel's stack without a sender: BPF_PROG_TEST_RUN with live frames. Before each frame
//! enters the stack at the loopback interface a program writes the next header into it.

use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use aya::{Ebpf, Pod};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

/// The headers of Ethernet, IP and TCP.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Header(pub [u8; 80]);

// SAFETY: an array of bytes.
unsafe impl Pod for Header {}

/// Writes frames' headers into the map of the program.
pub fn write(headers: &mut Array<MapData, Header>, frames: &[Vec<u8>]) {
    for (at, frame) in frames.iter().enumerate() {
        let mut header = [0; 80];
        let len = frame.len().min(80);
        header[..len].copy_from_slice(&frame[..len]);
        headers.set(at as u32, Header(header), 0).unwrap();
    }
}

/// What bpf(2) takes for BPF_PROG_TEST_RUN.
#[derive(Default)]
#[repr(C)]
struct TestRun {
    program: u32,
    verdict: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
}

/// The program, and its headers.
pub struct Live {
    _ebpf: Ebpf,
    program: OwnedFd,
    headers: Array<MapData, Header>,
    turn: Array<MapData, u32>,
    frame: Vec<u8>,
}

impl Live {
    pub fn open(object: &[u8]) -> Result<Self, String> {
        let mut ebpf = Ebpf::load(object).map_err(|error| error.to_string())?;
        let map = ebpf.take_map("headers").ok_or("no map of headers")?;
        let headers = Array::try_from(map).map_err(|error| error.to_string())?;
        let map = ebpf.take_map("turn").ok_or("no map of the turn")?;
        let turn = Array::try_from(map).map_err(|error| error.to_string())?;
        let program: &mut Xdp =
            ebpf.program_mut("csp_headers").ok_or("no program")?.try_into().map_err(|_| "no XDP program")?;
        program.load().map_err(|error| error.to_string())?;
        let fd = program.fd().map_err(|error| error.to_string())?;
        let program = fd.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        Ok(Live { _ebpf: ebpf, program, headers, turn, frame: Vec::new() })
    }

    pub fn set_frames(&mut self, frames: &[Vec<u8>]) {
        write(&mut self.headers, frames);
        self.frame.clone_from(&frames[0]);
    }

    /// Has the stack receive so many frames, from the first header on, and returns the processor time of
    /// that.
    pub fn receive(&mut self, frames: u32) -> Result<Duration, std::io::Error> {
        self.turn.set(0, 0, 0).map_err(std::io::Error::other)?;
        const PROG_TEST_RUN: libc::c_int = 10;
        const LIVE_FRAMES: u32 = 2;
        let attributes = TestRun {
            program: self.program.as_raw_fd() as u32,
            data_size_in: self.frame.len() as u32,
            data_in: self.frame.as_ptr() as u64,
            repeat: frames,
            flags: LIVE_FRAMES,
            ..TestRun::default()
        };
        let begin = processor_time();
        // SAFETY: the attributes are of the length that is named, outlive the call, and point to a frame that
        // does; the kernel only reads the frame.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw const attributes, size_of::<TestRun>())
        };
        let spent = processor_time() - begin;
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(spent) }
    }
}

/// The processor time of this thread.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
