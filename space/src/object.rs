//! Memory objects and restricted views of them (2.2).
//!
//! An object is memory that several address spaces map: shared memory of its own, a regular file,
//! or shareable memory of a space. A view is an object, too: a part of another one, with fewer
//! rights. Changes of an object show through all its mappings.
//!
//! What holds against a process that received an object: a descriptor without the right to write is
//! opened for reading alone, and the kernel refuses writable mappings of it. The range of a view is
//! checked by this library. A process of another user that must not see the rest of an object needs
//! an object of its own; a process of the same user can open any descriptor again.

use crate::error::SpaceError;
use crate::local_file::check_local;
use crate::paged_memory::PagedObject;
use host::fd_reaper::{PeerFd, peer_uid};
use host::seqpacket;
use rustix::fs::{
    FileType, MemfdFlags, Mode, OFlags, fcntl_getfl, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use selfpage::Rights;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use wired::PAGE;

/// A memory object, or a view of one. Clones are the same object.
#[derive(Clone, Debug)]
pub struct MemoryObject {
    memory: Arc<OwnedFd>,
    /// Bytes from the beginning of the memory.
    offset: u64,
    len: u64,
    rights: Rights,
    /// The hold of an object that has a pager.
    paged: Option<Arc<PagedObject>>,
}

/// The kind of file system (`statfs(2)`) of memory of huge pages.
const HUGETLBFS: u32 = 0x9584_58f6;

/// A view's offset, length and rights, as a message has them.
const MESSAGE: usize = 24;

/// Where a message says that the object is paged.
const PAGED: usize = 20;

impl MemoryObject {
    /// New shared memory of `size` bytes of zeros, with all rights.
    ///
    /// # Errors
    /// [`SpaceError::Unaligned`], or the kernel's error.
    pub fn create(size: u64) -> Result<Self, SpaceError> {
        aligned("size", size)?;
        let memory = memfd_create("selfpage-object", MemfdFlags::CLOEXEC).map_err(
            SpaceError::system("making a memory object (each is a descriptor: see `ulimit -n`)"),
        )?;
        wired::check_file_size(size)
            .and_then(|()| ftruncate(&memory, size))
            .map_err(SpaceError::system(
                "ftruncate of a memory object (see `ulimit -f`)",
            ))?;
        Ok(Self {
            memory: Arc::new(memory),
            offset: 0,
            len: size,
            rights: Rights::ALL,
            paged: None,
        })
    }

    /// A regular file or shared memory, from its beginning to its end now, up to whole pages. The
    /// descriptor's mode gives the rights.
    ///
    /// Not memory of huge pages: the kernel rounds a mapping of it up to these, over what lies behind.
    ///
    /// # Errors
    /// [`SpaceError::Foreign`] for any other descriptor.
    pub fn from_file(file: impl Into<OwnedFd>) -> Result<Self, SpaceError> {
        let file = file.into();
        let stat = fstat(&file).map_err(SpaceError::system("fstat"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SpaceError::Foreign("it is not a regular file"));
        }
        let kind = fstatfs(&file)
            .map_err(SpaceError::system("fstatfs"))?
            .f_type;
        if kind as u32 == HUGETLBFS {
            return Err(SpaceError::Foreign("it is memory of huge pages"));
        }
        let flags = fcntl_getfl(&file).map_err(SpaceError::system("fcntl(F_GETFL)"))?;
        if flags.contains(OFlags::PATH) {
            return Err(SpaceError::Foreign("it is a path alone (O_PATH)"));
        }
        let mode = flags & OFlags::RWMODE;
        if mode == OFlags::WRONLY {
            return Err(SpaceError::Foreign("it is open for writing alone"));
        }
        let rights = if mode == OFlags::RDWR {
            Rights::ALL
        } else {
            Rights::READ | Rights::EXECUTE
        };
        Ok(Self {
            memory: Arc::new(file),
            offset: 0,
            len: (stat.st_size as u64).next_multiple_of(PAGE as u64),
            rights,
            paged: None,
        })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the object has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The rights that a mapping of it may have.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// A view: `size` bytes from `offset` on, with `rights` (RestrictedAccess in the paper).
    ///
    /// # Errors
    /// [`SpaceError::Rights`] for a right that this object does not give, [`SpaceError::Overflow`]
    /// for bytes that it does not have, [`SpaceError::Unaligned`].
    pub fn restricted_access(
        &self,
        offset: u64,
        size: u64,
        rights: Rights,
    ) -> Result<Self, SpaceError> {
        self.check_range(offset, size)?;
        self.check_rights(rights)?;
        let loses_write = self.rights.contains(Rights::WRITE) && !rights.contains(Rights::WRITE);
        // A pager needs memory that may be written.
        let memory = if loses_write && self.paged.is_none() {
            Arc::new(self.reopen_read_only()?)
        } else {
            self.memory.clone()
        };
        Ok(Self {
            memory,
            offset: self.offset + offset,
            len: size,
            rights,
            paged: self.paged.clone(),
        })
    }

    fn reopen_read_only(&self) -> Result<OwnedFd, SpaceError> {
        let path = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&*self.memory)
        );
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(SpaceError::system("opening the object for reading alone"))
    }

    pub(crate) fn check_rights(&self, asked: Rights) -> Result<(), SpaceError> {
        if self.rights.contains(asked) {
            return Ok(());
        }
        Err(SpaceError::Rights {
            asked,
            given: self.rights,
        })
    }

    /// `size` bytes at `offset` are whole pages of the view.
    pub(crate) fn check_range(&self, offset: u64, size: u64) -> Result<(), SpaceError> {
        aligned("offset", offset)?;
        aligned("size", size)?;
        match offset.checked_add(size) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(SpaceError::Overflow {
                start: offset,
                size,
                limit: self.len,
            }),
        }
    }

    /// The object has the memory of its view still.
    pub(crate) fn check_alive(&self) -> Result<(), SpaceError> {
        let stat = fstat(&*self.memory).map_err(SpaceError::system("fstat"))?;
        let there = (stat.st_size as u64).next_multiple_of(PAGE as u64);
        let end = self.offset + self.len;
        if there < end {
            return Err(SpaceError::Dead { there, end });
        }
        Ok(())
    }

    /// The descriptor, of the whole object. An evicted page of a paged object is a hole in the file: access such an object
    /// by mappings alone.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub(crate) fn paged(&self) -> Option<&Arc<PagedObject>> {
        self.paged.as_ref()
    }

    pub(crate) fn with_pager(self, hold: Arc<PagedObject>) -> Self {
        Self {
            paged: Some(hold),
            ..self
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Ends the object: from now on an access to any mapping of it is an exception (or gets a
    /// scratch page, by a no-exception mapping). Needs the right to write, and ends the whole
    /// object, not a view's part of it.
    pub fn revoke(&self) -> Result<(), SpaceError> {
        self.set_len(0)
    }

    /// Truncates or extends the memory of the whole object, also for views of it: an access past
    /// the end is an exception. Needs the right to write.
    pub fn set_len(&self, bytes: u64) -> Result<(), SpaceError> {
        self.check_rights(Rights::WRITE)?;
        wired::check_file_size(bytes)
            .and_then(|()| ftruncate(&*self.memory, bytes))
            .map_err(SpaceError::system("ftruncate"))
    }

    /// Gives the memory of a range of the view back: it is zeros again in every mapping.
    pub(crate) fn punch(&self, offset: u64, size: u64) -> Result<(), SpaceError> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&*self.memory, flags, self.offset + offset, size)
            .map_err(SpaceError::system("fallocate(PUNCH_HOLE)"))
    }

    /// Sends the object to the process at the other end of a Unix socket. A paged one is to be held
    /// until that process has received it.
    pub fn send(&self, socket: impl AsFd) -> Result<(), SpaceError> {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&self.offset.to_le_bytes());
        message[8..16].copy_from_slice(&self.len.to_le_bytes());
        let rights = [Rights::READ, Rights::WRITE, Rights::EXECUTE, Rights::META];
        for (byte, right) in message[16..20].iter_mut().zip(rights) {
            *byte = u8::from(self.rights.contains(right));
        }
        message[PAGED] = u8::from(self.paged.is_some());
        let descriptors = [self.memory.as_fd()];
        seqpacket::send(socket, &message, &descriptors, SendFlags::empty())
            .map_err(SpaceError::system("sending a memory object"))
    }

    /// Receives an object that another process sent: memory, or a file of a local file system. The descriptor's own
    /// mode limits its rights.
    ///
    /// # Errors
    /// [`SpaceError::Foreign`] for a message of another kind, [`SpaceError::ServedFile`] for a file that another process
    /// or machine may serve, late or never: no request reaches that. [`SpaceError::Unaligned`] or
    /// [`SpaceError::Overflow`] for a view that cannot be, [`SpaceError::Dead`] for one whose
    /// memory is gone, [`SpaceError::Paged`] for a paged object, which
    /// [`PagedMemory`](crate::PagedMemory) receives.
    pub fn receive(socket: impl AsFd) -> Result<Self, SpaceError> {
        match Self::receive_any(socket)? {
            (object, false) => Ok(object),
            (_, true) => Err(SpaceError::Paged("received without its pager")),
        }
    }

    /// Receives an object, and whether it is a paged one, which is to be held before it is mapped.
    pub(crate) fn receive_any(socket: impl AsFd) -> Result<(Self, bool), SpaceError> {
        let uid = peer_uid(&socket);
        if PeerFd::is_behind(uid) {
            let what =
                "receiving a memory object (too many descriptors of its user's wait to be closed)";
            return Err(SpaceError::system(what)(Errno::MFILE));
        }
        let mut message = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut message)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| recvmsg(&socket, &mut into, &mut ancillary, flags))
            .map_err(SpaceError::system("receiving a memory object"))?;
        // All of them: the end of each may wait for the peer.
        let descriptors: Vec<_> = ancillary
            .drain()
            .filter_map(|m| match m {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .map(|fd| PeerFd::new(fd, uid))
            .collect();
        let (MESSAGE, Some(descriptor)) = (received.bytes, descriptors.into_iter().next()) else {
            return Err(SpaceError::Foreign("the message has no memory object"));
        };
        check_local(&descriptor)?;
        let word =
            |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap_or_default());
        let whole = Self::from_file(descriptor.into_owned())?;
        let named = [Rights::READ, Rights::WRITE, Rights::EXECUTE, Rights::META];
        let sent = named
            .into_iter()
            .zip(&message[16..20])
            .filter(|(_, held)| **held != 0);
        let rights = sent.fold(Rights::NONE, |all, (right, _)| all | right) & whole.rights;
        let (offset, len) = (word(0), word(8));
        aligned("offset", offset)?;
        aligned("size", len)?;
        let end = offset.checked_add(len).ok_or(SpaceError::Overflow {
            start: offset,
            size: len,
            limit: whole.len,
        })?;
        if end > whole.len {
            return Err(SpaceError::Dead {
                there: whole.len,
                end,
            });
        }
        let object = Self {
            memory: whole.memory,
            offset,
            len,
            rights,
            paged: None,
        };
        Ok((object, message[PAGED] != 0))
    }
}

/// `value` is a multiple of the page size.
pub(crate) fn aligned(what: &'static str, value: u64) -> Result<(), SpaceError> {
    if value.is_multiple_of(PAGE as u64) {
        return Ok(());
    }
    Err(SpaceError::Unaligned { what, value })
}
