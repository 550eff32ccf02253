//! Plans made ready for many messages: what a row's bytes have to be, and expressions and results as loads
//! and stores at fixed places.
//!
//! A program yields what [`Plan`] yields over the same row, or `None` where it cannot say: the row is then
//! given to the plan.
//!
//! ```text
//!  first slice ─▶ Fixed::of ─▶ header and block ─▶ Condition::accepts, Code::run, Image::emit
//!                    │                                          │
//!                    └──────────────── None ────────────────────┴─▶ MessageView ─▶ Plan::accepts, evaluate, emit
//! ```

mod code;
mod image;

use csp_formats::{Field, Fixed};

use crate::plan::{ColumnPlace, Plan};
pub use code::{Code, Condition, Relation};
pub use image::{Computed, How, Image, Move, Store};

impl Plan {
    /// Where header and block of a source's messages lie, as far as the plan's columns and some other fields
    /// of the root block reach.
    #[must_use]
    pub fn fixed(&self, source: usize, also: Option<&Field>) -> Fixed {
        let columns = self.columns.iter().filter(|column| column.source == source);
        let fields = columns.filter_map(|column| match &column.place {
            ColumnPlace::Field(field) => Some(field),
            ColumnPlace::Data(_) | ColumnPlace::Group(_) => None,
        });
        let source = &self.sources[source];
        Fixed::new(&source.schema, source.format(), fields.chain(also))
    }
}
