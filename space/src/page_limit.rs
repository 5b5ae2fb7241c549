//! How many page-table pages a VTLB may have: a number of its own, or a part of a shared budget.

use crate::budget_member::BudgetMember;

pub(crate) enum PageLimit {
    Own(usize),
    Shared(BudgetMember),
}

impl PageLimit {
    /// Pages that the VTLB may have now.
    pub(crate) fn bound(&self) -> usize {
        match self {
            Self::Own(pages) => *pages,
            Self::Shared(member) => member.bound(),
        }
    }

    /// The most that it could have.
    pub(crate) fn most(&self) -> usize {
        match self {
            Self::Own(pages) => *pages,
            Self::Shared(member) => member.most(),
        }
    }

    /// Returns true if the VTLB may have `pages`. Takes what is missing from the budget's pool.
    pub(crate) fn allows(&mut self, pages: usize) -> bool {
        if let Self::Shared(member) = self {
            while member.bound() < pages && member.take() {}
        }
        pages <= self.bound()
    }

    /// Requests `pages` of another space of the budget, for a space whose own oldest entry was
    /// entered at `own`. Returns true if there is one to request them of.
    pub(crate) fn request(&self, pages: usize, own: Option<u64>) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Shared(member) => member.request(pages as u32, own),
        }
    }
}
