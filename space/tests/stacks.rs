//! Stacks that grow on demand, and give back what they do not use.

mod common;

use common::{PAGE, alone, dig, in_child};
use corosensei::CoroutineResult;
use space::stack::{StackCoroutine, StackPool, StackThread, probe, recycle};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[test]
fn ten_thousand_idle_coroutines_hold_three_pages_each() {
    const COUNT: usize = 10_000;
    const USED: usize = 256 << 10;
    let pool = StackPool::new(512 << 10, COUNT).unwrap();
    let expected = dig(USED, 1);
    let mut coroutines: Vec<_> = (0..COUNT)
        .map(|n| {
            let (stack, own) = (pool.take(&format!("coroutine {n}")).unwrap(), pool.clone());
            let range = stack.range();
            let coroutine = StackCoroutine::new(stack, move |yielder, ()| {
                let local = black_box([n as u64; 64]);
                let used = dig(USED, 1);
                own.suspend(yielder, used);
                black_box(&local).iter().sum::<u64>()
            });
            (coroutine, range)
        })
        .collect();
    let swept: usize = coroutines
        .chunks_mut(100)
        .map(|chunk| {
            for (coroutine, _) in chunk {
                assert!(
                    matches!(coroutine.resume(()), CoroutineResult::Yield(used) if used == expected)
                );
            }
            pool.sweep()
        })
        .sum();
    assert_eq!(swept, COUNT);
    let pagemap = translation::Pagemap::open(&translation::Capabilities::probe_fast()).unwrap();
    for (n, (coroutine, range)) in coroutines.iter_mut().enumerate() {
        let mut bitmap = [0; 2];
        let pages = pagemap
            .present_pages(range.start, range.len(), &mut bitmap)
            .unwrap();
        assert!(
            (1..=3).contains(&pages),
            "coroutine {n} holds {pages} pages"
        );
        assert!(
            matches!(coroutine.resume(()), CoroutineResult::Return(sum) if sum == 64 * n as u64)
        );
    }
}

#[test]
fn a_sweep_takes_nothing_of_a_large_value_that_a_coroutine_gives_or_gets() {
    type Large = [u64; 2048];
    let pool = StackPool::new(512 << 10, 1).unwrap();
    let (stack, own) = (pool.take("large").unwrap(), pool.clone());
    let mut coroutine = StackCoroutine::new(stack, move |yielder, first: Large| {
        let mut sum = first[2047] + yielder.suspend(first)[2047];
        for n in 0..4 {
            sum += own.suspend(yielder, black_box([n; 2048]))[2047];
        }
        sum
    });
    let first = coroutine.resume([10; 2048]);
    assert!(matches!(first, CoroutineResult::Yield(first) if first == [10; 2048]));
    for n in 0..4 {
        let given = coroutine.resume(black_box([10; 2048]));
        assert!(matches!(given, CoroutineResult::Yield(given) if given == [n; 2048]));
        assert_eq!(pool.sweep(), 1);
    }
    let ended = coroutine.resume([10; 2048]);
    assert!(matches!(ended, CoroutineResult::Return(60)));
}

#[test]
fn sweeps_beside_running_coroutines_take_nothing_that_is_alive() {
    let pool = StackPool::new(256 << 10, 64).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swept = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let sweeper = scope.spawn({
            let (pool, stop, swept) = (pool.clone(), stop.clone(), swept.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    swept.fetch_add(pool.sweep(), Ordering::Relaxed);
                }
            }
        });
        let workers: Vec<_> = (0..2u64)
            .map(|worker| {
                let pool = pool.clone();
                scope.spawn(move || {
                    let mut coroutines: Vec<_> = (0..16)
                        .map(|n| {
                            let (stack, own) = (pool.take("worker").unwrap(), pool.clone());
                            StackCoroutine::new(stack, move |yielder, ()| {
                                for round in 0..300u64 {
                                    let local = black_box([worker * 1000 + n + round; 200]);
                                    let depth = 4096 * ((round + n) as usize % 24);
                                    let used = dig(depth, round);
                                    own.suspend(yielder, ());
                                    assert_eq!(used, dig(depth, round));
                                    assert!(
                                        black_box(&local)
                                            .iter()
                                            .all(|v| *v == worker * 1000 + n + round)
                                    );
                                }
                            })
                        })
                        .collect();
                    while coroutines.iter().any(|c| !c.done()) {
                        coroutines.iter_mut().filter(|c| !c.done()).for_each(|c| {
                            c.resume(());
                        });
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        sweeper.join().unwrap();
    });
    assert!(swept.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_probe_gives_pages_before_they_are_used_and_refuses_beyond_the_stack() {
    let pool = StackPool::new(512 << 10, 2).unwrap();
    let below = pool.take("below").unwrap();
    let stack = pool.take("probed").unwrap();
    let range = stack.range();
    let mut coroutine = StackCoroutine::new(stack, move |yielder, ()| {
        yielder.suspend(probe(128 << 10));
        yielder.suspend(probe(1 << 20));
        yielder.suspend(probe(usize::MAX));
    });
    assert!(matches!(
        coroutine.resume(()),
        CoroutineResult::Yield(Ok(()))
    ));
    let pagemap = translation::Pagemap::open(&translation::Capabilities::probe_fast()).unwrap();
    let pages = pagemap
        .present_pages(range.start, range.len(), &mut [0; 2])
        .unwrap();
    assert!((32..40).contains(&pages), "{pages}");
    for bytes in [1 << 20, usize::MAX] {
        let Some(Err(error)) = coroutine.resume(()).as_yield() else {
            panic!("probed {bytes} bytes");
        };
        assert_eq!(error.to_string(), too_far(bytes));
    }
    assert_eq!(below.resident_pages().unwrap(), 0);
    assert!(matches!(coroutine.resume(()), CoroutineResult::Return(())));
    assert_eq!(probe(1 << 40).unwrap_err().to_string(), too_far(1 << 40));
}

fn too_far(bytes: usize) -> String {
    format!(
        "{bytes} bytes are not there below the stack pointer; probe for less, or make the stack larger"
    )
}

#[test]
fn a_pool_says_what_stacks_it_takes() {
    for (bytes, count) in [(PAGE, 4), (64 << 10, 0)] {
        assert_eq!(
            StackPool::new(bytes, count).err().unwrap().to_string(),
            format!(
                "invalid pool of {count} stacks of {bytes} bytes: expected 1 stack and 8192 bytes at least"
            )
        );
    }
}

#[test]
fn a_thread_gives_the_pages_below_its_stack_pointer_back() {
    let pool = StackPool::new(1 << 20, 1).unwrap();
    let (used, used_by_thread) = std::sync::mpsc::channel();
    let (go, going) = std::sync::mpsc::channel::<()>();
    let thread = StackThread::spawn(&pool, "worker", move || {
        let local = black_box([7u64; 64]);
        let sum = dig(512 << 10, 0);
        used.send(()).unwrap();
        going.recv().unwrap();
        recycle();
        used.send(()).unwrap();
        going.recv().unwrap();
        black_box(&local).iter().sum::<u64>() + sum
    })
    .unwrap();
    used_by_thread.recv().unwrap();
    let stack = thread.stack().unwrap();
    assert!(stack.resident_pages().unwrap() >= 128);
    go.send(()).unwrap();
    used_by_thread.recv().unwrap();
    let pages = stack.resident_pages().unwrap();
    // The C library's thread data and the frames in use.
    assert!(
        pages <= 6,
        "{pages} pages of {}",
        stack.range().len() / PAGE
    );
    go.send(()).unwrap();
    assert_eq!(thread.join(), 7 * 64 + dig(512 << 10, 0));
}

/// A thread that drops its own handle, or that of a thread which drops the handle of this one meanwhile.
#[test]
fn a_thread_that_drops_its_own_handle_keeps_its_stack() {
    let _alone = alone();
    let ended = in_child(|| {
        let pool = StackPool::new(256 << 10, 2).unwrap();
        let handle: Arc<Mutex<Option<StackThread<()>>>> = Arc::default();
        let own = handle.clone();
        let (go, going) = std::sync::mpsc::channel::<()>();
        let (report, reported) = std::sync::mpsc::channel();
        let thread = StackThread::spawn(&pool, "own", move || {
            going.recv().unwrap();
            let local = black_box([7u8; 64]);
            drop(own.lock().unwrap().take());
            report.send(black_box(local)[5]).unwrap();
        })
        .unwrap();
        let stack = thread.stack().unwrap().range();
        *handle.lock().unwrap() = Some(thread);
        go.send(()).unwrap();
        assert_eq!(reported.recv(), Ok(7));
        // It ends on that stack.
        let taken = [(); 2].map(|()| pool.take("next").map(|next| next.range()));
        assert!(taken.iter().flatten().all(|next| *next != stack));
        0
    });
    assert_eq!(ended, Ok(0));
}

/// The pool that the handler of single steps sweeps.
static STEPPED: OnceLock<Arc<StackPool>> = OnceLock::new();

/// Stacks that it swept.
static STEPS_SWEPT: AtomicUsize = AtomicUsize::new(0);

/// Uses more of the interrupted stack than the margin of a sweep, and sweeps its pool.
extern "C" fn sweep_at_a_step(_: i32) {
    let frame = black_box([0x5a_u8; 3 * PAGE]);
    let swept = STEPPED.get().unwrap().sweep();
    STEPS_SWEPT.fetch_add(swept, Ordering::Relaxed);
    assert!(black_box(&frame).iter().all(|byte| *byte == 0x5a));
}

/// Sets or clears the trap flag: the processor raises SIGTRAP after each instruction.
#[inline(always)]
fn single_step(on: bool) {
    // SAFETY: changes the trap flag alone; the test handles SIGTRAP.
    unsafe {
        std::arch::asm!(
            "pushfq",
            "and qword ptr [rsp], {keep}",
            "or qword ptr [rsp], {flag}",
            "popfq",
            keep = in(reg) !0x100_u64,
            flag = in(reg) u64::from(on) << 8,
        );
    }
}

#[test]
fn a_sweep_at_any_step_of_a_switch_takes_no_stack_that_a_signal_handler_runs_on() {
    let pool = STEPPED.get_or_init(|| StackPool::new(64 << 10, 1).unwrap());
    let handler = sweep_at_a_step as extern "C" fn(i32);
    // SAFETY: the handler calls nothing that the interrupted code, a switch of stacks, is in.
    unsafe { libc::signal(libc::SIGTRAP, handler as usize) };
    let mut coroutine = StackCoroutine::new(pool.take("stepped").unwrap(), |yielder, ()| {
        for _ in 0..3 {
            pool.suspend(yielder, ());
        }
    });
    let mut waits = 0;
    loop {
        single_step(true);
        let result = coroutine.resume(());
        single_step(false);
        match result {
            CoroutineResult::Yield(()) => waits += 1,
            CoroutineResult::Return(()) => break,
        }
    }
    let swept = STEPS_SWEPT.load(Ordering::Relaxed);
    assert_eq!((waits, swept), (3, 3));
}

/// Its destructor sweeps the pool, and says how many stacks that took pages of.
struct SweepsAtDrop(Arc<StackPool>, Arc<AtomicUsize>);

impl Drop for SweepsAtDrop {
    fn drop(&mut self) {
        let frame = black_box([0x77_u8; 3 * PAGE]);
        self.1.store(self.0.sweep(), Ordering::Relaxed);
        assert!(black_box(&frame).iter().all(|byte| *byte == 0x77));
    }
}

#[test]
fn a_sweep_takes_nothing_of_the_destructors_of_a_dropped_coroutine() {
    let pool = StackPool::new(64 << 10, 1).unwrap();
    let swept = Arc::new(AtomicUsize::new(usize::MAX));
    let (own, sweeps) = (pool.clone(), SweepsAtDrop(pool.clone(), swept.clone()));
    let mut coroutine = StackCoroutine::new(pool.take("dropped").unwrap(), move |yielder, ()| {
        own.suspend(yielder, ());
        drop(sweeps);
    });
    assert!(matches!(coroutine.resume(()), CoroutineResult::Yield(())));
    drop(coroutine);
    assert_eq!(swept.load(Ordering::Relaxed), 0);
}

#[test]
fn a_locked_stack_gives_its_pages_back_and_is_empty_for_its_next_owner() {
    let pool = StackPool::new(256 << 10, 1).unwrap();
    let (stack, own) = (pool.take("first").unwrap(), pool.clone());
    let (at, len) = (stack.range().start, stack.range().len());
    // As `mlockall` does, which is for a whole process.
    // SAFETY: locking changes no contents.
    let locked = unsafe { libc::mlock(std::ptr::with_exposed_provenance(at), len) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    let pages = || {
        let pagemap = translation::Pagemap::open(&translation::Capabilities::probe_fast()).unwrap();
        pagemap.present_pages(at, len, &mut [0]).unwrap()
    };
    let mut coroutine = StackCoroutine::new(stack, move |yielder, ()| {
        dig(128 << 10, 1);
        own.suspend(yielder, ());
        dig(128 << 10, 1);
        recycle();
        yielder.suspend(());
        dig(128 << 10, 1);
    });
    coroutine.resume(());
    assert_eq!((pages(), pool.sweep()), (len / PAGE, 1));
    assert!(pages() <= 3, "{} pages after a sweep", pages());
    coroutine.resume(());
    assert!(pages() <= 3, "{} pages after a recycle", pages());
    coroutine.resume(());
    drop(coroutine);
    let next = pool.take("second").unwrap();
    assert_eq!((next.range().start, pages()), (at, 0));
}
