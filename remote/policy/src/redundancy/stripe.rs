//! A stripe: whole cold objects on one server each, beside objects of their parity.
//!
//! Not in *Adaptive Remote Paging for Mobile Computers*. Any so many of the parts as there are members give all of
//! them. The client that has the objects asks for the next step and carries it out; what it knows of the copies comes
//! in with each question.
//!
//! | state | copies of a member | a write of a member |
//! |---|---|---|
//! | gathering: each member gets a server of its own | as without a stripe | ends the stripe |
//! | computing: the parities are written | as without a stripe | ends the stripe |
//! | whole | one | waits, and has the stripe dissolved |
//! | dissolving: members get further copies | becoming as without a stripe | waits |
//!
//! Rule: no page of a member changes while a parity counts, so a stripe is never written in place. A part that counts
//! is at a server of its own until the stripe dissolves, and no step takes a part that could not be made again.

use super::StripeShape;
use super::own_servers::assign;
use std::time::Duration;

/// A set of servers, by the bits of a word.
pub type ServerSet = u64;

/// Most parts of a stripe.
pub const MAX_PARTS: usize = 6;

/// How long a stripe may gather.
const GATHERING: Duration = Duration::from_secs(60);

/// How far a stripe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeState {
    /// Its members get servers of their own.
    Gathering,
    /// Its parities are being written.
    Computing,
    /// Its parities protect its members.
    Whole,
    /// Likewise, and its members get further copies.
    Dissolving,
}

/// The copies of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCopies {
    /// Servers with a copy that can be read.
    pub current: ServerSet,
    /// Servers with a copy, or that are to have one.
    pub all: ServerSet,
    /// The server of a copy that lacks pages.
    pub filling: Option<usize>,
}

/// What a client knows of the parts of a stripe: members first, then parities.
#[derive(Clone, Copy, Debug)]
pub struct StripeView<'a> {
    /// The copies of each part.
    pub parts: &'a [PartCopies],
    /// Servers that are connected.
    pub connected: ServerSet,
    /// Copies of an object that is in no stripe.
    pub replicas: u32,
    /// No server has room for a copy now.
    pub is_full: bool,
}

/// What a client is to do for a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeStep {
    /// Nothing now.
    Wait,
    /// Make a copy of a part at a server that is not one of these.
    Place {
        /// The part.
        part: usize,
        /// Servers of other parts.
        beside: ServerSet,
    },
    /// Write the parities, then report [`Stripe::on_computed`].
    Compute,
    /// Make a part again from [`Stripe::sources`], then report [`Stripe::on_rebuilt`].
    Rebuild {
        /// The part.
        part: usize,
        /// The server that has a copy to be filled.
        to: usize,
    },
    /// End it: its members are objects as others, and its parities go.
    Release,
}

/// What a write of a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeWrite {
    /// Go on once the stripe is released.
    Releases,
    /// Wait for the stripe's end: it dissolves.
    Waits,
}

/// What the end of a part's last copy means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartLoss {
    /// The others give it.
    MadeAgain,
    /// The pages of these members are lost, and the stripe is to be released.
    Ends(Vec<usize>),
}

/// A stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    shape: StripeShape,
    state: StripeState,
    /// The server of each part, once the stripe computes.
    servers: [Option<usize>; MAX_PARTS],
    begun: Duration,
}

impl Stripe {
    /// A stripe that gathers.
    pub fn new(shape: StripeShape, now: Duration) -> Self {
        Self {
            shape,
            state: StripeState::Gathering,
            servers: [None; MAX_PARTS],
            begun: now,
        }
    }

    /// A stripe that protects its members, as it was found again.
    pub fn restored(shape: StripeShape, is_dissolving: bool) -> Self {
        let state = match is_dissolving {
            true => StripeState::Dissolving,
            false => StripeState::Whole,
        };
        Self {
            state,
            ..Self::new(shape, Duration::ZERO)
        }
    }

    /// Its shape.
    pub fn shape(&self) -> StripeShape {
        self.shape
    }

    /// How far it is.
    pub fn state(&self) -> StripeState {
        self.state
    }

    /// Returns true if its members may have one copy each.
    pub fn protects(&self) -> bool {
        matches!(self.state, StripeState::Whole | StripeState::Dissolving)
    }

    /// The server of a part, once the stripe computes: a parity is written there.
    pub fn server_of(&self, part: usize) -> Option<usize> {
        self.servers[part]
    }

    fn is_member(&self, part: usize) -> bool {
        part < usize::from(self.shape.data)
    }

    /// Copies that a part is to have, where an object without a stripe has `replicas`.
    pub fn replicas(&self, part: usize, replicas: u32) -> u32 {
        match self.state {
            StripeState::Whole => 1,
            _ if !self.is_member(part) => 1,
            _ => replicas,
        }
    }

    /// The next step.
    pub fn step(&mut self, view: StripeView<'_>, now: Duration) -> StripeStep {
        match self.state {
            StripeState::Gathering => self.gather(view, now),
            StripeState::Computing => StripeStep::Compute,
            StripeState::Whole | StripeState::Dissolving => self.keep(view),
        }
    }

    fn gather(&mut self, view: StripeView<'_>, now: Duration) -> StripeStep {
        if now >= self.begun + GATHERING {
            return StripeStep::Release;
        }
        let servers = assign(view, view.connected);
        if let Some(step) = lacking(view, &servers) {
            return step;
        }
        (self.state, self.servers) = (StripeState::Computing, servers);
        StripeStep::Compute
    }

    /// The next step of a stripe whose parities count.
    fn keep(&mut self, view: StripeView<'_>) -> StripeStep {
        let members = usize::from(self.shape.data);
        let is_gone = |part: &usize| view.parts[*part].current == 0;
        if (members..view.parts.len()).all(|part| is_gone(&part)) {
            return StripeStep::Release;
        }
        let servers = view.connected.count_ones() as usize;
        let has_room_beside = servers >= view.parts.len() && !view.is_full;
        if let Some(part) = (0..view.parts.len()).find(is_gone) {
            let is_member = self.is_member(part);
            if is_member && !has_room_beside {
                self.dissolve();
            }
            let is_whole = self.state == StripeState::Whole;
            // A parity is made again at a server of its own, or not at all.
            if is_member || is_whole && has_room_beside {
                let others = view.parts.iter().fold(0, |set, copies| set | copies.all);
                return match view.parts[part].filling {
                    Some(to) => StripeStep::Rebuild { part, to },
                    None => StripeStep::Place {
                        part,
                        // Further copies of members may have taken every server.
                        beside: if is_whole { others } else { 0 },
                    },
                };
            }
        }
        if self.state == StripeState::Whole && !self.has_all(view, ServerSet::MAX) {
            // The copy that counted is gone, and another one of the part is there.
            let servers = assign(view, ServerSet::MAX);
            match lacking(view, &servers).filter(|_| has_room_beside) {
                Some(step) => return step,
                None => self.servers = servers,
            }
        }
        let copies = |part: usize| (view.parts[part].current & view.connected).count_ones();
        let is_copied = |part| copies(part) >= view.replicas || view.is_full && copies(part) > 0;
        match self.state == StripeState::Dissolving && (0..members).all(is_copied) {
            true => StripeStep::Release,
            false => StripeStep::Wait,
        }
    }

    /// Has the members get further copies, and the stripe end then.
    pub fn dissolve(&mut self) {
        if self.state == StripeState::Whole {
            self.state = StripeState::Dissolving;
        }
    }

    /// A member is to be written.
    pub fn on_write(&mut self) -> StripeWrite {
        self.dissolve();
        match self.protects() {
            true => StripeWrite::Waits,
            false => StripeWrite::Releases,
        }
    }

    /// The parities are written. Returns false if a part has left its server meanwhile, and the stripe is to be released.
    pub fn on_computed(&mut self, view: StripeView<'_>) -> bool {
        let is_whole = self.has_all(view, ServerSet::MAX);
        if is_whole {
            self.state = StripeState::Whole;
        }
        is_whole
    }

    /// A part was made again.
    pub fn on_rebuilt(&mut self, part: usize, server: usize) {
        self.servers[part] = Some(server);
    }

    /// Copies of a part that it does not need any more, once each part is at its server.
    pub fn surplus(&self, part: usize, view: StripeView<'_>) -> ServerSet {
        match self.servers[part] {
            Some(kept)
                if self.state == StripeState::Whole && self.has_all(view, view.connected) =>
            {
                view.parts[part].all & !bit(kept)
            }
            _ => 0,
        }
    }

    /// Returns true if each part is at its server, and that is one of some.
    fn has_all(&self, view: StripeView<'_>, among: ServerSet) -> bool {
        let is_there = |(copies, server): (&PartCopies, &Option<usize>)| {
            server.is_some_and(|server| copies.current & among & bit(server) != 0)
        };
        view.parts.iter().zip(&self.servers).all(is_there)
    }

    /// The parts that give another one: as many as there are members, those first that are connected and cost least.
    /// `None` if too few can be read, besides those that have `failed`.
    pub fn sources(
        &self,
        part: usize,
        view: StripeView<'_>,
        failed: &[usize],
    ) -> Option<Vec<usize>> {
        let is_readable = |other: &usize| *other != part && view.parts[*other].current != 0;
        let others = (0..view.parts.len()).filter(is_readable);
        let mut sources: Vec<_> = others.filter(|other| !failed.contains(other)).collect();
        sources.sort_by_key(|other| view.parts[*other].current & view.connected == 0);
        sources.truncate(self.shape.data.into());
        (self.protects() && sources.len() == usize::from(self.shape.data)).then_some(sources)
    }

    /// The parts that give another one at once: as many as there are members, which are read at some servers. `None` if
    /// too few can be.
    pub fn sources_at<const N: usize>(
        &self,
        part: usize,
        view: StripeView<'_>,
        servers: ServerSet,
    ) -> Option<[usize; N]> {
        let is_readable =
            |other: &usize| *other != part && view.parts[*other].current & servers != 0;
        let mut readable = (0..view.parts.len()).filter(is_readable);
        let mut sources = [0; N];
        for source in &mut sources {
            *source = readable.next()?;
        }
        (self.protects() && N == usize::from(self.shape.data)).then_some(sources)
    }

    /// Returns true if a part whose copies are gone can be had from the others.
    pub fn can_rebuild(&self, part: usize, view: StripeView<'_>) -> bool {
        self.protects() && self.has_others(part, view, ServerSet::MAX)
    }

    /// Returns true if a part's copy at a server that is away can be given up: connected servers have what gives it.
    pub fn can_spare(&self, part: usize, server: usize, view: StripeView<'_>) -> bool {
        match self.protects() {
            true => self.has_others(part, view, view.connected & !bit(server)),
            false => !self.is_member(part),
        }
    }

    /// Returns true if enough other parts are at some of the servers.
    fn has_others(&self, part: usize, view: StripeView<'_>, servers: ServerSet) -> bool {
        let others = view.parts.iter().enumerate();
        let there = others.filter(|(at, other)| *at != part && other.current & servers != 0);
        there.count() >= usize::from(self.shape.data)
    }

    /// A part has no copy any more that can be read; `view` is without it.
    pub fn on_part_gone(&self, part: usize, view: StripeView<'_>) -> PartLoss {
        let is_gone = |part: &usize| view.parts[*part].current == 0;
        let members = usize::from(self.shape.data);
        let has_parity = !(members..view.parts.len()).all(|part| is_gone(&part));
        if !self.protects() {
            let lost = Some(part).filter(|part| self.is_member(*part));
            return PartLoss::Ends(lost.into_iter().collect());
        }
        match self.has_others(part, view, ServerSet::MAX) {
            true if has_parity => PartLoss::MadeAgain,
            true => PartLoss::Ends(Vec::new()),
            false => PartLoss::Ends((0..members).filter(is_gone).collect()),
        }
    }
}

/// Copies of an object without a stripe beyond so many, of those at `all` of which those `there` can be read
/// and are connected.
pub fn surplus_copies(there: ServerSet, all: ServerSet, replicas: u32) -> ServerSet {
    if there.count_ones() < replicas {
        return 0;
    }
    let mut kept = there;
    while kept.count_ones() > replicas {
        kept &= !(1 << kept.ilog2());
    }
    all & !kept
}

pub(super) fn bit(server: usize) -> ServerSet {
    1 << server
}

/// The first part without a server of its own gets a copy at one.
fn lacking(view: StripeView<'_>, servers: &[Option<usize>; MAX_PARTS]) -> Option<StripeStep> {
    let part = servers[..view.parts.len()]
        .iter()
        .position(Option::is_none)?;
    let beside = servers.iter().flatten().fold(0, |set, at| set | bit(*at));
    Some(StripeStep::Place { part, beside })
}
