//! The keeper: the system domain of the tree, parent of the program, subreaper of all.
//!
//! One loop that never waits for a single process, nor for the reader of standard error:
//! processes join, die, and stop at the filter at any moment, and the admission of other
//! processes must not wait. Work that may block has a thread of its own: lines for standard error
//! (`log`), samples of the tree's memory, and connections handed out through the filter.

use super::Remaining;
use super::control::{Arrived, Message};
use super::limits;
use super::log::ErrorLog;
use super::plan::Plan;
use super::program::NotRun;
use super::proxy::{KILL_LIMIT, borrowed, let_go};
use super::report::Report;
use super::signals::{Inherited, Signals};
use super::spawn::{SpawnError, Spawned, spawn};
use host::cpu_reservation::{self, ReservationGuard};
use host::process_tree;
use link::stats_page::Metric;
use protocol::contract_spec::FramePlacement;
use rustix::event::{PollFd, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_child_subreaper};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use store::{DiskConfig, SetupError, SharedStore, StoreConfig};
use supervisor::direct_io_filter::{self, Notifier};
use supervisor::memory_sampler::Sampler;
use supervisor::{StartError, Supervisor, SupervisorConfig, TreeEvent};
use tenant::{Session, bind_to_node};

/// Time after the program's end before `run` reports that it waits for other processes.
const REMARK: Duration = Duration::from_secs(1);

/// Different lines printed for the tree: a program that fails in a loop must not fill
/// the terminal.
const LINES: usize = 200;

/// Most time between the arrivals at proxy and keeper of one signal sent to their group.
const SAME_KILL: Duration = Duration::from_millis(200);

/// Signals that request termination.
const TO_END: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Keeps the contract until the tree has ended. Returns this process's exit status.
pub fn keep(mut plan: Plan, control: OwnedFd, inherited: Inherited, fds: &[RawFd]) -> i32 {
    let _ = rustix::thread::set_name(c"selfpage-keeper");
    let failed = |status: i32, why: String| {
        crate::say!("selfpage: {why}");
        let _ = Message::Failed(status).send(&control);
        status
    };
    let own = i32::from(crate::OWN_FAILURE);
    let signals = match set_child_subreaper(Some(getpid()))
        .map_err(Into::into)
        .and_then(|()| Signals::open())
    {
        Ok(signals) => signals,
        Err(why) => return failed(own, format!("cannot watch over the program: {why}")),
    };
    let mut system = match start(&mut plan) {
        Ok(system) => system,
        Err(why) => {
            let limit = limits::behind(why.errno());
            return failed(
                own,
                limit.map_or(why.to_string(), |limit| limit.to_string()),
            );
        }
    };
    if system.store().is_some_and(SharedStore::is_in_memory) {
        crate::say!(
            "selfpage: warning: the folder of the swap file is a file system in memory, so pages that are written \
             there stay in memory: name a folder on a disk, or ram:SIZE, which compresses them"
        );
    }
    if let Some(pace) = plan.pace.take() {
        system.set_pace(pace);
    }
    if let Err(limit) = limits::check_space() {
        return failed(own, limit.to_string());
    }
    if let Some(through) = &plan.direct_io {
        be_careful(
            &plan,
            &system,
            &format!("direct I/O is possible from the start, through {through}"),
        );
    }
    let owner = getppid().map_or(0, |proxy| proxy.as_raw_nonzero().get() as u32);
    let held = match plan
        .cpu
        .map(|terms| ReservationGuard::take(terms, owner))
        .transpose()
    {
        Ok(held) => held,
        Err(why) => return failed(own, why.to_string()),
    };
    for note in held.iter().flat_map(ReservationGuard::notes) {
        crate::say!("selfpage: {note}");
    }
    let begin = Instant::now();
    let spawned = match spawn(&plan, &system, &inherited, held.as_ref()) {
        Ok(spawned) => spawned,
        Err(SpawnError::Exec(errno)) => {
            let why = NotRun::from_exec(&plan.program, errno);
            return failed(why.status().into(), why.to_string());
        }
        Err(why) => return failed(own, why.to_string()),
    };
    if let Some(store) = system.store()
        && let Err(why) = store.grow_ahead()
    {
        process_tree::kill_below(KILL_LIMIT);
        return failed(own, why.to_string());
    }
    let_go(fds);
    let Spawned { pid, listener } = spawned;
    let notifier = match serve(listener, &mut system) {
        Ok(Ok(notifier)) => Some(notifier),
        Ok(Err(errno)) => {
            be_careful(
                &plan,
                &system,
                &format!("direct I/O cannot be noticed here (seccomp: {errno})"),
            );
            None
        }
        Err(why) => {
            process_tree::kill_below(KILL_LIMIT);
            return failed(own, format!("cannot let processes come in: {why}"));
        }
    };
    let sampler = match system.observed() {
        Ok(observed) => Sampler::start(observed),
        Err(errno) => {
            process_tree::kill_below(KILL_LIMIT);
            return failed(own, format!("cannot map the board again: {errno}"));
        }
    };
    let mut keeper = Keeper {
        proxy: getppid(),
        plan,
        control,
        signals,
        system,
        notifier,
        sampler,
        log: ErrorLog::start(),
        program: pid,
        status: None,
        ended: None,
        remarked: false,
        asked_to_end: None,
        said: HashSet::new(),
        own: Vec::new(),
    };
    match keeper.run() {
        Over::Ended(status) => {
            keeper.log.finish();
            Report::gather(
                &keeper.plan,
                &keeper.system,
                &keeper.sampler,
                begin.elapsed(),
                status,
            )
            .give(&keeper.plan);
            cpu_reservation::release(owner);
            let _ = Message::Ended(status).send(&keeper.control);
            0
        }
        Over::Orphaned => {
            process_tree::kill_below(KILL_LIMIT);
            cpu_reservation::release(owner);
            own
        }
    }
}

/// Lets processes join: through the filter, or by sockets where there is no filter (`Err`).
fn serve(
    listener: Result<OwnedFd, Errno>,
    system: &mut Supervisor,
) -> std::io::Result<Result<Notifier, Errno>> {
    match listener {
        Ok(listener) => {
            system.serve_filter(listener.try_clone()?)?;
            Ok(Ok(Notifier::new(listener)))
        }
        Err(errno) => {
            system.listen()?;
            Ok(Err(errno))
        }
    }
}

/// Starts the system domain. A default store whose file cannot be made after all (a disk quota,
/// for example) is in RAM alone.
fn start(plan: &mut Plan) -> Result<Supervisor, StartError> {
    let tenant = plan
        .system
        .as_ref()
        .map(|(socket, wanted)| Session::join(socket, wanted));
    let mut tenant = tenant.transpose()?;
    if let Some(tenant) = &mut tenant {
        if let Some(pace) = &mut plan.pace {
            pace.give(tenant.share_faults(pace.reservation())?);
        }
        let node = plan.system.as_ref().and_then(|(_, wanted)| wanted.place);
        if let Some(FramePlacement::Node(node)) = node {
            bind_to_node(node).map_err(StartError::call("have memory of one node only"))?;
        }
        let terms = tenant.terms();
        plan.frames = terms.frames.x;
        plan.store = Some(StoreConfig {
            ram: None,
            disk: Some(DiskConfig::by_daemon(terms.swap)),
        });
        if plan.options.verbosity > 0 {
            crate::say!("selfpage: contract {}: {terms}", tenant.number());
        }
        if !tenant.note().is_empty() {
            crate::say!("selfpage: {}", tenant.note());
        }
    }
    let settings = |plan: &Plan, tenant| SupervisorConfig {
        frames: plan.frames,
        store: plan.store.clone(),
        options: plan.options,
        share_store: plan.share_store,
        userfaultfd: plan.userfaultfd.as_ref().and_then(|fd| fd.try_clone().ok()),
        tenant,
    };
    match Supervisor::start(settings(plan, tenant)) {
        Err(StartError::Store(why @ (SetupError::Path { .. } | SetupError::NoRoom { .. })))
            if !plan.asked_for_store && plan.system.is_none() =>
        {
            let store = super::store::without_a_file(u64::from(plan.frames) * wired::PAGE as u64);
            crate::say!(
                "selfpage: {}",
                super::store::notice(&store, &why.to_string())
            );
            plan.store = Some(store);
            Supervisor::start(settings(plan, None))
        }
        started => started,
    }
}

fn be_careful(plan: &Plan, system: &Supervisor, why: &str) {
    direct_io_filter::be_careful(system.board());
    if plan.options.verbosity > 0 {
        crate::say!("selfpage: {why}: every page is checked before it is evicted");
    }
}

/// The reason that the keeper's loop ends.
enum Over {
    /// The tree has ended; the program's wait status.
    Ended(i32),
    /// The proxy is gone: the tree must end.
    Orphaned,
}

struct Keeper {
    plan: Plan,
    control: OwnedFd,
    proxy: Option<Pid>,
    signals: Signals,
    system: Supervisor,
    notifier: Option<Notifier>,
    sampler: Sampler,
    log: ErrorLog,
    program: Pid,
    /// The program's wait status, once it has ended, and when that was.
    status: Option<i32>,
    ended: Option<Instant>,
    remarked: bool,
    /// A termination request sent to `run`: it applies to the processes that outlive the
    /// program, too.
    asked_to_end: Option<Signal>,
    said: HashSet<String>,
    /// Signals that this process received lately.
    own: Vec<(Instant, Arrived)>,
}

impl Keeper {
    fn run(&mut self) -> Over {
        loop {
            self.wait();
            // The tree's own events before its deaths: a process's last message counts.
            let events = self.system.dispatch();
            events.into_iter().for_each(|event| self.tell(event));
            self.notified();
            self.note_signals();
            loop {
                match Message::receive(&self.control) {
                    Ok(Some(Message::Signal(signal))) => self.pass_on(signal),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return Over::Orphaned,
                }
            }
            self.sampler.sample_if_due(self.system.programs());
            if self.reap() {
                // The last messages of processes that died.
                let events = self.system.dispatch();
                events.into_iter().for_each(|event| self.tell(event));
                return Over::Ended(self.status.unwrap_or(0));
            }
            self.after_the_program();
        }
    }

    fn wait(&self) {
        let waiting = self.notifier.as_ref().is_some_and(Notifier::is_waiting);
        let soon = if waiting {
            Duration::from_millis(1)
        } else {
            REMARK
        };
        let limit = self.system.patience().min(self.sampler.due_in()).min(soon);
        // At most REMARK, so the conversion succeeds.
        let limit = Timespec::try_from(limit).ok();
        let mut fds: Vec<PollFd> = Vec::with_capacity(4);
        borrowed(Some(self.control.as_fd()), &mut fds);
        borrowed(Some(self.signals.fd()), &mut fds);
        borrowed(Some(self.system.fd()), &mut fds);
        borrowed(self.notifier.as_ref().map(Notifier::fd), &mut fds);
        let _ = poll(&mut fds, limit.as_ref());
    }

    fn tell(&mut self, event: TreeEvent) {
        let chatty = self.plan.options.verbosity > 1;
        match event {
            TreeEvent::Notice { pid, text } => {
                self.say(format!("[{}] {text}", pid.as_raw_nonzero()), text)
            }
            TreeEvent::Refused { pid, text } => {
                self.say(format!("[{}] {text}", pid.as_raw_nonzero()), text)
            }
            TreeEvent::Joined { slot, pid } if chatty => {
                self.print(format!("[{}] pages, slot {slot}", pid.as_raw_nonzero()))
            }
            TreeEvent::Left { pid, frames, .. } if chatty => {
                self.print(format!(
                    "[{}] has ended, {frames} frames come back",
                    pid.as_raw_nonzero()
                ));
            }
            TreeEvent::Back => self.print("the system domain is there again".into()),
            TreeEvent::Joined { .. } | TreeEvent::Left { .. } => {}
        }
    }

    /// Prints each text once.
    fn say(&mut self, line: String, text: String) {
        if self.said.len() < LINES && self.said.insert(text) {
            self.print(line);
        }
    }

    /// Queues a line for standard error; never waits for its reader.
    fn print(&self, line: String) {
        self.log.line(format!("selfpage: {line}"));
    }

    /// Handles calls that stopped at the filter.
    fn notified(&mut self) {
        let Some(notifier) = &mut self.notifier else {
            return;
        };
        let mut ready = [PollFd::from_borrowed_fd(
            notifier.fd(),
            rustix::event::PollFlags::IN,
        )];
        let _ = poll(&mut ready, Some(&Timespec::default()));
        let (readable, over) = {
            let flags = ready[0].revents();
            (
                flags.contains(rustix::event::PollFlags::IN),
                flags.contains(rustix::event::PollFlags::HUP),
            )
        };
        let gone = readable && notifier.receive(self.system.board()).is_err();
        notifier
            .take_requests()
            .into_iter()
            .for_each(|id| self.system.connect(id));
        let refused = notifier.settle(self.system.board(), self.system.members());
        if gone || (over && !readable) {
            self.notifier = None;
        }
        if refused > 0 {
            let text =
                "direct I/O was refused to a program: a pager of the tree did not answer in time"
                    .to_owned();
            self.say(text.clone(), text);
        }
    }

    /// Reads the signals that this process received.
    fn note_signals(&mut self) {
        self.own.retain(|(when, _)| when.elapsed() < SAME_KILL);
        while let Some(signal) = self.signals.next() {
            self.own.push((Instant::now(), signal));
        }
    }

    /// Returns true if this process got the same signal from the same sender as the proxy: then
    /// it went to the whole group, the program included.
    fn went_to_all(&mut self, signal: Arrived) -> bool {
        self.note_signals();
        let same = |(_, own): &(Instant, Arrived)| {
            (own.signal, own.sender, own.code) == (signal.signal, signal.sender, signal.code)
        };
        let found = self.own.iter().position(same);
        found.map(|at| self.own.remove(at)).is_some()
    }

    /// Forwards a signal that the proxy received to the program.
    fn pass_on(&mut self, signal: Arrived) {
        if self.went_to_all(signal) {
            return;
        }
        // The kernel may still be delivering it to the group.
        std::thread::sleep(Duration::from_millis(1));
        if self.went_to_all(signal) {
            return;
        }
        let named = Signal::from_named_raw(signal.signal);
        if self.status.is_none() {
            self.asked_to_end = named.filter(|s| TO_END.contains(s)).or(self.asked_to_end);
        }
        let queued = signal.code == libc::SI_QUEUE;
        match (self.status, named) {
            (None, _) if queued => {
                let value = libc::sigval {
                    sival_ptr: signal.value as *mut libc::c_void,
                };
                // SAFETY: our own child, not yet waited for, so the number is still its.
                unsafe {
                    libc::sigqueue(self.program.as_raw_nonzero().get(), signal.signal, value)
                };
            }
            (None, _) => {
                // SAFETY: as above.
                unsafe { libc::kill(self.program.as_raw_nonzero().get(), signal.signal) };
            }
            (Some(_), Some(signal)) => {
                process_tree::signal_all(&process_tree::below(getpid()), signal)
            }
            (Some(_), None) => {}
        }
    }

    /// Reaps children that ended, and handles those that stopped or continued. Returns true if
    /// none is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: waits for children of this process.
            let pid = unsafe {
                libc::waitpid(
                    -1,
                    &mut status,
                    libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED,
                )
            };
            if pid > 0 && libc::WIFSIGNALED(status) && libc::WCOREDUMP(status) {
                self.tell_of_core_dump(pid);
            }
            match pid {
                0 => return false,
                -1 => return std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
                pid if pid != self.program.as_raw_nonzero().get() => {}
                _ if libc::WIFSTOPPED(status) => {
                    let _ = Message::Stopped(libc::WSTOPSIG(status)).send(&self.control);
                }
                _ if libc::WIFCONTINUED(status) => {
                    // It may have stopped with the program.
                    let _ = self
                        .proxy
                        .map(|proxy| rustix::process::kill_process(proxy, Signal::CONT));
                }
                _ => {
                    self.status = Some(status);
                    self.ended = Some(Instant::now());
                }
            }
        }
    }

    /// The kernel's dumper takes a missing page for one that was never written.
    fn tell_of_core_dump(&mut self, pid: libc::pid_t) {
        if self.system.figure(Metric::Staged) == 0 {
            return;
        }
        let text = "its core dump has zeros for the pages that were paged out; with frames for all its memory \
                    (--frames) a core dump is whole";
        self.say(format!("[{pid}] {text}"), text.to_owned());
    }

    /// Handles the time between the program's end and that of the last process.
    fn after_the_program(&mut self) {
        let Some(ended) = self.ended else { return };
        if self.plan.remaining == Remaining::Kill {
            process_tree::kill_below(KILL_LIMIT);
            return;
        }
        if let Some(signal) = self.asked_to_end.take() {
            process_tree::signal_all(&process_tree::below(getpid()), signal);
        }
        if ended.elapsed() > REMARK && !self.remarked {
            self.remarked = true;
            let mut left = process_tree::below(getpid());
            left.retain(|pid| !self.system.is_pager(*pid));
            let left = left.len();
            self.print(format!(
                "{} has ended; {left} of the processes it started run on and keep the contract: waiting \
                 for them (a signal to this process goes to them all; --remaining kill ends them at once)",
                self.plan.program.name()
            ));
        }
    }
}
