use alloc::vec::Vec;

use super::*;

/// A thread on virtual time: looks take a microsecond, a sleep adds 15 µs to what wakes it.
struct Thread {
    policy: SpinPolicy,
    gap: Gap,
    now: u64,
    /// What a look takes, in nanoseconds.
    look_ns: u64,
    /// Of the second half of a run: time spent looking, in nanoseconds, and sleeps.
    looking: u64,
    sleeps: u32,
}

impl Thread {
    fn new(setting: SpinSetting, worth: SpinWorth) -> Self {
        Thread {
            policy: SpinPolicy::new(setting, worth),
            gap: Gap::new(),
            now: 1 << 40,
            look_ns: 1_000,
            looking: 0,
            sleeps: 0,
        }
    }

    /// Work comes `gap_ns` from now; another thread takes the processor for `stolen_ns` at each look.
    fn gap(&mut self, gap_ns: u64, stolen_ns: u64) {
        let due = self.now + gap_ns;
        while self.now < due {
            if self.policy.nothing(&mut self.gap, Instant::from_nanos(self.now)) {
                self.now += self.look_ns + stolen_ns;
                self.looking += self.look_ns;
            } else {
                self.sleeps += 1;
                self.now = self.now.max(due) + WAKE_UP_NS;
                self.gap.woke();
            }
        }
        self.policy.found(&mut self.gap, Instant::from_nanos(self.now));
        self.now += 5_000; // the work
    }

    /// Repeats gaps, first to learn them, then to count what they cost.
    fn run(&mut self, gaps: &[u64], stolen_ns: u64) {
        for round in 0..400 {
            if round == 200 {
                (self.looking, self.sleeps) = (0, 0);
            }
            gaps.iter().for_each(|gap| self.gap(*gap, stolen_ns));
        }
    }
}

fn daemon() -> Thread {
    Thread::new(SpinSetting::Auto, SpinWorth::DAEMON)
}

#[test]
fn work_that_comes_sooner_than_a_wake_up_is_worth_is_awaited_looking() {
    for gaps in [&[2_000][..], &[10_000, 20_000], &[50_000, 35_000], &[70_000]] {
        let mut thread = daemon();
        thread.run(gaps, 0);
        assert_eq!(thread.sleeps, 0, "{gaps:?}");
    }
}

#[test]
fn an_idle_thread_does_not_look_again() {
    let mut thread = daemon();
    thread.run(&[30_000], 0);
    thread.run(&[100_000_000], 0);
    assert_eq!((thread.looking, thread.sleeps), (0, 200));
}

#[test]
fn requests_at_long_intervals_are_not_paid_for_with_looking() {
    // At 1,000 requests a second: an answer after 50 µs, the next request 900 µs later.
    let mut thread = daemon();
    thread.run(&[50_000, 900_000], 0);
    assert_eq!(thread.sleeps, 400);
    // An answer that comes at once is awaited, and no longer than that.
    thread.run(&[3_000, 900_000], 0);
    assert_eq!(thread.sleeps, 200);
    assert!(thread.looking <= 200 * 2 * 8_000, "{} ns", thread.looking);
}

#[test]
fn where_others_want_the_processor_only_short_gaps_are_looked_through() {
    let mut thread = daemon();
    thread.run(&[60_000], 0);
    assert_eq!(thread.sleeps, 0);
    thread.run(&[60_000], 30_000);
    assert!(thread.sleeps > 60, "{} sleeps of 200", thread.sleeps);
    thread.run(&[12_000], 10_000);
    assert!(thread.sleeps < 50, "{} sleeps of 200", thread.sleeps);
    // When they are gone looking is worth more again.
    thread.run(&[60_000], 0);
    assert!(thread.sleeps < 10, "{} sleeps of 200", thread.sleeps);
}

#[test]
fn long_looks_are_not_taken_for_the_work_of_others() {
    let mut thread = Thread { look_ns: 7_000, ..daemon() };
    thread.run(&[60_000], 0);
    assert_eq!(thread.sleeps, 0);
}

#[test]
fn applications_look_only_as_long_as_sleeping_costs() {
    let mut thread = Thread::new(SpinSetting::Auto, SpinWorth::APPLICATION);
    thread.run(&[6_000], 0);
    assert_eq!(thread.sleeps, 0);
    thread.run(&[40_000], 0);
    assert_eq!(thread.sleeps, 200);
    thread.run(&[6_000], 20_000);
    assert!(thread.sleeps > 100, "{} sleeps of 200 beside others", thread.sleeps);
}

#[test]
fn a_fixed_setting_is_kept() {
    for (us, sleeps, off) in [(0, 200, true), (20, 200, false), (100, 0, false), (u16::MAX, 0, false)] {
        let mut thread = Thread::new(SpinSetting::Fixed(us), SpinWorth::DAEMON);
        thread.run(&[50_000], 0);
        assert_eq!((thread.sleeps, thread.policy.is_off()), (sleeps, off), "{us} us");
        assert!(thread.policy.limit() <= Duration::from_micros(SPIN_MAX_US.into()));
    }
}

#[test]
fn no_sequence_of_times_overflows_or_looks_for_longer_than_the_longest_limit() {
    // A clock that jumps both ways, from a fixed seed (Marsaglia's xorshift64).
    let (mut state, mut policy, mut gap) = (0x9e37_79b9_7f4a_7c15_u64, daemon().policy, Gap::new());
    let mut seen = Vec::new();
    for _ in 0..100_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let now = Instant::from_nanos(state >> (state % 64));
        match state % 3 {
            0 => policy.found(&mut gap, now),
            1 => _ = policy.nothing(&mut gap, now),
            _ => gap.woke(),
        }
        seen.push(policy.limit());
    }
    assert!(seen.iter().all(|limit| *limit <= Duration::from_micros(256)));
}

#[test]
fn settings_are_read_from_text() {
    for (text, setting) in [
        ("auto", Ok(SpinSetting::Auto)),
        ("0", Ok(SpinSetting::Fixed(0))),
        ("1000", Ok(SpinSetting::Fixed(1000))),
        ("1001", Err(SpinSettingError)),
        ("-1", Err(SpinSettingError)),
        ("", Err(SpinSettingError)),
        ("fast", Err(SpinSettingError)),
    ] {
        assert_eq!(text.parse(), setting, "{text:?}");
    }
}
