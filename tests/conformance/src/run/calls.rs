//! The calls by the engine's owner in scripts.

use csp_tcp::ListenError;
use csp_types::FlowLabel;

use super::Run;
use crate::config;
use crate::parse::value;
use crate::script::{Call, Line, Number};
use crate::stream_byte;

impl Run<'_> {
    pub(super) fn call(&mut self, line: &Line, call: &Call) -> Result<(), String> {
        let at = self.host.elapsed();
        self.note(at, &format!("@{} {}", line.peer, line.text));
        let tuple = self.script.config.tuple(line.peer);
        let now = self.host.now;
        match call {
            Call::Listen { again } => match self.host.stack.listen(tuple.local, 1) {
                Err(ListenError::InUse) if *again => Ok(()),
                result => result.map_err(|error| error.to_string()),
            },
            Call::Unlisten => {
                let listened = self.host.stack.unlisten(tuple.local);
                if listened { Ok(()) } else { Err("the port has no listener".into()) }
            }
            Call::Connect(wanted) => self.connect(line.peer, wanted.as_deref()),
            Call::Write(len, taken) => self.write(line.peer, *len, *taken),
            Call::Read(max, wanted) => self.read(line.peer, *max, *wanted),
            Call::Options(pairs) => self.set(line.peer, pairs),
            Call::PathError(error, seq, believed) => {
                let seq = match seq {
                    Number::Relative(n) => self.peer(line.peer).bases.ours.wrapping_add(*n as u32),
                    Number::Absolute(n) => *n,
                    Number::Any => return Err("`*` is not allowed here".into()),
                };
                let result = self.host.stack.on_path_error(now, &tuple, seq, *error);
                if result == *believed { Ok(()) } else { Err(format!("the engine acted on it: {result}")) }
            }
            Call::Shutdown | Call::Close | Call::Reset | Call::Abort => {
                let label = self.label(line.peer)?;
                match call {
                    Call::Shutdown => self.host.stack.shutdown(now, label),
                    Call::Close => self.host.stack.close(now, label),
                    Call::Reset => drop(self.host.stack.reset(now, label)),
                    _ => self.host.stack.abort(now, label),
                }
                Ok(())
            }
        }?;
        self.host.pump();
        Ok(())
    }

    fn label(&self, number: u16) -> Result<FlowLabel, String> {
        self.peers.get(&number).and_then(|peer| peer.label).ok_or_else(|| "there is no connection".into())
    }

    fn connect(&mut self, number: u16, wanted: Option<&str>) -> Result<(), String> {
        let tuple = self.script.config.tuple(number);
        let result = self.host.stack.connect(self.host.now, tuple, 1, 1);
        let error = result.as_ref().err().map(|error| value::word(&format!("{error:?}")));
        if error.as_deref() != wanted {
            return Err(format!("connect gave {result:?}"));
        }
        if let Ok(label) = result {
            let peer = self.peer(number);
            (peer.label, peer.read) = (Some(label), 0);
        }
        Ok(())
    }

    fn write(&mut self, number: u16, len: usize, wanted: usize) -> Result<(), String> {
        let label = self.label(number)?;
        let first = self.peer(number).written;
        let data: Vec<u8> = (first..first + len as u64).map(stream_byte).collect();
        let taken = self.host.stack.write(self.host.now, label, &data);
        self.peer(number).written += taken as u64;
        if taken == wanted { Ok(()) } else { Err(format!("{taken} bytes were taken")) }
    }

    fn read(&mut self, number: u16, max: usize, wanted: Option<usize>) -> Result<(), String> {
        let label = self.label(number)?;
        let mut data = Vec::new();
        self.host.stack.read_with(self.host.now, label, max, |slice| {
            data.extend_from_slice(slice);
            slice.len()
        });
        let first = self.peer(number).read;
        self.peer(number).read += data.len() as u64;
        if let Some(at) = data.iter().zip(first..).position(|(&byte, at)| byte != stream_byte(at)) {
            return Err(format!("byte {} of the stream is not what the peer sent", first + at as u64));
        }
        match wanted {
            Some(n) if n != data.len() => Err(format!("{} bytes were read", data.len())),
            _ => Ok(()),
        }
    }

    fn set(&mut self, number: u16, pairs: &[(String, String)]) -> Result<(), String> {
        let label = self.label(number)?;
        let mut options = self.script.config.stack.connection_options();
        for (key, text) in pairs {
            match key.as_str() {
                "nagle" => options.nagle = config::on_off(text)?,
                "keepalive" => options.keepalive_idle = config::optional(text)?,
                "user_timeout" => options.user_timeout = config::optional(text)?,
                _ => return Err(format!("{key}: expected nagle, keepalive, user_timeout")),
            }
        }
        let live = self.host.stack.set_options(self.host.now, label, options);
        if live { Ok(()) } else { Err("the connection has ended".into()) }
    }
}
