//! The arguments of each operation.

use super::*;

/// How an argument is drawn.
#[derive(Clone, Copy)]
pub(super) enum Argument {
    /// The operation's own region, the page in it at which it begins, and its number of pages.
    Region,
    Page,
    Pages,
    /// The same of another place.
    OtherRegion,
    OtherPage,
    OtherPages,
    /// The region of `unmap_region`: seldom the first, which others build on.
    Unmapped,
    /// Rights.
    Access,
    /// What is mapped.
    Memory,
    /// Flags of a mapping, of these.
    Flags(i64),
    /// A number from the first to the second.
    Between(i64, i64),
    /// One of these.
    Of(&'static [i64]),
    /// Seldom 1.
    SeldomOne,
    Advice,
    /// What bytes come from.
    Seed,
    Zero,
    /// MiB, more than the frames.
    MoreThanFrames,
}

impl Drawing {
    pub(super) fn arguments(&mut self, kind: &Kind, frames: i64) -> Vec<i64> {
        let place = [self.region(), self.page(), self.pages()];
        if kind.name == "heap" {
            return self.heap_arguments();
        }
        let drawn = kind.arguments.iter();
        drawn
            .map(|argument| self.argument(*argument, place, frames))
            .collect()
    }

    fn argument(
        &mut self,
        argument: Argument,
        [region, page, pages]: [i64; 3],
        frames: i64,
    ) -> i64 {
        match argument {
            Argument::Region => region,
            Argument::Page => page,
            Argument::Pages => pages,
            Argument::OtherRegion => self.region(),
            Argument::OtherPage => self.page(),
            Argument::OtherPages => self.pages(),
            Argument::Unmapped => match region {
                0 if !self.random.one_in(4) => 1,
                region => region,
            },
            Argument::Access => self.random.of(self.access),
            Argument::Memory => self.memory(),
            Argument::Flags(of) => self.flags() & of,
            Argument::Between(least, most) => self.random.between(least, most),
            Argument::Of(choices) => self.random.of(choices),
            Argument::SeldomOne => i64::from(self.random.one_in(8)),
            Argument::Advice => match self.random.one_in(6) {
                true => self.random.of(&MORE_ADVICE),
                false => self.random.of(&ADVICE),
            },
            Argument::Seed => self.seed(),
            Argument::Zero => 0,
            Argument::MoreThanFrames => frames + frames / 2,
        }
    }

    /// The size is drawn first.
    fn heap_arguments(&mut self) -> Vec<i64> {
        let size = match self.random.between(0, 3) {
            0 => self.random.between(0, 200),
            1 => self.random.between(0, 20_000),
            _ => self.random.between(0, 900_000),
        };
        let block = self.random.between(0, 31);
        vec![block, size, self.random.between(0, 2), self.seed()]
    }
}
