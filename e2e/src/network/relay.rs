//! A link that delays and reorders its packets: two TAP devices, and a thread that passes Ethernet frames from each to
//! the other. Kernels that are built without netem have no other way.

use crate::verdict::{Doing, Verdict, failed, skipped};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};
use rustix::ioctl::{Setter, ioctl, opcode};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames that wait in each direction: a link of 1 Gbit/s has as many on the way in 20 ms. More are lost.
const MOST: usize = 2048;
/// The longest frame: an MTU of 1500 and its header.
const FRAME: usize = 2048;
/// How long the thread sleeps at most, so that it ends soon after it was told to.
const STEP: Duration = Duration::from_millis(50);
const TUNSETIFF: u32 = opcode::write::<i32>(b'T', 202);
/// IFF_TAP | IFF_NO_PI of linux/if_tun.h.
const TAP: i16 = 0x0002 | 0x1000;

/// How long a packet takes in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// At least.
    pub least: Duration,
    /// Beyond it at most, at random: packets pass each other.
    pub spread: Duration,
}

/// The name and flags of a device: ifreq of linux/if.h.
#[repr(C)]
struct DeviceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// A relay, until it is dropped.
pub struct Relay {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_over: AtomicBool,
    overtaken: AtomicU64,
}

impl Relay {
    /// Makes the TAP devices in a network namespace, and passes frames between them.
    pub fn start(namespace: &str, devices: [String; 2], delay: Delay) -> Verdict<Self> {
        let path = format!("/run/netns/{namespace}");
        // A thread's namespace is its own: the devices are made in one that ends at once.
        let made = std::thread::spawn(move || {
            let namespace = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            move_into_link_name_space(
                rustix::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Network),
            )?;
            Ok([tap(&devices[0])?, tap(&devices[1])?])
        });
        let ends = match made.join() {
            Ok(Ok(ends)) => ends,
            Ok(Err(Errno::NOENT | Errno::NODEV | Errno::PERM)) => {
                return skipped("a link that delays packets needs /dev/net/tun");
            }
            Ok(Err::<_, Errno>(why)) => return failed(format!("cannot make TAP devices: {why}")),
            Err(_) => return failed("the thread that makes TAP devices panicked"),
        };
        let state = Arc::new(State::default());
        let of_thread = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || pass(&ends, delay, &of_thread))
            .doing(|| "start a thread".into())?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// Frames that went on after one that had arrived later.
    pub fn overtaken(&self) -> u64 {
        self.state.overtaken.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tap(name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = DeviceRequest {
        name: [0; 16],
        flags: TAP,
        rest: [0; 22],
    };
    let len = name.len().min(15);
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: TUNSETIFF reads an ifreq, which this has the layout and the size of.
    unsafe { ioctl(&device, Setter::<TUNSETIFF, DeviceRequest>::new(request)) }?;
    Ok(device)
}

/// Frames on the way to one end, the first due first; those due at once in order of their arrival.
type OnTheWay = BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>;

fn pass(ends: &[OwnedFd; 2], delay: Delay, state: &State) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut ways: [OnTheWay; 2] = Default::default();
    let mut arrived = 0;
    let mut latest = [0; 2];
    let mut frame = [0; FRAME];
    while !state.is_over.load(Ordering::Relaxed) {
        for (from, way) in ways.iter_mut().enumerate() {
            while let Ok(len) = read(&ends[from], &mut frame[..]) {
                arrived += 1;
                let late = random.u64(0..=delay.spread.as_micros() as u64);
                let due = Instant::now() + delay.least + Duration::from_micros(late);
                if way.len() < MOST {
                    way.push(Reverse((due, arrived, frame[..len].to_vec())));
                }
            }
            while let Some(Reverse((due, number, bytes))) = way.peek()
                && *due <= Instant::now()
            {
                state
                    .overtaken
                    .fetch_add((*number < latest[from]).into(), Ordering::Relaxed);
                latest[from] = latest[from].max(*number);
                // A device whose queue is full loses the frame, as a network does.
                let _ = write(&ends[1 - from], bytes);
                way.pop();
            }
        }
        let next = ways.iter().filter_map(|way| way.peek());
        let next = next.map(|Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
        let pause = next.min().unwrap_or(STEP).min(STEP);
        let mut fds = [0, 1].map(|end| PollFd::new(&ends[end], PollFlags::IN));
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        let _ = poll(&mut fds, Some(&limit));
    }
}
