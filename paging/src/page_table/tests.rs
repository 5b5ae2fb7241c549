use super::*;

#[test]
fn parts_of_a_unit_take_its_movable_pages_in_turn() {
    const UNIT: usize = 64;
    // The first unit of the table is cut off at its start.
    let table = PageTable::new(10 * PAGE, 300, UNIT).unwrap();
    for unit in 0..table.unit_count() {
        let pages = table.unit_pages(unit);
        let there: Vec<usize> = pages.step_by(3).collect();
        assert_eq!(table.next_part(unit, 5), None);
        for index in &there {
            let word = table.word(*index);
            assert!(word.begin_fill(word.load()));
            word.finish_fill(1);
        }
        let mut taken = Vec::new();
        while taken.len() < 2 * there.len() {
            let part = table.next_part(unit, 5).unwrap();
            let of: Vec<usize> = part.clone().filter(|i| there.contains(i)).collect();
            assert!((1..=5).contains(&of.len()), "{part:?}");
            taken.extend(of);
        }
        let rounds: Vec<usize> = there.iter().cycle().take(taken.len()).copied().collect();
        assert_eq!(taken, rounds, "unit {unit}");
    }
}

#[test]
fn what_was_surrendered_is_in_no_run_of_the_stretchs_own() {
    const UNIT: usize = 64;
    let table = PageTable::new(3 * PAGE, 300, UNIT).unwrap();
    let own = || {
        let mut runs = Vec::new();
        let all: Result<(), ()> = table.try_for_each_own_run(|run| {
            runs.push(run);
            Ok(())
        });
        all.unwrap();
        runs
    };
    let surrender = |pages: Range<usize>| {
        for index in pages {
            table.word(index).become_foreign().unwrap();
            table.surrendered(table.unit_of(index), 1);
        }
    };
    assert_eq!(own().as_slice(), std::slice::from_ref(&(0..300)));
    surrender(0..1);
    surrender(59..70);
    surrender(200..201);
    assert_eq!(own(), [1..59, 70..200, 201..300]);
    assert!(table.word(60).reclaim());
    table.reclaimed(1);
    assert_eq!(own(), [1..59, 60..61, 70..200, 201..300]);
    surrender(60..61);
    surrender(201..300);
    assert_eq!(own(), [1..59, 70..200]);
    surrender(1..59);
    assert!(!table.is_abandoned());
    surrender(70..200);
    assert!(table.is_abandoned() && own().is_empty());
}

#[test]
fn a_unit_that_was_never_touched_is_surrendered_and_taken_back() {
    const UNIT: usize = 64;
    let table = PageTable::new(2 * UNIT * PAGE, 3 * UNIT, UNIT).unwrap();
    let own = || {
        let mut runs = Vec::new();
        let seen = table.try_for_each_own_run(|run| {
            runs.push(run);
            Ok::<(), ()>(())
        });
        seen.map(|()| runs)
    };
    let pages = UNIT;
    assert!(table.surrender_untouched(1));
    assert!(table.surrender_untouched(1), "once more");
    assert_eq!(own(), Ok(vec![0..pages, 2 * pages..3 * pages]));
    table.touch_only(1);
    assert!(!table.touched(1));
    assert_eq!(table.write_foreign_words(1), Ok(()));
    assert_eq!(own(), Ok(vec![0..pages, 2 * pages..3 * pages]));
    assert_eq!(table.word(pages).load().state(), State::Foreign);
    assert!(!table.reclaim_unit(1));
    table.touch_only(0);
    assert!(!table.surrender_untouched(0));
    assert!(table.surrender_untouched(2));
    assert!(table.reclaim_unit(2));
    table.reclaimed(pages);
    assert_eq!(own(), Ok(vec![0..pages, 2 * pages..3 * pages]));
}
