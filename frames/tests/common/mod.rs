//! Invariants of a ledger while no operation on it is in progress.

use frames::{Contract, DomainFrames, DomainId, Frame, Ledger, LimitControl, State};

/// A domain with {g, x} in the ledger.
#[allow(dead_code, reason = "each test uses what it needs")]
pub fn admit(ledger: &Ledger, g: u32, x: u32) -> DomainFrames<'_> {
    let id = ledger.admit(Contract { g, x }).unwrap();
    ledger.adopt(id).unwrap()
}

/// As many of `count` frames as the domain can take.
#[allow(dead_code, reason = "each test uses what it needs")]
pub fn take(client: &DomainFrames<'_>, count: u32) -> Vec<Frame> {
    (0..count).map_while(|_| client.take()).collect()
}

/// A tenant's ledger and the allocator's control of its limit.
#[allow(dead_code, reason = "each test uses what it needs")]
pub fn limited(total: u32, limit: u32) -> (Ledger, LimitControl) {
    let (ledger, fd) = Ledger::create_limited(total, limit, 8).unwrap();
    (ledger, LimitControl::attach(fd).unwrap())
}

/// Panics unless the counts agree with the RamTab.
pub fn audit(ledger: &Ledger) {
    let mut owned = 0;
    let mut guaranteed = 0;
    for stats in ledger.all_stats() {
        let mut states = Vec::new();
        let client = ledger.client(stats.id).expect("admitted");
        client.stack(|_, state| states.push(state));
        let unused = states.iter().filter(|state| **state == State::Unused);
        assert_eq!(
            stats.n as usize,
            states.len(),
            "n is what the RamTab says: {stats:?} {states:?}"
        );
        assert!(stats.n <= stats.contract.x, "never above x: {stats:?}");
        assert!(
            stats.unused as usize >= unused.count(),
            "an unused frame is found: {stats:?} {states:?}"
        );
        owned += stats.n;
        guaranteed += stats.contract.g;
    }
    assert_eq!(guaranteed, ledger.guaranteed());
    assert!(guaranteed <= ledger.total());
    assert!(owned <= ledger.limit(), "never above the limit");
    assert_eq!(owned, ledger.owned(), "what is owned is counted");
    assert_eq!(
        owned + ledger.free(),
        ledger.total(),
        "every frame has one owner or none"
    );
}

/// Returns true if the domain can have its guarantee now, with no help of others but their unused
/// frames above theirs.
#[allow(dead_code, reason = "each test uses what it needs")]
pub fn gets_its_guarantee(ledger: &Ledger, id: DomainId) -> bool {
    let client = ledger.client(id).expect("admitted");
    let missing = client.contract().g.saturating_sub(client.n());
    let got: Vec<_> = (0..missing + client.unused())
        .map_while(|_| client.take())
        .collect();
    let enough = client.n() >= client.contract().g;
    client.put_batch(&got).expect("just taken");
    enough
}
