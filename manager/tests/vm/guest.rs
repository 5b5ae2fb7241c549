//! A process that does what a VMM does with a restored guest's memory, told so by lines on its
//! standard input: maps memory, registers a userfaultfd, hands it over, uses its pages.

#[path = "children.rs"]
mod children;
#[path = "endurance.rs"]
mod endurance;
#[path = "huge_page.rs"]
mod huge_page;
#[path = "inode_lock.rs"]
mod inode_lock;
#[path = "kind.rs"]
pub mod kind;
#[path = "late_discard.rs"]
mod late_discard;
#[path = "storm.rs"]
mod storm;
#[path = "uffd.rs"]
mod uffd;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::cell::Cell;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

pub use kind::Kind;
pub use uffd::{open_userfaultfd, register, send};

/// Where the kernel places the memory if nothing is there: aligned to huge pages.
const PLACE: *mut libc::c_void = std::ptr::without_provenance_mut(1 << 45);
/// Bytes of a small page.
pub const PAGE: usize = 4096;

/// The words of a page: version 0 is the snapshot's.
pub fn word(page: usize, version: u64, index: usize) -> u64 {
    let mut x = page as u64 ^ version << 40 ^ (index as u64) << 20;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    // Compressible: pages of a real guest are.
    if index.is_multiple_of(4) {
        x ^ x >> 33
    } else {
        page as u64 + version
    }
}

/// The bytes of a page of the snapshot.
pub fn page_bytes(page: usize) -> Vec<u8> {
    (0..PAGE / 8)
        .flat_map(|index| word(page, 0, index).to_ne_bytes())
        .collect()
}

/// Memory that was handed over.
pub struct Memory {
    pub start: *mut u64,
    pub len: usize,
    /// What is added to a page's number for that in the snapshot, modulo all pages.
    shift: usize,
    is_shared: bool,
    memfd: Option<OwnedFd>,
    /// Open until it is forgotten: a page would read zero without this one and the manager's.
    uffd: Cell<Option<OwnedFd>>,
    connection: UnixStream,
}

/// The guest's main function: arguments are KIND SOCKET BYTES.
pub fn main(args: &[String]) {
    let kind = Kind::parse(&args[0]);
    let memory = Memory::hand_over(&kind, &args[1], args[2].parse().expect("bytes"));
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        let mut words = line.split(' ');
        let command = words.next().expect("a command");
        let numbers: Vec<usize> = words.map(|it| it.parse().expect("a number")).collect();
        println!("{}", memory.obey(command, &numbers));
        std::io::stdout().flush().expect("a reply");
    }
}

impl Memory {
    pub fn hand_over(kind: &Kind, socket: &str, len: usize) -> Self {
        let (mut flags, mut page_size, mut memfd) = (libc::MAP_PRIVATE, PAGE, None);
        match kind {
            _ if kind.is_memfd() => {
                flags = libc::MAP_SHARED;
                memfd = Some(kind::make_memfd(len));
            }
            Kind::Huge | Kind::UnreservedHuge => {
                flags |= libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
                if *kind == Kind::UnreservedHuge {
                    flags |= libc::MAP_NORESERVE;
                }
                page_size = 2 << 20;
            }
            Kind::Cache(path) => {
                let how = OFlags::RDONLY | OFlags::CLOEXEC;
                memfd = Some(rustix::fs::open(path, how, Mode::empty()).expect("the cache"));
            }
            _ => flags |= libc::MAP_ANONYMOUS,
        }
        let fd = memfd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel chooses.
        let start = unsafe { libc::mmap(PLACE, len, access, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "mmap");
        if page_size == PAGE {
            // SAFETY: the mapping above.
            unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
        }
        if kind.is_loaded() {
            // SAFETY: the mapping above.
            unsafe { kind::load(start.cast()) };
        }
        let uffd = kind.register(start as usize, len);
        let half = match kind {
            Kind::Split => len / 2,
            _ => 0,
        };
        let mapping = |at: usize, size: usize, offset: usize| {
            format!(
                r#"{{"base_host_virt_addr":{},"size":{size},"offset":{offset},"page_size":{page_size}}}"#,
                start as usize + at
            )
        };
        let json = match half {
            0 => format!("[{}]", mapping(0, len, 0)),
            _ => format!("[{},{}]", mapping(0, half, half), mapping(half, half, 0)),
        };
        let connection = match kind {
            Kind::Launched => uffd::connect_from_child(socket, start, len),
            Kind::LaunchedMemfd => uffd::connect_by_launcher(socket),
            _ => UnixStream::connect(socket).expect("the manager's socket"),
        };
        let mut fds = vec![uffd.as_fd()];
        let sent = memfd.as_ref().filter(|_| kind.is_memfd());
        let sent = sent.map(|memfd| kind.to_send(memfd));
        fds.extend(sent.as_ref().map(|memfd| memfd.as_fd()));
        send(&connection, json.as_bytes(), &fds);
        Self {
            start: start.cast(),
            len,
            shift: half / PAGE,
            is_shared: kind.is_memfd(),
            memfd: memfd.filter(|_| kind.is_memfd()),
            uffd: Cell::new(Some(uffd)),
            connection,
        }
    }

    fn at(&self, page: usize, index: usize) -> *mut u64 {
        assert!((page + 1) * PAGE <= self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.add(page * PAGE / 8 + index) }
    }

    /// The number of a page in the snapshot.
    fn number(&self, page: usize) -> usize {
        (page + self.shift) % (self.len / PAGE)
    }

    pub fn write(&self, page: usize, version: u64) {
        for index in 0..PAGE / 8 {
            // SAFETY: the mapping, which is only accessed so.
            unsafe {
                self.at(page, index)
                    .write_volatile(word(self.number(page), version, index))
            };
        }
    }

    /// A copy of what the page has.
    pub fn bytes(&self, page: usize) -> Vec<u8> {
        // SAFETY: the mapping, which no thread writes now.
        unsafe { std::slice::from_raw_parts(self.at(page, 0).cast::<u8>(), PAGE) }.to_vec()
    }

    /// Returns true if the page has this version, or is zero where there is none.
    fn has(&self, page: usize, version: Option<u64>) -> bool {
        (0..PAGE / 8).all(|index| {
            let wanted = version.map_or(0, |version| word(self.number(page), version, index));
            // SAFETY: the mapping, which is only accessed so.
            unsafe { self.at(page, index).read_volatile() == wanted }
        })
    }

    pub fn remove(&self, page: usize, count: usize) {
        let advice = if self.is_shared {
            libc::MADV_REMOVE
        } else {
            libc::MADV_DONTNEED
        };
        self.advise(page, count, advice);
    }

    /// `madvise` of pages. Where their contents are given up they are this program's own.
    fn advise(&self, page: usize, count: usize, advice: i32) {
        // SAFETY: within the mapping.
        let outcome = unsafe { libc::madvise(self.at(page, 0).cast(), count * PAGE, advice) };
        assert_eq!(outcome, 0, "madvise: {}", std::io::Error::last_os_error());
    }

    /// Has the kernel take pages out of the page table, as reclaim does, or out of the mapping, which is reported as a discard: a
    /// memfd keeps them both times.
    fn advised(&self, n: &[usize], advice: i32) -> String {
        self.advise(n[0], n[1], advice);
        "advised".into()
    }

    /// The memory, for another thread.
    fn part(&self) -> MemoryPart {
        MemoryPart {
            start: self.start as usize,
            len: self.len,
            is_shared: self.is_shared,
        }
    }

    fn obey(&self, command: &str, n: &[usize]) -> String {
        match command {
            "write" => {
                (n[0]..n[0] + n[1]).for_each(|page| self.write(page, n[2] as u64));
                "written".into()
            }
            "verify" => {
                let wrong = (n[0]..n[0] + n[1]).filter(|page| !self.has(*page, Some(n[2] as u64)));
                wrong.count().to_string()
            }
            "zeros" => {
                let wrong = (n[0]..n[0] + n[1]).filter(|page| !self.has(*page, None));
                wrong.count().to_string()
            }
            "remove" => {
                self.remove(n[0], n[1]);
                "removed".into()
            }
            "discard_late" => late_discard::discard(self, n[0]).to_string(),
            "verify_beside_discards" => late_discard::verify_beside(self, n[0]).to_string(),
            "forget" => self.uffd.take().map_or("none", |_| "forgotten").into(),
            "collapse" => huge_page::collapse(self).into(),
            "child" => children::read_in_child(self, n[0], n[1] == 1, n[2]),
            "hold" => inode_lock::hold(self).into(),
            "let_go" => inode_lock::let_go().into(),
            "free" => self.advised(n, libc::MADV_FREE),
            "block" => self.let_reads_block().into(),
            "page_out" => self.advised(n, libc::MADV_PAGEOUT),
            "unmap" => self.advised(n, libc::MADV_DONTNEED),
            "random" => {
                let mut random = fastrand::Rng::with_seed(n[0] as u64);
                let wrong = (0..n[1]).filter(|_| {
                    let page = random.usize(..self.len / PAGE);
                    !self.has(page, Some(0))
                });
                wrong.count().to_string()
            }
            "storm" => self.storm(n[0], n[1]).to_string(),
            "endure" | "endured" => endurance::obey(self, command, n),
            "frames" => self.frames().to_string(),
            "pss" => pss().to_string(),
            "truncate" => {
                let memfd = self.memfd.as_ref().expect("a memfd");
                rustix::fs::ftruncate(memfd, 0).expect("ftruncate");
                "truncated".into()
            }
            "closed" => {
                let read = (&self.connection).read(&mut [0]);
                read.map_or_else(|why| why.to_string(), |bytes| bytes.to_string())
            }
            "sweep" => {
                let part = self.part();
                std::thread::spawn(move || part.sweep());
                "sweeping".into()
            }
            "pause" => {
                PAUSE.store(true, Ordering::SeqCst);
                while !IS_PAUSED.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let at = AT.lock().expect("the place");
                format!("{} {} {}", at.0, at.1, at.2)
            }
            "resume" => {
                PAUSE.store(false, Ordering::SeqCst);
                "resumed".into()
            }
            other => format!("unknown command {other}"),
        }
    }

    /// Clears O_NONBLOCK of the userfaultfd, which the manager shares.
    fn let_reads_block(&self) -> &'static str {
        let uffd = self.uffd.take().expect("a userfaultfd");
        rustix::fs::fcntl_setfl(&uffd, OFlags::empty()).expect("F_SETFL");
        self.uffd.set(Some(uffd));
        "blocks"
    }

    /// Threads that each write, check and discard pages of their own, at random. Returns the pages
    /// that read anything else than was last written.
    fn storm(&self, threads: usize, rounds: usize) -> usize {
        let pages = self.len / PAGE / threads;
        std::thread::scope(|scope| {
            let storms = (0..threads).map(|thread| {
                let part = self.part();
                scope.spawn(move || part.storm(thread, thread * pages, pages, rounds))
            });
            let storms: Vec<_> = storms.collect();
            let wrong = storms.into_iter().map(|it| it.join().expect("a storm"));
            wrong.sum()
        })
    }

    /// Pages of the memfd that have memory.
    fn frames(&self) -> usize {
        let memfd = self.memfd.as_ref().expect("a memfd");
        rustix::fs::fstat(memfd).expect("fstat").st_blocks as usize * 512 / PAGE
    }
}

/// Asks the sweeping thread to stand still; where it stands.
static PAUSE: AtomicBool = AtomicBool::new(false);
static IS_PAUSED: AtomicBool = AtomicBool::new(false);
static AT: Mutex<(u64, usize, usize)> = Mutex::new((0, 0, 0));

/// Memory as another thread has it.
#[derive(Clone, Copy)]
struct MemoryPart {
    start: usize,
    len: usize,
    is_shared: bool,
}

impl MemoryPart {
    /// Writes version after version to all pages, in order, a word at a time.
    fn sweep(self) {
        for version in 1.. {
            for page in 0..self.len / PAGE {
                for index in 0..PAGE / 8 {
                    if PAUSE.load(Ordering::SeqCst) {
                        *AT.lock().expect("the place") = (version, page, index);
                        IS_PAUSED.store(true, Ordering::SeqCst);
                        while PAUSE.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        IS_PAUSED.store(false, Ordering::SeqCst);
                    }
                    let at = self.start as *mut u64;
                    // SAFETY: within the mapping, which is only accessed so.
                    unsafe {
                        at.add(page * PAGE / 8 + index)
                            .write_volatile(word(page, version, index));
                    }
                }
            }
        }
    }

    fn memory(&self) -> Memory {
        let connection = UnixStream::pair().expect("a socket").0;
        Memory {
            start: self.start as *mut u64,
            len: self.len,
            shift: 0,
            is_shared: self.is_shared,
            memfd: None,
            uffd: Cell::new(None),
            connection,
        }
    }
}

fn pss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse().ok()).expect("Pss")
}

/// A page of this process's that can be read, its userfaultfd, and the message of its hand-off.
pub fn page_to_hand_over() -> (OwnedFd, *mut libc::c_void, String) {
    let uffd = open_userfaultfd();
    // SAFETY: a new mapping, where the kernel chooses.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0)
    };
    register(&uffd, memory as usize, PAGE);
    let text = format!(
        r#"[{{"base_host_virt_addr":{},"size":{PAGE},"offset":0,"page_size":{PAGE}}}]"#,
        memory as usize
    );
    (uffd, memory, text)
}
