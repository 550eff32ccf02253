//! The program without an interface: BPF_PROG_TEST_RUN.

use aya::programs::{TestRun as _, TestRunOptions};

use super::{Driver, DriverError};

impl Driver {
    /// Runs the program on a frame as if an interface had received it. Returns the program's verdict, and the
    /// frame afterwards. The interface is the one with number 1.
    pub fn test_run(
        &mut self,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(u32, Vec<u8>, core::time::Duration), DriverError> {
        self.test_program("csp_level1", frame, repeat)
    }

    #[doc(hidden)]
    pub fn test_program(
        &mut self,
        name: &'static str,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(u32, Vec<u8>, core::time::Duration), DriverError> {
        let program = self.program(name)?;
        if program.fd().is_err() {
            program.load()?;
        }
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::new()
        };
        let result = program.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value, out, result.duration))
    }
}
