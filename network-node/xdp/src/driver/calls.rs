//! Operations of instances.

use csp_plugins::{Answer, CallError, Settings};
use csp_types::Instant;

use super::{Driver, DriverError};
use crate::lists::List;
use crate::slots::{Kind, Wanted};

impl Driver {
    /// Executes an operation of an instance. Returns `None` if the instance has no slot at level 1.
    pub fn call(
        &mut self,
        now: Instant,
        name: &str,
        module: &str,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Option<Answer>, CallError> {
        let Some(at) = self.slots.place(name).map(usize::from) else {
            return Ok(self
                .carried_rows
                .get(name)
                .filter(|_| operation == "read")
                .cloned()
                .map(Answer::Rows));
        };
        let failed = |error: DriverError| CallError::NotFound(error.to_string());
        let (count, state) = self.state(at).map_err(failed)?;
        let is_supplied = matches!(&self.slots.0[at], Some(Wanted { kind: Kind::Supplied(_), .. }));
        let answer = match (&mut self.lists[at], module, operation) {
            (List::Blocks(list), ..) => list.call(now, operation, arguments, &state)?,
            (List::Networks(list), _, "read") => Answer::Rows(list.read(&state).map_err(failed)?),
            (List::Networks(list), _, "reset") => {
                list.reset();
                self.reset_state(at).map_err(failed)?;
                Answer::Done
            }
            (_, _, "read") if is_supplied => {
                self.read_supplied(at, &state, count.packets, count.dropped).map_err(failed)?
            }
            (_, "policer", "read") => Answer::Rows(vec![crate::lists::policer_row(&state)]),
            _ => Answer::Done,
        };
        let Some(carried) = self.carried_rows.get(name) else { return Ok(Some(answer)) };
        match operation {
            "read" => Ok(Some(crate::merge(answer, Answer::Rows(carried.clone())))),
            "reset" => {
                self.carried_rows.remove(name);
                Ok(Some(answer))
            }
            _ => Ok(Some(answer)),
        }
    }
}
