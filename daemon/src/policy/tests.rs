//! Tests of rules and their bounds.

use super::*;

fn terms() -> ContractSpec {
    ContractSpec {
        frames: "64M+64M".parse().unwrap(),
        disk: "25ms/250ms".parse().unwrap(),
        swap: 1 << 30,
    }
}

fn peer(uid: u32) -> PeerIdentity {
    PeerIdentity {
        uid,
        gid: 7,
        executable: FileNumber::of("/proc/self/exe"),
    }
}

#[test]
fn only_root_and_the_daemons_user_may_request_without_a_rule() {
    assert!(check(&[], 5, &peer(0), ContractTotals::default(), &terms()).is_ok());
    assert!(check(&[], 5, &peer(5), ContractTotals::default(), &terms()).is_ok());
    let why = check(&[], 5, &peer(6), ContractTotals::default(), &terms())
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("user 6 (group 7)") && why.contains("[[allow]]"),
        "{why}"
    );
    let by_group = Rule {
        gid: Some(7),
        ..Rule::default()
    };
    assert!(
        check(
            &[by_group],
            5,
            &peer(6),
            ContractTotals::default(),
            &terms()
        )
        .is_ok()
    );
}

#[test]
fn a_rule_bounds_each_resource() {
    let rule = |change: &dyn Fn(&mut Rule)| {
        let mut rule = Rule {
            uid: Some(6),
            ..Rule::default()
        };
        change(&mut rule);
        check(&[rule], 5, &peer(6), ContractTotals::default(), &terms())
    };
    assert!(rule(&|r| r.frames = Some(Bytes(128 << 20))).is_ok());
    let why = rule(&|r| r.frames = Some(Bytes(127 << 20)))
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("128MiB of frames") && why.contains("127MiB"),
        "{why}"
    );
    assert!(
        rule(&|r| r.disk = Some(0.05))
            .unwrap_err()
            .to_string()
            .contains("10.0 %")
    );
    assert!(
        rule(&|r| r.swap = Some(Bytes(1)))
            .unwrap_err()
            .to_string()
            .contains("1GiB of swap")
    );
    assert!(rule(&|r| r.executable = Some("/bin/sh".into())).is_err());
    let own = std::env::current_exe().unwrap();
    assert!(rule(&|r| r.executable = Some(own.clone())).is_ok());
}

#[test]
fn a_rule_bounds_what_a_users_contracts_have_together() {
    let rule = Rule {
        uid: Some(6),
        frames: Some(Bytes(256 << 20)),
        disk: Some(0.2),
        swap: Some(Bytes(2 << 30)),
        ..Rule::default()
    };
    let rules = [rule];
    let one = ContractTotals::default().with(&terms());
    assert!(check(&rules, 5, &peer(6), one, &terms()).is_ok());
    let two = one.with(&terms());
    let why = check(&rules, 5, &peer(6), two, &terms())
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("128MiB of frames") && why.contains("beside 256MiB"),
        "{why}"
    );
    let most = [0.3, 0.2].map(|disk| {
        let rule = Rule {
            frames: None,
            disk: Some(disk),
            ..rules[0].clone()
        };
        check(&[rule], 5, &peer(6), two, &terms())
            .unwrap_err()
            .to_string()
    });
    assert!(
        most[0].contains("of swap") && most[1].contains("20.0 %"),
        "{most:?}"
    );
}

#[test]
fn a_rule_bounds_the_processors_that_a_users_contracts_reserve() {
    let check = |rule: Rule, held, asked| {
        let rules = [Rule {
            uid: Some(6),
            ..rule
        }];
        let [user, root] = [6, 0].map(|uid| check_reservation(&rules, 5, &peer(uid), held, asked));
        assert!(root.is_ok());
        user.map_err(|why| why.to_string())
    };
    let rule = |cpu, disk| Rule {
        cpu,
        disk,
        ..Rule::default()
    };
    assert!(check(rule(Some(0.5), Some(0.05)), 0.25, 0.25).is_ok());
    let why = check(rule(Some(0.5), None), 0.3, 0.25).unwrap_err();
    assert!(why.contains("0.250 processors") && why.contains("0.300") && why.contains("0.500"));
    assert!(check(rule(None, Some(0.05)), 0.0, 0.05).is_ok());
    assert!(
        check(rule(None, Some(0.05)), 0.0, 1.0).is_err(),
        "as much processor time as disk time"
    );
    assert!(check(rule(None, None), 1.0, 1.0).is_ok());
    assert!(
        check(rule(Some(0.0), None), 0.0, 0.0).is_ok(),
        "no processor is requested"
    );
}

#[test]
fn a_rule_bounds_the_number_of_a_users_contracts_by_its_frames() {
    let check = |frames, held| {
        let rule = Rule {
            uid: Some(6),
            frames,
            ..Rule::default()
        };
        check_number(&[rule], 5, &peer(6), held)
    };
    assert!(check(Some(Bytes(8 << 20)), 15).is_ok());
    let why = check(Some(Bytes(8 << 20)), 16).unwrap_err().to_string();
    assert!(why.contains("16 contracts"), "{why}");
    assert!(check(Some(Bytes(1 << 30)), 255).is_ok());
    assert!(check(Some(Bytes(1 << 30)), 256).is_err());
    assert!(check(None, 1000).is_ok());
}

#[test]
fn a_resource_that_is_not_requested_is_not_refused() {
    let rule = Rule {
        uid: Some(6),
        frames: Some(Bytes(1)),
        disk: Some(0.0),
        swap: Some(Bytes(1)),
        ..Rule::default()
    };
    let held = ContractTotals::default().with(&terms());
    let mut none = ContractSpec { swap: 0, ..terms() };
    none.frames = FrameSpec { g: 0, x: 0 };
    none.disk.slice = std::time::Duration::ZERO;
    assert!(check(&[rule], 5, &peer(6), held, &none).is_ok());
}

#[test]
fn an_executable_is_compared_by_inode_and_not_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let [allowed, linked, copied] = ["allowed", "linked", "copied"].map(|n| folder.path().join(n));
    std::fs::write(&allowed, "x").unwrap();
    std::fs::hard_link(&allowed, &linked).unwrap();
    std::fs::copy(&allowed, &copied).unwrap();
    let rule = Rule {
        executable: Some(allowed.clone()),
        ..Rule::default()
    };
    let fits = |path: &PathBuf| {
        let executable = FileNumber::of(path);
        let peer = PeerIdentity {
            executable,
            ..peer(6)
        };
        rule.fits(&peer)
    };
    assert!(fits(&allowed) && fits(&linked) && !fits(&copied));
    // Another file in its place, as a mount over it would be in another namespace.
    let peer = PeerIdentity {
        executable: FileNumber::of(&allowed),
        ..peer(6)
    };
    std::fs::rename(&copied, &allowed).unwrap();
    assert!(!rule.fits(&peer));
    std::fs::remove_file(&allowed).unwrap();
    assert!(
        !rule.fits(&peer) && !fits(&allowed),
        "a missing file is no executable"
    );
}

#[test]
fn the_first_rule_that_fits_decides() {
    let small = Rule {
        uid: Some(6),
        swap: Some(Bytes(1)),
        ..Rule::default()
    };
    let large = Rule {
        gid: Some(7),
        admin: true,
        ..Rule::default()
    };
    let rules = [small.clone(), large.clone()];
    assert!(check(&rules, 5, &peer(6), ContractTotals::default(), &terms()).is_err());
    assert!(!is_admin(&rules, 5, &peer(6)) && is_admin(&[large, small], 5, &peer(6)));
}
