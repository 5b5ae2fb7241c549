//! Why a program cannot be given a pager, and what to do about it.
//!
//! Rule: nothing here allocates or locks, as for [`crate::elf_check`].

use rustix::process::geteuid;

/// Bytes of a name that a message shows.
const NAME: usize = 64;

/// The machine this is built for, as ELF numbers it, and by name.
pub(crate) const MACHINE: (u16, &str) = (62, "x86-64");

/// Why a program cannot page itself. Its text has a remedy as `{}`; `{:#}` is for a program that runs
/// unpaged anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpageable {
    /// No dynamic loader runs in it.
    Static {
        /// The interpreter, if the program is a script.
        interpreter: Option<Name>,
    },
    /// It changes its identity when it starts.
    Setuid,
    /// It gains capabilities when it starts.
    Capabilities,
    /// The process that executes it has an effective user or group that is not its real one.
    EffectiveIdentity,
    /// It is of another processor, or 32 bits wide.
    Architecture {
        /// As ELF numbers it.
        machine: u16,
        /// Width of an address.
        bits: u8,
    },
    /// It is linked with a C library that is not glibc.
    Loader {
        /// The dynamic loader that it names.
        loader: Name,
    },
}

impl std::error::Error for Unpageable {}

impl std::fmt::Display for Unpageable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (no_pager, mend) = match self {
            Self::Static { interpreter } => {
                if let Some(interpreter) = interpreter {
                    write!(f, "its interpreter is {interpreter}: ")?;
                }
                f.write_str("it is statically linked, so no pager can be loaded into it")?;
                ("", "use a dynamically linked build of it")
            }
            Self::Setuid => {
                f.write_str("it is set-user-ID or set-group-ID")?;
                (TRUSTED, "run it as the user it becomes")
            }
            Self::Capabilities => {
                f.write_str("it has file capabilities")?;
                let mend = "remove them (setcap -r) from a copy and run it as root";
                (TRUSTED, mend)
            }
            Self::EffectiveIdentity => {
                f.write_str(
                    "the real and the effective user or group of its process are not the same",
                )?;
                (
                    TRUSTED,
                    "make them the same (setresuid, setresgid) before it is executed",
                )
            }
            Self::Architecture { machine, bits } => {
                write!(
                    f,
                    "it is built for another machine (ELF machine {machine}, {bits} bits), the pager for {} with 64 \
                     bits",
                    MACHINE.1
                )?;
                ("", "use a build for this machine")
            }
            Self::Loader { loader } => {
                let ours = "not glibc's, and the pager is built for glibc";
                write!(f, "its dynamic loader is {loader}, {ours}")?;
                ("", "use a build for glibc")
            }
        };
        f.write_str(no_pager)?;
        match f.alternate() {
            // A user without the privilege to filter sets no_new_privs: `seccomp::install`.
            true if matches!(self, Self::Setuid | Self::Capabilities) && !geteuid().is_root() => f.write_str(
                "; it also runs without the privilege that it would gain, since the tree has no_new_privs",
            ),
            true => Ok(()),
            false => write!(
                f,
                ": {mend}, or use --allow-unpaged to let it run outside the contract"
            ),
        }
    }
}

const TRUSTED: &str = ", and the kernel lets no pager be loaded into such a program";

/// A file name of bounded length, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME]);

impl Name {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut it = Self([0; NAME]);
        let n = bytes.len().min(NAME);
        it.0[..n].copy_from_slice(&bytes[..n]);
        it
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.0.split(|b| *b == 0).next().unwrap_or(&[]);
        f.write_str(std::str::from_utf8(used).unwrap_or("of an unreadable name"))
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
