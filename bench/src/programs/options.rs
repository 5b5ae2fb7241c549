//! The options of `selfpage bench programs`, and the settings that follow from them.

use super::arm::MemoryArm;
use super::fraction::Fraction;
use super::program::KnownProgram;
use crate::prelude::*;
use clap::value_parser;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct ProgramsOptions {
    /// Times each arm is run; the median counts: 3, or 1 with --quick.
    #[arg(long, default_value = "3", default_value_if("quick", "true", "1"))]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// Only these programs.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<KnownProgram>,
    /// Only these arms; alone-mimalloc is one more than the usual ones.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub arms: Vec<MemoryArm>,
    /// Only so much memory, of what the program takes alone; `fits` is one more than the usual ones.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub memory: Vec<Fraction>,
    /// MiB that a program takes alone, about: 512, or 192 with --quick. With less, what our pager
    /// processes take is a large part of the memory.
    #[arg(long, default_value = "512", default_value_if("quick", "true", "192"))]
    #[arg(value_parser = value_parser!(u64).range(32..=65_536))]
    pub mib: u64,
    /// Two programs in half of their memory, once, without the daemon: a judged answer in two
    /// minutes, or the reason why there is none.
    #[arg(long)]
    pub quick: bool,
    /// Seconds that a run may take at most; one that takes longer is ended, and its arm with it.
    #[arg(long, default_value_t = 300, value_parser = value_parser!(u64).range(1..))]
    pub limit: u64,
    /// The Python interpreter, where the one of the path is not to be used.
    #[arg(long)]
    pub python: Option<PathBuf>,
    /// The allocator's library of alone-mimalloc, where Debian's libmimalloc2.0 is not to be used.
    #[arg(long)]
    pub allocator: Option<PathBuf>,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// Draws times and peaks here, as SVG.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub svg: Option<PathBuf>,
}

impl ProgramsOptions {
    /// With the usual programs, arms and memory where none are named, or as few as a quick look
    /// takes.
    pub fn settled(mut self) -> Self {
        let quick = self.quick;
        if self.only.is_empty() {
            self.only = match quick {
                true => KnownProgram::QUICK.to_vec(),
                false => KnownProgram::value_variants().to_vec(),
            };
        }
        if self.arms.is_empty() {
            self.arms = match quick {
                true => MemoryArm::QUICK.to_vec(),
                false => MemoryArm::USUAL.to_vec(),
            };
        }
        if self.memory.is_empty() {
            self.memory = match quick {
                true => vec![Fraction::Half],
                false => Fraction::USUAL.to_vec(),
            };
        }
        self
    }

    /// Runs of a program, the one that measures its memory included.
    pub fn runs_each(&self) -> u64 {
        1 + (self.memory.len() * self.arms.len()) as u64 * self.repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;

    fn options(words: &[&str]) -> Result<ProgramsOptions> {
        match crate::parse(&[&["programs"], words].concat())? {
            Bench::Programs(options) => Ok(options.settled()),
            _ => panic!("it is another benchmark"),
        }
    }

    #[test]
    fn all_programs_are_run_in_every_usual_arm_and_memory() {
        let options = options(&[]).unwrap();
        assert_eq!(options.only, KnownProgram::value_variants());
        assert_eq!(
            (options.arms.as_slice(), options.repeats),
            (&MemoryArm::USUAL[..], 3)
        );
        assert_eq!(options.runs_each(), 1 + 3 * 7 * 3);
    }

    #[test]
    fn a_quick_run_keeps_what_is_named() {
        let words = [
            "--quick", "--only", "sort", "--memory", "half", "--arms", "zram",
        ];
        let options = options(&words).unwrap();
        assert_eq!(
            (options.only, options.arms),
            (vec![KnownProgram::Sort], vec![MemoryArm::Zram])
        );
        assert_eq!(
            (options.memory, options.repeats, options.mib),
            (vec![Fraction::Half], 1, 192)
        );
    }

    #[test]
    fn options_that_make_no_experiment_are_refused_by_name() {
        for (word, name) in [
            ("--repeats=0", "--repeats"),
            ("--mib=1", "--mib"),
            ("--limit=0", "--limit"),
            ("--arms=linux", "--arms"),
        ] {
            let refusal = options(&[word]).unwrap_err().to_string();
            assert!(refusal.contains(name), "{word}: {refusal}");
        }
    }
}
