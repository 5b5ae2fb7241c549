//! A manager that has a keeper, which is a process of its own and starts another manager for one that ends.

use crate::common::{Guest, await_that, make_snapshot, mib};
use host::restart_policy::RestartPolicy;
use manager::client_memory::SharedCache;
use manager::control::{ClientReport, ControlReply, ControlRequest, request};
use manager::keeper::keep;
use manager::server::{Manager, ManagerConfig};
use manager::snapshot::Snapshot;
use manager::sockets::Sockets;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The keeper's main function: arguments are SOCKET SNAPSHOT CONTRACT CACHE MODE.
pub fn main(args: &[String]) {
    let snapshot = Snapshot::open(Path::new(&args[1]), &[]).expect("a snapshot");
    let cache = (args[3] != "-").then(|| {
        let cache = SharedCache::create(Path::new(&args[3]), &snapshot);
        Arc::new(cache.expect("a cache"))
    });
    let config = ManagerConfig {
        socket: PathBuf::from(&args[0]),
        snapshot: Some(snapshot),
        size: 0,
        contract: (args[2] != "-").then(|| (mib(2), args[2].parse().expect("a store"))),
        disk: ManagerConfig::equal_share(),
        uses_working_set: true,
        cache,
        most_clients: 64,
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
    let sockets = Sockets::listen(&config.socket).expect("sockets");
    let end = keep(sockets, &signals, policy, |from| {
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

/// A keeper, its manager, and their folder.
pub struct KeptService {
    pub keeper: Child,
    pub folder: tempfile::TempDir,
}

impl KeptService {
    pub fn start(pages: usize, contract: &str, cache: &str, mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshot = make_snapshot(folder.path(), pages);
        let keeper = Command::new(std::env::current_exe().expect("this program"))
            .arg("keeper")
            .arg(folder.path().join("socket"))
            .arg(snapshot)
            .args([contract, cache, mode])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a keeper");
        let service = Self { keeper, folder };
        await_that("the manager serves", || service.clients().is_some());
        service
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn guest(&self, kind: &str, bytes: usize) -> Guest {
        Guest::start(kind, &self.socket(), bytes)
    }

    /// The manager's process, if there is one.
    pub fn manager(&self) -> Option<i32> {
        let keeper = self.keeper.id();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().next()?.parse().ok()
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

impl Drop for KeptService {
    fn drop(&mut self) {
        // SAFETY: the keeper, which has not been waited for, or does not exist.
        unsafe { libc::kill(self.keeper.id() as i32, libc::SIGTERM) };
        let _ = self.keeper.wait();
    }
}
