use super::*;
use proptest::prelude::*;

const BASE: usize = 0x7000_0000_0000;
const PAGES: usize = 48;

fn page(n: usize) -> usize {
    BASE + n * PAGE
}

/// One change of the map, in pages from the base.
#[derive(Clone, Debug)]
enum Step {
    Set(Range<usize>, i32),
    Clear(Range<usize>),
    Change(Range<usize>, i32),
    Forget(Range<usize>),
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..PAGES, 1..=PAGES).prop_map(|(start, len)| start..(start + len).min(PAGES))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(), 0..4i32).prop_map(|(range, prot)| Step::Set(range, prot)),
        4 => range().prop_map(Step::Clear),
        3 => (range(), 0..4i32).prop_map(|(range, prot)| Step::Change(range, prot)),
        1 => (0..PAGES).prop_map(|start| Step::Forget(start..start + 1)),
    ]
}

/// The state of one page, in the simplest correct model.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Plain {
    Outside,
    Free,
    Used(i32),
}

fn check(map: &VmaMap, pages: &[Plain]) {
    let whole = page(0)..page(PAGES);
    let pieces = map.lookup(&whole);
    assert_eq!(pieces.first().map(|p| p.span.start), Some(whole.start));
    assert_eq!(pieces.last().map(|p| p.span.end), Some(whole.end));
    for pair in pieces.windows(2) {
        assert_eq!(
            pair[0].span.end, pair[1].span.start,
            "no gaps between pieces"
        );
    }
    for piece in &pieces {
        let state = match piece.state {
            Lookup::Outside => Plain::Outside,
            Lookup::Free => Plain::Free,
            Lookup::Used(attrs, _) => Plain::Used(attrs.prot),
        };
        for addr in piece.span.clone().step_by(PAGE) {
            assert_eq!(
                pages[(addr - BASE) / PAGE],
                state,
                "page {}",
                (addr - BASE) / PAGE
            );
        }
    }
    let longest = pages
        .split(|page| *page != Plain::Free)
        .map(<[Plain]>::len)
        .max()
        .unwrap_or(0);
    match map.place(longest.max(1) * PAGE, PAGE) {
        Some(at) => {
            let first = (at - BASE) / PAGE;
            assert!(
                longest > 0
                    && pages[first..first + longest]
                        .iter()
                        .all(|p| *p == Plain::Free)
            );
        }
        None => assert_eq!(longest, 0),
    }
    assert_eq!(
        map.place((longest + 1) * PAGE, PAGE),
        None,
        "nothing longer than the longest gap"
    );
}

#[test]
fn what_is_placed_lies_in_one_arena() {
    let mut map = VmaMap::new();
    map.add_reserved(page(0)..page(8));
    map.add_reserved(page(8)..page(16));
    assert_eq!(map.place(9 * PAGE, PAGE), None);
    // Used and freed as one, they are two still.
    map.set(page(0)..page(16), MappingAttrs::paged(3));
    map.clear(&(page(0)..page(16)));
    assert_eq!(map.place(9 * PAGE, PAGE), None);
    assert!(map.place(8 * PAGE, PAGE).is_some());
}

proptest! {
    #[test]
    fn the_map_says_of_every_page_what_a_plain_list_says(steps in prop::collection::vec(step(), 1..60)) {
        let mut map = VmaMap::new();
        map.add_reserved(page(0)..page(PAGES));
        let mut pages = vec![Plain::Free; PAGES];
        for step in steps {
            match step {
                Step::Set(range, prot) => {
                    // Only what is in an arena can be set.
                    if pages[range.clone()].contains(&Plain::Outside) {
                        continue;
                    }
                    map.set(page(range.start)..page(range.end), MappingAttrs::paged(prot));
                    pages[range].fill(Plain::Used(prot));
                }
                Step::Clear(range) => {
                    map.clear(&(page(range.start)..page(range.end)));
                    let used = |p: &&mut Plain| matches!(p, Plain::Used(_));
                    pages[range].iter_mut().filter(used).for_each(|p| *p = Plain::Free);
                }
                Step::Change(range, prot) => {
                    map.change(&(page(range.start)..page(range.end)), |attrs| attrs.prot = prot);
                    let used = |p: &&mut Plain| matches!(p, Plain::Used(_));
                    pages[range].iter_mut().filter(used).for_each(|p| *p = Plain::Used(prot));
                }
                Step::Forget(range) => {
                    map.forget(&(page(range.start)..page(range.end)));
                    pages[range].fill(Plain::Outside);
                }
            }
            check(&map, &pages);
        }
    }
}

#[test]
fn a_place_is_aligned_where_that_can_be_had() {
    let mut map = VmaMap::new();
    map.add_reserved(BASE + PAGE..BASE + 8 * HUGE_RANGE);
    assert_eq!(map.place(HUGE_RANGE, HUGE_RANGE), Some(BASE + HUGE_RANGE));
    map.set(
        BASE + PAGE..BASE + 7 * HUGE_RANGE + PAGE,
        MappingAttrs::paged(3),
    );
    assert_eq!(
        map.place(HUGE_RANGE - PAGE, HUGE_RANGE),
        Some(BASE + 7 * HUGE_RANGE + PAGE)
    );
}

#[test]
fn neighbours_of_one_state_are_one_mapping_as_in_the_kernel() {
    let mut map = VmaMap::new();
    map.add_reserved(page(0)..page(8));
    map.set(page(0)..page(2), MappingAttrs::paged(3));
    map.set(page(2)..page(4), MappingAttrs::paged(3));
    map.set(page(4)..page(5), MappingAttrs::paged(1));
    let spans: Vec<_> = map.used().map(|(span, _)| span).collect();
    assert_eq!(spans, [page(0)..page(4), page(4)..page(5)]);
}

#[test]
fn what_was_adopted_is_the_kernels_again_when_it_is_forgotten() {
    let mut map = VmaMap::new();
    map.add_adopted(page(0)..page(4), MappingAttrs::paged(3));
    map.forget(&(page(1)..page(2)));
    assert!(map.contains(page(0)) && !map.contains(page(1)) && map.contains(page(3)));
    assert_eq!(
        map.place(PAGE, PAGE),
        None,
        "an adopted mapping's addresses are never handed out"
    );
}

#[test]
fn adopted_neighbours_of_one_state_are_one_piece() {
    let mut map = VmaMap::new();
    let attrs = MappingAttrs::paged(3);
    for part in [4..8, 12..16, 8..12] {
        map.add_adopted(page(part.start)..page(part.end), attrs);
    }
    let pieces = map.lookup(&(page(4)..page(16)));
    assert_eq!(pieces.len(), 1, "{pieces:?}");
    map.forget(&(page(6)..page(10)));
    assert!(map.contains(page(5)) && !map.contains(page(6)) && map.contains(page(10)));
}
