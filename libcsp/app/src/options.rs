//! The socket options of Linux 6 and their treatment on accelerated sockets: the one table that the socket
//! filter obeys, the agent names options from, and `docs/socket-options.md` prints.
//!
//! An option that is not in the table is treated like [`Treatment::Kernel`]: its meaning is unknown, so a
//! socket that has it stays in the kernel.

mod table;

pub use table::TABLE;

/// The level of socket options, `SOL_SOCKET`.
pub const SOCKET: i32 = 1;
/// `IPPROTO_IP`
pub const IP: i32 = 0;
/// `IPPROTO_IPV6`
pub const IPV6: i32 = 41;
/// `IPPROTO_TCP`
pub const TCP: i32 = 6;

/// Treatment of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// In force on accelerated sockets.
    Served,
    /// Stored and returned, without effect. A program loses neither protection nor bytes by this.
    Kept,
    /// Accelerated sockets lack it: a socket that has it stays in the kernel, and setting it on an
    /// accelerated socket fails with EOPNOTSUPP.
    Kernel(Trace),
    /// Can only be read.
    Query,
    /// The kernel refuses it for TCP sockets.
    Foreign,
}

/// How an option of [`Treatment::Kernel`] is recognised on a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trace {
    /// getsockopt returns a value that differs from that of a new socket.
    Value,
    /// getsockopt does not return it: a call that sets it counts.
    Call,
}

/// An option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketOption {
    /// Its level.
    pub level: i32,
    /// Its number.
    pub number: i32,
    /// Its name in Linux's headers, without a suffix `_OLD`.
    pub name: &'static str,
    /// Treatment of the option.
    pub treatment: Treatment,
}

/// The rows of each level, from and to which index.
const LEVELS: [(i32, (usize, usize)); 4] =
    [(SOCKET, rows(SOCKET)), (IP, rows(IP)), (IPV6, rows(IPV6)), (TCP, rows(TCP))];

/// Returns the rows of a level, which follow each other.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn rows(level: i32) -> (usize, usize) {
    let mut from = 0;
    while TABLE[from].level != level {
        from += 1;
    }
    let mut until = from;
    while until < TABLE.len() && TABLE[until].level == level {
        until += 1;
    }
    (from, until)
}

/// The option of this level and number. Programs set some with every request, so this is no search of all.
pub fn of(level: i32, number: i32) -> Option<&'static SocketOption> {
    let (_, (from, until)) = LEVELS.into_iter().find(|(known, _)| *known == level)?;
    let rows = TABLE.get(from..until)?;
    rows.binary_search_by_key(&number, |option| option.number).ok().and_then(|at| rows.get(at))
}

/// The treatment of an option; unknown ones are left to the kernel.
pub fn treatment(level: i32, number: i32) -> Treatment {
    of(level, number).map_or(Treatment::Kernel(Trace::Call), |option| option.treatment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/socket-options.md");

    fn words(treatment: Treatment) -> &'static str {
        match treatment {
            Treatment::Served => "in force",
            Treatment::Kept => "kept, no effect",
            Treatment::Kernel(Trace::Value) => "kernel",
            Treatment::Kernel(Trace::Call) => "kernel, once set",
            Treatment::Query => "read only",
            Treatment::Foreign => "not for TCP",
        }
    }

    #[test]
    fn every_option_stands_in_the_table_once() {
        for (at, option) in TABLE.iter().enumerate() {
            assert_eq!(of(option.level, option.number), TABLE.get(at), "{}", option.name);
        }
        assert_eq!(treatment(SOCKET, 9999), Treatment::Kernel(Trace::Call));
        assert_eq!(treatment(284, 1), Treatment::Kernel(Trace::Call), "another level");
    }

    #[test]
    fn the_document_has_the_table() {
        let levels =
            [(SOCKET, "SOL_SOCKET"), (IP, "IPPROTO_IP"), (IPV6, "IPPROTO_IPV6"), (TCP, "IPPROTO_TCP")];
        let mut printed = String::new();
        for (level, heading) in levels {
            printed +=
                &format!("\n## {heading}\n\n| number | option | on accelerated sockets |\n|---|---|---|\n");
            for option in TABLE.iter().filter(|option| option.level == level) {
                printed +=
                    &format!("| {} | {} | {} |\n", option.number, option.name, words(option.treatment));
            }
        }
        if let Some(path) = std::env::var_os("CSP_PRINT_OPTIONS") {
            std::fs::write(path, &printed).unwrap();
        }
        assert!(
            DOCUMENT.ends_with(&printed),
            "docs/socket-options.md differs from the table; it should end:\n{printed}"
        );
    }
}
