//! A plan applied to single messages: what select and project share with queries.

use std::ops::Deref;
use std::sync::Arc;

use csp_formats::Fixed;
use csp_handlers::{Call, FormatId, Piece, Stop};
use csp_queries::{APART_MAX, Apart, Condition, EmitError, Image, Part, Plan};

use crate::choice::Rules;
use crate::counters::Counter;
use crate::formats::{Invalid, view};
use crate::input::{Body, PIECES_MAX};
use crate::special::{Special, Specialiser, Verdict};

/// Longest message that an operator makes, in bytes, topic and further frames included.
pub const ROW_LEN_MAX: u32 = 64 << 10;

/// A message that cannot be read.
pub(crate) const INVALID: Stop = Stop::Fault("the message is not of its format");
pub(crate) const SLICES: Stop = Stop::Fault("the message is in more pieces than an operator reads");
pub(crate) const FORMAT: Stop = Stop::Fault("the operator has no plan for the message's format");
pub(crate) const TOO_LONG: Stop = Stop::Fault("the result is longer than an operator writes");
pub(crate) const VALUE: Stop = Stop::Fault("the result's format cannot say a value");

/// Room for one result, allocated once.
pub(crate) type Room = Box<[u8]>;

pub(crate) fn room(len: u32) -> Room {
    vec![0; len as usize].into_boxed_slice()
}

/// What a row that is not written is counted as, and why its message is given up.
pub(crate) fn problem(error: &EmitError) -> (Counter, Stop) {
    match error {
        EmitError::Source(_) => (Counter::Invalid, INVALID),
        EmitError::Result(error) => match error.problem {
            csp_formats::WriteProblem::NoSpace { .. } => (Counter::TooLong, TOO_LONG),
            _ => (Counter::Invalid, VALUE),
        },
    }
}

/// Counts a message that is given up.
#[cold]
pub(crate) fn give_up(call: &mut Call<'_>, (counter, stop): (Counter, Stop)) -> Result<(), Stop> {
    counter.add(call.state(), 1);
    Err(stop)
}

/// A plan of one source, and how its messages are read at fixed places.
#[derive(Debug)]
pub(crate) struct Ready {
    plan: Arc<Plan>,
    fixed: Fixed,
    programs: Programs,
    special: Option<Box<Special>>,
}

/// The plan over rows at fixed places, as it is built in.
#[derive(Debug)]
struct Programs {
    filter: Option<Condition>,
    image: Option<Image>,
}

/// What is known of a message when its first slice was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Glance {
    Refused,
    Accepted,
    /// The length of its result, which is written.
    Written(usize),
    /// Header and root block of its result are written.
    Begun,
    Nothing,
}

impl Ready {
    pub fn new(plan: impl Into<Arc<Plan>>) -> Self {
        let plan = plan.into();
        let programs = Programs { filter: Condition::new(&plan, &plan.filter), image: Image::new(&plan) };
        Ready { fixed: plan.fixed(0, None), programs, special: None, plan }
    }

    /// Asks for code that is made for the plan, or only for its condition.
    #[must_use]
    pub fn specialised(
        self,
        specialiser: Option<&(Arc<dyn Specialiser>, Rules)>,
        condition_only: bool,
    ) -> Self {
        let special = specialiser.map(|(specialiser, rules)| {
            Box::new(Special::new(specialiser, &self.plan, condition_only, *rules))
        });
        Ready { special, ..self }
    }

    /// Looks at the first slice of a message, and writes its result if it is asked for and lies there.
    #[inline]
    fn glance(&mut self, call: &Call<'_>, body: Body, room: Option<&mut [u8]>) -> Glance {
        let Some(row) = body.fixed(call, &self.fixed) else { return Glance::Nothing };
        let verdict = match &mut self.special {
            None => self.programs.run(row, room),
            Some(special) => special.run(row, room, |room| self.programs.run(row, room)),
        };
        match verdict {
            Verdict::Unsaid => Glance::Nothing,
            Verdict::Refused => Glance::Refused,
            Verdict::Accepted => Glance::Accepted,
            Verdict::Written(len) => match &self.programs.image {
                Some(image) if image.is_whole() => Glance::Written(len),
                _ => Glance::Begun,
            },
        }
    }

    /// Whether the filter accepts the message of a call. `None`: it is in too many slices.
    #[inline]
    pub fn accepts_message(&mut self, call: &Call<'_>) -> Option<Result<bool, Invalid>> {
        let body = Body::of(call);
        match self.glance(call, body, None) {
            Glance::Refused => Some(Ok(false)),
            Glance::Accepted | Glance::Written(_) | Glance::Begun => Some(Ok(true)),
            Glance::Nothing => body.read(call, |slices| {
                let source = &self.sources[0];
                let view = view(&source.schema, source.format(), slices)?;
                Ok(self.accepts(&[&view])?)
            }),
        }
    }
}

impl Programs {
    #[inline]
    fn run(&self, row: &[u8], room: Option<&mut [u8]>) -> Verdict {
        match self.filter.as_ref().and_then(|filter| filter.accepts(&[row])) {
            Some(true) => (),
            Some(false) => return Verdict::Refused,
            None => return Verdict::Unsaid,
        }
        let (Some(image), Some(room)) = (&self.image, room) else { return Verdict::Accepted };
        image.emit(&[row], room).map_or(Verdict::Accepted, Verdict::Written)
    }
}

impl Deref for Ready {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

/// Variable data of at least so many bytes is emitted as a part of the message.
const SHARED_MIN: usize = 256;

/// A result: what was written, and what of the message lies between.
#[derive(Clone, Copy)]
struct Written {
    len: usize,
    parts: [Part; APART_MAX],
    shared: usize,
}

impl Written {
    /// The pieces of the result, and how many there are.
    fn pieces<'r>(&self, room: &'r [u8], body: Body) -> ([Piece<'r>; PIECES_MAX], usize) {
        let mut pieces = [Piece::Bytes(&[]); PIECES_MAX];
        let (mut count, mut from) = (0, 0);
        for part in &self.parts[..self.shared] {
            pieces[count] = Piece::Bytes(&room[from..part.at]);
            // Both lie within the message.
            pieces[count + 1] = Piece::Of { start: body.start + part.start as u32, len: part.len as u32 };
            (count, from) = (count + 2, part.at);
        }
        pieces[count] = Piece::Bytes(&room[from..self.len]);
        (pieces, count + 1)
    }
}

/// The result of a plan of one source over a message, or nothing if the filter does not accept the message.
/// `glance` is what is known.
#[inline]
fn project(
    plan: &Plan,
    (slices, glance): (&[&[u8]], Glance),
    room: &mut [u8],
) -> Result<Option<Written>, (Counter, Stop)> {
    let source = &plan.sources[0];
    let invalid = (Counter::Invalid, INVALID);
    let view = view(&source.schema, source.format(), slices).map_err(|_| invalid)?;
    if glance == Glance::Nothing && !plan.accepts(&[&view]).map_err(|_| invalid)? {
        return Ok(None);
    }
    let mut apart = Apart::new(slices, SHARED_MIN);
    let written = match glance {
        Glance::Begun => plan.emit_behind(&[&view], room, Some(&mut apart)),
        _ => plan.emit_apart(&[&view], &[], room, Some(&mut apart)),
    };
    match written {
        Ok(len) => {
            let mut parts = [Part::default(); APART_MAX];
            parts[..apart.parts().len()].copy_from_slice(apart.parts());
            Ok(Some(Written { len, parts, shared: apart.parts().len() }))
        }
        Err(error) => Err(problem(&error)),
    }
}

/// Whether something was emitted of a message, or why it could not be made. The outer error is a lack of
/// room.
pub(crate) type Sent = Result<Result<bool, (Counter, Stop)>, Stop>;

/// Emits the result of a plan of one source over the message of a call, if its filter accepts it.
#[inline]
pub(crate) fn run(
    plan: &mut Ready,
    call: &mut Call<'_>,
    (output, format): (u8, FormatId),
    room: &mut [u8],
) -> Sent {
    let body = Body::of(call);
    let glance = plan.glance(call, body, Some(room));
    match glance {
        Glance::Refused => return Ok(Ok(false)),
        Glance::Written(len) => {
            body.emit(call, output, format, &[Piece::Bytes(&room[..len])])?;
            return Ok(Ok(true));
        }
        Glance::Accepted | Glance::Begun | Glance::Nothing => (),
    }
    match body.read(call, |slices| project(plan, (slices, glance), room)) {
        None => Ok(Err((Counter::Invalid, SLICES))),
        Some(Err(problem)) => Ok(Err(problem)),
        Some(Ok(None)) => Ok(Ok(false)),
        Some(Ok(Some(written))) => {
            let (pieces, count) = written.pieces(room, body);
            body.emit(call, output, format, &pieces[..count])?;
            Ok(Ok(true))
        }
    }
}

/// Counts what became of a message that is emitted at most once.
#[inline]
pub(crate) fn count(call: &mut Call<'_>, sent: Sent) -> Result<(), Stop> {
    let counter = match sent? {
        Err(problem) => return give_up(call, problem),
        Ok(true) => Counter::Emitted,
        Ok(false) => Counter::Refused,
    };
    counter.add(call.state(), 1);
    Counter::Read.add(call.state(), 1);
    Ok(())
}
