//! What a VTLB did and has.

/// What a VTLB did and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VtlbStats {
    /// The bound, in page-table pages; of a shared budget what the space may have now.
    pub bound: usize,
    /// Page-table pages that entries have now.
    pub pages: usize,
    /// The most that they had.
    pub peak_pages: usize,
    /// Misses that entered a piece.
    pub misses: u64,
    /// Page-table pages recycled for a miss.
    pub recycled: u64,
    /// Page-table pages given back because another space of the budget requested them.
    pub given_back: u64,
    /// Faults whose piece another thread had entered meanwhile.
    pub spurious: u64,
    /// Copied pages that went to a file of copies.
    pub copies_saved: u64,
    /// Copied pages that came back.
    pub copies_restored: u64,
    /// Faults of no-exception mappings that got scratch pages.
    pub scratch_faults: u64,
}
