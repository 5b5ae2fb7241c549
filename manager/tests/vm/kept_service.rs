//! A manager that has a keeper, which is a process of its own and starts another manager for one that ends.

use crate::common::{Guest, await_that, make_snapshot, mib};
use crate::objects::fetched;
use crate::systemd::Systemd;
use host::restart_policy::RestartPolicy;
use manager::client_memory::SharedCache;
use manager::control::{ClientReport, ControlReply, ControlRequest, request};
use manager::former_service::{FormerService, FormerServiceError};
use manager::keeper::keep;
use manager::kept_service::{KeptService as Kept, describe};
use manager::server::{Manager, ManagerConfig};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The keeper's main function: arguments are SOCKET SNAPSHOT CONTRACT CACHE MODE.
pub fn main(args: &[String]) {
    let config = ManagerConfig {
        socket: PathBuf::from(&args[0]),
        snapshot: Some(fetched(&args[1], &std::env::temp_dir())),
        size: 0,
        contract: (args[2] != "-").then(|| (mib(2), args[2].parse().expect("a store"))),
        disk: ManagerConfig::equal_share(),
        uses_working_set: true,
        cache: None,
        most_clients: 64,
        most_clients_of_a_user: usize::MAX,
        patience: Duration::from_secs(5),
    };
    let signals = host::signals::set_of(&[libc::SIGTERM]);
    host::signals::block(&signals);
    let is_mortal = args[4] == "mortal";
    let mut policy = RestartPolicy::default();
    if !is_mortal {
        // However soon and often it is killed.
        (policy.early, policy.most_unserved) = (Duration::ZERO, u32::MAX);
    }
    let (service, config) = match begin(config, args) {
        Ok(begun) => begun,
        Err(why) => return println!("refused: {why}"),
    };
    let end = keep(service, &signals, policy, |from| {
        if is_mortal && from.former_end.is_some() {
            std::process::abort();
        }
        let server = Manager::resume(config, from)?;
        let mut signal = 0;
        // SAFETY: the set was made above.
        unsafe { libc::sigwait(&signals, &raw mut signal) };
        server.stop();
        Ok(())
    });
    println!("{:?}", end.expect("a keeper"));
}

/// What the keeper begins with: what the test's systemd has, and new what it has not.
fn begin(
    mut config: ManagerConfig,
    args: &[String],
) -> Result<(Kept, ManagerConfig), FormerServiceError> {
    let path = (args[3] != "-").then(|| Path::new(&args[3]));
    // SAFETY: at the program's start.
    let passed = unsafe { host::systemd::passed() }.expect("descriptors");
    let mut former = FormerService::sort(passed, &describe(&config, path))?;
    if let (Some(path), Some(snapshot)) = (path, &config.snapshot) {
        let cache = match former.take_cache(snapshot)? {
            Some(cache) => cache,
            None => SharedCache::create(path, snapshot).expect("a cache"),
        };
        config.cache = Some(Arc::new(cache));
    }
    let service = former.into_service(&config.socket, config.cache.as_deref())?;
    Ok((service, config))
}

/// A keeper, its manager, and their folder.
pub struct KeptService {
    pub keeper: Child,
    pub folder: tempfile::TempDir,
    command: Vec<String>,
    systemd: Option<Systemd>,
}

impl KeptService {
    pub fn start(pages: usize, contract: &str, cache: &str, mode: &str) -> Self {
        Self::start_under(None, pages, &[contract, cache, mode])
    }

    /// Starts over a snapshot in a store of this machine.
    pub fn start_of_object(pages: usize) -> Self {
        Self::start_over("opendal:fs://", None, pages, &["-", "-", "lenient"])
    }

    /// Starts under a service manager; the arguments are CONTRACT CACHE MODE.
    pub fn start_under(systemd: Option<Systemd>, pages: usize, args: &[&str]) -> Self {
        Self::start_over("", systemd, pages, args)
    }

    fn start_over(scheme: &str, systemd: Option<Systemd>, pages: usize, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshot = make_snapshot(folder.path(), pages);
        let paths = [folder.path().join("socket"), snapshot];
        let [socket, snapshot] = paths.map(|it| it.to_str().expect("a path").to_owned());
        let paths = [socket, format!("{scheme}{snapshot}")];
        let args = args.iter().map(|it| (*it).to_owned());
        let command: Vec<_> = paths.into_iter().chain(args).collect();
        let keeper = spawn(&command, systemd.as_ref());
        let service = Self {
            keeper,
            folder,
            command,
            systemd,
        };
        await_that("the manager serves", || service.clients().is_some());
        service
    }

    pub fn systemd(&self) -> &Systemd {
        self.systemd.as_ref().expect("a service manager")
    }

    /// Starts the keeper again, with what the service manager has; not before another one has ended.
    pub fn start_again(&mut self) {
        self.keeper = spawn(&self.command, self.systemd.as_ref());
    }

    /// Has the service begin with another argument (0 is CONTRACT). Returns its output: it is to end at once.
    pub fn refusal(&mut self, argument: usize, value: &str) -> String {
        let mut command = self.command.clone();
        value.clone_into(&mut command[2 + argument]);
        let mut keeper = spawn(&command, self.systemd.as_ref());
        let mut text = String::new();
        let output = keeper.stdout.as_mut().expect("its output");
        std::io::Read::read_to_string(output, &mut text).expect("its output");
        keeper.wait().expect("its end");
        text
    }

    /// Kills the keeper and, `pause` later, its manager, or both in the other order.
    pub fn kill_both(&mut self, is_keeper_first: bool, pause: Duration) {
        let mut manager = None;
        await_that("there is a manager", || {
            manager = self.manager();
            manager.is_some()
        });
        // SAFETY: a child of the keeper, or has just been one: no other process waits for it.
        let end_manager = || unsafe { libc::kill(manager.expect("found above"), libc::SIGKILL) };
        if is_keeper_first {
            self.end_keeper();
            std::thread::sleep(pause);
            end_manager();
        } else {
            // It starts no other one.
            // SAFETY: the keeper, which has not been waited for.
            unsafe { libc::kill(self.keeper.id() as i32, libc::SIGSTOP) };
            end_manager();
            std::thread::sleep(pause);
            self.end_keeper();
        }
    }

    /// Has the service end as it is asked to.
    pub fn stop(&mut self) {
        // SAFETY: the keeper, which has not been waited for.
        unsafe { libc::kill(self.keeper.id() as i32, libc::SIGTERM) };
        self.keeper.wait().expect("the keeper's end");
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn guest(&self, kind: &str, bytes: usize) -> Guest {
        Guest::start(kind, &self.socket(), bytes)
    }

    /// The manager's process, if there is one: the last, beside those that have calls under way still.
    pub fn manager(&self) -> Option<i32> {
        let keeper = self.keeper.id();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().next_back()?.parse().ok()
    }

    /// Kills the manager, whatever it is doing, unless it is `but`. Returns its process.
    pub fn kill_manager(&self, but: i32) -> i32 {
        let mut killed = None;
        await_that("there is another manager", || {
            killed = self.manager().filter(|pid| *pid != but);
            killed.is_some()
        });
        let pid = killed.expect("found above");
        // SAFETY: a child of the keeper, which waits for it.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        pid
    }

    /// The guests, if a manager answers.
    pub fn clients(&self) -> Option<Vec<ClientReport>> {
        match request(&self.socket(), &ControlRequest::Show)
            .ok()?
            .next()?
        {
            Ok(ControlReply::Clients(clients)) => Some(clients),
            _ => None,
        }
    }

    /// The counter of client 1, as soon as a manager serves that client: the one before may have
    /// been killed just now.
    pub fn counter(&self, name: &str) -> u64 {
        let mut value = None;
        await_that("client 1 is served", || {
            let clients = self.clients().unwrap_or_default();
            let first = clients.iter().find(|it| it.number == 1);
            value = first.map(|it| it.counters[name]);
            value.is_some()
        });
        value.expect("found above")
    }

    pub fn end_keeper(&mut self) {
        self.keeper.kill().expect("the keeper's end");
        self.keeper.wait().expect("the keeper's end");
    }
}

/// Starts a keeper with these arguments.
fn spawn(args: &[String], systemd: Option<&Systemd>) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = match systemd {
        Some(systemd) => systemd.command(&program),
        None => Command::new(program),
    };
    let command = command.arg("keeper").args(args).stdout(Stdio::piped());
    command.spawn().expect("a keeper")
}

impl Drop for KeptService {
    fn drop(&mut self) {
        self.stop();
    }
}
