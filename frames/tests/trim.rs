//! Which domains are asked for frames when others of their tree need them.

mod common;

use common::{admit, audit, take};
use frames::{DomainFrames, Ledger, Millis};

/// A time at which a wrapping count has just begun again.
const NOW: u32 = 5;

/// A time so many milliseconds before [`NOW`].
fn ago(millis: u32) -> Millis {
    Millis(NOW.wrapping_sub(millis))
}

/// Domains with `n` frames each above a guarantee of 10, last used so many milliseconds ago.
fn domains<'a>(ledger: &'a Ledger, n: u32, idle: &[u32]) -> Vec<DomainFrames<'a>> {
    let domain = |idle: &u32| {
        let domain = admit(ledger, 10, 1000);
        assert_eq!(take(&domain, 10 + n).len() as u32, 10 + n);
        domain.note_use(ago(*idle));
        domain
    };
    idle.iter().map(domain).collect()
}

fn trims(domains: &[DomainFrames<'_>]) -> Vec<u32> {
    domains.iter().map(DomainFrames::trimmed).collect()
}

#[test]
fn the_longest_idle_are_asked_first_and_keep_their_guarantee() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 50, 200, 100]);
    assert_eq!(ledger.trim_idle(all[0].id(), 30, ago(10), ago(0)), 30);
    assert_eq!(trims(&all), [0, 0, 20, 10]);
    audit(&ledger);
}

#[test]
fn a_domain_used_since_the_oldest_page_came_is_not_asked() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 50, 200]);
    assert_eq!(ledger.trim_idle(all[0].id(), 100, ago(50), ago(0)), 20);
    assert_eq!(trims(&all), [0, 0, 20]);
    // The one that asks is never asked, however idle it is.
    assert_eq!(ledger.trim_idle(all[2].id(), 100, ago(0), ago(0)), 20);
    assert_eq!(trims(&all), [0, 20, 20]);
}

#[test]
fn a_trim_that_is_not_answered_counts_and_one_that_is_does_not() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 50]);
    assert_eq!(ledger.trim_idle(all[0].id(), 15, ago(0), ago(0)), 15);
    assert_eq!(ledger.trim_idle(all[0].id(), 15, ago(0), ago(0)), 0);
    // An answer ends it, whether the frames could be had or not.
    assert_eq!(all[1].release_trimmed(15, ago(10)), 0);
    assert_eq!(ledger.trim_idle(all[0].id(), 15, ago(0), ago(0)), 15);
    let victim = &all[1];
    victim.stack(|frame, _| _ = victim.put(frame));
    assert_eq!(victim.release_trimmed(15, ago(0)), 15);
    assert_eq!(victim.n(), 15);
    audit(&ledger);
}

#[test]
fn a_domain_that_had_no_frame_to_release_is_asked_after_the_others() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 100, 50]);
    assert_eq!(ledger.trim_idle(all[0].id(), 10, ago(0), ago(0)), 10);
    assert_eq!(trims(&all), [0, 10, 0]);
    assert_eq!(all[1].release_trimmed(10, ago(20)), 0);
    assert_eq!(ledger.trim_idle(all[0].id(), 10, ago(0), ago(0)), 10);
    assert_eq!(trims(&all), [0, 0, 10]);
    audit(&ledger);
}

#[test]
fn what_a_domain_that_ended_was_asked_for_does_not_count() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 50, 60]);
    assert_eq!(ledger.trim_idle(all[0].id(), 20, ago(0), ago(0)), 20);
    assert_eq!(trims(&all), [0, 0, 20]);
    ledger.retire(all[2].id());
    assert_eq!(ledger.trim_idle(all[0].id(), 20, ago(0), ago(0)), 20);
    assert_eq!(all[1].trimmed(), 20);
}

#[test]
fn nothing_is_asked_of_domains_at_their_guarantee() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 0, &[0, 50, 60]);
    assert_eq!(ledger.trim_idle(all[0].id(), 64, ago(0), ago(0)), 0);
}

#[test]
fn one_that_does_not_answer_is_passed_over() {
    let ledger = Ledger::create(1000, 8).unwrap().0;
    let all = domains(&ledger, 20, &[0, 2000, 1900]);
    assert_eq!(ledger.trim_idle(all[0].id(), 20, ago(1000), ago(500)), 20);
    assert_eq!(trims(&all), [0, 20, 0]);
    assert_eq!(ledger.trim_idle(all[0].id(), 20, ago(1000), ago(450)), 0);
    assert_eq!(ledger.trim_idle(all[0].id(), 20, ago(1000), ago(390)), 20);
    assert_eq!(trims(&all), [0, 20, 20]);
    // Its answer, late as it is, makes it one of them again.
    assert_eq!(all[1].release_trimmed(5, ago(350)), 0);
    all[1].note_use(ago(1500));
    assert_eq!(ledger.trim_idle(all[0].id(), 45, ago(1000), ago(340)), 5);
    audit(&ledger);
}

#[test]
fn a_demand_that_is_not_renewed_keeps_no_other_domain_from_frames() {
    let ledger = Ledger::create(100, 8).unwrap().0;
    let (busy, stopped) = (admit(&ledger, 4, 100), admit(&ledger, 4, 100));
    let mut held = take(&busy, 96);
    take(&stopped, 4);
    let now = Millis::now();
    ledger.demand(stopped.id(), 46);
    busy.put_batch(&held.split_off(50)).unwrap();
    assert_eq!(busy.release_demanded(46), 46);
    ledger.trim_idle(busy.id(), 1, now, now);
    assert_eq!(busy.take(), None, "at its share, while another waits");
    let later = Millis(now.0.wrapping_add(60_000));
    ledger.trim_idle(busy.id(), 1, now, later);
    assert_eq!(take(&busy, 10).len(), 10);
    assert_eq!(ledger.stats(stopped.id()).unwrap().wanted, 0);
    ledger.demand(stopped.id(), 46);
    assert_eq!(busy.take(), None, "it goes on");
    audit(&ledger);
}

#[test]
fn a_domain_without_unused_frames_is_passed_over_whatever_its_surplus() {
    let (ledger, _fd) = Ledger::create(30, 8).unwrap();
    let [rich, idle, taker] = [(); 3].map(|()| admit(&ledger, 0, 30));
    let (_used, unused) = (take(&rich, 20), take(&idle, 10));
    idle.put_batch(&unused[..3]).unwrap();
    assert_eq!(take(&taker, 10).len(), 3);
    assert_eq!((rich.n(), idle.n()), (20, 7));
    audit(&ledger);
}
