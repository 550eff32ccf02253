//! The built-in plug-ins, for level 2.

mod block_list;
mod capture;
mod counter;
mod dscp;
mod policer;
mod prefix_set;
mod simple;

pub use block_list::BLOCK_LIST;
pub use capture::CAPTURE;
pub use counter::COUNTER;
pub use dscp::DSCP;
pub use policer::POLICER;
pub use simple::{DROP, MIRROR, NO_OP, REDIRECT};

use crate::plugin::Module;
use crate::settings::{Kind, Parameter};

/// All built-in modules.
pub const MODULES: [Module; 9] = [NO_OP, DROP, REDIRECT, MIRROR, COUNTER, POLICER, DSCP, BLOCK_LIST, CAPTURE];

/// Declares a required parameter.
const fn required(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, default: None }
}

/// Declares a parameter with a default. An empty default means that the parameter is absent.
const fn optional(name: &'static str, kind: Kind, default: &'static str) -> Parameter {
    Parameter { name, kind, default: Some(default) }
}
