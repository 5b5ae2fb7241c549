//! The pager's side of a connection: a process's requests, and the objects that it holds.

use crate::anchor::Anchor;
use crate::error::SpaceError;
use crate::object_pager::{HeldObject, PagerState};
use crate::pager_protocol::{PagerReply, PagerRequest, receive, send};
use host::fd_reaper::PeerFd;
use manager::shared_memory::clients::SlotIndex;
use manager::shared_memory::{Change, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use translation::ForeignUserfault;

/// The slot of the anchors, and the first one of a process.
const ANCHORS: SlotIndex = 1;
const FIRST: SlotIndex = 2;

/// How often a process that requests nothing is looked at.
const CHECK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A process with a connection.
pub(crate) struct PagerMember {
    state: Arc<PagerState>,
    slot: SlotIndex,
    /// Its userfaultfd, until the pager has it.
    userfault: Option<OwnedFd>,
    /// Its memory.
    memory: Option<ForeignUserfault>,
    /// Objects that it holds, and how many times.
    holds: BTreeMap<u32, usize>,
}

impl PagerMember {
    pub(crate) fn new(state: Arc<PagerState>) -> Result<Self, SpaceError> {
        let mut objects = state.objects();
        let slot = (FIRST..SlotIndex::MAX).find(|slot| !objects.slots.contains(slot));
        let slot = slot.ok_or_else(|| SpaceError::Pager("it has too many connections".into()))?;
        objects.slots.insert(slot);
        drop(objects);
        Ok(Self {
            state,
            slot,
            userfault: None,
            memory: None,
            holds: BTreeMap::new(),
        })
    }

    /// Serves requests until the connection ends or has another message, or no process has the memory of the one that
    /// joined: a child of it may have the connection still.
    pub(crate) fn serve(&mut self, socket: &OwnedFd) {
        while self.awaits_request(socket)
            && let Ok(Some((request, descriptor))) = receive(socket)
        {
            let joins = request == PagerRequest::Join;
            let process = joins.then(own_process).flatten();
            let reply = self
                .perform(request, descriptor)
                .unwrap_or_else(|why| PagerReply::refused(&why));
            if send(socket, &reply, process.as_ref().map(AsFd::as_fd)).is_err() {
                return;
            }
        }
    }

    /// Waits for a request. Returns false once the process's memory has ended. The lock of that memory, which the process
    /// may hold for as long as it likes, is waited for by this thread alone.
    fn awaits_request(&self, socket: &OwnedFd) -> bool {
        let mut ready = [PollFd::new(socket, PollFlags::IN)];
        while poll(&mut ready, Some(&CHECK)) == Ok(0) {
            let memory = self.memory.as_ref();
            if memory.is_some_and(|it| !it.is_owner_alive()) {
                return false;
            }
        }
        true
    }

    fn perform(
        &mut self,
        request: PagerRequest,
        descriptor: Option<PeerFd>,
    ) -> Result<PagerReply, SpaceError> {
        let lacks = || SpaceError::Pager("a descriptor comes with this request".into());
        // A call to another file system, and the close of its file, may wait for the sender.
        let memory = |fd: PeerFd| {
            let other = || SpaceError::Pager("the descriptor is no memory that has seals".into());
            fd.into_quick().ok_or_else(other)
        };
        let range = |addr: u64, len: u64| addr as usize..addr.saturating_add(len) as usize;
        match request {
            PagerRequest::Join => {
                let userfault = descriptor.ok_or_else(lacks)?;
                let checked = ForeignUserfault::check(&userfault);
                checked.map_err(|why| SpaceError::Pager(why.to_string()))?;
                let userfault = userfault.into_owned();
                let memory =
                    fcntl_dupfd_cloexec(&userfault, 0).map_err(SpaceError::system("fcntl"))?;
                let memory = ForeignUserfault::adopt(memory);
                self.memory = Some(memory.map_err(|why| SpaceError::Pager(why.to_string()))?);
                self.userfault = Some(userfault);
            }
            PagerRequest::Create => return self.create(memory(descriptor.ok_or_else(lacks)?)?),
            PagerRequest::Hold => return self.hold(&memory(descriptor.ok_or_else(lacks)?)?),
            PagerRequest::Release { object } => self.release(object),
            PagerRequest::Map {
                object,
                page,
                addr,
                len,
            } => self.map(object, page as usize, range(addr, len))?,
            PagerRequest::Lock { addr, len } => self.change(Change::Lock(range(addr, len)))?,
            PagerRequest::Unlock { addr, len } => self.change(Change::Unlock(range(addr, len)))?,
        }
        Ok(PagerReply::Done)
    }

    fn create(&mut self, memory: OwnedFd) -> Result<PagerReply, SpaceError> {
        let stat = fstat(&memory).map_err(SpaceError::system("fstat"))?;
        let mut objects = self.state.objects();
        objects.check_share(self.slot, stat.st_size as usize)?;
        let anchor = Anchor::new(memory.as_fd(), stat.st_size as usize)?;
        let uffd = objects.userfault.take();
        let (addr, len) = (anchor.addr(), anchor.len());
        self.state.request(|respond| Request::Share {
            slot: ANCHORS,
            uffd,
            addr,
            len,
            memory,
            respond,
        })?;
        let number = objects.next;
        objects.next += 1;
        let held = HeldObject {
            device: stat.st_dev,
            inode: stat.st_ino,
            anchor,
            maker: Some(self.slot),
            holds: 1,
        };
        objects.by_number.insert(number, held);
        self.holds.insert(number, 1);
        Ok(PagerReply::Object(number))
    }

    fn hold(&mut self, memory: &OwnedFd) -> Result<PagerReply, SpaceError> {
        let stat = fstat(memory).map_err(SpaceError::system("fstat"))?;
        let mut objects = self.state.objects();
        let mut all = objects.by_number.iter_mut();
        let (number, held) = all
            .find(|(_, held)| (held.device, held.inode) == (stat.st_dev, stat.st_ino))
            .ok_or_else(|| SpaceError::Pager("the object has ended".into()))?;
        held.holds += 1;
        *self.holds.entry(*number).or_default() += 1;
        Ok(PagerReply::Object(*number))
    }

    /// Ends a hold of this process's, if it has one.
    fn release(&mut self, number: u32) {
        let Some(own) = self.holds.get_mut(&number) else {
            return;
        };
        *own -= 1;
        if *own == 0 {
            self.holds.remove(&number);
        }
        let mut objects = self.state.objects();
        let Some(held) = objects.by_number.get_mut(&number) else {
            return;
        };
        held.holds -= 1;
        if held.holds == 0 {
            objects.by_number.remove(&number);
        }
    }

    fn map(
        &mut self,
        number: u32,
        page: usize,
        to: std::ops::Range<usize>,
    ) -> Result<(), SpaceError> {
        let holds = self.holds.contains_key(&number);
        let objects = self.state.objects();
        let inode = objects
            .by_number
            .get(&number)
            .filter(|_| holds)
            .map(|held| held.inode);
        drop(objects);
        let inode = inode.ok_or_else(|| SpaceError::Pager("it holds no such object".into()))?;
        let (slot, uffd) = (self.slot, self.userfault.take());
        self.state.request(|respond| Request::Attach {
            slot,
            uffd,
            inode,
            page,
            to,
            respond,
        })
    }

    fn change(&self, change: Change) -> Result<(), SpaceError> {
        let slot = self.slot;
        self.state.request(|respond| Request::Change {
            slot,
            change,
            respond,
        })
    }
}

impl Drop for PagerMember {
    fn drop(&mut self) {
        while let Some((number, _)) = self.holds.first_key_value() {
            self.release(*number);
        }
        let slot = self.slot;
        self.state.mailbox.send(Request::End { slot });
        self.state.objects().free_slot(slot);
    }
}

/// A pidfd of this process, where the kernel gives one.
fn own_process() -> Option<OwnedFd> {
    pidfd_open(getpid(), PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_pager::open_userfault;
    use crate::{AddressSpace, MapFlags, ObjectPager, PagedMemory, Rights};
    use frames::Contract;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use wired::PAGE;

    const SIZE: u64 = 64 << 10;

    fn memory(seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("test", flags).unwrap();
        ftruncate(&memory, SIZE).unwrap();
        fcntl_add_seals(&memory, seals).unwrap();
        memory
    }

    fn sent(fd: impl Into<OwnedFd>) -> Option<PeerFd> {
        Some(PeerFd::new(fd.into(), 0))
    }

    /// As a FUSE server that does not answer would have it wait.
    #[test]
    fn a_file_whose_close_waits_is_refused_at_once() {
        let contract = Contract { g: 64, x: 64 };
        let pager = ObjectPager::start(contract, &"ram:4M".parse().unwrap()).unwrap();
        let mut member = PagerMember::new(pager.state.clone()).unwrap();
        for request in [PagerRequest::Join, PagerRequest::Create, PagerRequest::Hold] {
            let linger = std::time::Duration::from_secs(60);
            let (slow, other) = host::fd_reaper::lingering_socket(linger).unwrap();
            let begin = std::time::Instant::now();
            assert!(member.perform(request, sent(slow)).is_err());
            assert!(begin.elapsed() < linger / 2, "it has waited");
            drop(other);
        }
    }

    /// A process that may only read an object maps other memory where it says that the object is.
    #[test]
    fn a_process_that_maps_other_memory_takes_no_contents() {
        const PAGES: usize = 256;
        const LEN: usize = PAGES * PAGE;
        let contract = Contract { g: 64, x: 64 };
        let pager = ObjectPager::start(contract, &"ram:4M".parse().unwrap()).unwrap();
        let memory = PagedMemory::new(pager.connect().unwrap()).unwrap();
        let object = memory.create(LEN as u64).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        let flags = MapFlags {
            rights: Rights::READ | Rights::WRITE,
            copy_on_write: false,
        };
        let at = space.map(None, LEN, &object, 0, flags).unwrap();
        let word = |page: usize| std::ptr::with_exposed_provenance_mut::<usize>(at + page * PAGE);
        // SAFETY: mapped, and used by this thread alone.
        (0..PAGES).for_each(|page| unsafe { word(page).write_volatile(page + 1) });

        let mut member = PagerMember::new(pager.state.clone()).unwrap();
        let userfault = open_userfault().unwrap();
        let own = AsFd::as_fd(&userfault).try_clone_to_owned().unwrap();
        member.perform(PagerRequest::Join, sent(own)).unwrap();
        let held = object.as_fd().try_clone_to_owned().unwrap();
        let Ok(PagerReply::Object(object)) = member.perform(PagerRequest::Hold, sent(held)) else {
            panic!("it is not held");
        };
        let other = translation::reserve(None, LEN, true).unwrap();
        let (page, addr, len) = (0, other.addr as u64, LEN as u64);
        let map = PagerRequest::Map {
            object,
            page,
            addr,
            len,
        };
        member.perform(map, None).unwrap();
        let reader = std::thread::spawn(move || {
            let first = std::ptr::with_exposed_provenance::<usize>(other.addr);
            // SAFETY: reserved above.
            (0..PAGES).all(|page| unsafe { first.byte_add(page * PAGE).read_volatile() } == 0)
        });
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            // SAFETY: as above.
            let found = |page: &usize| unsafe { word(*page).read_volatile() } == page + 1;
            assert_eq!((0..PAGES).filter(found).count(), PAGES);
        }
        // Its faults end, as those of memory that is its own.
        let (addr, flags) = (
            other.addr as *mut _,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: reserved above; the thread reads what there is.
        unsafe { libc::mmap(addr, LEN, libc::PROT_READ, flags | libc::MAP_FIXED, -1, 0) };
        assert!(reader.join().unwrap(), "it has read another's contents");
    }

    #[test]
    fn requests_that_cannot_be_are_refused_and_the_next_is_served() {
        let contract = Contract::from(64);
        let pager = ObjectPager::start(contract, &"ram:4M".parse().unwrap()).unwrap();
        let mut member = PagerMember::new(pager.state.clone()).unwrap();
        let mut refused = |request, descriptor: Option<PeerFd>| {
            assert!(member.perform(request, descriptor).is_err(), "{request:?}");
        };
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        refused(PagerRequest::Join, None);
        refused(PagerRequest::Create, None);
        refused(PagerRequest::Create, sent(memory(SealFlags::SEAL)));
        refused(PagerRequest::Hold, sent(memory(fixed)));
        let map = |object, page, addr, len| PagerRequest::Map {
            object,
            page,
            addr,
            len,
        };
        refused(map(0, 0, 0, SIZE), None);
        let object = memory(fixed);
        let made = member.perform(PagerRequest::Create, sent(object.try_clone().unwrap()));
        let Ok(PagerReply::Object(number)) = made else {
            panic!("{made:?}");
        };
        let again = member.perform(PagerRequest::Create, sent(object.try_clone().unwrap()));
        assert!(again.is_err(), "the memory is an object");
        // Another kind of file, then no userfaultfd, then ranges that cannot be mapped.
        let other = member.perform(PagerRequest::Join, sent(memory(fixed)));
        assert!(other.is_err(), "no userfaultfd");
        assert!(member.perform(map(number, 0, 0, SIZE), None).is_err());
        let userfault = open_userfault().unwrap();
        let own = AsFd::as_fd(&userfault).try_clone_to_owned().unwrap();
        member.perform(PagerRequest::Join, sent(own)).unwrap();
        let anchor = Anchor::new(object.as_fd(), SIZE as usize).unwrap();
        let at = anchor.addr() as u64;
        for wrong in [
            map(number, 16, at, SIZE),
            map(number, u64::MAX, at, SIZE),
            map(number, 0, at, u64::MAX),
            map(number, 0, at + 1, SIZE),
            map(number, 0, 0, SIZE),
            map(number + 1, 0, at, SIZE),
        ] {
            assert!(member.perform(wrong, None).is_err(), "{wrong:?}");
        }
        member.perform(map(number, 0, at, SIZE), None).unwrap();
        let (addr, len) = (at, SIZE);
        member
            .perform(PagerRequest::Lock { addr, len }, None)
            .unwrap();
        member
            .perform(PagerRequest::Unlock { addr, len }, None)
            .unwrap();
        drop(anchor);
        // A release too many has no effect.
        for _ in 0..3 {
            let object = number;
            member
                .perform(PagerRequest::Release { object }, None)
                .unwrap();
        }
        assert!(pager.state.objects().by_number.is_empty());
    }
}
