//! Any sequence of operations on a space agrees with a plain model in memory, byte for byte.
//!
//! The model has pages of twelve ranges of 2 MiB, more than the VTLB has pages, so that
//! entries are recycled all the time; and the domain has fewer frames than the model pages, so that
//! committed pages are evicted.

#[path = "../common/mod.rs"]
mod common;
mod page;
mod step;

use common::{PAGE, TABLE, bytes, bytes_mut};
use page::{Page, protected};
use proptest::prelude::*;
use space::{
    AddressSpace, CommitFlags, MapFlags, MemoryObject, RegionState, Rights, SpaceError, VtlbBound,
    VtlbBudget,
};
use step::{Step, step};

const RANGES: usize = 12;
const PAGES: usize = 8;
const OBJECTS: usize = 3;

struct Model {
    space: AddressSpace,
    writer: AddressSpace,
    base: usize,
    pages: Vec<Page>,
    before: Vec<Vec<u8>>,
    objects: Vec<(MemoryObject, usize, Vec<Vec<u8>>)>,
    compared: usize,
}

impl Model {
    fn new(bound: impl Into<VtlbBound>, bound_of_writer: impl Into<VtlbBound>) -> Self {
        let space = AddressSpace::new(common::backing(24), bound).unwrap();
        let writer = AddressSpace::without_domain(bound_of_writer).unwrap();
        let base = space.reserve(None, RANGES * TABLE, false).unwrap();
        // Only the first pages of each range are the model's.
        let objects = (0..OBJECTS)
            .map(|_| {
                let object = MemoryObject::create((2 * PAGES * PAGE) as u64).unwrap();
                let flags = MapFlags::new(Rights::READ | Rights::WRITE);
                // Each object has a page of page tables.
                let at = writer.reserve(None, TABLE, false).unwrap();
                let size = 2 * PAGES * PAGE;
                writer.map(Some(at), size, &object, 0, flags).unwrap();
                (object, at, vec![vec![0; PAGE]; 2 * PAGES])
            })
            .collect();
        Self {
            space,
            writer,
            base,
            pages: vec![Page::Reserved; RANGES * PAGES],
            before: vec![vec![0; PAGE]; RANGES * PAGES],
            objects,
            compared: 0,
        }
    }

    fn address(&self, page: usize) -> usize {
        self.base + page / PAGES * TABLE + page % PAGES * PAGE
    }

    /// Applies `change` to the pages in order until one is not as the operation needs it: what a
    /// space does, too.
    fn until(
        &mut self,
        pages: std::ops::Range<usize>,
        mut change: impl FnMut(&Page) -> Option<Page>,
    ) -> bool {
        for page in pages {
            match change(&self.pages[page]) {
                Some(next) => {
                    if let Page::Committed {
                        contents: Some(contents),
                        ..
                    } = &self.pages[page]
                    {
                        self.before[page] = contents.clone();
                    }
                    self.pages[page] = next;
                }
                None => return false,
            }
        }
        true
    }

    fn apply(&mut self, range: usize, first: usize, count: usize, step: &Step) {
        let first = range * PAGES + first;
        let pages = first..(first + count).min((range + 1) * PAGES);
        let (addr, size) = (self.address(pages.start), pages.len() * PAGE);
        match step {
            Step::Reserve => self.reserve(pages),
            Step::Commit {
                zero,
                auto,
                shareable,
            } => {
                let flags = CommitFlags {
                    zero: *zero,
                    auto: *auto,
                    shareable: *shareable,
                    ..CommitFlags::default()
                };
                self.commit(pages, flags);
            }
            Step::Protect(to) => {
                let done = self.space.protect(addr, size, *to);
                let all = self.until(pages, |page| protected(page, *to));
                self.agrees(all, done);
            }
            Step::Decommit => {
                let done = self.space.decommit(addr, size);
                let all = self.until(pages, |page| {
                    matches!(page, Page::Committed { .. } | Page::Shareable { .. })
                        .then_some(Page::Reserved)
                });
                self.agrees(all, done);
            }
            Step::Deallocate => {
                let done = self.space.deallocate(addr, size);
                let all = self.until(pages, |page| (*page != Page::Free).then_some(Page::Free));
                self.agrees(all, done);
            }
            Step::Map {
                object,
                page,
                copy_on_write,
                write,
            } => {
                let write = if *write { Rights::WRITE } else { Rights::NONE };
                let flags = MapFlags {
                    rights: Rights::READ | write,
                    copy_on_write: *copy_on_write,
                };
                self.map(pages, *object, *page, flags);
            }
            Step::Write(value) => pages.for_each(|page| self.write(page, *value)),
            Step::WriteObject {
                object,
                page,
                value,
            } => {
                let (_, at, contents) = &mut self.objects[*object];
                let offset = usize::from(*value) * 13 % PAGE;
                // SAFETY: the writer's mapping, which this thread alone uses.
                let into = unsafe { bytes_mut(*at + page * PAGE, PAGE) };
                into[offset] = *value;
                contents[*page][offset] = *value;
            }
        }
    }

    fn reserve(&mut self, pages: std::ops::Range<usize>) {
        let addr = self.address(pages.start);
        let free = self.pages[pages.clone()].iter().all(|p| *p == Page::Free);
        match self.space.reserve(Some(addr), pages.len() * PAGE, false) {
            Ok(at) => {
                assert!(free && at == addr, "reserved {pages:?} twice");
                self.pages[pages].fill(Page::Reserved);
            }
            // Other code of the process may have mapped free addresses, and a run that is in use
            // has them all.
            Err(SpaceError::Overlap(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn commit(&mut self, pages: std::ops::Range<usize>, flags: CommitFlags) {
        let done = self
            .space
            .commit(self.address(pages.start), pages.len() * PAGE, flags);
        let rights = flags.rights;
        if flags.shareable {
            let contents = vec![0; PAGE];
            return self.all_or_nothing(pages, done, |_| Page::Shareable {
                rights,
                contents: contents.clone(),
            });
        }
        let all = self.until(pages, |page| {
            (*page == Page::Reserved).then(|| Page::Committed {
                rights,
                contents: flags.zero.then(|| vec![0; PAGE]),
            })
        });
        self.agrees(all, done);
    }

    fn map(&mut self, pages: std::ops::Range<usize>, object: usize, page: usize, flags: MapFlags) {
        let (addr, size) = (self.address(pages.start), pages.len() * PAGE);
        let source = &self.objects[object].0;
        let done = self
            .space
            .map(Some(addr), size, source, (page * PAGE) as u64, flags);
        let first = pages.start;
        self.all_or_nothing(pages, done.map(drop), |at| Page::Mapped {
            rights: flags.rights,
            object,
            page: page + at - first,
            own: None,
            copy_on_write: flags.copy_on_write,
        });
    }

    fn agrees(&self, all: bool, done: Result<(), SpaceError>) {
        match (all, done) {
            (true, Ok(())) => {}
            (false, Err(SpaceError::State { .. } | SpaceError::NotReserved { .. })) => {}
            (expected, done) => panic!("the model says {expected}, the space {done:?}"),
        }
    }

    fn all_or_nothing(
        &mut self,
        pages: std::ops::Range<usize>,
        done: Result<(), SpaceError>,
        to: impl Fn(usize) -> Page,
    ) {
        let reserved = self.pages[pages.clone()]
            .iter()
            .all(|p| *p == Page::Reserved);
        match (reserved, done) {
            (true, Ok(())) => pages.for_each(|page| {
                self.pages[page] = to(page);
                // A run that was there is gone.
                self.before[page].fill(0);
            }),
            // Pages that were committed at once with these, and still are, are in the way.
            (true, Err(SpaceError::Backed { .. })) => {
                let range = pages.start / PAGES * PAGES;
                let group = &self.pages[range..range + PAGES];
                assert!(group.iter().any(|p| matches!(p, Page::Committed { .. })));
            }
            (false, Err(SpaceError::State { .. } | SpaceError::NotReserved { .. })) => {}
            (expected, done) => panic!("the model says {expected}, the space {done:?}"),
        }
    }

    fn write(&mut self, page: usize, value: u8) {
        let addr = self.address(page);
        let offset = usize::from(value) * 7 % PAGE;
        let writable = match &self.pages[page] {
            Page::Committed { rights, .. }
            | Page::Mapped { rights, .. }
            | Page::Shareable { rights, .. } => rights.contains(Rights::WRITE),
            Page::Free | Page::Reserved => false,
        };
        if !writable {
            return;
        }
        self.settle(page);
        // SAFETY: writable memory of the space's, which this thread alone uses.
        let into = unsafe { bytes_mut(addr, PAGE) };
        into[offset] = value;
        match &mut self.pages[page] {
            Page::Committed {
                contents: Some(contents),
                ..
            }
            | Page::Shareable { contents, .. } => contents[offset] = value,
            Page::Mapped {
                object,
                page,
                own,
                copy_on_write: true,
                ..
            } => {
                own.get_or_insert_with(|| self.objects[*object].2[*page].clone())[offset] = value;
            }
            Page::Mapped { object, page, .. } => self.objects[*object].2[*page][offset] = value,
            _ => unreachable!("not writable"),
        }
    }

    /// A page that was committed without zeroing has what it had before, or zeros.
    fn settle(&mut self, page: usize) {
        let addr = self.address(page);
        if let Page::Committed {
            contents: contents @ None,
            ..
        } = &mut self.pages[page]
        {
            // SAFETY: readable memory of the space's, which this thread alone uses.
            let found = unsafe { bytes(addr, PAGE) }.to_vec();
            assert!(
                found == self.before[page] || found.iter().all(|b| *b == 0),
                "page {page} has what it never had"
            );
            *contents = Some(found);
        }
    }

    fn compare(&mut self) {
        for page in 0..self.pages.len() {
            let state = self
                .space
                .query(self.address(page))
                .map(|r| (r.state, r.rights));
            let (wanted, readable) = match &self.pages[page] {
                Page::Free => (None, false),
                Page::Reserved => (Some((RegionState::Reserved, Rights::NONE)), false),
                Page::Committed { rights, .. } => (
                    Some((RegionState::Committed, *rights)),
                    rights.contains(Rights::READ),
                ),
                Page::Mapped { rights, .. } | Page::Shareable { rights, .. } => (
                    Some((RegionState::Mapped, *rights)),
                    rights.contains(Rights::READ),
                ),
            };
            assert_eq!(state, wanted, "page {page}");
            if !readable {
                continue;
            }
            self.settle(page);
            let wanted = match &self.pages[page] {
                Page::Committed {
                    contents: Some(contents),
                    ..
                }
                | Page::Shareable { contents, .. } => contents,
                Page::Mapped { own: Some(own), .. } => own,
                Page::Mapped { object, page, .. } => &self.objects[*object].2[*page],
                _ => unreachable!("not readable"),
            };
            // SAFETY: readable memory of the space's, which this thread alone uses.
            let found = unsafe { bytes(self.address(page), PAGE) };
            assert!(found == wanted.as_slice(), "page {page} differs");
            self.compared += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_of_operations_agrees_with_a_model(
        steps in proptest::collection::vec((0..RANGES, 0..PAGES, 1..PAGES, step()), 1..120)
    ) {
        let mut model = Model::new(6, 6);
        for (range, first, count, step) in &steps {
            model.apply(*range, *first, *count, step);
        }
        model.compare();
        let stats = model.space.vtlb_stats();
        prop_assert!(stats.peak_pages <= stats.bound);
        prop_assert!(model.writer.vtlb_stats().pages <= 6);
    }

    /// The two spaces take entries from each other meanwhile.
    #[test]
    fn any_sequence_of_operations_with_one_budget_agrees_with_a_model(
        steps in proptest::collection::vec((0..RANGES, 0..PAGES, 1..PAGES, step()), 1..120)
    ) {
        let budget = VtlbBudget::create(14, 2).unwrap();
        let mut model = Model::new(&budget, &budget);
        for (range, first, count, step) in &steps {
            model.apply(*range, *first, *count, step);
            let pages = [&model.space, &model.writer].map(|s| s.vtlb_stats().pages);
            prop_assert!(pages[0].max(pages[1]) <= 8, "{:?}", pages);
        }
        model.compare();
    }
}
