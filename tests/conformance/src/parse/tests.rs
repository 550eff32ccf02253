use super::*;

const HEADER: &str = "# What. RFC 9293 §3\n";

/// Returns the problem of a script with one invalid line.
fn problem(line: &str) -> String {
    let error = parse(&format!("{HEADER}{line}\n")).unwrap_err();
    assert_eq!((error.line, error.text.as_str()), (2, line));
    error.problem
}

#[test]
fn errors_name_the_line_and_what_is_allowed() {
    let check = |line: &str, part: &str| {
        let problem = problem(line);
        assert!(problem.contains(part), "{line}: {problem}");
    };
    check("0.1 < S 0:0(0) win 1", "begins with the time");
    check("+x listen", "not a duration such as");
    check("+0 < Q 0:0(0) win 1", "flag `Q`: expected S F R P U E W");
    check("+0 < S 0:1(0) win 1", "the length is not end minus start");
    check("+0 < S 0-1 win 1", "not a range such as");
    check("+0 > . 1:1(0)", "must be given together");
    check("+0 < . *:*(0) ack 1", "only in expected segments");
    check("+0 < S 0:0(0) win 70000", "not a number in range");
    check("+0 < S 0:0(0) wim 7", "expected ack, win");
    check("+0 < S 0:0(0) <mss 1460", "`<` without `>`");
    check("+0 < S 0:0(0) <mess 1460>", "expected mss N");
    check("+0 > S 0:0(0) <raw 00>", "expected mss N");
    check("+0 < . 1:1(0) ack 1 <sack 5>", "not a SACK block such as");
    check("+0 sing", "expected < and >");
    check("+0 write some", "not a number of bytes");
    check("+0..1 listen", "only for an expected segment");
    check("+0 @x listen", "not a connection such as @2");
    check("+0 ! happy", "expected established");
    check("+0 ? cwnd 1", "`? figure == value`");
    check("+0 ? cwnd ~ 1", "expected == !=");
    check("+0 ? cwnd in 1", "not of the form low..high");
    check("+0 icmp redirect", "icmp too_big mtu N seq S");
    check("+0 accept fast", "expected <options>");
    check("config colour=red", "unknown key; known keys are ip,");
    check("config ip=5", "not one of 4, 6");
    check("config nagle", "not key=value");
}

#[test]
fn a_script_says_what_it_shows_before_anything_else() {
    let error = parse("+0 listen\n").unwrap_err();
    assert!(error.problem.contains("name the RFC"), "{error}");
    let late = parse(&format!("{HEADER}+0 listen\nconfig ip=6\n")).unwrap_err();
    assert_eq!(late.line, 3);
    assert!(late.problem.contains("precede the first timed line"), "{late}");
}

#[test]
fn a_segment_is_read_whole() {
    let text = "+0.5 @3 < SEW. 0:0(0) ack 1 win 100 urg 7 <mss 1460,sackOK,TS val 5 ecr =9,wscale 7> [ce]";
    let script = parse(&format!("{HEADER}{text}\n")).unwrap();
    let line = &script.lines[0];
    assert_eq!((line.number, line.peer), (2, 3));
    assert_eq!(line.after, When::Exactly(Duration::from_millis(500)));
    let Step::Arrive(segment) = &line.step else { panic!("{line:?}") };
    assert_eq!(segment.flags.0, 0b1101_0010);
    assert_eq!((segment.window, segment.urgent, segment.ecn), (Some(100), Some(7), Some(3)));
    let options = segment.options.as_ref().unwrap();
    assert_eq!((options.mss, options.window_scale, options.sack_permitted), (Some(1460), Some(7), true));
}

#[test]
fn a_handshake_in_one_word_is_five_lines() {
    let lines = |word| parse(&format!("{HEADER}+1 {word} <mss 1000> win 5000 rtt 20ms\n")).unwrap().lines;
    assert_eq!((lines("accept").len(), lines("open").len()), (5, 5));
    assert!(lines("accept").iter().all(|line| line.number == 2));
}
