//! Measurements beside the alternatives, in the same run.
