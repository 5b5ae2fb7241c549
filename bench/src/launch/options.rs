//! The options of `selfpage bench launch`, and the settings that follow from them.

use super::arm::Arm;
use super::load;
use super::program::NeighbourKind;
use crate::env::EnvOptions;
use crate::prelude::*;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5)]
    pub repeats: u64,
    /// Seconds of the clip that count: 16, or 8 with --quick. The neighbour is launched an
    /// eighth into them.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Only these neighbours.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<NeighbourKind>,
    /// Only these arms; there are two more than the usual ones.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub arms: Vec<Arm>,
    /// Frames that the player holds.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    pub read_ahead: Vec<u64>,
    /// Processors' worth of constant load, instead of calibrating it.
    #[arg(long)]
    pub load: Option<f64>,
    /// MiB that a neighbour fills, about: 192, or 96 with --quick. Its contract is less.
    #[arg(long)]
    pub mib: Option<u64>,
    /// The neighbour's limit in ours-limited, as `run --fault-rate` takes it.
    #[arg(long, default_value = "auto")]
    pub fault_rate: String,
    /// The player's reservation in ours-limited, as `run --cpu` takes it; by default from
    /// what a frame was measured to take.
    #[arg(long)]
    pub cpu: Option<String>,
    /// One neighbour, one read-ahead, one repeat, a short clip: two minutes or so.
    #[arg(long)]
    pub quick: bool,
    /// Seconds that a round may take at most.
    #[arg(long, default_value_t = 180)]
    pub limit: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// Draws the paper's figures in this folder, as SVG.
    #[arg(long, value_parser = crate::cli_parse::output_folder)]
    pub svg: Option<PathBuf>,
}

/// Seconds of the clip, and MiB that a neighbour fills, by default; and
/// with `--quick`.
const USUAL: (f64, u64) = (16.0, 192);
const QUICK: (f64, u64) = (8.0, 96);

/// The settings that follow from the options.
pub struct LaunchPlan {
    /// Times each arm is run.
    pub repeats: u64,
    /// Seconds of the clip that count.
    pub seconds: f64,
    /// MiB that a neighbour fills.
    pub mib: u64,
    /// The neighbours.
    pub names: Vec<NeighbourKind>,
    /// The arms.
    pub arms: Vec<Arm>,
    /// Frames that the player holds.
    pub aheads: Vec<u64>,
}

impl LaunchPlan {
    /// From the options.
    pub fn of(options: &Options) -> Self {
        let usual = if options.quick { QUICK } else { USUAL };
        let mut plan = Self {
            repeats: options.repeats,
            seconds: options.seconds.unwrap_or(usual.0),
            mib: options.mib.unwrap_or(usual.1),
            names: match options.only.as_slice() {
                [] => NeighbourKind::usual(),
                some => some.to_vec(),
            },
            arms: match options.arms.as_slice() {
                [] => Arm::USUAL.to_vec(),
                some => some.to_vec(),
            },
            aheads: options.read_ahead.clone(),
        };
        if options.quick {
            plan.repeats = 1;
            plan.names.truncate(1);
            plan.aheads.truncate(1);
        }
        plan
    }

    /// Refuses what makes no experiment.
    pub fn check(&self, options: &Options) -> Result<()> {
        if self.repeats == 0 || self.limit_is_short(options) {
            bail!("--repeats must be at least 1, --limit longer than --seconds");
        }
        if !(self.seconds >= 1.0 && self.seconds <= 3600.0) {
            bail!("--seconds must be between 1 and 3600");
        }
        if !(16..=4096).contains(&self.mib) {
            bail!("--mib must be between 16 and 4096");
        }
        if self.aheads.iter().any(|ahead| !(1..=64).contains(ahead)) || self.aheads.is_empty() {
            bail!("--read-ahead must be between 1 and 64 frames");
        }
        let max = load::max_load();
        match options.load {
            Some(wanted) if !(0.0..=max).contains(&wanted) => Err(anyhow!(
                "--load must be between 0 and {max}: {} threads want one processor each at most",
                load::threads()
            )),
            _ => Ok(()),
        }
    }

    fn limit_is_short(&self, options: &Options) -> bool {
        options.limit as f64 <= self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        bench: Bench,
    }

    fn options(words: &[&str]) -> Options {
        let words = [&["bench", "launch"], words].concat();
        match Line::try_parse_from(words).map(|line| line.bench) {
            Ok(Bench::Launch(options)) => options,
            _ => panic!("it is no launch"),
        }
    }

    fn refusal(words: &[&str]) -> String {
        let options = options(words);
        LaunchPlan::of(&options)
            .check(&options)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_usual_is_what_the_paper_compares_and_both_read_aheads() {
        let options = options(&[]);
        let plan = LaunchPlan::of(&options);
        assert!(plan.check(&options).is_ok());
        assert_eq!((plan.repeats, plan.aheads), (5, vec![1, 4]));
        assert_eq!(plan.arms, Arm::USUAL);
        assert_eq!(plan.names.len(), 3);
    }

    #[test]
    fn a_quick_run_is_of_the_first_of_each() {
        let options = options(&["--quick", "--only", "build,python", "--read-ahead", "4,1"]);
        let plan = LaunchPlan::of(&options);
        assert_eq!(
            (plan.names, plan.aheads),
            (vec![NeighbourKind::Build], vec![4])
        );
        assert_eq!(
            (plan.repeats, plan.seconds, plan.mib),
            (1, QUICK.0, QUICK.1)
        );
    }

    #[test]
    fn options_that_make_no_experiment_are_refused_by_name() {
        for (words, name) in [
            (["--repeats", "0"], "--repeats"),
            (["--seconds", "0.5"], "--seconds"),
            (["--seconds", "NaN"], "--seconds"),
            (["--mib", "1"], "--mib"),
            (["--read-ahead", "0"], "--read-ahead"),
            (["--load", "-1"], "--load"),
            (["--load", "9999"], "--load"),
            (["--limit", "3"], "--limit"),
        ] {
            let words = [&format!("{}={}", words[0], words[1])[..]];
            assert!(refusal(&words).contains(name), "{words:?}");
        }
    }
}
