//! A domain's id and its phases: claimed, nascent, live, retiring, vacant again.

use crate::ramtab::Owner;

/// A domain's id: its slot and the slot's generation, so that the id of a retired domain never
/// means the next one in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId {
    pub(crate) slot: Owner,
    pub(crate) generation: u32,
}

impl DomainId {
    /// As a number, to send to another process.
    pub fn raw(self) -> u32 {
        self.generation << DomainWord::SLOT_BITS | self.slot
    }

    /// Its slot: the number by which other tables of the same tree know the domain.
    pub fn slot(self) -> u32 {
        self.slot
    }

    /// From [`DomainId::raw`].
    pub fn from_raw(raw: u32) -> Self {
        Self {
            slot: raw & DomainWord::SLOT_MASK,
            generation: raw >> DomainWord::SLOT_BITS & DomainWord::GENERATION_MASK,
        }
    }
}

impl std::fmt::Display for DomainId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// The phase of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainPhase {
    /// Without a domain.
    Vacant,
    /// Being filled in by its creator.
    Claimed,
    /// Admitted, but not yet adopted by its process.
    Nascent,
    /// Its process runs.
    Live,
    /// Its process is gone, and its frames are being reclaimed, or are and the slot is still in use
    /// ([`crate::Ledger::drain`]).
    Retiring,
}

/// `DomainSlot::state`: phase, creator and generation in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DomainWord {
    pub phase: DomainPhase,
    pub creator: Owner,
    pub generation: u32,
}

impl DomainWord {
    pub(crate) const SLOT_BITS: u32 = 12;
    pub(crate) const SLOT_MASK: u32 = (1 << Self::SLOT_BITS) - 1;
    pub(crate) const GENERATION_MASK: u32 = (1 << 16) - 1;

    pub(crate) fn unpack(word: u32) -> Self {
        let phase = match word & 0xf {
            1 => DomainPhase::Claimed,
            2 => DomainPhase::Nascent,
            3 => DomainPhase::Live,
            4 => DomainPhase::Retiring,
            _ => DomainPhase::Vacant,
        };
        Self {
            phase,
            creator: word >> 4 & Self::SLOT_MASK,
            generation: word >> 16,
        }
    }

    pub(crate) fn pack(self) -> u32 {
        self.generation << 16 | self.creator << 4 | self.phase as u32
    }

    pub(crate) fn in_phase(self, phase: DomainPhase) -> Self {
        Self { phase, ..self }
    }

    /// Returns true if frames may be owned under this word.
    pub(crate) fn is_admitted(self) -> bool {
        matches!(self.phase, DomainPhase::Nascent | DomainPhase::Live)
    }
}
