//! The native part of the Python package `longhaul`: devices as files, copies, and file systems in pools.
//!
//! What users see is in `longhaul/*.py`, which gives these classes the interfaces of `io` and `fsspec`.
//!
//! | room | contents |
//! |---|---|
//! | `device` | a device, read and written at any offset |
//! | `copy` | copies of trees of files |
//! | `mount` | a file system in a pool, by paths |
//! | `connect` | options of connections |
//! | `error` | errors as exceptions |
//! | `wait` | waits without the interpreter's lock, which a signal ends; what does not outlive fork(2) |

mod connect;
mod copy;
mod device;
mod error;
mod mount;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("TLS", cfg!(feature = "tls"))?;
    module.add_class::<device::Device>()?;
    module.add_class::<mount::Mount>()?;
    module.add_class::<mount::MountFile>()?;
    module.add_function(wrap_pyfunction!(copy::cp, module)?)
}
