//! The table of options against the running kernel.

use csp_app::options::{IP, IPV6, SOCKET, SocketOption, TABLE, TCP};

use super::*;

const FAMILIES: [c_int; 2] = [libc::AF_INET, libc::AF_INET6];

fn set(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the value.
    unsafe { syscall!(libc::SYS_setsockopt, fd, level, name, value.as_ptr(), value.len()) }
}

fn get(fd: c_int, level: c_int, name: c_int) -> Result<usize, Errno> {
    Value::of(fd, level, name).0.map(|(_, len)| len)
}

fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn the_kernel_has_no_option_that_the_table_lacks() {
    // Other numbers at the two levels of IP are those of netfilter's and of multicast routing's tables.
    let levels = [(SOCKET, 0..256), (IP, 0..64), (IPV6, 0..64), (IPV6, 70..80), (TCP, 0..256)];
    for (level, numbers) in levels {
        for number in numbers.filter(|number| options::of(level, *number).is_none()) {
            for family in FAMILIES {
                let socket = Scratch::new(family).unwrap();
                let answers = [set(socket.0, level, number, &[1, 0, 0, 0]), get(socket.0, level, number)];
                let unknown =
                    |answer: &Result<_, _>| matches!(answer, Err(libc::ENOPROTOOPT | libc::EOPNOTSUPP));
                assert!(answers.iter().all(unknown), "option {number} of level {level}: {answers:?}");
            }
        }
    }
}

#[test]
fn what_can_only_be_read_or_is_not_for_tcp_is_refused_by_the_kernel() {
    let refused = |option: &&SocketOption| matches!(option.treatment, Treatment::Query | Treatment::Foreign);
    for option in TABLE.iter().filter(refused) {
        for family in FAMILIES {
            let socket = Scratch::new(family).unwrap();
            let answer = set(socket.0, option.level, option.number, &[1, 0, 0, 0]);
            assert!(answer.is_err(), "{} is accepted", option.name);
        }
    }
}

/// A value that differs from a new socket's; `None` for options that a socket without a peer cannot have.
fn sample(option: &SocketOption) -> Option<Vec<u8>> {
    let int = |value: i32| Some(value.to_ne_bytes().to_vec());
    match option.name {
        // The kernel modules set it on connections.
        "TCP_ULP" => None,
        // A program must be loaded for it.
        "SO_ATTACH_BPF" => None,
        // Kernels differ in the types of routing headers that they have.
        "IPV6_RTHDR" => None,
        "SO_ATTACH_FILTER" => {
            static mut PROGRAM: [libc::sock_filter; 1] =
                [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
            let program = (&raw mut PROGRAM).cast::<libc::sock_filter>() as u64;
            Some([1u64.to_ne_bytes(), program.to_ne_bytes()].concat())
        }
        "SO_BINDTODEVICE" => Some(b"lo".to_vec()),
        "SO_PEEK_OFF" => int(0),
        "SO_MAX_PACING_RATE" => int(100_000),
        "SO_TXTIME" => Some([1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat()),
        // Report in software.
        "SO_TIMESTAMPING" | "SO_TIMESTAMPING_NEW" => int(1 << 4),
        "IP_OPTIONS" => Some(vec![1, 1, 1, 1]),
        "IP_UNICAST_IF" | "IPV6_UNICAST_IF" => int(1i32.to_be()),
        "IP_LOCAL_PORT_RANGE" => int((40_001 << 16) | 40_000),
        // PadN of four bytes.
        "IPV6_HOPOPTS" | "IPV6_DSTOPTS" | "IPV6_RTHDRDSTOPTS" => Some(vec![0, 0, 1, 4, 0, 0, 0, 0]),
        "TCP_TX_DELAY" => int(1000),
        _ => int(1),
    }
}

#[test]
fn an_option_that_can_be_read_back_is_found_by_its_value() {
    let mut found = 0;
    for option in TABLE.iter().filter(|option| option.treatment == Treatment::Kernel(Trace::Value)) {
        let Some(value) = sample(option) else { continue };
        let family = if option.level == IPV6 { libc::AF_INET6 } else { libc::AF_INET };
        let socket = Scratch::new(family).unwrap();
        assert_eq!(of(socket.0, family, LackingOptions::Perhaps), None, "a new socket");
        match set(socket.0, option.level, option.number, &value) {
            Ok(_) => {}
            // Options of a later kernel, or for root only.
            Err(libc::ENOPROTOOPT) => continue,
            Err(libc::EPERM) if !is_root() => continue,
            Err(errno) => panic!("{}: error {errno}", option.name),
        }
        let why = of(socket.0, family, LackingOptions::Perhaps)
            .unwrap_or_else(|| panic!("{} is not found", option.name));
        assert_eq!(why.reason, Reason::Lacking);
        let shown = why.option.and_then(|(level, name)| options::of(level.into(), name.into())).unwrap();
        // Both names of a device, and all of a timestamp, are one thing to the kernel; so is transparency in
        // both families.
        let alike = |prefix: &&str| option.name.starts_with(*prefix) && shown.name.starts_with(*prefix);
        let in_both = |name: &'static str| name.trim_start_matches("IPV6_").trim_start_matches("IP_");
        assert!(
            option == shown
                || in_both(option.name) == in_both(shown.name)
                || ["SO_BINDTO", "SO_ATTACH", "SO_TIMESTAMP"].iter().any(alike),
            "{} {shown:?}",
            option.name
        );
        found += 1;
    }
    assert!(found > 15, "{found}");
}

#[test]
fn an_option_that_cannot_be_read_back_says_so() {
    for option in TABLE.iter().filter(|option| option.treatment == Treatment::Kernel(Trace::Call)) {
        let family = if option.level == IPV6 { libc::AF_INET6 } else { libc::AF_INET };
        let socket = Scratch::new(family).unwrap();
        let answer = get(socket.0, option.level, option.number);
        // The answers to these two say nothing of what was set.
        let other = ["IPV6_2292PKTOPTIONS", "TCP_TIMESTAMP"].contains(&option.name);
        assert!(answer.is_err() || other, "{} can be read: {answer:?}", option.name);
    }
}
