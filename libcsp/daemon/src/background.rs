//! Threads for work that may take seconds and that no message waits for, such as compiling a module.

/// The nice value of such threads. A thread with it gets 1.5 % of a processor beside a busy thread with value
/// 0.
const NICE: i32 = 19;

/// Lowers the priority of the calling thread. On Linux the nice value applies to this thread only, and it
/// cannot be raised again. Has no effect if the operating system refuses.
pub fn lower_priority() {
    // PRIO_PROCESS with 0 is the calling thread (setpriority(2), "C library/kernel differences").
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Takes from the calling thread the preference before other programs that the process may have: what it does
/// is waited for, and must not hold up data workers on the same processor.
pub fn give_way_to_workers() {
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0) {
        let _ = rustix::process::setpriority_process(None, 0);
    }
}

/// Returns the processor time that the calling thread has used.
#[must_use]
pub fn thread_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gets_a_lower_priority() {
        let nice = || rustix::process::getpriority_process(None).expect("every thread has one");
        let before = nice();
        let lowered = std::thread::spawn(move || {
            lower_priority();
            nice()
        });
        assert_eq!((lowered.join().expect("it does not panic"), nice()), (NICE, before));
    }
}
