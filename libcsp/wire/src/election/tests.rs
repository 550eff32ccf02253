use super::*;

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn beat() -> Vec<u8> {
    let groups = [
        GroupBeat { group: 7, epoch: 3, stage: Stage::Holds, successor: None },
        GroupBeat { group: u64::MAX, epoch: 0, stage: Stage::Yields, successor: Some(id("nn-2")) },
    ];
    let mut out = [0; LEN_MAX];
    let condition = Condition { able: true, draining: true, well_ms: 1_500 };
    let len = Beat::emit(condition, 99, groups.into_iter(), &mut out).unwrap();
    let Ok(Election::Beat(beat)) = Election::parse(&out[..len]) else { panic!("a beat") };
    assert_eq!((beat.condition, beat.sent), (condition, 99));
    assert_eq!(beat.groups().collect::<Vec<_>>(), groups);
    out[..len].to_vec()
}

fn ballot() -> Vec<u8> {
    let nodes =
        [(id("nn-1"), Condition::default()), (id("nn-2"), Condition { able: true, ..Condition::default() })];
    let groups = [
        GroupBallot { group: 1, epoch: 2, holder: Some(1), successor: None, candidates: 0b11 },
        GroupBallot { group: 2, epoch: 0, holder: None, successor: Some(0), candidates: 0 },
    ];
    let mut out = [0; LEN_MAX];
    let len = Ballot::emit(5, nodes.into_iter(), groups.into_iter(), &mut out).unwrap();
    let Ok(Election::Ballot(ballot)) = Election::parse(&out[..len]) else { panic!("a ballot") };
    assert_eq!(ballot.answers, 5);
    assert_eq!(ballot.nodes().collect::<Vec<_>>(), nodes);
    assert_eq!(ballot.groups().collect::<Vec<_>>(), groups);
    out[..len].to_vec()
}

#[test]
fn beats_and_ballots_are_read_as_they_were_written() {
    beat();
    ballot();
}

#[test]
fn the_longest_messages_fit() {
    let long = id(&"n".repeat(63));
    let mut out = [0; LEN_MAX];
    let group = GroupBeat { group: 1, epoch: 1, stage: Stage::Yields, successor: Some(long) };
    Beat::emit(Condition::default(), 1, [group; GROUPS_MAX].into_iter(), &mut out).unwrap();
    let group = GroupBallot { group: 1, epoch: 1, holder: None, successor: None, candidates: 0 };
    let nodes = [(long, Condition::default()); NODES_MAX];
    Ballot::emit(1, nodes.into_iter(), [group; GROUPS_MAX].into_iter(), &mut out).unwrap();
    let too_many = [group; GROUPS_MAX + 1].into_iter();
    assert!(Ballot::emit(1, nodes.into_iter(), too_many, &mut out).is_err());
}

#[test]
fn what_is_cut_or_foreign_is_refused() {
    for message in [beat(), ballot()] {
        for len in 0..message.len() {
            assert!(Election::parse(&message[..len]).is_err(), "cut to {len}");
        }
        let longer = [&message[..], &[0]].concat();
        assert!(Election::parse(&longer).is_err(), "a byte too many");
        for (at, value, what) in [(0, 9, "type"), (2, 65, "groups"), (3, 1, "zero"), (2, 0, "fewer groups")] {
            let mut wrong = message.clone();
            wrong[at] = value;
            assert!(Election::parse(&wrong).is_err(), "{what}");
        }
    }
    let table =
        [(1, 4, "flags"), (32, 0, "stage"), (32, 5, "stage"), (34, 1, "zero"), (56, b'-', "successor")];
    for (at, value, what) in table {
        let mut wrong = beat();
        wrong[at] = value;
        assert!(Election::parse(&wrong).is_err(), "{what}");
    }
    let mut wrong = ballot();
    let first_group = wrong.len() - 2 * GROUP_LEN;
    wrong[first_group + 16] = 2;
    assert!(Election::parse(&wrong).is_err(), "a holder that is not among the nodes");
    wrong[first_group + 16] = 0;
    wrong[first_group + 18] = 0b111;
    assert!(Election::parse(&wrong).is_err(), "a candidate that is not among the nodes");
}
