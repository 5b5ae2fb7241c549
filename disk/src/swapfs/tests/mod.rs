//! Tests of the filesystem as a whole: by a reference model, and with power lost at every write.

mod crash;
mod mock_device;
mod reference_model;
