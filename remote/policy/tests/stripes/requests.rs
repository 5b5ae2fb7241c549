//! Reads and writes of the program: where they go, and what they must bring.

use crate::copies::Copy;
use crate::servers::{Message, Page, Purpose, bit};
use crate::world::{REPLICAS, World};
use selfpage_remote_policy::redundancy::StripeWrite;

/// A read or a write of the program.
#[derive(Clone, Debug)]
pub struct Request {
    pub number: u64,
    pub object: usize,
    pub page: usize,
    /// What is written; `None` of a read.
    pub written: Option<u64>,
    /// What a read must have at least.
    pub least: u64,
    pub awaited: Vec<(usize, u64)>,
    /// Copies that have the write.
    pub has: Vec<(usize, u64)>,
}

impl World {
    pub fn write(&mut self, member: usize, page: usize) {
        let is_other =
            |it: &Request| it.object != member || it.page != page || it.written.is_none();
        if self.requests.iter().all(is_other) {
            let version = self.take_version();
            self.objects[member].issued[page] = version;
            self.begin(member, page, Some(version));
        }
    }

    pub fn read(&mut self, member: usize, page: usize) {
        self.begin(member, page, None);
    }

    fn begin(&mut self, object: usize, page: usize, written: Option<u64>) {
        let number = self.take_version();
        self.requests.push(Request {
            number,
            object,
            page,
            written,
            least: self.objects[object].acknowledged[page],
            awaited: Vec::new(),
            has: Vec::new(),
        });
        self.route(number);
    }

    pub fn route_all(&mut self) {
        let waiting = self.requests.iter().filter(|it| it.awaited.is_empty());
        for number in waiting.map(|it| it.number).collect::<Vec<_>>() {
            self.route(number);
        }
    }

    fn route(&mut self, number: u64) {
        let Some(at) = self.requests.iter().position(|it| it.number == number) else {
            return;
        };
        let request = self.requests[at].clone();
        let object = request.object;
        let targets = match request.written {
            None if self.objects[object].acknowledged[request.page] == 0 => {
                // It is zeros.
                self.requests.remove(at);
                return;
            }
            None => match self.targets_of_read(&request) {
                Some(targets) => targets,
                None => {
                    self.failed_reads += 1;
                    self.requests.remove(at);
                    return;
                }
            },
            Some(_) if self.is_part(object) && self.holds_write() => Vec::new(),
            Some(_) => {
                if self.objects[object].copies.is_empty() {
                    let up = (0..self.servers.len()).filter(|at| self.servers[*at].is_connected);
                    let up: Vec<_> = up.take(REPLICAS as usize).collect();
                    up.into_iter()
                        .for_each(|server| self.create(object, server));
                }
                self.objects[object].copies.clone()
            }
        };
        let targets = targets.iter().map(|copy| (copy.server, copy.generation));
        self.requests[at].awaited = targets.collect();
        for (server, generation) in self.requests[at].awaited.clone() {
            self.send(&request, server, generation);
        }
    }

    fn holds_write(&mut self) -> bool {
        match self.ask(|stripe, _| stripe.on_write()) {
            Some(StripeWrite::Releases) => self.release(),
            answer => return answer.is_some(),
        }
        false
    }

    /// Where a read may go now; `None` if it fails.
    fn targets_of_read(&mut self, request: &Request) -> Option<Vec<Copy>> {
        let of = &self.objects[request.object];
        if of.lost[request.page] {
            return None;
        }
        let is_up = |copy: &&Copy| copy.is_current && self.servers[copy.server].is_connected;
        let target = of.copies.iter().find(is_up).copied();
        if of.current() == 0 {
            let object = request.object;
            let is_coming = match self.is_part(object) {
                true => self.ask(|stripe, view| stripe.can_rebuild(object, view)),
                false => None,
            };
            if is_coming != Some(true) {
                self.blame(format!("a read of {object} has no copy, and none comes"));
            }
        }
        Some(target.into_iter().collect())
    }

    pub fn send(&mut self, request: &Request, server: usize, generation: u64) {
        if self.servers[server].is_connected {
            self.messages.push(Message {
                server,
                copy: (request.object, generation),
                page: request.page,
                contents: request.written.map(Page::Written),
                purpose: Purpose::Program(request.number),
                reply: None,
            });
        }
    }

    pub fn on_reply(&mut self, number: u64, message: &Message, page: Option<Page>, is_known: bool) {
        let (object, generation) = message.copy;
        let awaits = |request: &Request| {
            request.number == number && request.awaited.contains(&(message.server, generation))
        };
        let Some(at) = self.requests.iter().position(awaits).filter(|_| is_known) else {
            return;
        };
        let request = self.requests[at].clone();
        let is_only = self.objects[object].current() == bit(message.server);
        match (page, request.written) {
            (None, Some(_)) if is_only => drop(self.requests.remove(at)),
            (None, None) if is_only && !self.can_rebuild(object) => drop(self.requests.remove(at)),
            (None, _) => self.remove_copy(object, message.server),
            (Some(page), None) => {
                self.requests.remove(at);
                self.check_read(&request, page);
            }
            (Some(_), Some(_)) => {
                let request = &mut self.requests[at];
                request
                    .awaited
                    .retain(|(server, _)| *server != message.server);
                request.has.push((message.server, generation));
                self.end_written();
            }
        }
        self.route_all();
    }

    fn check_read(&mut self, request: &Request, page: Page) {
        let of = &self.objects[request.object];
        let version = match page {
            Page::Empty => 0,
            Page::Written(version) => version,
            Page::Parity { .. } => u64::MAX,
        };
        let is_right = (request.least..=of.issued[request.page]).contains(&version);
        if !is_right {
            self.blame(format!("{request:?} has brought {page:?}"));
        }
    }

    /// Ends the writes that all copies have.
    pub fn end_written(&mut self) {
        let is_ended = |it: &Request| it.awaited.is_empty() && !it.has.is_empty();
        let (ended, rest) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(is_ended);
        self.requests = rest;
        let ended: Vec<Request> = ended;
        for write in ended {
            let of = &mut self.objects[write.object];
            of.has_pages = true;
            of.acknowledged[write.page] = write.written.unwrap_or_default();
            of.lost[write.page] = false;
        }
    }

    pub fn has_write(&self, object: usize) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|it| it.object == object && it.written.is_some())
    }
}
