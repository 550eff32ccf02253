//! A hostile module: passes 100 messages on, and never ends with the next one. The host stops it.
//!
//! Built as `anonymise.rs` is.
#![no_std]

use csp_guest::{Declaration, Handler, Message, Stop};

#[derive(Default)]
struct Endless {
    messages: u32,
}

impl Handler for Endless {
    fn on_message(&mut self, message: &Message) -> Result<(), Stop> {
        self.messages += 1;
        while self.messages > 100 {
            core::hint::black_box(());
        }
        message.emit_same(0)
    }
}

csp_guest::export!(Endless, buffer: 16, Declaration::DEFAULT);
