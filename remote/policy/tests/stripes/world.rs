//! A client of a few objects and its servers, in which messages arrive in any order.

use crate::copies::{self, Copy, CopyJob, Object};
use crate::requests::Request;
pub use crate::servers::PAGES;
use crate::servers::{Message, Page, PagingServer, Purpose, bit};
use crate::striping::Job;
use crate::truth;
use proptest::test_runner::TestCaseError;
use selfpage_remote_policy::redundancy::{
    PartCopies, PartLoss, ServerSet, Stripe, StripeState, StripeView,
};
use std::time::Duration;

pub const MEMBERS: usize = 4;
/// Members, and room for parities.
pub const OBJECTS: usize = 6;
pub const REPLICAS: u32 = 2;

/// What happens to a server.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Its process ends, and its pages with it.
    Kill,
    /// Its connection ends.
    Cut,
    /// It is away for too long.
    GiveUp,
    /// It is connected to.
    Back,
}

pub struct World {
    pub servers: Vec<PagingServer>,
    pub objects: Vec<Object>,
    pub stripe: Option<Stripe>,
    pub job: Option<Job>,
    pub copying: Option<CopyJob>,
    pub messages: Vec<Message>,
    pub requests: Vec<Request>,
    /// Objects that servers need not keep.
    stale: Vec<(usize, usize)>,
    pub makes_stripes: bool,
    pub is_full: bool,
    pub failed_reads: usize,
    pub now: Duration,
    last: u64,
    /// Servers whose copies can be read, by the client's count when the event began.
    pub readable: Vec<Vec<Copy>>,
    defect: Option<String>,
}

impl World {
    /// Members with two copies and a written page each.
    pub fn new(servers: usize) -> Self {
        let server = PagingServer {
            is_connected: true,
            ..PagingServer::default()
        };
        let mut world = Self {
            servers: vec![server; servers],
            objects: vec![Object::default(); OBJECTS],
            stripe: None,
            job: None,
            copying: None,
            messages: Vec::new(),
            requests: Vec::new(),
            stale: Vec::new(),
            makes_stripes: true,
            is_full: false,
            failed_reads: 0,
            now: Duration::ZERO,
            last: 0,
            readable: Vec::new(),
            defect: None,
        };
        (0..MEMBERS).for_each(|member| world.write(member, 0));
        world
    }

    pub fn take_version(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn blame(&mut self, defect: String) {
        self.defect.get_or_insert(defect);
    }

    pub fn take_defect(&mut self) -> Result<(), TestCaseError> {
        self.note_readable();
        let failed = |defect| Err(TestCaseError::fail(defect));
        self.defect.take().map_or(Ok(()), failed)
    }

    pub fn note_readable(&mut self) {
        let objects = self.objects.iter();
        let current = |of: &Object| {
            of.copies
                .iter()
                .filter(|it| it.is_current)
                .copied()
                .collect()
        };
        self.readable = objects.map(current).collect();
    }

    pub fn connected(&self) -> ServerSet {
        let servers = self.servers.iter().enumerate();
        let up = servers.filter(|(_, server)| server.is_connected);
        up.fold(0, |set, (at, _)| set | bit(at))
    }

    /// Calls the stripe with what is known of its parts.
    pub fn ask<T>(&mut self, ask: impl FnOnce(&mut Stripe, StripeView<'_>) -> T) -> Option<T> {
        let mut stripe = self.stripe.take()?;
        let parts: Vec<_> = self.objects[..stripe.shape().parts()]
            .iter()
            .map(|object| PartCopies {
                current: object.current(),
                all: object.copies.iter().fold(0, |set, it| set | bit(it.server)),
                filling: object.filling().map(|copy| copy.server),
            })
            .collect();
        let view = StripeView {
            parts: &parts,
            connected: self.connected(),
            replicas: REPLICAS,
            is_full: self.is_full,
        };
        let answer = ask(&mut stripe, view);
        self.stripe = Some(stripe);
        Some(answer)
    }

    pub fn is_part(&self, object: usize) -> bool {
        let stripe = self.stripe.as_ref();
        stripe.is_some_and(|stripe| object < stripe.shape().parts())
    }

    pub fn is_whole(&self) -> bool {
        let stripe = self.stripe.as_ref();
        stripe.is_some_and(|stripe| stripe.state() == StripeState::Whole)
    }

    pub fn parities(&self) -> usize {
        let stripe = self.stripe.as_ref();
        stripe.map_or(0, |stripe| stripe.shape().parity.into())
    }

    pub fn lost_pages(&self) -> usize {
        let lost = self.objects.iter().flat_map(|object| object.lost);
        lost.filter(|is_lost| *is_lost).count()
    }

    /// Makes a copy of an object.
    pub fn create(&mut self, object: usize, server: usize) {
        self.end_stale(server);
        let of = &mut self.objects[object];
        of.latest += 1;
        let copy = Copy {
            server,
            generation: of.latest,
            is_current: !of.has_pages,
        };
        of.copies.push(copy);
        let id = (object, copy.generation);
        self.servers[server].kept.insert(id, Default::default());
        // Writes that are under way may be later than what is copied.
        for at in 0..self.requests.len() {
            let request = &mut self.requests[at];
            if request.object == object && request.written.is_some() && !request.awaited.is_empty()
            {
                request.awaited.push((server, copy.generation));
                let request = request.clone();
                self.send(&request, server, copy.generation);
            }
        }
    }

    fn end_stale(&mut self, server: usize) {
        let kept = &mut self.servers[server].kept;
        let (ended, rest) = std::mem::take(&mut self.stale)
            .into_iter()
            .partition(|(at, _)| *at == server);
        self.stale = rest;
        let ended: Vec<(usize, usize)> = ended;
        kept.retain(|(object, _), _| !ended.contains(&(server, *object)));
    }

    pub fn end_all_stale(&mut self) {
        for server in 0..self.servers.len() {
            if self.servers[server].is_connected {
                self.end_stale(server);
            }
        }
    }

    /// Removes a copy before a write is acknowledged without it.
    pub fn remove_copy(&mut self, object: usize, server: usize) {
        let copies = &mut self.objects[object].copies;
        let Some(at) = copies.iter().position(|copy| copy.server == server) else {
            return;
        };
        let copy = copies.swap_remove(at);
        self.stale.push((server, object));
        self.copying.take_if(|job| job.is_of(object, server));
        if copy.is_current && self.objects[object].current() == 0 {
            self.on_copies_gone(object);
        }
        for request in &mut self.requests {
            let copies = &self.objects[request.object].copies;
            let named = copies.iter().map(|copy| (copy.server, copy.generation));
            let is_named = |target: &(usize, u64)| named.clone().any(|copy| copy == *target);
            request.awaited.retain(is_named);
            request.has.retain(is_named);
        }
        self.end_written();
    }

    fn on_copies_gone(&mut self, object: usize) {
        let loss = match self.is_part(object) {
            true => self.ask(|stripe, view| stripe.on_part_gone(object, view)),
            false => Some(PartLoss::Ends(vec![object])),
        };
        if let Some(PartLoss::Ends(lost)) = loss {
            for member in lost {
                self.lose(member);
            }
            if self.is_part(object) {
                self.release();
            }
        }
        // Copies that were being made of it are worth nothing.
        self.drop_copies(object);
        self.copying.take_if(|job| job.object == object);
    }

    fn lose(&mut self, object: usize) {
        if truth::is_there(self, object, 0) {
            self.blame(format!("object {object} is given up, and can be had"));
        }
        let of = &mut self.objects[object];
        for page in 0..PAGES {
            of.lost[page] |= of.acknowledged[page] != 0;
        }
        of.has_pages = false;
        self.drop_copies(object);
    }

    pub fn drop_copies(&mut self, object: usize) {
        for copy in std::mem::take(&mut self.objects[object].copies) {
            self.stale.push((copy.server, object));
        }
    }

    /// A message arrives at its server, or its reply at the client; or the server refuses it.
    pub fn deliver(&mut self, at: usize, is_refused: bool) {
        if self.messages.is_empty() {
            return;
        }
        let mut message = self.messages.swap_remove(at % self.messages.len());
        if message.reply.is_none() {
            let server = &mut self.servers[message.server];
            let reply = match message.contents {
                _ if is_refused => None,
                Some(page) => Some((page, server.write(message.copy, message.page, page))),
                None => {
                    let pages = server.kept.get(&message.copy);
                    let page = pages.map_or(Page::Empty, |pages| pages[message.page]);
                    Some((page, pages.is_some()))
                }
            };
            if reply.is_some() {
                message.reply = reply;
                return self.messages.push(message);
            }
        }
        let (object, generation) = message.copy;
        let is_named = |copy: &Copy| (copy.server, copy.generation) == (message.server, generation);
        // A reply of a copy that was there before.
        let is_known = self.objects[object].copies.iter().any(is_named);
        if is_known && message.reply.is_some_and(|(_, is_kept)| !is_kept) {
            self.blame(format!(
                "a server does not keep a copy of {object} that counts"
            ));
        }
        let page = message.reply.filter(|_| is_known).map(|(page, _)| page);
        match message.purpose {
            Purpose::Program(number) => self.on_reply(number, &message, page, is_known),
            Purpose::Job { run, part } => self.on_job_reply(run, part, page),
            Purpose::Copy { .. } => copies::on_reply(self, &message, page),
        }
    }

    pub fn can_rebuild(&mut self, object: usize) -> bool {
        self.is_part(object)
            && self.ask(|stripe, view| stripe.can_rebuild(object, view)) == Some(true)
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.messages.is_empty()
    }

    pub fn fault(&mut self, server: usize, fault: Fault) {
        match fault {
            Fault::Kill => {
                self.servers[server].kept.clear();
                self.servers[server].was_killed = true;
                self.disconnect(server);
            }
            Fault::Cut => self.disconnect(server),
            Fault::GiveUp if !self.servers[server].is_connected => self.give_up(server),
            Fault::Back if !self.servers[server].is_connected => self.connect(server),
            Fault::GiveUp | Fault::Back => {}
        }
    }

    fn disconnect(&mut self, server: usize) {
        self.servers[server].is_connected = false;
        self.messages.retain(|message| message.server != server);
        for request in &mut self.requests {
            if request.written.is_none() {
                request.awaited.retain(|(other, _)| *other != server);
            }
        }
        copies::on_disconnected(self, server);
        self.on_disconnected(server);
        self.route_all();
    }

    fn connect(&mut self, server: usize) {
        self.servers[server].is_connected = true;
        if std::mem::take(&mut self.servers[server].was_killed) {
            (0..OBJECTS).for_each(|object| self.remove_copy(object, server));
        }
        for request in self.requests.clone() {
            let awaits = request.awaited.iter().find(|(other, _)| *other == server);
            if let Some((_, generation)) = awaits {
                self.send(&request, server, *generation);
            }
        }
        self.route_all();
    }

    fn give_up(&mut self, server: usize) {
        let up = self.connected();
        for object in 0..OBJECTS {
            let is_elsewhere = self.objects[object].current() & up != 0;
            let is_spared = self.is_part(object)
                && self.ask(|stripe, view| stripe.can_spare(object, server, view)) == Some(true);
            let is_given_up = is_elsewhere || is_spared;
            if is_given_up && object < MEMBERS && !truth::is_there(self, object, !up) {
                self.blame(format!("object {object} is given up, and nowhere else"));
            }
            if is_given_up {
                self.remove_copy(object, server);
            }
        }
        self.route_all();
    }

    /// The client's process is killed, and another one goes on.
    pub fn restart(&mut self) {
        self.messages.clear();
        (self.job, self.copying) = (None, None);
        self.stripe = self.stripe.take().filter(Stripe::protects).map(|kept| {
            let is_dissolving = kept.state() == StripeState::Dissolving;
            Stripe::restored(kept.shape(), is_dissolving)
        });
        for object in 0..OBJECTS {
            let is_forgotten = object >= MEMBERS && !self.is_part(object);
            let of = &mut self.objects[object];
            let goes = |copy: &Copy| is_forgotten || !copy.is_current;
            let gone = of.copies.iter().filter(|copy| goes(copy));
            self.stale.extend(gone.map(|copy| (copy.server, object)));
            of.copies.retain(|copy| !goes(copy));
            if is_forgotten {
                of.forget();
            }
        }
        for at in 0..self.requests.len() {
            let version = self.take_version();
            let request = &mut self.requests[at];
            (request.awaited, request.has) = (Vec::new(), Vec::new());
            if request.written.is_some() {
                request.written = Some(version);
                self.objects[request.object].issued[request.page] = version;
            }
        }
        self.route_all();
    }

    pub fn recover(&mut self) {
        (self.is_full, self.makes_stripes) = (false, true);
        (0..self.servers.len()).for_each(|server| self.fault(server, Fault::Back));
    }
}
