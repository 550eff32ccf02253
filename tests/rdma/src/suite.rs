//! The tests on verbs in one guest: checks of the device, then the given test binaries.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use csp_cluster::demo::step;

use crate::kernel::Kernel;
use crate::{Fleet, Guest, Sizes};

const SIZES: Sizes = Sizes { memory_mib: 2048, cpus: 2, mtu: 1500 };
/// Time limit of a check of the device.
const CHECK_DEADLINE: Duration = Duration::from_secs(60);
/// Time limit of a test binary.
const BINARY_DEADLINE: Duration = Duration::from_secs(300);
/// Tests on verbs have this in their names, and are ignored in ordinary runs.
const FILTER: &str = "verbs";
/// Runs a program's server in the background and its client once the server listens; then waits for the
/// server.
const PINGPONG: &str = "ibv_rc_pingpong -d rxe0 -g $gid > /tmp/server & server=$!
    until ss -Hltn 'sport = 18515' | grep -q .; do sleep 0.05; done
    ibv_rc_pingpong -d rxe0 -g $gid $address; wait $server";

/// Boots a guest, checks its device and runs the tests on verbs of `binaries`.
pub fn run(kernel: &Kernel, binaries: &[PathBuf]) -> Result<()> {
    println!("RDMA verbs in a guest (Soft-RoCE on an emulated processor)\n");
    let mut fleet = step("a guest", || Fleet::boot(kernel, 1, SIZES))?;
    let guest = fleet.guests.first_mut().context("a guest was booted")?;
    let outcome = device(guest).and_then(|()| {
        let mut passed = 0;
        for binary in binaries {
            passed += tests(guest, binary)?;
        }
        if passed == 0 && !binaries.is_empty() {
            bail!("none of the binaries has a test on verbs");
        }
        Ok(())
    });
    outcome.with_context(|| format!("the end of the guest's console:\n{}", guest.console()))
}

/// Checks that the device exists and works with the reference programs.
fn device(guest: &mut Guest) -> Result<()> {
    step("rdma link: rxe0 is active", || {
        let text = guest.run(&["rdma", "link"], CHECK_DEADLINE)?;
        if text.contains("rxe0/1 state ACTIVE") { Ok(()) } else { bail!("{text}") }
    })?;
    let info = step("ibv_devinfo: its port is active", || {
        let text = guest.run(&["ibv_devinfo", "-d", "rxe0"], CHECK_DEADLINE)?;
        if text.contains("PORT_ACTIVE") { Ok(text) } else { bail!("{text}") }
    })?;
    for line in info.lines().filter(|line| line.contains("_mtu:")) {
        println!("  · {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    for (name, address) in [("IPv4", guest.address().to_string()), ("IPv6", guest.address6().to_string())] {
        // The kernel prints GIDs in full, an IPv4 address as ::ffff: and its bytes.
        let entry = if name == "IPv4" { "0000:ffff:0a63:0001$" } else { "^fd99:.*:0001$" };
        let gid = format!(
            "gid=$(grep -l '{entry}' /sys/class/infiniband/rxe0/ports/1/gids/* | sed 's:.*/::'); address=127.0.0.1"
        );
        let text = step(&format!("ibv_rc_pingpong by the {name} GID"), || {
            guest.run(&["/bin/sh", "-ec", &format!("{gid}\n{PINGPONG}")], CHECK_DEADLINE)
        })?;
        for line in text.lines().filter(|line| line.contains("usec/iter")) {
            println!("  · {}", line.trim());
        }
        step(&format!("rping by rdma_cm to {address}"), || {
            let server = format!("rping -s -a {address} -C 20 > /tmp/server & server=$!");
            let client = format!("rping -c -a {address} -C 20 2>/tmp/error");
            let again = "tries=0; until CLIENT; do tries=$((tries + 1)); [ $tries -lt 20 ]; sleep 0.2; done";
            let script = format!("{server}\n{}\nwait $server", again.replace("CLIENT", &client));
            guest.run(&["/bin/sh", "-ec", &script], CHECK_DEADLINE)
        })?;
    }
    Ok(())
}

/// Runs the tests on verbs of one binary. Returns the number of tests that passed.
fn tests(guest: &mut Guest, binary: &std::path::Path) -> Result<u32> {
    let address = format!("CSP_VI_VERBS={}", guest.address());
    let path = binary.canonicalize().with_context(|| binary.display().to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command =
        ["env", &address, &path.to_string_lossy(), "--ignored", "--test-threads=1", "--nocapture", FILTER];
    let text = step(&format!("tests on verbs of {name}"), || guest.run(&command, BINARY_DEADLINE))?;
    let mut passed = 0;
    for line in text.lines().filter(|line| line.starts_with("test ")) {
        println!("  · {line}");
        let number = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split(' ').next());
        passed += number.and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    }
    Ok(passed)
}
