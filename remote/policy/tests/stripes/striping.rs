//! What the client of a world does by itself: copies, stripes, and the jobs that write them.

use crate::copies::{self, Copy, Object};
use crate::servers::{Message, PAGES, Page, Purpose, bit};
use crate::world::{MEMBERS, OBJECTS, REPLICAS, World};
use selfpage_remote_policy::redundancy::{
    ColdPolicy, ServerSet, Stripe, StripeState, StripeStep, surplus_copies,
};
use std::time::Duration;

/// Parts that are written from others, a page at a time.
#[derive(Clone, Debug)]
pub struct Job {
    run: u64,
    /// The parts that are written, and their copies.
    targets: Vec<(usize, Copy)>,
    sources: Vec<usize>,
    page: usize,
    read: Vec<(usize, Page)>,
    asked: Vec<usize>,
    /// Writes without a reply; `None` while the page is read.
    writing: Option<usize>,
    number: u64,
}

impl World {
    /// What is due now.
    pub fn tick(&mut self) {
        self.now += Duration::from_millis(10);
        self.end_all_stale();
        self.remove_surplus();
        self.begin_stripe();
        self.step_stripe();
        self.step_job();
        self.place_lacking();
        copies::step(self);
        self.route_all();
    }

    pub fn age(&mut self) {
        self.now += Duration::from_secs(60);
    }

    fn remove_surplus(&mut self) {
        for object in 0..OBJECTS {
            let of = &self.objects[object];
            let all = of.copies.iter().fold(0, |set, it| set | bit(it.server));
            let surplus = match self.is_part(object) {
                true => self.ask(|stripe, view| stripe.surplus(object, view)),
                false => Some(surplus_copies(
                    of.current() & self.connected(),
                    all,
                    REPLICAS,
                )),
            };
            for server in servers_in(surplus.unwrap_or(0)) {
                self.remove_copy(object, server);
            }
        }
    }

    fn begin_stripe(&mut self) {
        let up = self.connected().count_ones() as usize;
        // Copies differ where a write has failed.
        let is_settled = |of: &Object| (0..PAGES).all(|at| of.issued[at] == of.acknowledged[at]);
        let is_eligible = |member: usize| {
            let of = &self.objects[member];
            of.has_pages
                && is_settled(of)
                && !of.lost.contains(&true)
                && of.current().count_ones() >= REPLICAS
                && of.filling().is_none()
                && !self.has_write(member)
        };
        if self.makes_stripes
            && self.stripe.is_none()
            && !self.is_full
            && (0..MEMBERS).all(is_eligible)
            && let Some(shape) = ColdPolicy::shape_for(up)
        {
            self.stripe = Some(Stripe::new(shape, self.now));
        }
    }

    fn step_stripe(&mut self) {
        let now = self.now;
        match self.ask(|stripe, view| stripe.step(view, now)) {
            Some(StripeStep::Place { part, beside }) => self.place_beside(part, beside),
            Some(StripeStep::Release) => self.release(),
            Some(StripeStep::Compute) if self.job.is_none() => {
                let parts = self.stripe.as_ref().map_or(0, |it| it.shape().parts());
                let targets = (MEMBERS..parts).map(|part| (part, self.objects[part].copies[0]));
                let targets = targets.collect();
                self.begin_job(targets, (0..MEMBERS).collect());
            }
            Some(StripeStep::Rebuild { part, to }) if self.job.is_none() => {
                let sources = self.ask(|stripe, view| stripe.sources(part, view, &[]));
                let copy = self.objects[part].filling();
                if let (Some(Some(sources)), Some(copy)) = (sources, copy) {
                    assert_eq!(copy.server, to);
                    self.begin_job(vec![(part, copy)], sources);
                }
            }
            _ => {}
        }
    }

    fn place_beside(&mut self, part: usize, beside: ServerSet) {
        let of = &self.objects[part];
        let taken = of
            .copies
            .iter()
            .fold(beside, |set, it| set | bit(it.server));
        let free = servers_in(self.connected() & !taken).next();
        if let (Some(server), None, false) = (free, of.filling(), self.is_full) {
            self.create(part, server);
        }
    }

    /// Ends the stripe.
    pub fn release(&mut self) {
        let Some(stripe) = self.stripe.take() else {
            return;
        };
        self.job = None;
        for parity in MEMBERS..stripe.shape().parts() {
            self.drop_copies(parity);
            self.objects[parity].forget();
        }
    }

    fn begin_job(&mut self, targets: Vec<(usize, Copy)>, sources: Vec<usize>) {
        let run = self.take_version();
        self.job = Some(Job {
            run,
            targets,
            sources,
            page: 0,
            read: Vec::new(),
            asked: Vec::new(),
            writing: None,
            number: 0,
        });
        self.step_job();
    }

    fn fail_job(&mut self) {
        self.job = None;
        let stripe = self.stripe.as_ref();
        if stripe.is_some_and(|stripe| stripe.state() == StripeState::Computing) {
            self.release();
        }
    }

    /// Requests what a page of a job lacks.
    fn step_job(&mut self) {
        let Some(mut job) = self.job.take() else {
            return;
        };
        let mut are_there = job.targets.iter();
        let are_there = are_there.all(|(part, copy)| self.has_copy(*part, *copy));
        if !are_there || self.stripe.is_none() {
            return self.fail_job();
        }
        for source in job.sources.clone() {
            let has = job.asked.contains(&source) || job.read.iter().any(|it| it.0 == source);
            if job.writing.is_some() || has {
                continue;
            }
            let copies = &self.objects[source].copies;
            if self.objects[source].current() == 0 {
                return self.fail_job();
            }
            let is_up = |copy: &&Copy| copy.is_current && self.servers[copy.server].is_connected;
            if let Some(copy) = copies.iter().find(is_up).copied() {
                job.asked.push(source);
                self.post(job.run, source, copy, job.page, None);
            }
        }
        self.job = Some(job);
    }

    fn post(&mut self, run: u64, part: usize, copy: Copy, page: usize, contents: Option<Page>) {
        self.messages.push(Message {
            server: copy.server,
            copy: (part, copy.generation),
            page,
            contents,
            purpose: Purpose::Job { run, part },
            reply: None,
        });
    }

    fn has_copy(&self, object: usize, copy: Copy) -> bool {
        let mut copies = self.objects[object].copies.iter();
        copies.any(|it| (it.server, it.generation) == (copy.server, copy.generation))
    }

    pub fn on_job_reply(&mut self, run: u64, part: usize, page: Option<Page>) {
        let Some(mut job) = self.job.take_if(|job| job.run == run) else {
            return;
        };
        let Some(page) = page else {
            return self.fail_job();
        };
        if let Some(writing) = &mut job.writing {
            *writing -= 1;
            if job.targets.iter().any(|(target, _)| *target == part) && part >= MEMBERS {
                let of = &mut self.objects[part];
                (of.has_pages, of.acknowledged[job.page]) = (true, job.number);
            }
            if job.writing == Some(0) {
                job.page += 1;
                (job.writing, job.read) = (None, Vec::new());
                if job.page == PAGES {
                    return self.end_job(&job);
                }
            }
            self.job = Some(job);
            return self.step_job();
        }
        job.asked.retain(|asked| *asked != part);
        job.read.push((part, page));
        let is_read = job.read.len() == job.sources.len();
        if is_read && !self.write_page(&mut job) {
            return self.fail_job();
        }
        self.job = Some(job);
    }

    /// Writes what was read. Returns false if a server is away.
    fn write_page(&mut self, job: &mut Job) -> bool {
        let mut targets = job.targets.iter();
        if !targets.all(|(_, copy)| self.servers[copy.server].is_connected) {
            return false;
        }
        let members = self.members_of(&job.read);
        let is_new = self.stripe.as_ref().is_some_and(|it| !it.protects());
        job.number = self.take_version();
        let mut writes = Vec::new();
        for (part, copy) in job.targets.clone() {
            let known = self.objects[part].acknowledged[job.page];
            if !is_new && part >= MEMBERS {
                job.number = known;
            }
            let contents = match members.get(part) {
                Some(version) if *version == known => Page::Written(known),
                Some(version) => {
                    self.blame(format!("part {part} is made again as {version} of {known}"));
                    Page::Empty
                }
                None => Page::Parity {
                    number: job.number,
                    of: members,
                },
            };
            writes.push((part, copy, contents));
        }
        job.writing = Some(writes.len());
        for (part, copy, contents) in writes {
            self.post(job.run, part, copy, job.page, Some(contents));
        }
        true
    }

    /// The versions of the members' pages, of four parts' pages.
    fn members_of(&mut self, read: &[(usize, Page)]) -> [u64; MEMBERS] {
        let parity = read.iter().find_map(|(_, page)| match page {
            Page::Parity { of, .. } => Some(*of),
            _ => None,
        });
        let mut members = parity.unwrap_or_default();
        for (part, page) in read {
            let there = match page {
                Page::Written(version) => *version,
                Page::Empty => 0,
                Page::Parity { of, .. } => {
                    if *of != members {
                        self.blame(format!("two parities of other pages: {read:?}"));
                    }
                    continue;
                }
            };
            if parity.is_some() && members[*part] != there {
                self.blame(format!("a parity of other pages: {read:?}"));
            }
            members[*part] = there;
        }
        members
    }

    fn end_job(&mut self, job: &Job) {
        let is_new = self.stripe.as_ref().is_some_and(|it| !it.protects());
        if is_new {
            if self.ask(|stripe, view| stripe.on_computed(view)) != Some(true) {
                self.release();
            }
            return;
        }
        for (part, copy) in &job.targets {
            let mut copies = self.objects[*part].copies.iter_mut();
            if let Some(made) = copies.find(|it| it.server == copy.server) {
                made.is_current = true;
            }
            self.ask(|stripe, _| stripe.on_rebuilt(*part, copy.server));
        }
    }

    fn place_lacking(&mut self) {
        for object in 0..MEMBERS {
            let part = self.ask(|stripe, _| stripe.replicas(object, REPLICAS));
            let wanted = part.unwrap_or(REPLICAS) as usize;
            let of = &self.objects[object];
            if of.current() != 0 && of.copies.len() < wanted {
                self.place_beside(object, 0);
            }
        }
    }

    /// What was under way with a server is lost.
    pub fn on_disconnected(&mut self, server: usize) {
        let Some(mut job) = self.job.take() else {
            return;
        };
        if job.targets.iter().any(|(_, copy)| copy.server == server) && job.writing.is_some() {
            return self.fail_job();
        }
        // Requests that went elsewhere are repeated, too: the run's number tells their replies.
        job.asked.clear();
        job.read.clear();
        if job.writing.is_none() {
            job.run = self.take_version();
        }
        self.job = Some(job);
    }
}

fn servers_in(set: ServerSet) -> impl Iterator<Item = usize> {
    (0..ServerSet::BITS as usize).filter(move |server| set & bit(*server) != 0)
}
